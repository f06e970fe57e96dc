// Package model is the ledger of package load as maps and loops, to be checked by eye and compared with.
package model

import (
	"encoding/binary"
	"maps"
	"math"
	"math/big"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// whole is the weight of a block that nothing made a fraction.
const whole = int64(1_000_000_000)

type booking struct {
	number        int // in the order of booking
	rank          worker.Rank
	origin        load.Origin
	slot          worker.Slot
	prefixes      []string // one per block: all hashes up to it
	private       int64
	privateWeight int64
	prefillTokens int64 // 0: it does not prefill
	modeled       bool
	prefillNanos  int64
	deadline      int64
}

type held struct {
	slot   worker.Slot
	prefix string
}

// Ledger has the methods and the semantics of load.Ledger, without its limits on sizes.
type Ledger struct {
	expiry     int64
	now        int64
	booked     int
	bookings   map[string]*booking
	weights    map[held]int64        // of the blocks held; absent: whole
	anchored   map[worker.Slot]int64 // since when the slot works on its oldest prefill
	remembered map[string]int64
}

// New returns an empty ledger.
func New(expiryNanos int64) *Ledger {
	return &Ledger{expiryNanos, math.MinInt64, 0, map[string]*booking{}, map[held]int64{}, map[worker.Slot]int64{}, map[string]int64{}}
}

// Book books a request.
func (l *Ledger) Book(b load.Booking, now int64) error {
	l.now = max(l.now, now)
	if b.Private < 0 || b.PrefillTokens < 0 || b.PrefillNanos < 0 {
		return load.ErrInvalid
	}
	if l.bookings[b.ID] != nil {
		return load.ErrDuplicateRequest
	}
	delete(l.remembered, b.ID)
	if b.PrefillTokens > 0 && len(l.prefilling(b.Slot)) == 0 {
		l.anchored[b.Slot] = l.now
	}
	l.booked++
	l.bookings[b.ID] = &booking{
		number: l.booked, rank: b.Rank, origin: b.Origin, slot: b.Slot, prefixes: prefixes(b.Blocks),
		private: int64(b.Private), privateWeight: int64(b.Private) * whole,
		prefillTokens: int64(b.PrefillTokens), modeled: b.PrefillModeled, prefillNanos: b.PrefillNanos, deadline: l.now + l.period(b.Origin),
	}
	return nil
}

// PrefillComplete ends the prefill of a request.
func (l *Ledger) PrefillComplete(id string, now int64) error {
	l.now = max(l.now, now)
	b := l.own(id)
	if b == nil {
		return l.settle(id)
	}
	l.endPrefill(b)
	b.deadline = l.now + l.period(b.origin)
	return nil
}

// Renew gives a request a new period.
func (l *Ledger) Renew(id string, now int64) error {
	l.now = max(l.now, now)
	b := l.own(id)
	if b == nil {
		return load.ErrRequestNotFound
	}
	b.deadline = l.now + l.expiry
	return nil
}

// Free ends a request.
func (l *Ledger) Free(id string, now int64) error {
	l.now = max(l.now, now)
	if l.own(id) == nil {
		return l.settle(id)
	}
	l.remove(id)
	return nil
}

// RemotePrefillComplete ends the prefill of a request that another router placed on the slot.
func (l *Ledger) RemotePrefillComplete(id string, slot worker.Slot, origin load.Origin, now int64) bool {
	l.now = max(l.now, now)
	b := l.bookings[id]
	if b == nil || b.origin == 0 || b.origin != origin || b.slot != slot {
		return false
	}
	l.endPrefill(b)
	b.deadline = l.now + l.period(origin)
	return true
}

// RemoteFree ends a request that another router placed on the slot.
func (l *Ledger) RemoteFree(id string, slot worker.Slot, origin load.Origin, now int64) bool {
	l.now = max(l.now, now)
	b := l.bookings[id]
	if b == nil || b.origin == 0 || b.origin != origin || b.slot != slot {
		return false
	}
	l.remove(id)
	return true
}

// own gives the booking of a request that this router placed.
func (l *Ledger) own(id string) *booking {
	if b := l.bookings[id]; b != nil && b.origin == 0 {
		return b
	}
	return nil
}

// period is how long requests of an origin live without progress.
func (l *Ledger) period(origin load.Origin) int64 {
	if origin == 0 {
		return l.expiry
	}
	return 10 * l.expiry
}

// Placed tells where a request is booked.
func (l *Ledger) Placed(id string) (load.Placement, bool) {
	b := l.bookings[id]
	if b == nil {
		return load.Placement{}, false
	}
	return load.Placement{Rank: b.rank, Slot: b.slot, Origin: b.origin}, true
}

// AddOutputBlocks adds n blocks that nobody shares, and makes all blocks that only this request holds weigh a fraction.
func (l *Ledger) AddOutputBlocks(id string, n int, decayFraction *float64, now int64) error {
	if decayFraction != nil && !(*decayFraction >= 0 && *decayFraction <= 1) {
		return load.ErrInvalid
	}
	l.now = max(l.now, now)
	b := l.own(id)
	if b == nil {
		return load.ErrRequestNotFound
	}
	if n < 0 {
		return load.ErrInvalid
	}
	if n == 0 {
		return nil
	}
	b.private += int64(n)
	b.privateWeight += int64(n) * whole
	b.deadline = l.now + l.expiry
	if decayFraction != nil {
		weight := int64(math.Round(*decayFraction * float64(whole)))
		b.privateWeight = b.private * weight
		for _, p := range b.prefixes {
			if l.holders(b.slot)[p] == 1 {
				l.weights[held{b.slot, p}] = weight
			}
		}
	}
	return nil
}

// DropSlot ends all requests of a slot.
func (l *Ledger) DropSlot(slot worker.Slot, now int64) int {
	return l.abandon(now, func(b *booking) bool { return b.slot == slot })
}

// DropOrigin ends all requests of an origin.
func (l *Ledger) DropOrigin(origin load.Origin, now int64) int {
	return l.abandon(now, func(b *booking) bool { return b.origin == origin })
}

// Expire ends the requests without progress.
func (l *Ledger) Expire(now int64) int {
	l.now = max(l.now, now)
	return l.abandon(now, func(b *booking) bool { return b.deadline < l.now })
}

// NextExpiry gives the earliest deadline.
func (l *Ledger) NextExpiry() (at int64, ok bool) {
	for _, b := range l.bookings {
		if !ok || b.deadline < at {
			at, ok = b.deadline, true
		}
	}
	return at, ok
}

// abandon ends some requests and remembers the ids of the own ones.
func (l *Ledger) abandon(now int64, which func(b *booking) bool) int {
	l.now = max(l.now, now)
	n := 0
	for _, id := range slices.SortedFunc(maps.Keys(l.bookings), func(a, b string) int { return l.bookings[a].number - l.bookings[b].number }) {
		if b := l.bookings[id]; which(b) {
			l.remove(id)
			if b.origin == 0 {
				l.remembered[id] = l.now + l.expiry
			}
			n++
		}
	}
	return n
}

// prefilling gives the requests of a slot that prefill, oldest first.
func (l *Ledger) prefilling(slot worker.Slot) []*booking {
	var out []*booking
	for _, b := range l.bookings {
		if b.slot == slot && b.prefillTokens > 0 {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b *booking) int { return a.number - b.number })
	return out
}

func (l *Ledger) endPrefill(b *booking) {
	if b.prefillTokens == 0 {
		return
	}
	if l.prefilling(b.slot)[0] == b {
		l.anchored[b.slot] = l.now
	} else if b.modeled {
		l.anchored[b.slot] = min(l.anchored[b.slot]+b.prefillNanos, l.now)
	}
	b.prefillTokens = 0
}

// prefillTokens counts the prompt tokens that a slot still has to compute.
func (l *Ledger) prefillTokens(slot worker.Slot) int64 {
	queue := l.prefilling(slot)
	if len(queue) == 0 {
		return 0
	}
	anchor, sum, all := queue[0], int64(0), true
	for _, b := range queue {
		sum += b.prefillTokens
		all = all && b.modeled
	}
	if !anchor.modeled {
		return sum
	}
	bound := sum
	if !all {
		bound = anchor.prefillTokens
	}
	done := big.NewInt(anchor.prefillTokens)
	if anchor.prefillNanos > 0 {
		done.Mul(done, big.NewInt(l.now-l.anchored[slot]))
		done.Div(done, big.NewInt(anchor.prefillNanos))
	}
	if done.Cmp(big.NewInt(bound)) > 0 {
		done.SetInt64(bound)
	}
	return sum - done.Int64()
}

// RemainingPrefillNanos gives the time that a slot's prefills should still take.
func (l *Ledger) RemainingPrefillNanos(slot worker.Slot) (int64, bool) {
	sum := int64(0)
	for _, b := range l.prefilling(slot) {
		if !b.modeled {
			return 0, false
		}
		sum += b.prefillNanos
	}
	if sum == 0 {
		return 0, true
	}
	return max(sum-(l.now-l.anchored[slot]), 0), true
}

// Load gives the load of one slot.
func (l *Ledger) Load(slot worker.Slot) load.Load {
	out := load.Load{ActivePrefillTokens: l.prefillTokens(slot)}
	var weight int64
	for p := range l.holders(slot) {
		if w, ok := l.weights[held{slot, p}]; ok {
			weight += w
		} else {
			weight += whole
		}
	}
	for _, b := range l.bookings {
		if b.slot == slot {
			weight += b.privateWeight
			out.ActiveRequests++
		}
	}
	out.ActiveBlocks = int64(math.Round(float64(weight) / float64(whole)))
	return out
}

// Matched fills dst, by slot, with the length of the longest prefix of seqs held.
func (l *Ledger) Matched(dst []uint32, seqs []block.Hash) {
	all := prefixes(seqs)
	for i := range dst {
		dst[i] = 0
		holders := l.holders(worker.Slot(i))
		for depth, p := range all {
			if holders[p] > 0 {
				dst[i] = uint32(depth + 1)
			}
		}
	}
}

// holders counts, for each prefix, the requests of the slot that hold it.
func (l *Ledger) holders(slot worker.Slot) map[string]int {
	n := map[string]int{}
	for _, b := range l.bookings {
		if b.slot == slot {
			for _, p := range b.prefixes {
				n[p]++
			}
		}
	}
	return n
}

func (l *Ledger) remove(id string) {
	b := l.bookings[id]
	l.endPrefill(b)
	delete(l.bookings, id)
	left := l.holders(b.slot)
	for _, p := range b.prefixes {
		if left[p] == 0 {
			delete(l.weights, held{b.slot, p})
		}
	}
}

func (l *Ledger) settle(id string) error {
	until, ok := l.remembered[id]
	delete(l.remembered, id)
	if !ok || until < l.now {
		return load.ErrRequestNotFound
	}
	return nil
}

func prefixes(seqs []block.Hash) []string {
	var all []byte
	out := make([]string, 0, len(seqs))
	for _, h := range seqs {
		all = binary.LittleEndian.AppendUint64(all, uint64(h))
		out = append(out, string(all))
	}
	return out
}
