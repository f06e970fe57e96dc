package load

import (
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// DefaultExpiryNanos is how long a booking lives without progress, as in Dynamo.
const DefaultExpiryNanos = 300 * 1_000_000_000

// MaxSlots bounds worker slots, because tallies are an array by slot.
const MaxSlots = 1 << 20

// Options of a Ledger; the zero value is good.
type Options struct {
	ExpiryNanos int64 // a booking expires when it is older than this since its last progress; <= 0: DefaultExpiryNanos
}

// Booking says what a request takes of a slot.
type Booking struct {
	ID            string
	Slot          worker.Slot
	Rank          worker.Rank          // names the slot in messages
	Sequences     []block.SequenceHash // the prompt's full blocks, shared by prefix; borrowed for the call
	Private       int                  // further prompt blocks that no other request shares (KV reuse not assumed)
	PrefillTokens int                  // prompt tokens to compute until PrefillComplete
}

// Load is what the bookings of a slot add up to.
type Load struct {
	ActivePrefillTokens int64
	ActiveBlocks        int64
	ActiveRequests      int32
}

// request is a booking. Its prompt path is found from leaf upwards.
type request struct {
	id            string
	rank          worker.Rank
	slot          worker.Slot
	leaf          nodeID
	prefillTokens int64
	private       int64 // blocks outside the tree: output, and prompt blocks that nobody shares
	privateWeight int64
	deadline      int64 // the last moment it lives without progress
	queued        int64 // where it stands in Ledger.deadlines: at or before deadline
	live          bool
}

// Ledger books requests. See the package comment; the zero value is not usable.
//
// Invariants (checked in the tests): byID maps exactly the live requests; deadlines holds exactly one item per live
// request; each tally is the sum over the live requests of its slot; an id is booked or remembered, never both.
type Ledger struct {
	expiry    int64
	byID      map[string]uint32
	requests  []request
	free      []uint32 // indices of requests that are not live
	tallies   []tally  // by slot; slots beyond are empty
	tree      tree
	deadlines deadlines
	late      remembered
}

// New returns an empty ledger.
func New(opts Options) *Ledger {
	expiry := opts.ExpiryNanos
	if expiry <= 0 {
		expiry = DefaultExpiryNanos
	}
	return &Ledger{expiry: expiry, byID: map[string]uint32{}, tree: newTree(), deadlines: newDeadlines(), late: newRemembered()}
}

// Book books a request. Errors: ErrInvalid, ErrDuplicateRequest.
func (l *Ledger) Book(b Booking, now int64) error {
	if err := l.check(&b); err != nil {
		return err
	}
	if i, ok := l.byID[b.ID]; ok {
		return fmt.Errorf("%w: %q, on worker %v", ErrDuplicateRequest, b.ID, l.requests[i].rank)
	}
	l.late.forget(b.ID)
	l.grow(b.Slot)
	leaf, added := l.tree.acquire(b.Slot, b.Sequences)
	deadline := addSaturating(now, l.expiry)
	i := l.newRequest()
	l.requests[i] = request{
		id: b.ID, rank: b.Rank, slot: b.Slot, leaf: leaf, prefillTokens: int64(b.PrefillTokens),
		private: int64(b.Private), privateWeight: int64(b.Private) * unit, deadline: deadline, queued: deadline, live: true,
	}
	l.byID[b.ID] = i
	l.deadlines.add(deadline, i)
	t := &l.tallies[b.Slot]
	t.requests++
	t.prefillTokens += int64(b.PrefillTokens)
	t.blocks += int64(added) + int64(b.Private)
	t.weight += (int64(added) + int64(b.Private)) * unit
	return nil
}

// PrefillComplete ends the prefill of a request: its prompt tokens no longer count. Errors: ErrRequestNotFound.
func (l *Ledger) PrefillComplete(id string, now int64) error {
	i, ok := l.byID[id]
	if !ok {
		return l.settleLate(id, now)
	}
	r := &l.requests[i]
	l.tallies[r.slot].prefillTokens -= r.prefillTokens
	r.prefillTokens = 0
	l.renew(r, now)
	return nil
}

// Free ends a request, its prefill included. Errors: ErrRequestNotFound.
func (l *Ledger) Free(id string, now int64) error {
	i, ok := l.byID[id]
	if !ok {
		return l.settleLate(id, now)
	}
	l.deadlines.remove(l.requests[i].queued, i)
	l.release(i)
	return nil
}

// AddOutputBlocks adds n blocks that the request generated. With a decay fraction in [0,1], all blocks that only this
// request holds weigh the fraction from now on. n = 0 changes nothing. Errors: ErrInvalid, ErrRequestNotFound.
func (l *Ledger) AddOutputBlocks(id string, n int, decayFraction *float64, now int64) error {
	if decayFraction != nil && !(*decayFraction >= 0 && *decayFraction <= 1) {
		return fmt.Errorf("%w: decay fraction %v is not in [0, 1]", ErrInvalid, *decayFraction)
	}
	i, ok := l.byID[id]
	if !ok {
		return notFound(id)
	}
	r := &l.requests[i]
	t := &l.tallies[r.slot]
	if n < 0 || int64(n) > maxSlotBlocks-t.blocks {
		return fmt.Errorf("%w: %d output blocks for %q are not in [0, %d]", ErrInvalid, n, id, maxSlotBlocks-t.blocks)
	}
	if n == 0 {
		return nil
	}
	r.private += int64(n)
	r.privateWeight += int64(n) * unit
	t.blocks += int64(n)
	t.weight += int64(n) * unit
	if decayFraction != nil {
		l.decay(r, t, weightOf(*decayFraction))
	}
	l.renew(r, now)
	return nil
}

// DropSlot ends all requests of a slot whose worker is gone, and remembers their ids.
func (l *Ledger) DropSlot(slot worker.Slot, now int64) {
	for i := range l.requests {
		if l.Load(slot).ActiveRequests == 0 {
			return
		}
		if r := &l.requests[i]; r.live && r.slot == slot {
			l.deadlines.remove(r.queued, uint32(i))
			l.abandon(uint32(i), now)
		}
	}
}

// Expire ends the requests that made no progress for longer than the expiry period, remembers their ids, and tells how
// many they were. Ids remembered for a period are forgotten.
func (l *Ledger) Expire(now int64) int {
	l.late.expire(now)
	n := 0
	for {
		i, ok := l.deadlines.popBefore(now)
		if !ok {
			return n
		}
		if r := &l.requests[i]; r.deadline >= now {
			r.queued = r.deadline
			l.deadlines.add(r.queued, i)
			continue
		}
		l.abandon(i, now)
		n++
	}
}

// Load gives the load of one slot.
func (l *Ledger) Load(slot worker.Slot) Load {
	if int64(slot) >= int64(len(l.tallies)) {
		return Load{}
	}
	return l.tallies[slot].load()
}

// Matched fills dst, by slot, with the length of the longest prefix of seqs that requests of the slot hold. Slots beyond
// len(dst) are left out.
func (l *Ledger) Matched(dst []uint32, seqs []block.SequenceHash) {
	clear(dst)
	l.tree.matched(dst, seqs)
}

// check refuses what does not fit the limits, so that no sum can overflow.
func (l *Ledger) check(b *Booking) error {
	if b.Slot >= MaxSlots {
		return fmt.Errorf("%w: slot %d of %q is not below %d", ErrInvalid, b.Slot, b.ID, MaxSlots)
	}
	var t tally
	if int(b.Slot) < len(l.tallies) {
		t = l.tallies[b.Slot]
	}
	room := maxSlotBlocks - t.blocks - int64(len(b.Sequences))
	if b.Private < 0 || int64(b.Private) > room {
		return fmt.Errorf("%w: %d private blocks of %q are not in [0, %d]", ErrInvalid, b.Private, b.ID, room)
	}
	if b.PrefillTokens < 0 || int64(b.PrefillTokens) > maxSlotTokens-t.prefillTokens {
		return fmt.Errorf("%w: %d prefill tokens of %q are not in [0, %d]", ErrInvalid, b.PrefillTokens, b.ID, maxSlotTokens-t.prefillTokens)
	}
	return nil
}

func (l *Ledger) grow(slot worker.Slot) {
	if n := int(slot) + 1 - len(l.tallies); n > 0 {
		l.tallies = append(l.tallies, make([]tally, n)...)
	}
}

func (l *Ledger) newRequest() uint32 {
	if n := len(l.free); n > 0 {
		i := l.free[n-1]
		l.free = l.free[:n-1]
		return i
	}
	l.requests = append(l.requests, request{})
	return uint32(len(l.requests) - 1)
}

// renew moves the deadline. Its place in the queue stays: Expire looks again when it comes up.
func (l *Ledger) renew(r *request, now int64) {
	r.deadline = max(r.deadline, addSaturating(now, l.expiry))
}

// decay sets the weight of all blocks that only r holds.
func (l *Ledger) decay(r *request, t *tally, weight uint32) {
	private := r.private * int64(weight)
	t.weight += private - r.privateWeight + l.tree.weigh(r.slot, r.leaf, weight)
	r.privateWeight = private
}

// release takes a request, already out of deadlines, out of everything else.
func (l *Ledger) release(i uint32) {
	r := &l.requests[i]
	blocks, weight := l.tree.release(r.slot, r.leaf)
	t := &l.tallies[r.slot]
	t.requests--
	t.prefillTokens -= r.prefillTokens
	t.blocks -= int64(blocks) + r.private
	t.weight -= weight + r.privateWeight
	delete(l.byID, r.id)
	*r = request{}
	l.free = append(l.free, i)
}

func (l *Ledger) abandon(i uint32, now int64) {
	id := l.requests[i].id
	l.release(i)
	l.late.remember(id, addSaturating(now, l.expiry))
}

// settleLate answers the one late call that a remembered id is owed.
func (l *Ledger) settleLate(id string, now int64) error {
	if !l.late.settle(id, now) {
		return notFound(id)
	}
	return nil
}

func notFound(id string) error { return fmt.Errorf("%w: %q", ErrRequestNotFound, id) }

// addSaturating adds b >= 0.
func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
