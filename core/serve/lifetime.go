package serve

import (
	"context"
	"sync"
	"time"
)

// lifetime is a context that ends when it is told to. It costs nothing until somebody waits for it: most requests are over before, and
// context.WithCancel would enter each in a list that all of them share.
type lifetime struct {
	mu    sync.Mutex // guards the rest
	ended bool
	done  chan struct{} // closed at the end; nil: nobody waits
}

// end ends it. It is idempotent.
func (l *lifetime) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.done != nil {
		close(l.done)
	}
	l.ended = true
}

// Done is closed at the end.
func (l *lifetime) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		if l.done = make(chan struct{}); l.ended {
			close(l.done)
		}
	}
	return l.done
}

// Err is context.Canceled after the end.
func (l *lifetime) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return context.Canceled
	}
	return nil
}

// Deadline: there is none.
func (*lifetime) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value: there are none.
func (*lifetime) Value(any) any { return nil }
