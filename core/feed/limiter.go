package feed

import (
	"context"
	"sync"
	"time"
)

// Limiter bounds how many feeds that share it read answers to their requests at the same time: each may make 16 MiB wait,
// and keeps a core busy. Who asks first comes first. Connecting needs no turn, and neither does waiting for a peer that says
// nothing: peers that are gone keep nobody waiting.
type Limiter struct{ turns chan struct{} }

// NewLimiter returns a Limiter for n feeds at a time, n being 1 or more.
func NewLimiter(n int) *Limiter { return &Limiter{turns: make(chan struct{}, n)} }

// quiet is how long a request keeps its turn without an answer. Idle engines answer within 115 ms.
const quiet = 250 * time.Millisecond

// turn is one request's.
type turn struct {
	limit *Limiter // nil: there is always a turn
	tell  func(reply) bool

	mu       sync.Mutex // guards the rest
	held     bool
	answered bool // nothing takes the turn away any more
}

// take waits for a turn; false if ctx ended first.
func (t *turn) take(ctx context.Context) bool {
	if t.limit == nil {
		return true
	}
	select {
	case t.limit.turns <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	t.mu.Lock()
	t.held = true
	t.mu.Unlock()
	return t.tell(reply{kind: replyStarted})
}

// give lets another one have the turn.
func (t *turn) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release()
}

// yield gives the turn of a request without an answer so far.
func (t *turn) yield() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.answered {
		t.release()
	}
}

// release gives the turn; mu is held.
func (t *turn) release() {
	if t.held {
		t.held = false
		<-t.limit.turns
	}
}

// keep is called at the first answer: the turn is taken back if it was given, and kept from now on.
func (t *turn) keep(ctx context.Context) bool {
	t.mu.Lock()
	held := t.held
	t.answered = true
	t.mu.Unlock()
	if held || t.limit == nil {
		return true
	}
	return t.tell(reply{kind: replyWaits}) && t.take(ctx)
}
