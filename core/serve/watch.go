package serve

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

// look is how often clients are looked at: what a disconnect takes to be noticed.
const look = 250 * time.Millisecond

// watch notices clients that disconnect while nothing is read from them or written to them.
//
// Invariant: first and the links of requests are a list of those that were added and not removed.
type watch struct {
	mu    sync.Mutex
	first *request
	count int
}

// add begins to watch a request's client.
func (w *watch) add(r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.before, r.after = nil, w.first
	if w.first != nil {
		w.first.before = r
	}
	w.first = r
	w.count++
}

// remove ends it: once it returns, nobody calls abort any more.
func (w *watch) remove(r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.before != nil {
		r.before.after = r.after
	} else {
		w.first = r.after
	}
	if r.after != nil {
		r.after.before = r.before
	}
	r.before, r.after = nil, nil
	w.count--
}

// run looks at the clients again and again.
func (w *watch) run(ctx context.Context) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			owned.Do(func() { w.round(now) })
		}
	}
}

// round aborts the requests whose clients are gone. Requests that just began are left for the next round: most are over by then.
func (w *watch) round(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := w.first; r != nil; r = r.after {
		if now.Sub(r.begun) > look/2 && !r.gone.Load() && disconnected(r.conn) {
			r.gone.Store(true)
			r.abort()
		}
	}
}

// each calls f for every request.
func (w *watch) each(f func(*request)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := w.first; r != nil; r = r.after {
		f(r)
	}
}

// rawConn gives what a system call needs of a connection.
type rawConn interface {
	net.Conn
	syscallConn
}
