package queue

import (
	"fmt"
	"math"

	"github.com/tidwall/btree"
)

// DefaultMaxRequests bounds what waits in all classes together, whatever their limits.
const DefaultMaxRequests = 1 << 20

// Stats are the counters of a class.
type Stats struct {
	Requests     int64 `json:"pending_count"`
	ISLTokens    int64 `json:"pending_isl_tokens"`
	CachedTokens int64 `json:"pending_cached_tokens"`

	// Totals since the queue was made.
	Pushed         uint64 `json:"queued_total"` // requests that waited or were refused here
	LimitRefused   uint64 `json:"rejected_limit_total"`
	DeadlinePassed uint64 `json:"rejected_due_time_passed_total"` // each request once
}

func (s *Stats) add(r *Request) {
	s.Requests++
	s.ISLTokens += r.ISLTokens
	s.CachedTokens += r.CachedTokens
}

func (s *Stats) subtract(r *Request) {
	s.Requests--
	s.ISLTokens -= r.ISLTokens
	s.CachedTokens -= r.CachedTokens
}

// Queue holds the requests that wait. See the package comment; the zero value is not usable.
//
// Invariants (checked in the tests): waiting counts the items of all classes; deadlines holds exactly those of them that
// have a deadline.
type Queue[T any] struct {
	// Lane, if it is not nil, names the lane of an item by what holds now. It is asked of a head that does not fit, which moves
	// there: it would hold up its old lane. Like fits, it must not call the queue, and its answers stay while Next runs.
	Lane func(*Item[T]) string

	// More, if it is not nil, is asked whether there is time for one more question, before each that Next asks. When it says no, Next gives
	// nil, and goes on from there when it is called again; it gets on if there is time for two questions a class, and one more.
	More func() bool

	classes   []*class[T]
	deadlines *btree.BTreeG[*Item[T]]
	max       int
	waiting   int
	pushed    uint64
	ring      ring[T]
}

