package tcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Pool sends requests to workers. All methods are safe for concurrent use.
type Pool struct {
	opts Options
	dial func(ctx context.Context, host string) (net.Conn, error)

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running owned.Group

	mu     sync.Mutex // guards the rest, and conn.load
	closed bool
	hosts  map[string][]*conn // connected or connecting
}

// NewPool makes a pool without connections.
func NewPool(o Options) *Pool {
	p := &Pool{opts: o.filled(), hosts: make(map[string][]*conn)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.dial = func(ctx context.Context, host string) (net.Conn, error) {
		d := net.Dialer{Timeout: p.opts.ConnectTimeout}
		c, err := d.DialContext(ctx, "tcp", host)
		if err != nil {
			return nil, err
		}
		name, _, _ := net.SplitHostPort(host) // it could be dialled
		return p.opts.TLS.Client(ctx, c, name)
	}
	return p
}

// Send sends a payload to an address, "host:port/path", and waits for the acknowledgement. Errors: plane.ErrInvalidArgument,
// plane.ErrTooLarge (nothing was sent), plane.ErrCannotConnect, plane.ErrTimeout (no acknowledgement), plane.ErrOverloaded,
// plane.ErrUnavailable (refused), plane.ErrClosed, and that of ctx.
func (p *Pool) Send(ctx context.Context, address, id string, payload []byte) error {
	host, path, ok := strings.Cut(address, "/")
	if !ok || host == "" || path == "" {
		return fmt.Errorf("%w: address %q, expected host:port/path", plane.ErrInvalidArgument, address)
	}
	if len(payload) > p.opts.MaxMessage {
		return fmt.Errorf("%w: request of %d bytes, at most %d", plane.ErrTooLarge, len(payload), p.opts.MaxMessage)
	}
	headers, _ := json.Marshal(map[string]string{"x-endpoint-path": path, "request-id": id})
	frame, err := AppendRequest(make([]byte, 0, len(path)+len(headers)+len(payload)+8), path, headers, payload)
	if err != nil {
		return err
	}
	c, err := p.pick(host)
	if err != nil {
		return err
	}
	defer p.done(c)
	select {
	case <-c.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.send(ctx, frame, p.opts.AckTimeout)
}

// pick gives the connection to a host with the least to do, or a new one.
func (p *Pool) pick(host string) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, plane.ErrClosed
	}
	const busy = 8 // more than that, and another connection is worth its price
	var best *conn
	for _, c := range p.hosts[host] {
		if best == nil || c.load < best.load {
			best = c
		}
	}
	if best == nil || best.load >= busy && len(p.hosts[host]) < p.opts.HostConns {
		best = &conn{host: host, ready: make(chan struct{})}
		p.hosts[host] = append(p.hosts[host], best)
		p.running.Go(func() { p.serve(best) })
	}
	if best.load >= p.opts.Pipeline {
		return nil, fmt.Errorf("%w: %d requests to %s wait for their acknowledgement", plane.ErrOverloaded, best.load, host)
	}
	best.load++
	return best, nil
}

func (p *Pool) done(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.load--
}

// serve connects, reads acknowledgements until the connection breaks, and forgets it.
func (p *Pool) serve(c *conn) {
	err := owned.Try(func() error { return p.follow(c) })
	p.mu.Lock()
	conns := p.hosts[c.host]
	for i, x := range conns {
		if x == c {
			conns = append(conns[:i:i], conns[i+1:]...)
		}
	}
	if p.hosts[c.host] = conns; len(conns) == 0 {
		delete(p.hosts, c.host)
	}
	p.mu.Unlock()
	c.fail(err)
}

func (p *Pool) follow(c *conn) error {
	ctx, cancel := context.WithTimeout(p.ctx, p.opts.ConnectTimeout)
	nc, err := p.dial(ctx, c.host)
	cancel()
	if err != nil {
		return err
	}
	c.net = nc
	stop := owned.After(p.ctx, func() { nc.Close() })
	defer stop()
	close(c.ready)
	return c.read()
}

// Conns counts the connections.
func (p *Pool) Conns() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conns := range p.hosts {
		n += len(conns)
	}
	return n
}

// Close breaks all connections. It is idempotent.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.running.Wait()
}

// conn is one connection. Requests are written under mu, so that waiting is in the order of the acknowledgements.
type conn struct {
	host  string
	ready chan struct{} // closed when net is set, or err
	net   net.Conn
	load  int // requests that are with it; guarded by Pool.mu

	mu      sync.Mutex
	waiting []chan error // for an acknowledgement, the oldest first
	err     error        // it is broken
}

func (c *conn) send(ctx context.Context, frame []byte, timeout time.Duration) error {
	answer := make(chan error, 1)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	if err := c.write(frame, answer, timeout); err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	c.fail(fmt.Errorf("%w: %s did not acknowledge within %v", plane.ErrTimeout, c.host, timeout))
	return <-answer
}

func (c *conn) write(frame []byte, answer chan error, timeout time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.waiting = append(c.waiting, answer)
	_ = c.net.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := c.net.Write(frame); err != nil {
		c.failLocked(err)
	}
	return nil
}

// read hands out acknowledgements until the connection breaks.
func (c *conn) read() error {
	r := bufio.NewReaderSize(c.net, 512)
	for {
		ack, err := readAck(r)
		if err != nil {
			return err
		}
		c.mu.Lock()
		if len(c.waiting) == 0 {
			c.mu.Unlock()
			return fmt.Errorf("%w: an acknowledgement of nothing", plane.ErrProtocol)
		}
		answer := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		answer <- plane.Refused(ack)
	}
}

func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	if !errors.Is(err, plane.ErrTimeout) {
		err = fmt.Errorf("%w: %s: %w", plane.ErrCannotConnect, c.host, err)
	}
	c.err = err
	if c.net != nil {
		c.net.Close()
	} else {
		close(c.ready)
	}
	for _, answer := range c.waiting {
		answer <- err
	}
	c.waiting = nil
}
