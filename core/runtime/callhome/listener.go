package callhome

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
)

// Listener takes the connections of workers. All methods are safe for concurrent use.
type Listener struct {
	opts    Options
	ln      net.Listener
	address string
	running owned.Group
	refused atomic.Uint64 // connections beyond a limit
	strange atomic.Uint64 // connections without a subject that is expected

	mu       sync.Mutex // guards the rest
	closed   bool
	conns    map[net.Conn]struct{}
	half     *plane.HalfOpen // of them, those that have not named a subject yet
	expected map[string]*Pending
}

// Listen binds to an address, "host:port"; port 0 takes a free one. Workers are told to connect to host, which must not be empty, and that port.
func Listen(address, host string, o Options) (*Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: response plane: %w", plane.ErrCannotConnect, err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	l := &Listener{
		opts: o.filled(), ln: ln, address: net.JoinHostPort(host, port),
		conns: make(map[net.Conn]struct{}), expected: make(map[string]*Pending),
	}
	l.half = plane.NewHalfOpen(l.opts.MaxHalfOpen)
	l.running.Go(l.accept)
	return l, nil
}

// Address is where workers connect to.
func (l *Listener) Address() string { return l.address }

// Stats count since the start, except the first three.
type Stats struct {
	Conns    int // now
	HalfOpen int // of them, those that have not named a subject yet
	Expected int // requests whose worker has not connected yet
	Refused  uint64
	Strange  uint64
}

// Stats counts.
func (l *Listener) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{len(l.conns), l.half.Len(), len(l.expected), l.refused.Load(), l.strange.Load()}
}

// Close breaks all streams. It is idempotent.
func (l *Listener) Close() {
	l.ln.Close()
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		c.Close()
	}
	expected := l.expected
	l.expected = nil
	l.mu.Unlock()
	for _, p := range expected {
		close(p.gone)
	}
	l.running.Wait()
}

func (l *Listener) accept() {
	for {
		c, err := l.ln.Accept()
		switch {
		case err == nil:
			l.admit(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(10 * time.Millisecond) // no file descriptors, say
		}
	}
}

func (l *Listener) admit(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.conns) >= l.opts.MaxConns {
		l.refused.Add(1)
		c.Close()
		return
	}
	l.conns[c] = struct{}{}
	if l.half.Add(c) {
		l.refused.Add(1)
	}
	l.running.Go(func() { l.greet(c) })
}

// greet reads the subject, and hands the connection to who expects it.
func (l *Listener) greet(raw net.Conn) {
	c, h := raw, handshake{}
	var r *bufio.Reader
	err := owned.Try(func() error {
		secured, err := l.opts.TLS.Server(raw)
		if err != nil {
			return err
		}
		c = secured
		_ = c.SetReadDeadline(time.Now().Add(l.opts.HandshakeTimeout))
		r = bufio.NewReaderSize(c, 4<<10)
		const most = 4 << 10
		header, body, err := plane.NewReader(r, most).Read()
		if err == nil && len(body) == 0 {
			err = json.Unmarshal(header, &h)
		}
		return err
	})
	_ = c.SetReadDeadline(time.Time{})
	l.mu.Lock()
	l.half.Remove(raw)
	p := l.expected[h.Subject]
	if err == nil && p != nil && h.StreamType == "response" {
		delete(l.expected, h.Subject)
		p.conn <- accepted{c, r}
		close(p.begun)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.strange.Add(1)
	l.drop(c)
}

// spawn starts a goroutine unless the listener is closed.
func (l *Listener) spawn(body func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.running.Go(body)
	}
	return !l.closed
}

func (l *Listener) drop(c net.Conn) {
	raw := secure.Raw(c)
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // the worker waits for it, and nobody else needs the port's memory of it
	}
	raw.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, raw)
}

type accepted struct {
	net.Conn
	r *bufio.Reader
}

// Pending is a response that is expected. Wait or Cancel must be called.
type Pending struct {
	l       *Listener
	subject string
	codec   string
	plain   bool
	conn    chan accepted
	begun   chan struct{} // closed when the worker has connected
	gone    chan struct{} // the listener was closed
}

// Expect prepares for a response with items in a codec; plain ones are not annotated. Errors: plane.ErrClosed.
func (l *Listener) Expect(codec string, plain bool) (*Pending, error) {
	p := &Pending{l: l, subject: rand.Text(), codec: codec, plain: plain, conn: make(chan accepted, 1), begun: make(chan struct{}), gone: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, plane.ErrClosed
	}
	l.expected[p.subject] = p
	return p, nil
}

// Response says where the worker is to connect to.
func (p *Pending) Response() plane.Response {
	return plane.Response{Address: p.l.address, Subject: p.subject}
}

// Begun is closed when the worker has connected.
func (p *Pending) Begun() <-chan struct{} { return p.begun }

// Cancel gives the response up.
func (p *Pending) Cancel() {
	p.l.mu.Lock()
	delete(p.l.expected, p.subject)
	p.l.mu.Unlock()
	select {
	case a := <-p.conn:
		_ = word(a.Conn, wordKill)
		p.l.drop(a.Conn)
	default:
	}
}

// Wait waits until the worker has begun. Errors: plane.ErrCannotConnect (it says it cannot, or breaks), a *plane.WorkerError if the request is
// wrong, plane.ErrClosed, and that of ctx.
func (p *Pending) Wait(ctx context.Context) (*Stream, error) {
	select {
	case a := <-p.conn:
		s := &Stream{l: p.l, conn: a.Conn, r: plane.NewReader(a.r, p.l.opts.MaxMessage), codec: p.codec, plain: p.plain}
		if err := s.begin(ctx); err != nil {
			s.Close()
			return nil, err
		}
		return s, nil
	case <-p.gone:
		return nil, plane.ErrClosed
	case <-ctx.Done():
		p.Cancel()
		return nil, context.Cause(ctx)
	}
}
