package router

import (
	"time"

	"github.com/dynamo-go/dynamo-go/core/tally"
)

// timedEvery is how many decisions of one scratch pass between two whose phases are measured: four readings of the clock
// take a fiftieth of a decision.
const timedEvery = 16

// stopwatch measures the phases of some decisions. Zero times are not measured.
type stopwatch struct {
	calls                  uint
	begun, hashed, matched time.Time
}

// start begins a decision.
func (w *stopwatch) start() {
	w.begun = time.Time{}
	if w.calls++; w.calls%timedEvery == 0 {
		w.begun = time.Now()
	}
}

// lap gives the time for a measured decision.
func (w *stopwatch) lap() (at time.Time) {
	if !w.begun.IsZero() {
		at = time.Now()
	}
	return at
}

// count counts a decision that has just been made, or has failed. r.mu is held.
func (r *Router) count(s *scratch, q *Request, cached int64, err error) {
	d := tally.Decision{Booked: q.Book, PromptTokens: s.isl, CachedTokens: int(cached)}
	if w := &s.watch; !w.begun.IsZero() {
		end := time.Now()
		d.Hashing, d.Matching = w.hashed.Sub(w.begun).Nanoseconds(), w.matched.Sub(w.hashed).Nanoseconds()
		d.Scheduling, d.Total = end.Sub(w.matched).Nanoseconds(), end.Sub(w.begun).Nanoseconds()
	}
	r.decisions.Count(&d, err)
}

// newDecisions counts decisions that fail by the errors of BestWorker.
func newDecisions() *tally.Decisions {
	return tally.NewDecisions(
		tally.Kind{Name: "no_workers", Err: ErrNoWorkers},
		tally.Kind{Name: "overloaded", Err: ErrOverloaded},
		tally.Kind{Name: "worker_not_found", Err: ErrWorkerNotFound},
		tally.Kind{Name: "duplicate_request", Err: ErrDuplicateRequest},
		tally.Kind{Name: "invalid_argument", Err: ErrInvalidArgument},
		tally.Kind{Name: "session_moved", Err: ErrSessionMoved},
		tally.Kind{Name: "queue_limit", Err: ErrQueueLimitExceeded},
		tally.Kind{Name: "timeout", Err: ErrTimeout},
		tally.Kind{Name: "cancelled", Err: ErrCancelled},
	)
}

// Tally tells what decisions and events came to, for package metrics. Errors: ErrClosed.
func (r *Router) Tally() (tally.Snapshot, error) {
	events := r.events.Counts()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return tally.Snapshot{}, ErrClosed
	}
	hits := tally.Hits{}
	if r.decided != nil {
		hits = r.decided.hits
	}
	return tally.Snapshot{Decisions: r.decisions.Counts(), Events: events, Hits: hits}, nil
}
