package feed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Limiter bounds how many feeds that share it read answers to their requests at the same time: each may make 16 MiB wait,
// and keeps a core busy. Who asks first comes first. Connecting needs no turn, and neither does waiting for a peer that says
// nothing: peers that are gone keep nobody waiting.
//
// It also bounds the bytes of local indexers' answers, from their first message until they were applied. An answer says at its
// beginning how long it is, and waits until there is room for all of it.
type Limiter struct {
	turns chan struct{}
	room  *semaphore.Weighted
	bytes int64 // of room
}

// NewLimiter returns a Limiter for n feeds at a time, n being 1 or more, and so many bytes of answers. A longer answer is refused.
func NewLimiter(n int, bytes int64) *Limiter {
	return &Limiter{turns: make(chan struct{}, n), room: semaphore.NewWeighted(bytes), bytes: bytes}
}

// quiet is how long a request keeps its turn without an answer. Idle engines answer within 115 ms.
const quiet = 250 * time.Millisecond

// turn is one request's.
type turn struct {
	limit *Limiter // nil: there is always a turn
	tell  func(reply) bool

	mu       sync.Mutex // guards the rest
	held     bool
	answered bool // nothing takes the turn away any more

	given    bool  // the whole answer was handed on, and is its taker's to free
	reserved int64 // bytes; belongs to the request's goroutine, and then to whoever takes the answer
}

// reserve waits for room for an answer of so many bytes.
func (t *turn) reserve(ctx context.Context, bytes int64) error {
	l := t.limit
	switch {
	case l == nil:
		return nil
	case bytes > l.bytes:
		return fmt.Errorf("%w: it has %d bytes, at most %d are taken (max_answer_bytes)", errAnswer, bytes, l.bytes)
	case !l.room.TryAcquire(bytes):
		if !t.tell(reply{kind: replyWaits}) || l.room.Acquire(ctx, bytes) != nil {
			return context.Cause(ctx)
		}
		t.tell(reply{kind: replyStarted})
	}
	t.reserved = bytes
	return nil
}

// free gives the room back.
func (t *turn) free() {
	if t.reserved > 0 {
		t.limit.room.Release(t.reserved)
		t.reserved = 0
	}
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
