package zmq

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

// listener accepts connections, makes their handshakes, and lets serve use each until it breaks.
//
// Invariants: open holds every accepted socket, and at most MaxConns; pending of them, at most MaxHandshakes, are in
// their handshake. After close, no goroutine of the listener is left.
type listener struct {
	ln    net.Listener
	opts  Options
	kind  SocketType
	bound Endpoint
	serve func(*peer)

	mu      sync.Mutex // guards open, pending, closed
	open    map[net.Conn]struct{}
	pending int
	closed  bool

	work     owned.Group
	refused  atomic.Uint64 // connections beyond the bounds
	rejected atomic.Uint64 // handshakes that failed
}

// peer is a connection under a listener, and what its owner keeps beside it.
type peer struct {
	conn      *Conn
	onCommand func(name string, body []byte) error
}

func listen(endpoint string, kind SocketType, o Options, serve func(*peer)) (*listener, error) {
	e, err := parse(endpoint)
	if err != nil {
		return nil, err
	}
	ln, err := bind(e)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", endpoint, err)
	}
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		e.Port = uint16(a.Port)
	}
	return &listener{ln: ln, opts: o, kind: kind, bound: e, serve: serve, open: make(map[net.Conn]struct{})}, nil
}

// start begins to accept: not before the owner, which serve uses, is complete.
func (l *listener) start() { l.work.Go(l.accept) }

// bind listens; a socket file that a dead process left behind is replaced, a living one is not.
func bind(e Endpoint) (net.Listener, error) {
	network, address := e.network()
	ln, err := net.Listen(network, address)
	if err == nil || network != "unix" || !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	c, dialErr := net.Dial(network, address)
	if dialErr == nil {
		c.Close()
		return nil, err
	}
	if !errors.Is(dialErr, syscall.ECONNREFUSED) || os.Remove(address) != nil {
		return nil, err
	}
	return net.Listen(network, address)
}

// addr is the bound endpoint, with the port the system chose if it was 0.
func (l *listener) addr() string { return l.bound.String() }

func (l *listener) accept() {
	for {
		raw, err := l.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors, or a peer that left before it was accepted
			continue
		}
		if !l.admit(raw) {
			raw.Close()
			continue
		}
	}
}

func (l *listener) admit(raw net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if len(l.open) >= l.opts.MaxConns || l.pending >= l.opts.MaxHandshakes {
		l.refused.Add(1)
		return false
	}
	l.open[raw] = struct{}{}
	l.pending++
	l.work.Go(func() { l.handle(raw) })
	return true
}

func (l *listener) handle(raw net.Conn) {
	shaking := true
	shaken := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if shaking {
			l.pending--
		}
		shaking = false
	}
	defer func() {
		raw.Close()
		shaken()
		l.mu.Lock()
		delete(l.open, raw)
		l.mu.Unlock()
	}()
	p := &peer{}
	conn, err := open(raw, l.kind, l.opts, func(name string, body []byte) error {
		if p.onCommand == nil {
			return nil
		}
		return p.onCommand(name, body)
	})
	shaken()
	if err != nil {
		l.rejected.Add(1)
		return
	}
	p.conn = conn
	defer conn.Close()
	l.serve(p)
}

func (l *listener) close() error {
	l.mu.Lock()
	l.closed = true
	err := l.ln.Close()
	for raw := range l.open {
		raw.Close()
	}
	l.mu.Unlock()
	l.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
