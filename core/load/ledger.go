package load

import (
	"fmt"
	"hash/maphash"
	"math"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/prefetch"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// DefaultExpiryNanos is how long a booking lives without progress, as in Dynamo.
const DefaultExpiryNanos = 300 * 1_000_000_000

// MaxSlots bounds worker slots, because tallies are an array by slot.
const MaxSlots = 1 << 20

// MaxEnds is how many requests one call of Expire, DropSlot or DropOrigin ends at most, about a fifth of a millisecond: whoever holds a lock for it
// lets others have it before the next call.
const MaxEnds = 256

// Options of a Ledger; the zero value is good.
type Options struct {
	// A booking of this router expires when it is older than this since its last progress, another's when it is ten times
	// older; <= 0: DefaultExpiryNanos.
	ExpiryNanos int64

	// Ended, if not nil, hears of every request that is booked no more, however it ended, and when. It must not call the ledger.
	Ended func(id string, at Placement, now int64)
}

// Booking says what a request takes of a slot.
type Booking struct {
	ID            string
	Slot          worker.Slot
	Rank          worker.Rank  // names the slot in messages
	Blocks        []block.Hash // the prompt's full blocks, shared by prefix; borrowed for the call. See Chain
	Walked        bool         // Blocks are those that Matched was asked for last: it knows the way
	Private       int          // further prompt blocks that no other request shares (KV reuse not assumed)
	PrefillTokens int          // prompt tokens to compute until PrefillComplete

	// PrefillNanos is how long the prefill should take, if PrefillModeled: then its tokens decay as time passes. At least 0;
	// without effect if PrefillTokens is 0.
	PrefillModeled bool
	PrefillNanos   int64

	// Origin is the router that placed the request; 0 is this one. See DropOrigin.
	Origin Origin
}

// request is a booking. Its prompt path is found from leaf upwards.
type request struct {
	id            string
	hash          uint32 // of id, in byID
	rank          worker.Rank
	origin        Origin
	slot          worker.Slot
	leaf          nodeID
	prefillTokens int64 // 0: it does not prefill, and is not in its slot's backlog
	prefillNanos  int64 // 0 unless modeled
	private       int64 // blocks outside the tree: output, and prompt blocks that nobody shares
	privateWeight int64
	deadline      int64 // the last moment it lives without progress
	links         [lists]links
	live, modeled bool
}

// Ledger books requests. See the package comment; the zero value is not usable.
//
// Invariants (checked in the tests): byID has exactly the live requests; deadlines links exactly those of this router, by
// deadline, and remoteDeadlines those of others; each
// tally links the live requests of its slot and is their sum, and its backlog links those with prefill tokens; loads shows the
// tallies; decaying lists the slots whose prefill decays, once each; an id is booked or remembered, never both.
type Ledger struct {
	expiry          int64
	ended           func(id string, at Placement, now int64) // may be nil
	now             int64                                    // the latest time given
	byID            table
	seed            maphash.Seed // of the hashes in byID
	requests        []request    // the first is nobody
	free            []uint32     // indices of requests that are not live
	remote          int          // live requests of other routers, at most maxRemote
	maxRemote       int
	maxEnds         int
	deadlines       list
	remoteDeadlines list
	tallies         []tally // by slot; slots beyond are empty
	loads           []Load  // by slot; the prefill tokens of decaying slots as of decayed or later
	decaying        []worker.Slot
	decayed         int64
	tree            tree
	late            remembered
}

// New returns an empty ledger.
func New(opts Options) *Ledger {
	expiry := opts.ExpiryNanos
	if expiry <= 0 {
		expiry = DefaultExpiryNanos
	}
	return &Ledger{
		expiry: expiry, ended: opts.Ended, maxRemote: maxRemote, maxEnds: MaxEnds, now: math.MinInt64, decayed: math.MinInt64, byID: newTable(), seed: maphash.MakeSeed(), requests: make([]request, 1),
		tree: newTree(), late: newRemembered(),
	}
}

// at is the time of a call: time does not go back.
func (l *Ledger) at(now int64) int64 {
	l.now = max(l.now, now)
	return l.now
}

// Book books a request. Errors: ErrInvalid, ErrDuplicateRequest.
func (l *Ledger) Book(b *Booking, now int64) error {
	now = l.at(now)
	if err := l.check(b); err != nil {
		return err
	}
	hash := l.hash(b.ID)
	if i, ok := l.lookup(b.ID, hash); ok {
		return fmt.Errorf("%w: %.100q, on worker %v", ErrDuplicateRequest, b.ID, l.requests[i].rank)
	}
	l.late.forget(b.ID)
	l.grow(b.Slot)
	leaf, added := l.tree.acquire(b.Slot, b.Blocks, b.Walked)
	i := l.newRequest()
	r := &l.requests[i]
	*r = request{
		id: b.ID, hash: hash, rank: b.Rank, origin: b.Origin, slot: b.Slot, leaf: leaf, prefillTokens: int64(b.PrefillTokens),
		private: int64(b.Private), privateWeight: int64(b.Private) * unit, live: true,
	}
	l.byID.add(hash, i)
	if b.Origin != 0 {
		l.remote++
	}
	period, deadlines := l.period(b.Origin)
	r.deadline = addSaturating(now, period)
	deadlines.push(l.requests, byDeadline, i)
	t := &l.tallies[b.Slot]
	t.live.push(l.requests, bySlot, i)
	t.requests++
	t.blocks += int64(added) + int64(b.Private)
	t.weight += (int64(added) + int64(b.Private)) * unit
	if b.PrefillTokens > 0 {
		if b.PrefillModeled {
			r.modeled, r.prefillNanos = true, b.PrefillNanos
		}
		t.prefill.add(l.requests, i, now)
	}
	l.show(b.Slot)
	return nil
}

// PrefillComplete ends the prefill of a request: its prompt tokens no longer count. Errors: ErrRequestNotFound.
func (l *Ledger) PrefillComplete(id string, now int64) error {
	now = l.at(now)
	i, ok := l.own(id)
	if !ok {
		return l.settleLate(id, now)
	}
	l.completePrefill(i, now)
	return nil
}

// Renew tells that a request makes progress: it has a new period before it expires. Errors: ErrRequestNotFound.
func (l *Ledger) Renew(id string, now int64) error {
	now = l.at(now)
	i, ok := l.own(id)
	if !ok {
		return notFound(id)
	}
	l.renew(i, now)
	return nil
}

// Free ends a request, its prefill included. Errors: ErrRequestNotFound.
func (l *Ledger) Free(id string, now int64) error {
	now = l.at(now)
	i, ok := l.own(id)
	if !ok {
		return l.settleLate(id, now)
	}
	l.release(i, now)
	return nil
}

// AddOutputBlocks adds n blocks that the request generated. With a decay fraction in [0,1], all blocks that only this
// request holds weigh the fraction from now on. n = 0 changes nothing. Errors: ErrInvalid, ErrRequestNotFound.
func (l *Ledger) AddOutputBlocks(id string, n int, decayFraction *float64, now int64) error {
	if decayFraction != nil && !(*decayFraction >= 0 && *decayFraction <= 1) {
		return fmt.Errorf("%w: decay fraction %v is not in [0, 1]", ErrInvalid, *decayFraction)
	}
	now = l.at(now)
	i, ok := l.own(id)
	if !ok {
		return notFound(id)
	}
	r := &l.requests[i]
	t := &l.tallies[r.slot]
	if n < 0 || int64(n) > maxSlotBlocks-t.blocks {
		return fmt.Errorf("%w: %d output blocks for %.100q are not in [0, %d]", ErrInvalid, n, id, maxSlotBlocks-t.blocks)
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
	l.renew(i, now)
	l.show(r.slot)
	return nil
}

// DropSlot ends the requests of a slot whose worker is gone, and remembers their ids. It ends at most MaxEnds, and tells how many: if they are so many,
// there may be more.
func (l *Ledger) DropSlot(slot worker.Slot, now int64) int {
	now = l.at(now)
	n := 0
	if int64(slot) < int64(len(l.tallies)) {
		for t := &l.tallies[slot]; t.live.first != 0 && n < l.maxEnds; n++ {
			l.abandon(t.live.first, now)
		}
	}
	return n
}

// Expire ends the requests that made no progress for longer than the expiry period, remembers their ids, and tells how
// many they were: at most MaxEnds, and then there may be more. Ids remembered for a period are forgotten. Whoever looks at the ledger calls it first.
func (l *Ledger) Expire(now int64) int {
	now = l.at(now)
	l.late.expire(now, l.maxEnds)
	n := 0
	for _, deadlines := range [...]*list{&l.deadlines, &l.remoteDeadlines} {
		for i := deadlines.first; i != 0 && l.requests[i].deadline < now && n < l.maxEnds; i = deadlines.first {
			l.abandon(i, now)
			n++
		}
	}
	return n
}

// NextExpiry gives the last moment at which the booking that expires next lives, or false if nothing is booked: a caller
// that waits for load to go away need not look before that.
func (l *Ledger) NextExpiry() (at int64, ok bool) {
	i, j := l.deadlines.first, l.remoteDeadlines.first
	if i == 0 || j != 0 && l.requests[j].deadline < l.requests[i].deadline {
		i = j
	}
	return l.requests[i].deadline, i != 0
}

// Chain renames all blocks that are booked: from their block hashes to the sequence hashes that those chain to. From then on it
// takes sequence hashes, in bookings and queries. It is for routers that share load: they tell each other these. It goes through all blocks at once: a million
// take some 10 ms in long prompts, and 50 ms in prompts of ten blocks, so it is for a router that begins.
func (l *Ledger) Chain() { l.tree.chain() }

// Expect asks for what Matched looks at first, for a caller that has something else to do before.
func (l *Ledger) Expect(blocks []block.Hash) {
	if len(blocks) > 0 {
		heads := &l.tree.heads
		at := [...]uintptr{uintptr(unsafe.Pointer(&heads.cells[heads.home(l.tree.hash(root, blocks[0]))]))}
		prefetch.Lines(at[:])
	}
}

// Matched fills dst, by slot, with the length of the longest prefix of blocks that requests of the slot hold. Slots beyond
// len(dst) are left out.
func (l *Ledger) Matched(dst []uint32, blocks []block.Hash) {
	clear(dst)
	l.tree.matched(dst, blocks)
}

// check refuses what does not fit the limits, so that no sum can overflow.
func (l *Ledger) check(b *Booking) error {
	if b.Slot >= MaxSlots {
		return fmt.Errorf("%w: slot %d of %.100q is not below %d", ErrInvalid, b.Slot, b.ID, MaxSlots)
	}
	if b.Origin != 0 && l.remote >= l.maxRemote {
		return fmt.Errorf("%w: %d requests of other routers are booked, %.100q would be one too many", ErrInvalid, l.remote, b.ID)
	}
	var none tally
	t := &none
	if int(b.Slot) < len(l.tallies) {
		t = &l.tallies[b.Slot]
	}
	for _, limit := range [...]struct {
		value, room int64
		what        string
	}{
		{int64(b.Private), maxSlotBlocks - t.blocks - int64(len(b.Blocks)), "private blocks"},
		{int64(b.PrefillTokens), maxSlotTokens - t.prefill.tokens, "prefill tokens"},
		{b.PrefillNanos, maxSlotNanos - t.prefill.nanos, "prefill nanoseconds"},
	} {
		if limit.value < 0 || limit.value > limit.room {
			return fmt.Errorf("%w: %d %s of %.100q are not in [0, %d]", ErrInvalid, limit.value, limit.what, b.ID, limit.room)
		}
	}
	return nil
}

func (l *Ledger) hash(id string) uint32 { return uint32(maphash.String(l.seed, id)) }

// find gives the request that is booked under an id.
func (l *Ledger) find(id string) (uint32, bool) { return l.lookup(id, l.hash(id)) }

func (l *Ledger) lookup(id string, hash uint32) (uint32, bool) {
	for i := l.byID.home(hash); l.byID.cells[i].value != 0; i = l.byID.next(i) {
		if c := l.byID.cells[i]; c.hash == hash && l.requests[c.value].id == id {
			return c.value, true
		}
	}
	return 0, false
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

// renew gives a request a new period. Time does not go back, so its deadline is the last.
func (l *Ledger) renew(i uint32, now int64) {
	period, deadlines := l.period(l.requests[i].origin)
	l.requests[i].deadline = addSaturating(now, period)
	deadlines.remove(l.requests, byDeadline, i)
	deadlines.push(l.requests, byDeadline, i)
}

func (l *Ledger) completePrefill(i uint32, now int64) {
	r := &l.requests[i]
	if r.prefillTokens > 0 {
		l.tallies[r.slot].prefill.remove(l.requests, i, now)
		r.prefillTokens, r.prefillNanos, r.modeled = 0, 0, false
		l.show(r.slot)
	}
	l.renew(i, now)
}

// decay sets the weight of all blocks that only r holds.
func (l *Ledger) decay(r *request, t *tally, weight uint32) {
	private := r.private * int64(weight)
	t.weight += private - r.privateWeight + l.tree.weigh(r.slot, r.leaf, weight)
	r.privateWeight = private
}

// release takes a request out of everything.
func (l *Ledger) release(i uint32, now int64) {
	r := &l.requests[i]
	slot := r.slot
	l.fetch(r)
	l.byID.remove(r.hash, i)
	t := &l.tallies[slot]
	t.live.remove(l.requests, bySlot, i)
	if r.prefillTokens > 0 {
		t.prefill.remove(l.requests, i, now)
	}
	_, deadlines := l.period(r.origin)
	deadlines.remove(l.requests, byDeadline, i)
	blocks, weight := l.tree.release(slot, r.leaf)
	t.requests--
	t.blocks -= int64(blocks) + r.private
	t.weight -= weight + r.privateWeight
	if r.origin != 0 {
		l.remote--
	}
	if l.ended != nil {
		l.ended(r.id, Placement{r.rank, r.slot, r.origin}, now)
	}
	*r = request{}
	l.free = append(l.free, i)
	l.show(slot)
}

// fetch asks for what releasing a request looks at: much of it nobody looked at since the request was booked, and its neighbours may be long gone
// from the cache.
func (l *Ledger) fetch(r *request) {
	at := [...]uintptr{
		uintptr(unsafe.Pointer(&l.tree.nodes[r.leaf])),
		uintptr(unsafe.Pointer(&l.byID.cells[l.byID.home(r.hash)])),
		uintptr(unsafe.Pointer(&l.requests[r.links[bySlot].prev].links)),
		uintptr(unsafe.Pointer(&l.requests[r.links[bySlot].next].links)),
		uintptr(unsafe.Pointer(&l.requests[r.links[byDeadline].prev].links)),
		uintptr(unsafe.Pointer(&l.requests[r.links[byDeadline].next].links)),
	}
	prefetch.Lines(at[:])
}

// abandon releases a request that nobody freed. Whoever placed it here may still call once.
func (l *Ledger) abandon(i uint32, now int64) {
	id, origin := l.requests[i].id, l.requests[i].origin
	l.release(i, now)
	if origin == 0 {
		l.late.remember(id, addSaturating(now, l.expiry))
	}
}

// settleLate answers the one late call that a remembered id is owed.
func (l *Ledger) settleLate(id string, now int64) error {
	if !l.late.settle(id, now) {
		return notFound(id)
	}
	return nil
}

func notFound(id string) error { return fmt.Errorf("%w: %.100q", ErrRequestNotFound, id) }

// addSaturating adds b >= 0.
func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
