package tier

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const (
	// sectionBlocks bounds what a writer does under the lock, to a few microseconds: a walk waits no longer.
	sectionBlocks = 32
	// sectionEdges bounds what a scan of all edges does under the lock.
	sectionEdges = 8 * pageEdges
)

// A writer applies one event to one slot.
type writer struct {
	t    *Tiers
	h    *holder
	slot worker.Slot
	tier int
	done index.Applied
	full bool

	touched uint64 // keeps touch from being optimised away
}

// Apply applies an event of a lower tier to a slot; Cleared takes all lower tiers, whatever its tier. Applied counts
// blocks, as the index does: Refused are also those with a second name for one place, and those that memory was
// refused to. With ErrFull the other blocks are stored; on any other error nothing changed.
func (t *Tiers) Apply(slot worker.Slot, ev *event.Event, counting index.Counting) (index.Applied, error) {
	if ev.Kind == event.Cleared {
		return index.Applied{Removed: t.clear(slot)}, nil
	}
	refused := index.Applied{Refused: len(ev.Blocks)}
	tier, err := number(ev.Tier)
	if err != nil {
		return refused, err
	}
	h := t.lookup(slot)
	switch ev.Kind {
	case event.Stored:
		if bad, ok := repeated(ev); ok {
			return refused, fmt.Errorf("%w: engine hash %d", index.ErrBadChain, bad)
		}
		if h, err = t.holder(slot); err != nil {
			return refused, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		w := writer{t: t, h: h, slot: slot, tier: tier}
		w.store(ev, counting)
		if w.full {
			err = fmt.Errorf("%w: %d bytes, slot %d", ErrFull, t.maxBytes.Load(), slot)
		}
		return w.done, err
	case event.Removed:
		if h == nil {
			return index.Applied{Unknown: len(ev.Removed)}, nil
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		w := writer{t: t, h: h, slot: slot, tier: tier}
		w.remove(ev.Removed)
		return w.done, nil
	}
	return index.Applied{}, nil
}

// Drop forgets everything of a slot.
func (t *Tiers) Drop(slot worker.Slot) {
	t.clear(slot)
	if h := t.lookup(slot); h != nil {
		h.evicted.Store(0)
	}
}

// repeated finds an engine hash that is twice among the parent and the blocks.
func repeated(ev *event.Event) (block.EngineHash, bool) {
	var room [1 + sectionBlocks]block.EngineHash // a longer event is rare enough to allocate for
	all := room[:0]
	if ev.HasParent {
		all = append(all, ev.Parent)
	}
	for i := range ev.Blocks {
		all = append(all, ev.Blocks[i].Engine)
	}
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			return all[i], true
		}
	}
	return 0, false
}

// edges gives the tier, which the first store makes.
func (w *writer) edges() *edges { return w.t.tiers[w.tier] }

func (w *writer) store(ev *event.Event, counting index.Counting) {
	parent, kind := uint64(w.slot), root
	if ev.HasParent {
		parent, kind = uint64(ev.Parent), inner
	}
	for section := range slices.Chunk(ev.Blocks, sectionBlocks) {
		w.t.lock()
		if w.edges() == nil && w.t.room(int(unsafe.Sizeof(edges{}))) {
			w.t.tiers[w.tier] = newEdges()
		}
		w.touch(section, key{parent: parent, kind: kind})
		for _, b := range section {
			w.storeBlock(key{parent, kind, b.Hash}, b.Engine, counting)
			parent, kind = uint64(b.Engine), inner
		}
		w.t.mu.Unlock()
	}
}

// touch loads the places of the tables that a section will look at: all at once, they cost little more than one of them.
// A million edges do not fit into a processor's cache.
func (w *writer) touch(section []event.Block, k key) {
	e := w.edges()
	if e == nil {
		return
	}
	for _, b := range section {
		k.hash = b.Hash
		w.touched += e.byKey.Peek(k.tableHash()) + e.byName.Peek(nameHash(b.Engine))
		k = key{parent: uint64(b.Engine), kind: inner}
	}
}

