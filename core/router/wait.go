package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/tally"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// This file is where requests wait (package queue). A request that has to leaves behind what is needed to decide it later:
// its hashes and what it asks for, on a Ticket. Whoever makes room (a booking ends or its prefill does, a worker joins or
// leaves) lets those go that may: it matches, picks and books for them, under r.mu, so that a release lets exactly as many go as
// there is room for. A timer sees to deadlines and to bookings that expire when nobody else looks.

// Ticket is a request that waits.
type Ticket struct {
	r      *Router
	q      Request // without tokens; owned
	t      terms
	isl    int
	hashes []block.Hash
	seqs   []block.SequenceHash
	item   *queue.Item[*Ticket]
	notify func()
	done   chan struct{}

	choice Choice // these are set when done is closed, and then do not change
	err    error
	gone   bool // cancelled; guarded by r.mu
}

// Queues tells whether requests may have to wait. Where they may not, Submit is BestWorker.
func (r *Router) Queues() bool { return r.queue != nil }

// Submit is BestWorker for a request that may wait. One that need not is decided at once: then the ticket is nil. Otherwise
// the choice comes with the ticket. notify may be nil; it is called when the ticket is done, on any goroutine and with the
// router's lock held: it must not block, and not call the router.
//
// Errors are those of BestWorker, and ErrQueueLimitExceeded, ErrTimeout (q.Timeout is not positive).
func (r *Router) Submit(q *Request, notify func()) (Choice, *Ticket, error) {
	return r.request(q, func(s *scratch, t terms, place queue.Request) (*Ticket, error) {
		tk := &Ticket{
			r: r, q: q.owned(), t: t, isl: s.isl, hashes: slices.Clone(s.hashes), seqs: slices.Clone(s.sequences),
			notify: notify, done: make(chan struct{}),
		}
		item, err := r.queue.Push(r.now(), len(r.workers), place, tk)
		if err != nil {
			err = queued(err)
			r.count(s, q, 0, err)
			return nil, err
		}
		tk.item = item
		if r.roomy {
			r.settle()
		} else { // others of its class wait, but for other ranks: it may fit
			left := r.newEffort()
			r.serve(&left)
			r.arm(r.now(), left.spent)
		}
		return tk, nil
	})
}

// owned copies what the caller lent.
func (q *Request) owned() Request {
	c := *q
	c.Tokens, c.MM = nil, nil
	c.Shared = slices.Clone(q.Shared)
	c.Constraints.Allowed = cloneSet(q.Constraints.Allowed)
	c.Constraints.RequiredTaints = slices.Clone(q.Constraints.RequiredTaints)
	c.Constraints.PreferredTaints = slices.Clone(q.Constraints.PreferredTaints)
	return c
}

func cloneSet(ids map[uint64]struct{}) map[uint64]struct{} {
	if ids == nil {
		return nil
	}
	c := make(map[uint64]struct{}, len(ids))
	for id := range ids {
		c[id] = struct{}{}
	}
	return c
}

