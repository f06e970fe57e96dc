// Package model is the ledger of package load as maps and loops, to be checked by eye and compared with.
package model

import (
	"encoding/binary"
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// whole is the weight of a block that nothing made a fraction.
const whole = int64(1_000_000_000)

type booking struct {
	slot          worker.Slot
	prefixes      []string // one per block: all hashes up to it
	private       int64
	privateWeight int64
	prefillTokens int64
	deadline      int64
}

type held struct {
	slot   worker.Slot
	prefix string
}

// Ledger has the methods and the semantics of load.Ledger, without its limits on sizes.
type Ledger struct {
	expiry     int64
	bookings   map[string]*booking
	weights    map[held]int64 // of the blocks held; absent: whole
	remembered map[string]int64
}

// New returns an empty ledger.
func New(expiryNanos int64) *Ledger {
	return &Ledger{expiryNanos, map[string]*booking{}, map[held]int64{}, map[string]int64{}}
}

// Book books a request.
func (l *Ledger) Book(b load.Booking, now int64) error {
	if b.Private < 0 || b.PrefillTokens < 0 {
		return load.ErrInvalid
	}
	if l.bookings[b.ID] != nil {
		return load.ErrDuplicateRequest
	}
	delete(l.remembered, b.ID)
	l.bookings[b.ID] = &booking{
		slot: b.Slot, prefixes: prefixes(b.Sequences), private: int64(b.Private), privateWeight: int64(b.Private) * whole,
		prefillTokens: int64(b.PrefillTokens), deadline: now + l.expiry,
	}
	return nil
}

// PrefillComplete ends the prefill of a request.
func (l *Ledger) PrefillComplete(id string, now int64) error {
	b := l.bookings[id]
	if b == nil {
		return l.settle(id, now)
	}
	b.prefillTokens = 0
	b.deadline = max(b.deadline, now+l.expiry)
	return nil
}

// Free ends a request.
func (l *Ledger) Free(id string, now int64) error {
	if l.bookings[id] == nil {
		return l.settle(id, now)
	}
	l.remove(id)
	return nil
}

// AddOutputBlocks adds n blocks that nobody shares, and makes all blocks that only this request holds weigh a fraction.
func (l *Ledger) AddOutputBlocks(id string, n int, decayFraction *float64, now int64) error {
	if decayFraction != nil && !(*decayFraction >= 0 && *decayFraction <= 1) {
		return load.ErrInvalid
	}
	b := l.bookings[id]
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
	b.deadline = max(b.deadline, now+l.expiry)
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

// DropSlot ends all requests of a slot and remembers their ids.
func (l *Ledger) DropSlot(slot worker.Slot, now int64) {
	for id, b := range l.bookings {
		if b.slot == slot {
			l.remove(id)
			l.remembered[id] = now + l.expiry
		}
	}
}

// Expire ends the requests without progress and remembers their ids.
func (l *Ledger) Expire(now int64) int {
	n := 0
	for id, b := range l.bookings {
		if b.deadline < now {
			l.remove(id)
			l.remembered[id] = now + l.expiry
			n++
		}
	}
	return n
}

// Load gives the load of one slot.
func (l *Ledger) Load(slot worker.Slot) load.Load {
	var out load.Load
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
			out.ActivePrefillTokens += b.prefillTokens
			out.ActiveRequests++
		}
	}
	out.ActiveBlocks = int64(math.Round(float64(weight) / float64(whole)))
	return out
}

// Matched fills dst, by slot, with the length of the longest prefix of seqs held.
func (l *Ledger) Matched(dst []uint32, seqs []block.SequenceHash) {
	for i := range dst {
		dst[i] = 0
		holders := l.holders(worker.Slot(i))
		for depth, p := range prefixes(seqs) {
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
	delete(l.bookings, id)
	left := l.holders(b.slot)
	for _, p := range b.prefixes {
		if left[p] == 0 {
			delete(l.weights, held{b.slot, p})
		}
	}
}

func (l *Ledger) settle(id string, now int64) error {
	until, ok := l.remembered[id]
	delete(l.remembered, id)
	if !ok || until < now {
		return load.ErrRequestNotFound
	}
	return nil
}

func prefixes(seqs []block.SequenceHash) []string {
	var all []byte
	out := make([]string, 0, len(seqs))
	for _, h := range seqs {
		all = binary.LittleEndian.AppendUint64(all, uint64(h))
		out = append(out, string(all))
	}
	return out
}
