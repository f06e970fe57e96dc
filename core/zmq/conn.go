package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

// SocketType is the role announced in the handshake. Dial takes Sub and Dealer.
type SocketType string

// The socket types.
const (
	Sub    SocketType = SocketType(zmq4.Sub)
	Dealer SocketType = SocketType(zmq4.Dealer)

	pub    SocketType = SocketType(zmq4.Pub)
	router SocketType = SocketType(zmq4.Router)
)

// Conn is one ZMTP connection. Recv is for one goroutine at a time; Send and Close are for any.
//
// Invariants: bytes leave only under write, in whole frames: a write that fails part way closes the socket. Once Recv
// has failed it gives the same error for ever.
type Conn struct {
	raw  net.Conn
	g    *guard
	z    *zmq4.Conn
	opts Options

	write sync.Mutex // guards z's sending side, g.out and the write deadline
	fail  error      // belongs to the goroutine that calls Recv

	closing sync.Once
	closed  chan struct{}
	beats   owned.Group
}

// Dial connects and makes the handshake. It gives up when ctx ends, and after DialTimeout plus HandshakeTimeout.
func Dial(ctx context.Context, endpoint string, kind SocketType, o Options) (*Conn, error) {
	if kind != Sub && kind != Dealer {
		return nil, fmt.Errorf("%w: cannot dial as %q, expected %q or %q", ErrHandshake, kind, Sub, Dealer)
	}
	e, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if e.Host == "*" {
		return nil, fmt.Errorf("%w %q: cannot connect to every address, name a host", ErrEndpoint, endpoint)
	}
	o = o.dialling()
	network, address := e.network()
	raw, err := (&net.Dialer{Timeout: o.DialTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := owned.After(ctx, func() { raw.Close() })
	c, err := open(raw, kind, o, nil)
	if !stop() {
		if err == nil {
			c.Close()
		}
		return nil, context.Cause(ctx)
	}
	return c, err
}

// open makes the handshake on a connected socket and owns the socket from the start. onCommand, which may be nil, gets
// the commands other than PING and PONG, on the goroutine that calls Recv.
func open(raw net.Conn, kind SocketType, o Options, onCommand func(name string, body []byte) error) (*Conn, error) {
	c := &Conn{raw: raw, opts: o, closed: make(chan struct{})}
	c.g = newGuard(raw, &o)
	c.g.onCommand = c.commands(onCommand)
	z, err := handshake(c.g, kind, &o)
	if err != nil {
		raw.Close()
		return nil, err
	}
	c.z = z
	c.g.established = true
	if o.Heartbeat > 0 {
		c.g.src.timeout = o.HeartbeatTimeout
		c.beats.Go(c.heartbeat)
	}
	return c, nil
}

// handshake calls the library, which indexes the peer's metadata without checking its lengths: its panic is an error.
func handshake(g *guard, kind SocketType, o *Options) (z *zmq4.Conn, err error) {
	defer func() {
		if r := recover(); r != nil {
			z, err = nil, fmt.Errorf("%w: %w: malformed metadata (%v)", ErrHandshake, ErrProtocol, r)
		}
	}()
	if err := g.SetDeadline(time.Now().Add(o.HandshakeTimeout)); err != nil {
		return nil, err
	}
	z, err = zmq4.Open(g, announcing{null.Security(), o.Incarnation}, zmq4.SocketType(kind), nil, false, nil)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("%w: not finished within %v", ErrHandshake, o.HandshakeTimeout)
		}
		return nil, fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	return z, g.SetDeadline(time.Time{})
}

// announcing is a security mechanism that tells the peer an incarnation.
type announcing struct {
	zmq4.Security
	incarnation string
}

// Handshake implements zmq4.Security. The library puts "X-" before the name.
func (a announcing) Handshake(conn *zmq4.Conn, server bool) error {
	if a.incarnation != "" {
		conn.Meta["incarnation"] = a.incarnation
	}
	return a.Security.Handshake(conn, server)
}

// Incarnation is the peer's Options.Incarnation, "" if it tells none.
func (c *Conn) Incarnation() string { return c.z.Peer.Meta["X-Incarnation"] }

// Recv waits for the next message and gives its frames, which are the caller's to keep. It fails for good when the
// connection breaks, is closed, or the peer sends what it may not.
func (c *Conn) Recv() ([][]byte, error) {
	if c.fail != nil {
		return nil, c.fail
	}
	m, err := c.z.RecvMsg()
	if err != nil {
		c.fail = c.cause(err)
		return nil, c.fail
	}
	return m.Frames, nil
}

func (c *Conn) cause(err error) error {
	switch {
	case c.isClosed():
		return ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: nothing for %v", ErrSilent, c.opts.HeartbeatTimeout)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("peer closed the connection: %w", io.EOF)
	}
	return err
}

// Send sends one message. The frames are not kept. An error means that the connection is broken.
func (c *Conn) Send(frames ...[]byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	return c.flushed(c.buffer(frames))
}

// buffer puts a message into the write buffer; the caller holds write.
func (c *Conn) buffer(frames [][]byte) error {
	if t := c.opts.WriteTimeout; t > 0 {
		if err := c.raw.SetWriteDeadline(time.Now().Add(t)); err != nil {
			return err
		}
	}
	return c.z.SendMsg(zmq4.NewMsgFrom(frames...))
}

// flushed empties the write buffer if err is nil, and closes the socket if anything failed: the stream may have ended
// inside a frame. The caller holds write.
func (c *Conn) flushed(err error) error {
	if err == nil {
		err = c.g.out.Flush()
	}
	if err == nil {
		return nil
	}
	c.raw.Close()
	if c.isClosed() {
		return ErrClosed
	}
	return err
}

func (c *Conn) sendCommand(name string, body []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	if t := c.opts.WriteTimeout; t > 0 {
		if err := c.raw.SetWriteDeadline(time.Now().Add(t)); err != nil {
			return c.flushed(err)
		}
	}
	return c.flushed(c.z.SendCmd(name, body))
}

// commands answers PING with the context it carries, as ZMTP 3.1 says, and takes PONG as the sign of life it is.
func (c *Conn) commands(other func(string, []byte) error) func(string, []byte) error {
	return func(name string, body []byte) error {
		switch name {
		case zmq4.CmdPing:
			const ttl, maxContext = 2, 16
			if len(body) < ttl || len(body) > ttl+maxContext {
				return fmt.Errorf("%w: PING of %d bytes", ErrProtocol, len(body))
			}
			return c.sendCommand(zmq4.CmdPong, body[ttl:])
		case zmq4.CmdPong:
			return nil
		case zmq4.CmdError:
			return fmt.Errorf("%w: peer sent ERROR", ErrProtocol)
		}
		if other != nil {
			return other(name, body)
		}
		return nil
	}
}

// heartbeat pings until the connection is closed. The time to live tells the peer when it may give us up.
func (c *Conn) heartbeat() {
	var ttl [2]byte
	const tenth = 100 * time.Millisecond
	binary.BigEndian.PutUint16(ttl[:], uint16(min(c.opts.HeartbeatTimeout/tenth, 1<<16-1)))
	tick := time.NewTicker(c.opts.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-c.closed:
			return
		case <-tick.C:
			if c.sendCommand(zmq4.CmdPing, ttl[:]) != nil {
				return
			}
		}
	}
}

func (c *Conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// Close breaks the connection; whoever is in Recv or Send returns. Messages not yet taken by the socket are lost. It
// may be called more than once.
func (c *Conn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	err := c.raw.Close()
	c.beats.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// sendAll sends messages back to back.
func (c *Conn) sendAll(messages [][][]byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	for _, frames := range messages {
		if err := c.buffer(frames); err != nil {
			return c.flushed(err)
		}
	}
	return c.flushed(nil)
}
