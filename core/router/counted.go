package router

import (
	"time"

	"github.com/dynamo-go/dynamo-go/core/tally"
)

// timedEvery is how many decisions of one scratch pass between two whose phases are measured: four readings of the clock
// take a fiftieth of a decision.
const timedEvery = 16

// stopwatch measures the phases of some decisions.
type stopwatch struct {
	calls                  uint
	runs                   bool  // this one is measured
	begun, hashed, matched int64 // nanoseconds since loaded
}

var loaded = time.Now()

// start begins a decision.
func (w *stopwatch) start() {
	w.calls++
	w.runs = w.calls%timedEvery == 0
	w.begun = w.lap()
}

// lap gives the time of a measured decision.
func (w *stopwatch) lap() int64 {
	if !w.runs {
		return 0
	}
	return time.Since(loaded).Nanoseconds()
}

// count counts a decision that has just been made, or has failed. r.mu is held.
func (r *Router) count(s *scratch, q *Request, cached int64, err error) {
	d := tally.Decision{Booked: q.Book, PromptTokens: s.isl, CachedTokens: int(cached)}
	if w := &s.watch; w.runs {
		end := w.lap()
		d.Hashing, d.Matching, d.Scheduling, d.Total = w.hashed-w.begun, w.matched-w.hashed, end-w.matched, end-w.begun
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