// New returns an empty queue for the classes of a profile. maxRequests bounds what waits; 0 is DefaultMaxRequests.
func New[T any](p *Profile, maxRequests int) *Queue[T] {
	if maxRequests <= 0 {
		maxRequests = DefaultMaxRequests
	}
	less := func(a, b *Item[T]) bool {
		if a.key.due != b.key.due {
			return a.key.due < b.key.due
		}
		return a.key.number < b.key.number
	}
	q := &Queue[T]{max: maxRequests, deadlines: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
	for i := range p.classes {
		q.classes = append(q.classes, newClass[T](&p.classes[i]))
	}
	q.ring = newRing[T](len(q.classes))
	return q
}

// late tells that there is no time for another question.
func (q *Queue[T]) late() bool { return q.More != nil && !q.More() }

// Len tells how many requests wait.
func (q *Queue[T]) Len() int { return q.waiting }

// Stats gives the counters of a class.
func (q *Queue[T]) Stats(class int) Stats { return q.classes[class].held }

// MustWait tells whether a new request of a class has to be pushed; otherwise it is to be placed, or refused, at once.
// workers counts the registered workers: without any, nothing waits. allBusy tells whether the request has eligible ranks
// and Class.Busy holds for all of them; it is asked only if it matters.
func (q *Queue[T]) MustWait(class, workers int, allBusy func() bool) bool {
	c := q.classes[class]
	return workers > 0 && c.config.Queues() && (!c.empty() || allBusy())
}

// Push lets a request wait. workers counts the registered workers; limits grow with it. The item is to be kept by who may
// want to Remove it. A request of a class where others wait may fit nevertheless: take with Next afterwards. Errors:
// ErrInvalid, ErrDeadline, ErrQueueLimit.
func (q *Queue[T]) Push(now int64, workers int, r Request, value T) (*Item[T], error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if r.Class < 0 || r.Class >= len(q.classes) {
		return nil, fmt.Errorf("%w: class %d of %d", ErrInvalid, r.Class, len(q.classes))
	}
	r.CachedTokens = min(r.CachedTokens, r.ISLTokens)
	c := q.classes[r.Class]
	c.held.Pushed++
	if r.Deadline != 0 && r.Deadline <= now {
		c.held.DeadlinePassed++
		return nil, fmt.Errorf("%w: %.3f s ago", ErrDeadline, float64(now-r.Deadline)/1e9)
	}
	if err := q.limit(c, workers); err != nil {
		c.held.LimitRefused++
		return nil, err
	}
	k := key{strict: r.StrictPriority, due: math.MaxInt64, score: c.config.score(&r, now), number: q.pushed}
	if r.Deadline != 0 {
		k.due = r.Deadline
	}
	q.pushed++
	q.waiting++
	it := &Item[T]{Request: r, Value: value, Pushed: now, key: k}
	c.add(it)
	if r.Deadline != 0 {
		q.deadlines.Set(it)
	}
	return it, nil
}

// limit compares what is held already: the request that crosses a limit is taken.
func (q *Queue[T]) limit(c *class[T], workers int) error {
	for _, l := range [...]struct {
		kind      Limit
		perWorker *int64
		current   int64
	}{
		{LimitRequests, c.config.RequestLimit, c.held.Requests},
		{LimitISLTokens, c.config.ISLTokenLimit, c.held.ISLTokens},
		{LimitCachedTokens, c.config.CachedTokenLimit, c.held.CachedTokens},
	} {
		if l.perWorker == nil {
			continue
		}
		if limit := allowed(*l.perWorker, workers); l.current >= limit {
			return &LimitError{c.config.Name, l.kind, l.current, limit}
		}
	}
	if q.waiting >= q.max {
		return &LimitError{c.config.Name, LimitTotal, int64(q.waiting), int64(q.max)}
	}
	return nil
}

// Remove takes an item out, wherever it stands; false if it does not wait any more.
func (q *Queue[T]) Remove(it *Item[T]) bool {
	if it.lane == nil {
		return false
	}
	q.classes[it.Class].remove(it)
	if it.Deadline != 0 {
		q.deadlines.Delete(it)
	}
	q.waiting--
	return true
}

// Bound begins the names of lanes whose requests can go to one place only. WakeOpen leaves them alone: who makes room in one place
// calls it, and WakeLane for the lanes of that place, so that those of a thousand others cost nothing.
const Bound = "="

// Wake makes Next ask every lane again.
func (q *Queue[T]) Wake() {
	for _, c := range q.classes {
		c.woken = [kinds]bool{open: true, bound: true}
	}
}

// WakeOpen makes Next ask every lane again that is not bound.
func (q *Queue[T]) WakeOpen() {
	for _, c := range q.classes {
		c.woken[open] = true
	}
}

// WakeLane makes Next ask the lanes of one name again, of every class.
func (q *Queue[T]) WakeLane(name string) {
	for _, c := range q.classes {
		c.wakeLane(name)
	}
}

// Expired takes out the item with the earliest deadline, if it has come; nil otherwise.
func (q *Queue[T]) Expired(now int64) *Item[T] {
	it, ok := q.deadlines.Min()
	if !ok || it.Deadline > now {
		return nil
	}
	q.Remove(it)
	q.classes[it.Class].held.DeadlinePassed++
	return it
}

// NextDeadline gives the earliest deadline, for a timer; false if no waiting request has one.
func (q *Queue[T]) NextDeadline() (int64, bool) {
	it, ok := q.deadlines.Min()
	if !ok {
		return 0, false
	}
	return it.Deadline, true
}

// Clear takes all items out, in no order, and gives each to f, which must not call the queue.
func (q *Queue[T]) Clear(f func(*Item[T])) {
	for _, c := range q.classes {
		for _, l := range c.lanes {
			for _, e := range l.items.Items() {
				q.Remove(e.item)
				f(e.item)
			}
		}
	}
}
