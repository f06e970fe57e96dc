package queue

import (
	"fmt"
	"math"
)

// MaxTokens bounds the prompt tokens of a request and the quantum of a class, so that no sum overflows.
const MaxTokens = 1 << 40

// Request is what the queue must know of a request; it is fixed when the request is pushed.
type Request struct {
	Class          int     // index into Profile.Classes, from Profile.Classify
	Lane           string  // names the ranks it can go to; any string, "" is the common lane; see Bound
	StrictPriority uint32  // higher goes first, whatever else holds
	PriorityJump   float64 // seconds of head start (fcfs, lcfs), weight (wspt); negative counts as 0; finite
	Deadline       int64   // on the caller's clock, > 0; 0: none. Earlier goes first; when it comes, Expired gives the request
	ISLTokens      int64   // of the prompt, 0 to MaxTokens
	CachedTokens   int64   // the most that an eligible rank holds; more than ISLTokens counts as that
}

// UncachedTokens tells how many prompt tokens are to be computed at least.
func (r *Request) UncachedTokens() int64 { return r.ISLTokens - r.CachedTokens }

// cost is what a request takes of its class's credit.
func (r *Request) cost() int64 { return max(r.UncachedTokens(), 1) }

// Check refuses what makes no order. Errors: ErrInvalid.
func (r *Request) Check() error {
	switch {
	case math.IsNaN(r.PriorityJump) || math.IsInf(r.PriorityJump, 0):
		return fmt.Errorf("%w: priority_jump=%v must be finite", ErrInvalid, r.PriorityJump)
	case r.ISLTokens < 0 || r.ISLTokens > MaxTokens:
		return fmt.Errorf("%w: %d prompt tokens, expected 0 to %d", ErrInvalid, r.ISLTokens, int64(MaxTokens))
	case r.CachedTokens < 0:
		return fmt.Errorf("%w: %d cached tokens, expected 0 or more", ErrInvalid, r.CachedTokens)
	case r.Deadline < 0:
		return fmt.Errorf("%w: deadline %d, expected 0 or more", ErrInvalid, r.Deadline)
	}
	return nil
}

// Item is a request that waits, or waited. Value is the owner's.
type Item[T any] struct {
	Request
	Value  T
	Pushed int64 // when

	key  key
	lane *lane[T] // nil: it does not wait any more
}

// Waiting tells whether the item is in its queue.
func (it *Item[T]) Waiting() bool { return it.lane != nil }

// key orders the requests of a class. No two are equal.
type key struct {
	strict uint32
	due    int64 // the deadline; none is the latest
	score  float64
	number uint64 // counts the requests pushed
}

// before tells whether a goes before b.
func (a *key) before(b *key) bool {
	switch {
	case a.strict != b.strict:
		return a.strict > b.strict
	case a.due != b.due:
		return a.due < b.due
	case a.score != b.score:
		return a.score > b.score
	}
	return a.number < b.number
}
