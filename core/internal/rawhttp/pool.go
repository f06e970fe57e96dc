package rawhttp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Errors of exchanges. Each returned error wraps one.
var (
	// ErrUnreachable: no connection. The server saw nothing.
	ErrUnreachable = errors.New("unreachable")
	// ErrBroken: the connection broke.
	ErrBroken = errors.New("connection broken")
	// ErrTimeout: the server did not go on in time.
	ErrTimeout = errors.New("no answer in time")
	// ErrProtocol: what came is not an HTTP/1.1 answer.
	ErrProtocol = errors.New("not an HTTP/1.1 answer")
	// ErrTooLarge: the answer's head is larger than headBytes.
	ErrTooLarge = errors.New("head too large")
	// ErrCancelled: Cancel was called.
	ErrCancelled = errors.New("cancelled")
	// ErrClosed: the pool was closed.
	ErrClosed = errors.New("closed")
)

// headBytes bounds the head of an answer; it is also the read buffer of a connection.
const headBytes = 16 << 10

// Limits bound what a server can cost. All must be set.
type Limits struct {
	Idle    int           // connections that are kept
	IdleFor time.Duration // each of them: less than what the server keeps them for
	Connect time.Duration // to be connected, TLS included
	Begin   time.Duration // for the server to take the request and begin to answer, and then for the first byte of the body
	Between time.Duration // for each further read
}

// Pool keeps connections to an address. Its methods may be called from any goroutine.
type Pool struct {
	address string
	tls     *tls.Config
	limits  Limits

	mu     sync.Mutex
	idle   []*conn // the one used last is last
	live   map[*conn]struct{}
	closed bool
}

// NewPool makes a pool for "host:port"; with a TLS configuration it speaks TLS.
func NewPool(address string, t *tls.Config, l Limits) *Pool {
	return &Pool{address: address, tls: t, limits: l, live: map[*conn]struct{}{}}
}

// get gives a connection that was kept, or a new one.
func (p *Pool) get(fresh bool) (*conn, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	if n := len(p.idle); n > 0 && !fresh {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		if time.Since(c.since) < p.limits.IdleFor {
			p.mu.Unlock()
			return c, nil
		}
		// All others are older.
		stale := append(p.idle, c)
		p.idle = nil
		for _, c := range stale {
			delete(p.live, c)
		}
		p.mu.Unlock()
		shut(stale)
	} else {
		p.mu.Unlock()
	}
	return p.dial()
}

func (p *Pool) dial() (*conn, error) {
	d := net.Dialer{Timeout: p.limits.Connect, KeepAlive: 15 * time.Second}
	var raw net.Conn
	var err error
	if p.tls != nil {
		raw, err = tls.DialWithDialer(&d, "tcp", p.address, p.tls)
	} else {
		raw, err = d.Dial("tcp", p.address)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	c := newConn(raw)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = raw.Close()
		return nil, ErrClosed
	}
	p.live[c] = struct{}{}
	return c, nil
}

// put gives back a connection that can carry another request.
func (p *Pool) put(c *conn) {
	c.used, c.since = true, time.Now()
	p.mu.Lock()
	if !p.closed && len(p.idle) < p.limits.Idle {
		p.idle = append(p.idle, c)
		p.mu.Unlock()
		return
	}
	delete(p.live, c)
	p.mu.Unlock()
	_ = c.Close()
}

// drop closes a connection.
func (p *Pool) drop(c *conn) {
	p.mu.Lock()
	delete(p.live, c)
	p.mu.Unlock()
	_ = c.Close()
}

// Tidy closes connections that were idle for too long. Whoever owns the pool calls it now and then.
func (p *Pool) Tidy() {
	p.mu.Lock()
	n := 0
	for n < len(p.idle) && time.Since(p.idle[n].since) >= p.limits.IdleFor {
		delete(p.live, p.idle[n])
		n++
	}
	stale := append([]*conn(nil), p.idle[:n]...)
	p.idle = append(p.idle[:0], p.idle[n:]...)
	p.mu.Unlock()
	shut(stale)
}

// CloseIdle closes the connections that nobody uses.
func (p *Pool) CloseIdle() {
	p.mu.Lock()
	stale := p.idle
	p.idle = nil
	for _, c := range stale {
		delete(p.live, c)
	}
	p.mu.Unlock()
	shut(stale)
}

// Close closes all connections: exchanges that run fail. It is idempotent.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	var all []*conn
	for c := range p.live {
		all = append(all, c)
	}
	p.idle, p.live = nil, map[*conn]struct{}{}
	p.mu.Unlock()
	shut(all)
}

// Conns counts the connections that are open, and those of them that are idle.
func (p *Pool) Conns() (open, idle int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.live), len(p.idle)
}

func shut(conns []*conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