func (w *writer) storeBlock(k key, child block.EngineHash, counting index.Counting) {
	e := w.edges()
	if e == nil {
		w.refuse()
		return
	}
	if id, ok := e.named(w.slot, child); ok {
		if e.at(id).key() == k {
			w.again(id, counting)
			return
		}
		w.forget(id)
	}
	id, taken := e.find(k, child, w.slot)
	if taken {
		w.done.Refused++
		return
	}
	own := id == noEdge && e.crowded(k, child)
	if !w.t.room(e.growth(id, k, child, w.slot, own)) || id == noEdge && e.used >= maxEdges {
		w.refuse()
		return
	}
	e.hold(id, k, child, w.slot, own)
	w.count(w.h, 1)
	w.done.Stored++
}

// again stores a name where it is. At four billion references it stops counting: the block may then be removed too early,
// never too late.
func (w *writer) again(id uint32, counting index.Counting) {
	e := w.edges()
	refs := e.references(id, w.slot)
	switch {
	case counting == index.Set:
		e.refer(id, w.slot, 1)
	case refs == math.MaxUint32:
	case refs == 1 && !w.t.room(extraBytes):
		w.refuse()
		return
	default:
		e.refer(id, w.slot, refs+1)
	}
	w.done.Duplicate++
}

func (w *writer) refuse() {
	w.done.Refused++
	w.h.evicted.Add(1)
	w.full = true
}

// room tells whether so many bytes more are within the bound.
func (t *Tiers) room(more int) bool {
	limit := t.maxBytes.Load()
	return more == 0 || limit <= 0 || t.bytes()+int64(more) <= limit
}

func (w *writer) count(h *holder, n int64) {
	h.pairs[w.tier].Add(n)
	w.t.pairs.Add(n)
}

func (w *writer) remove(gone []block.EngineHash) {
	for section := range slices.Chunk(gone, sectionBlocks) {
		w.t.lock()
		if e := w.edges(); e != nil {
			for _, name := range section {
				w.touched += e.byName.Peek(nameHash(name))
			}
		}
		for _, name := range section {
			w.removeBlock(name)
		}
		w.t.mu.Unlock()
	}
}

func (w *writer) removeBlock(name block.EngineHash) {
	e := w.edges()
	if e == nil {
		w.done.Unknown++
		return
	}
	id, ok := e.named(w.slot, name)
	if !ok {
		w.done.Unknown++
		return
	}
	if refs := e.references(id, w.slot); refs > 1 {
		e.refer(id, w.slot, refs-1)
		return
	}
	w.forget(id)
}

// forget takes the slot from an edge. If the set of those that stay has no room, they lose the edge too: what is counted
// is then too little, not too much.
func (w *writer) forget(id uint32) {
	e := w.edges()
	w.done.Removed++
	if owners := e.at(id).owners; owners&isRow != 0 && !w.t.room(e.sets.growth(owners, w.slot)) {
		for _, slot := range e.sets.appendMembers(nil, owners) {
			if slot == w.slot {
				continue
			}
			h := w.t.lookup(slot)
			w.count(h, -1)
			h.evicted.Add(1)
		}
		w.count(w.h, -1)
		e.drop(id)
		return
	}
	e.leave(id, w.slot)
	w.count(w.h, -1)
}

// clear takes everything from a slot, and tells how many blocks that were.
func (t *Tiers) clear(slot worker.Slot) int {
	h := t.lookup(slot)
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	removed := 0
	for tier := range lowest {
		w := writer{t: t, h: h, slot: slot, tier: tier}
		for from := uint32(0); h.pairs[tier].Load() > 0; from += sectionEdges {
			t.lock()
			for id := from; id < min(from+sectionEdges, w.edges().used); id++ {
				if e := w.edges(); e.sets.has(e.at(id).owners, slot) {
					w.forget(id)
				}
			}
			t.mu.Unlock()
		}
		removed += w.done.Removed
	}
	return removed
}
