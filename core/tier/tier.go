// Package tier answers how far the lower storage tiers of a worker rank (pinned host memory, disk, external) go on where
// its device match ends.
//
// Semantics (package model is the literal truth):
//
//   - In each tier a slot has edges: below a parent (an engine hash, or the root) a block content leads to a child, the
//     engine hash of that block. The parent need not be held in the tier, nor anywhere: engines move single blocks, and
//     what is above them is in another tier. So nothing here knows sequence hashes, and the engine's names link the tiers.
//   - Extend starts where the caller says that the device match of a slot ended: below the root, or below the engine hash
//     of its last block. It counts consecutive edges in pinned host memory, from there in disk, from there in external. A
//     block in several tiers counts once, in the first of this order; the walk does not go back to a faster tier.
//   - References and removals are those of package index: with Count every store of a name adds one and every removal takes
//     one, with Set a name has one; they are counted by slot and tier. Removing an unknown name is counted, and the rest of
//     the event goes on. A store that contains its own parent or a block twice is refused whole.
//   - A name stored again at another place first leaves the old one: the last report wins. What hangs below a name goes
//     with it, since nothing else says where that is.
//   - A second name for the same content below the same parent, of the same slot, is refused and counted; the rest of the
//     event goes on. That the slot holds the block is known already; what is stored below the second name is not found.
//     So an extension may be too short, never longer than what the slot reported.
//   - Cleared and Drop take all tiers of a slot.
//
// Dynamo 1.6.1 differs where a name is stored again at another place: there the first mapping wins, and a store ends at
// the first block that contradicts one. After a name was reused without a removal that counts what is gone; here it does not.
//
// Slots that use the same names share edges, all but those of the root and those of a crowded place: where four edges are found
// by one parent and content, or by one child, another slot's is its own, so that no table is slow because of what engines
// call their blocks. An edge is 32 bytes, and about 24 more in
// the two tables that find it: by parent and content, for Extend; by child, for removals. Limits: everything is under
// one lock, held for 32 blocks of an event or 128 of a walk; Cleared and Drop look at edges of the tiers that the
// slot has something in until they have found all of its own: at worst at every one, 5 ns each; freed edges are used again at once, but their memory goes back to the collector only when the tier
// is empty.
package tier

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// lowest is how many tiers there are below the device: event.HostPinned is the first.
const lowest = int(event.External)

// Errors of Apply.
var (
	// ErrTier says that a stored or removed event is of no lower tier; nothing changed. Device events go to the index.
	ErrTier = errors.New("not a lower storage tier")
	// ErrFull says that blocks of a store were refused because they needed memory beyond MaxBytes; the others are stored.
	// The slot's extensions may be too short from now on.
	ErrFull = errors.New("lower tiers are at their byte bound")
)

// Tiers holds the lower tiers of all slots. It is safe for concurrent use; events of one slot must come from one caller
// at a time, in order.
//
// Locks, in this order: grow or one holder's mu, then mu. A walk holds mu for reading only.
type Tiers struct {
	maxBytes atomic.Int64 // 0: unbounded
	pairs    atomic.Int64 // of all slots and tiers; written under mu

	grow        sync.Mutex
	holders     atomic.Pointer[[]atomic.Pointer[holder]] // by slot; written under grow, copied to grow; nil: nothing ever stored
	holderBytes atomic.Int64

	mu    sync.RWMutex
	tiers [lowest]*edges // nil until something is stored
}

// A holder is what is known of one slot.
type holder struct {
	mu    sync.Mutex           // one event at a time
	pairs [lowest]atomic.Int64 // edges of the slot; written under Tiers.mu

	evicted atomic.Uint64
}

// New returns empty tiers. maxBytes bounds the memory of all of them, 0 is no bound.
func New(maxBytes int64) *Tiers {
	t := &Tiers{}
	t.SetMaxBytes(maxBytes)
	t.holders.Store(new([]atomic.Pointer[holder]))
	return t
}

// SetMaxBytes changes the bound, for a caller that shares a budget with others. What is held already stays.
func (t *Tiers) SetMaxBytes(n int64) { t.maxBytes.Store(n) }

// Empty tells, without a lock, that no slot holds anything in a lower tier.
func (t *Tiers) Empty() bool { return t.pairs.Load() == 0 }

// Holds tells, without a lock, whether a slot holds anything in a lower tier.
func (t *Tiers) Holds(slot worker.Slot) bool {
	h := t.lookup(slot)
	return h != nil && h.any()
}