// queued gives the queue's errors the names of this package.
func queued(err error) error {
	switch {
	case errors.Is(err, queue.ErrDeadline):
		return fmt.Errorf("%w: the request has to wait: %w", ErrTimeout, err)
	case errors.Is(err, queue.ErrInvalid):
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return err
}

// Done is closed when the ticket has its result.
func (tk *Ticket) Done() <-chan struct{} { return tk.done }

// Result gives the choice, or why there is none. It must not be called before Done is closed. Errors: those of BestWorker,
// ErrTimeout, ErrCancelled, ErrClosed.
func (tk *Ticket) Result() (Choice, error) { return tk.choice, tk.err }

// Cancel gives the request up. If it waits, its result is ErrCancelled; if it was decided already, its booking is freed, so
// a caller who took the result frees it himself and does not call Cancel. Once is enough.
func (tk *Ticket) Cancel() {
	r := tk.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if tk.gone || r.closed {
		return
	}
	tk.gone = true
	if r.queue.Remove(tk.item) {
		r.end(tk, Choice{}, ErrCancelled)
	} else if tk.err == nil && tk.q.Book {
		_ = r.ledger.Free(tk.q.ID, r.now()) // it may have been freed
	}
	r.settle()
}

// Wait is BestWorker for a caller who waits as long as it takes, or until ctx ends: then the request is given up, and the
// error is that of ctx. Errors: those of Submit.
func (r *Router) Wait(ctx context.Context, q *Request) (Choice, error) {
	choice, tk, err := r.Submit(q, nil)
	if err != nil || tk == nil {
		return choice, err
	}
	select {
	case <-tk.done:
	case <-ctx.Done():
		r.mu.Lock()
		waits := !r.closed && r.queue.Remove(tk.item)
		if waits {
			r.end(tk, Choice{}, ctx.Err())
			r.settle()
		}
		r.mu.Unlock()
		<-tk.done
	}
	return tk.choice, tk.err
}

// end gives a ticket its result. r.mu is held.
func (r *Router) end(tk *Ticket, choice Choice, err error) {
	tk.choice, tk.err = choice, err
	if err != nil {
		r.decisions.Count(&tally.Decision{}, err)
	}
	close(tk.done)
	if tk.notify != nil {
		tk.notify()
	}
}

// mustWait tells whether a request has to wait, and where it would. s has its candidates; if it need not wait, the busy ones
// are left out. r.mu is held.
func (r *Router) mustWait(s *scratch, q *Request, t *terms) (place queue.Request, wait bool) {
	req, best := r.shape(s, t), int64(0)
	for _, slot := range s.candidates {
		c := s.view.Candidate(slot, &req, &t.weights)
		best = max(best, c.CachedTokens)
	}
	place = queue.Request{
		StrictPriority: q.StrictPriority, PriorityJump: q.PriorityJump, ISLTokens: int64(s.isl), CachedTokens: min(best, int64(s.isl)),
	}
	place.Class = r.profile.Classify(q.PolicyClass, place.UncachedTokens())
	class := &r.profile.Classes()[place.Class]
	if !r.queue.MustWait(place.Class, len(r.workers), func() bool { return r.allBusy(s, class) }) {
		r.leaveBusy(s, class)
		return place, false
	}
	place.Lane = r.lane(q)
	if q.Timeout != nil {
		place.Deadline = deadline(r.now(), *q.Timeout)
	}
	return place, true
}

// deadline is a time from now, on the router's clock; at least 1, for 0 is none.
func deadline(now int64, timeout time.Duration) int64 {
	if d := timeout.Nanoseconds(); d < math.MaxInt64-max(now, 0) {
		return max(now+d, 1)
	}
	return math.MaxInt64
}

// busy tells whether a rank is, for requests of a class. r.mu is held.
func (r *Router) busy(s *scratch, class *queue.Class, slot worker.Slot) bool {
	return class.Busy(s.view.Loads[slot].ActivePrefillTokens, r.bySlot[slot].worker.spec.MaxNumBatchedTokens)
}

// allBusy tells whether every candidate is busy, for requests of a class. r.mu is held.
func (r *Router) allBusy(s *scratch, class *queue.Class) bool {
	for _, slot := range s.candidates {
		if !r.busy(s, class, slot) {
			return false
		}
	}
	return true
}

// leaveBusy takes the busy ranks out of the candidates, of which one is not busy: a request that goes because a rank has room
// must fill that room, or one release would let any number go to where they find their blocks. r.mu is held.
func (r *Router) leaveBusy(s *scratch, class *queue.Class) {
	if !class.Queues() {
		return
	}
	free := s.eligible[:0] // it may be what is read, which is ahead
	for _, slot := range s.candidates {
		if !r.busy(s, class, slot) {
			free = append(free, slot)
		}
	}
	s.eligible, s.candidates = free, free
}

// fits tells whether a request that waits finds room now, or could never be placed. r.mu is held.
func (r *Router) fits(s *scratch, it *queue.Item[*Ticket]) bool {
	s.view = schedule.View{Slots: r.table.Cap(), Loads: r.ledger.Loads()}
	return r.eligible(s, &it.Value.q) != nil || !r.allBusy(s, &r.profile.Classes()[it.Class])
}

// The lanes of requests that can go to one rank, or to the ranks of one worker, are bound.
func laneOfHome(id worker.Rank) string {
	b := strconv.AppendUint(append(make([]byte, 0, 64), queue.Bound+"h"...), id.ID, 10)
	return string(strconv.AppendUint(append(b, '/'), uint64(id.DPRank), 10))
}

func laneOfPinned(c *schedule.Constraints) string {
	b := strconv.AppendUint(append(make([]byte, 0, 64), queue.Bound+"w"...), c.Worker, 10)
	if c.HasDPRank {
		b = strconv.AppendUint(append(b, 'r'), uint64(c.DPRank), 10)
	}
	return string(b)
}

// lane names the ranks a request can go to: requests of one lane find room together or not at all. A session counts as the rank
// it is tied to now, so that there are as many lanes as ranks, not as sessions; when that changes, it changes lanes
// (queue.Queue.Lane).
func (r *Router) lane(q *Request) string {
	c := &q.Constraints
	home, tied := r.home(q)
	adapter := q.LoRAName != "" && r.adapters > 0
	switch {
	case adapter:
	case c.Free() && !tied:
		return ""
	case c.Free():
		return laneOfHome(home)
	case c.HasWorker && c.Allowed == nil && len(c.RequiredTaints) == 0:
		return laneOfPinned(c)
	}
	b := make([]byte, 0, 64)
	if c.HasWorker {
		b = strconv.AppendUint(append(b, 'w'), c.Worker, 10)
	}
	if c.HasDPRank {
		b = strconv.AppendUint(append(b, 'r'), uint64(c.DPRank), 10)
	}
	if c.Allowed != nil { // a digest: there may be a million
		digest := uint64(len(c.Allowed))
		for id := range c.Allowed {
			digest += (id ^ id>>31) * 0x9e3779b97f4a7c15
		}
		b = strconv.AppendUint(append(b, 'a'), digest, 16)
	}
	for _, taint := range slices.Sorted(slices.Values(c.RequiredTaints)) {
		b = strconv.AppendQuote(append(b, 't'), taint)
	}
	if adapter {
		b = strconv.AppendQuote(append(b, 'l'), q.LoRAName)
	}
	if tied && !c.HasWorker {
		b = strconv.AppendUint(append(b, 'h'), home.ID, 10)
		b = strconv.AppendUint(append(b, '/'), uint64(home.DPRank), 10)
	}
	return string(b)
}

// wakeAllNanos is how often those who wait for one rank are looked at though it made no room: what prefill is expected to take may have
// passed, and sessions end when they are idle.
const wakeAllNanos = int64(100 * time.Millisecond)

// nobodyWaits tells that no request does. r.mu is held.
func (r *Router) nobodyWaits() bool { return r.queue == nil || r.queue.Len() == 0 }

// freed tells that a rank may have room, to the next settle, which asks all if it is told more often than there are ranks. r.mu is held.
func (r *Router) freed(id worker.Rank) {
	if !r.nobodyWaits() && len(r.emptier) <= len(r.ranks) {
		r.emptier = append(r.emptier, id)
	}
}

// wake makes the queue ask those who may go. r.mu is held.
func (r *Router) wake(now int64) {
	if now-r.woken >= wakeAllNanos || len(r.emptier) > len(r.ranks) {
		r.woken = now
		r.queue.Wake()
	} else {
		r.queue.WakeOpen()
		for _, id := range r.emptier {
			c := schedule.Constraints{Worker: id.ID, DPRank: id.DPRank}
			r.queue.WakeLane(laneOfHome(id))
			r.queue.WakeLane(laneOfPinned(&c))
			c.HasDPRank = true
			r.queue.WakeLane(laneOfPinned(&c))
		}
	}
	r.emptier = r.emptier[:0]
}

// settleAll is settle for who may have made room anywhere. r.mu is held.
func (r *Router) settleAll() {
	r.woken = math.MinInt64 / 2
	r.settle()
}

// What one call does for others who wait: about a millisecond of it. The timer goes on with the rest at once, and lets go of the lock between, so that
// whoever makes room for thousands is not held up by them, and neither are those who decide.
const (
	asksPerCall   = 1024
	admitsPerCall = 64
	expiryPerCall = 512
)

// effort is what is left of that.
type effort struct {
	asks, admits int
	spent        bool
}

func (r *Router) newEffort() effort {
	return effort{asks: asksPerCall + 2*len(r.profile.Classes()), admits: admitsPerCall}
}

// settle lets those go who may. Whoever may have made room calls it, after freed. r.mu is held.
func (r *Router) settle() {
	if r.nobodyWaits() {
		return
	}
	r.roomy = true
	r.work()
}

// work is settle, or goes on with it. r.mu is held.
func (r *Router) work() {
	if r.nobodyWaits() {
		return
	}
	now := r.now()
	r.ledger.Expire(now) // arm sees to the rest
	r.ledger.Reserve(r.table.Cap())
	left := r.newEffort()
	for n := 0; ; n++ {
		if left.spent = n == expiryPerCall; left.spent {
			break
		}
		it := r.queue.Expired(now)
		if it == nil {
			break
		}
		r.end(it.Value, Choice{}, fmt.Errorf("%w: the request waited %.3f s", ErrTimeout, float64(now-it.Pushed)/1e9))
	}
	for more := true; more && !left.spent; more = r.roomy { // bookings may expire, or be refused by their session, meanwhile
		if r.roomy {
			r.roomy = false
			r.wake(now)
		}
		r.serve(&left)
	}
	r.arm(now, left.spent)
}

// serve lets those go whom the queue finds room for. r.mu is held.
func (r *Router) serve(left *effort) {
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	fits := func(it *queue.Item[*Ticket]) bool { return r.fits(s, it) }
	r.queue.More = func() bool {
		left.asks--
		left.spent = left.spent || left.asks < 0
		return !left.spent
	}
	for {
		if left.admits == 0 {
			left.spent = true
			return
		}
		it := r.queue.Next(fits)
		if it == nil {
			return
		}
		left.admits--
		r.admit(s, it.Value, &r.profile.Classes()[it.Class])
	}
}

// admit decides a request that waited. r.mu is held.
func (r *Router) admit(s *scratch, tk *Ticket, class *queue.Class) {
	s.hashes, s.sequences, s.isl = append(s.hashes[:0], tk.hashes...), append(s.sequences[:0], tk.seqs...), tk.isl
	s.watch.runs = false // it waited: its phases are not measured
	s.now = r.now()
	r.matchBlocks(s)
	r.gather(s)
	r.share(s, tk.q.Shared)
	var choice Choice
	err := r.eligible(s, &tk.q)
	if err == nil {
		r.leaveBusy(s, class)
		choice, err = r.decide(s, &tk.q, &tk.t)
	}
	r.end(tk, choice, err)
}

// Intervals at which the queue is looked at in any case, Dynamo's. The short one is for what makes room without a call: prefill load
// that decays, and sessions that end, whose requests may go elsewhere then.
const (
	recheckNanos     = int64(60 * time.Second)
	recheckSoonNanos = wakeAllNanos
)

// arm sets the timer to when something may be due: at once if not all was done. r.mu is held.
func (r *Router) arm(now int64, more bool) {
	r.unfinished = more
	if r.queue.Len() == 0 {
		if r.timer != nil {
			r.timer.Stop()
		}
		return
	}
	at := now + recheckNanos
	if r.prefill != nil || r.sessions != nil {
		at = now + recheckSoonNanos
	}
	if d, ok := r.queue.NextDeadline(); ok {
		at = min(at, d)
	}
	if e, ok := r.ledger.NextExpiry(); ok {
		at = min(at, e+1)
	}
	wait := max(time.Duration(at-now), time.Millisecond)
	if more {
		wait = 0
	}
	if r.timer == nil {
		r.timer = time.AfterFunc(wait, owned.Guarded(r.tick))
	} else {
		r.timer.Reset(wait)
	}
}

// tick is what the timer does.
func (r *Router) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
	case r.unfinished:
		r.work()
	default:
		r.settle()
	}
}

// abandon ends every wait, because the router closes. r.mu is held.
func (r *Router) abandon() {
	if r.queue == nil {
		return
	}
	r.queue.Clear(func(it *queue.Item[*Ticket]) { r.end(it.Value, Choice{}, ErrClosed) })
	if r.timer != nil {
		r.timer.Stop()
	}
}

// QueueStats tells what waits, by class; empty if nothing ever waits. Errors: ErrClosed.
func (r *Router) QueueStats() (map[string]queue.Stats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	stats := make(map[string]queue.Stats)
	if r.queue != nil {
		for i, c := range r.profile.Classes() {
			stats[c.Name] = r.queue.Stats(i)
		}
	}
	return stats, nil
}
