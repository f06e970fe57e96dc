package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Handler takes a request, which is its own, or refuses it: plane.ErrOverloaded, plane.ErrUnavailable. It must not block.
type Handler func(Request) error

// Listener takes requests. All methods are safe for concurrent use.
type Listener struct {
	opts    Options
	ln      net.Listener
	handler Handler
	room    *semaphore.Weighted
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running owned.Group

	refused, broken atomic.Uint64

	mu    sync.Mutex // guards the rest
	conns map[net.Conn]struct{}
	half  *plane.HalfOpen // of them, those that have not sent a whole request yet
}

// Listen binds to an address, "host:port"; port 0 takes a free one.
func Listen(address string, o Options, handler Handler) (*Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: request plane: %w", plane.ErrCannotConnect, err)
	}
	o = o.filled()
	l := &Listener{opts: o, ln: ln, handler: handler, room: semaphore.NewWeighted(int64(o.InFlightBytes)), conns: make(map[net.Conn]struct{}),
		half: plane.NewHalfOpen(o.MaxHalfOpen)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.running.Go(l.accept)
	return l, nil
}

// Addr is what it is bound to.
func (l *Listener) Addr() *net.TCPAddr { return l.ln.Addr().(*net.TCPAddr) }

// ListenerStats count since the start, except the first two.
type ListenerStats struct {
	Conns    int    // now
	HalfOpen int    // of them, those that have not sent a whole request yet
	Refused  uint64 // connections that were closed for a limit
	Broken   uint64 // connections that ended with an error: malformed, too large, too slow
}

// Stats counts.
func (l *Listener) Stats() ListenerStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ListenerStats{Conns: len(l.conns), HalfOpen: l.half.Len(), Refused: l.refused.Load(), Broken: l.broken.Load()}
}

// Close ends all connections. It is idempotent.
func (l *Listener) Close() {
	l.cancel()
	l.ln.Close()
	l.mu.Lock()
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
}

func (l *Listener) accept() {
	for {
		c, err := l.ln.Accept()
		switch {
		case err == nil:
			if l.admit(c) {
				l.running.Go(func() { l.serve(c) })
			}
		case errors.Is(err, net.ErrClosed):
			return
		default: // no file descriptors, say
			select {
			case <-l.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

func (l *Listener) admit(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil || len(l.conns) >= l.opts.MaxConns {
		l.refused.Add(1)
		c.Close()
		return false
	}
	l.conns[c] = struct{}{}
	if l.half.Add(c) {
		l.refused.Add(1)
	}
	return true
}

func (l *Listener) serve(raw net.Conn) {
	proven := false
	defer func() {
		raw.Close()
		l.mu.Lock()
		delete(l.conns, raw)
		l.half.Remove(raw)
		l.mu.Unlock()
	}()
	c, err := l.opts.TLS.Server(raw)
	if err != nil {
		l.broken.Add(1)
		return
	}
	r := bufio.NewReaderSize(c, 16<<10)
	_ = c.SetDeadline(time.Now().Add(l.opts.FrameTimeout))
	for {
		if proven {
			_ = c.SetDeadline(time.Time{})
			if _, err := r.Peek(1); err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(l.opts.FrameTimeout))
		}
		refusal, err := l.next(r)
		if err != nil {
			l.broken.Add(1)
			return
		}
		if !proven {
			proven = true
			l.mu.Lock()
			l.half.Remove(raw)
			l.mu.Unlock()
		}
		if _, err := c.Write(appendAck(nil, refusal)); err != nil {
			return
		}
	}
}

// next reads a request and has it handled.
func (l *Listener) next(r *bufio.Reader) (refusal string, err error) {
	const small = 64 << 10
	held := int64(0)
	defer func() { l.room.Release(held) }()
	q, err := ReadRequest(r, l.opts.MaxMessage, func(n int) error {
		if n <= small {
			return nil
		}
		ctx, cancel := context.WithTimeout(l.ctx, l.opts.FrameTimeout)
		defer cancel()
		err := l.room.Acquire(ctx, int64(n))
		if err == nil {
			held = int64(n)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return plane.Refusal(l.handler(q)), nil
}