// Holders appends the slots that hold anything in a lower tier, ascending. It takes no lock, and allocates only if dst is
// too short.
func (t *Tiers) Holders(dst []worker.Slot) []worker.Slot {
	if t.Empty() {
		return dst
	}
	all := *t.holders.Load()
	for slot := range all {
		if h := all[slot].Load(); h != nil && h.any() {
			dst = append(dst, worker.Slot(slot))
		}
	}
	return dst
}

// Blocks counts what a slot holds in a lower tier.
func (t *Tiers) Blocks(slot worker.Slot, tier event.Tier) int {
	i, err := number(tier)
	if h := t.lookup(slot); h != nil && err == nil {
		return int(h.pairs[i].Load())
	}
	return 0
}

// Evicted counts the blocks that the byte bound refused to a slot or took from it since the slot was last dropped.
func (t *Tiers) Evicted(slot worker.Slot) uint64 {
	if h := t.lookup(slot); h != nil {
		return h.evicted.Load()
	}
	return 0
}

// Stats counts what one tier holds.
type Stats struct {
	Blocks int // edges: blocks that slots share are one, but the first of a prompt are not shared
	Pairs  int // (block, slot)
	Bytes  int // of the structure, its free space included
}

// Stats counts what a lower tier holds; of any other tier, nothing.
func (t *Tiers) Stats(tier event.Tier) Stats {
	t.rlock()
	defer t.mu.RUnlock()
	i, err := number(tier)
	if err != nil || t.tiers[i] == nil {
		return Stats{}
	}
	e := t.tiers[i]
	return Stats{Blocks: e.live, Pairs: e.pairs, Bytes: e.bytes()}
}

// Bytes is the memory of all tiers, which MaxBytes bounds: the sum of Stats, and what is kept by slot.
func (t *Tiers) Bytes() int64 {
	t.rlock()
	defer t.mu.RUnlock()
	return t.bytes()
}

func (t *Tiers) bytes() int64 {
	n := int(unsafe.Sizeof(*t))
	for _, e := range t.tiers {
		if e != nil {
			n += e.bytes()
		}
	}
	return int64(n) + t.holderBytes.Load()
}

// A lock that is taken is free again after a few microseconds, since sections are short; a caller that parks loses more
// than that, and many times more if it is bound to an OS thread. So both kinds of callers try for a while first.
const spins = 1000

func (t *Tiers) rlock() {
	for range spins {
		if t.mu.TryRLock() {
			return
		}
	}
	t.mu.RLock()
}

func (t *Tiers) lock() {
	for range spins {
		if t.mu.TryLock() {
			return
		}
	}
	t.mu.Lock()
}

// number gives the place of a tier in Tiers.tiers.
func number(tier event.Tier) (int, error) {
	if tier < event.HostPinned || tier > event.External {
		return 0, fmt.Errorf("%w: %s", ErrTier, tier)
	}
	return int(tier - event.HostPinned), nil
}

func (h *holder) any() bool {
	for i := range h.pairs {
		if h.pairs[i].Load() > 0 {
			return true
		}
	}
	return false
}

// lookup gives the holder of a slot, nil if it never stored anything.
func (t *Tiers) lookup(slot worker.Slot) *holder {
	if all := *t.holders.Load(); int(slot) < len(all) {
		return all[slot].Load()
	}
	return nil
}

// holder gives the holder of a slot, a new one if there is none.
func (t *Tiers) holder(slot worker.Slot) (*holder, error) {
	if h := t.lookup(slot); h != nil {
		return h, nil
	}
	if slot >= index.MaxSlots {
		return nil, fmt.Errorf("%w: slot %d, at most %d", index.ErrSlotRange, slot, index.MaxSlots-1)
	}
	t.grow.Lock()
	defer t.grow.Unlock()
	all := *t.holders.Load()
	if h := t.lookup(slot); h != nil {
		return h, nil
	}
	size := len(all)
	if int(slot) >= size {
		size = max(size+size/2, int(slot)+1)
	}
	more := int64(8*(size-len(all)) + int(unsafe.Sizeof(holder{})))
	if limit := t.maxBytes.Load(); limit > 0 && t.Bytes()+more > limit {
		return nil, fmt.Errorf("%w: %d bytes, slot %d", ErrFull, limit, slot)
	}
	if size > len(all) {
		old := all
		all = make([]atomic.Pointer[holder], size)
		for i := range old {
			all[i].Store(old[i].Load())
		}
		t.holders.Store(&all)
	}
	h := new(holder)
	all[slot].Store(h)
	t.holderBytes.Add(more)
	return h, nil
}
