package index

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A writer applies one event to one slot. It holds the slot's mu all the time, and a shard's mu for sections of at most
// sectionBlocks blocks.
type writer struct {
	x    *sharded
	h    *holder
	slot worker.Slot

	locked *shard // nil between sections
	spent  int    // blocks touched in this section
	done   Applied
}

// Apply implements Index.
func (x *sharded) Apply(slot worker.Slot, ev *event.Event, counting Counting) (Applied, error) {
	if x.closed.Load() {
		return Applied{Refused: len(ev.Blocks)}, ErrClosed
	}
	h, err := x.holder(slot)
	if err != nil {
		return Applied{Refused: len(ev.Blocks)}, err
	}
	h.mu.Lock()
	w := writer{x: x, h: h, slot: slot}
	switch ev.Kind {
	case event.Stored:
		err = w.store(ev, counting)
	case event.Removed:
		w.remove(ev.Removed)
	case event.Cleared:
		w.clear()
	}
	w.finish()
	h.mu.Unlock()
	if invariants {
		x.mustHold()
	}
	return w.done, err
}

// Drop implements Index.
func (x *sharded) Drop(slot worker.Slot) {
	h := x.lookup(slot)
	if h == nil {
		return
	}
	h.mu.Lock()
	w := writer{x: x, h: h, slot: slot}
	w.clear()
	w.finish()
	h.work = nil
	h.mu.Unlock()
	if invariants {
		x.mustHold()
	}
}

// enter gives a shard, locked, for one more block. What was read from it may have moved since the last call, but the
// blocks the slot holds are where they were.
func (w *writer) enter(number uint32) *shard {
	s := &w.x.shards[number]
	if w.locked == s && w.spent < sectionBlocks {
		w.spent++
		return s
	}
	w.exit()
	s.mu.Lock()
	w.locked, w.spent = s, 1
	return s
}

func (w *writer) exit() {
	if w.locked != nil {
		w.locked.mu.Unlock()
		w.locked = nil
	}
}

// finish ends the last section, gives memory back and publishes the counters.
func (w *writer) finish() {
	w.exit()
	h := w.h
	h.names.trim()
	h.held.Add(int64(w.done.Stored - w.done.Removed))
	const extraBytes = 32 // of a map entry: key, value, control byte and free room
	h.bytes.Store(int64(int(unsafe.Sizeof(*h)) + h.names.bytes() + len(h.extra)*extraBytes + cap(h.work)*8))
}

func (w *writer) store(ev *event.Event, counting Counting) error {
	if bad, ok := w.repeated(ev); ok {
		w.done.Refused = len(ev.Blocks)
		return fmt.Errorf("%w: engine hash %d", ErrBadChain, bad)
	}
	var k key
	at := place{node: noNode}
	if ev.HasParent {
		parent := w.h.names.find(ev.Parent)
		if parent == nil {
			w.done.Refused = len(ev.Blocks)
			return fmt.Errorf("%w: parent %d, slot %d", ErrUnknownParent, ev.Parent, w.slot)
		}
		at = parent.place()
		k = w.enter(at.shard).at(at.node).key()
	}
	for i := range ev.Blocks {
		b := &ev.Blocks[i]
		if i%sectionBlocks == 0 {
			w.exit()
			w.h.names.reserve(min(sectionBlocks, len(ev.Blocks)-i))
		}
		if i == 0 && !ev.HasParent {
			k = root(b.Hash)
			at.shard = w.x.shardOf(k.seq)
		} else {
			k = k.child(b.Hash)
		}
		at.node = w.storeBlock(&k, at, b.Engine, counting)
	}
	return nil
}

// storeBlock adds a name for a block below parent, and gives the block's node in the same shard.
func (w *writer) storeBlock(k *key, parent place, engine block.EngineHash, counting Counting) uint32 {
	s := w.enter(parent.shard)
	if known := w.h.names.find(engine); known != nil {
		at := known.place()
		if at.shard == parent.shard && s.at(at.node).is(k) {
			known.again(counting)
			w.done.Duplicate++
			return at.node
		}
		w.forget(engine, at)
		s = w.enter(parent.shard)
	}
	n, held := s.hold(k, parent.node, w.slot)
	at := place{parent.shard, n}
	if held {
		w.done.Duplicate++
		if w.h.extra == nil {
			w.h.extra = make(map[place]uint32)
		}
		w.h.extra[at]++
	} else {
		w.done.Stored++
	}
	w.h.names.insert(newName(engine, at))
	return n
}

// repeated finds an engine hash that is twice among the parent and the blocks.
func (w *writer) repeated(ev *event.Event) (block.EngineHash, bool) {
	all := w.h.work[:0]
	if ev.HasParent {
		all = append(all, ev.Parent)
	}
	for i := range ev.Blocks {
		all = append(all, ev.Blocks[i].Engine)
	}
	slices.Sort(all)
	const keep = 1024 // a longer event is rare enough to allocate for
	if cap(all) <= keep {
		w.h.work = all[:0]
	}
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			return all[i], true
		}
	}
	return 0, false
}

func (w *writer) remove(gone []block.EngineHash) {
	for _, engine := range gone {
		switch known := w.h.names.find(engine); {
		case known == nil:
			w.done.Unknown++
		case known.refs() > 1:
			known.meta--
		default:
			w.forget(engine, known.place())
		}
	}
}

// forget removes a name, and the slot from its block when that was the last one.
func (w *writer) forget(engine block.EngineHash, at place) {
	w.h.names.remove(engine)
	w.unname(at)
}

func (w *writer) unname(at place) {
	if more := w.h.extra[at]; more > 1 {
		w.h.extra[at] = more - 1
		return
	} else if more == 1 {
		if delete(w.h.extra, at); len(w.h.extra) == 0 {
			w.h.extra = nil
		}
		return
	}
	w.enter(at.shard).leave(at.node, w.slot)
	w.done.Removed++
}

func (w *writer) clear() {
	for i := range w.h.names.slots {
		if n := &w.h.names.slots[i]; n.live() {
			w.unname(n.place())
		}
	}
	w.h.names = names{}
}
