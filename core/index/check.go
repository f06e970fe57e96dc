package index

import (
	"fmt"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// mustHold panics if an invariant is broken. Builds with the tag "invariants" call it after every change of a small
// index, the others never.
func (x *sharded) mustHold() {
	const small = 2000 // names: a check looks at everything
	n := 0
	for _, h := range *x.holders.Load() {
		if h != nil {
			n += int(h.held.Load())
		}
	}
	if n > small {
		return
	}
	if err := x.check(); err != nil {
		panic("index: broken " + err.Error())
	}
}

// check verifies all invariants, by number. It is the only one that takes several locks of a kind: holders by slot, then
// shards by number, and grow before all of them so that no holder is missed.
func (x *sharded) check() error {
	x.grow.Lock()
	defer x.grow.Unlock()
	holders := *x.holders.Load()
	for _, h := range holders {
		if h != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
		}
	}
	for i := range x.shards {
		x.shards[i].mu.Lock()
		defer x.shards[i].mu.Unlock()
	}
	for i := range x.shards {
		if err := x.checkShard(uint32(i)); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
	}
	for slot, h := range holders {
		if h == nil {
			continue
		}
		if err := x.checkHolder(worker.Slot(slot), h); err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
	}
	return nil
}

func (x *sharded) checkShard(number uint32) error {
	s := &x.shards[number]
	live, pairs := 0, 0
	keys := make(map[key]bool)
	refs := make(map[setID]uint32)
	for n := range s.used {
		at := s.at(n)
		if at.depth == freeDepth {
			continue
		}
		k := at.key()
		live++
		pairs += s.sets.size(at.set)
		refs[at.set]++
		found, ok := s.find(&k, noNode)
		switch {
		case at.set == 0:
			return fmt.Errorf("invariant B1: node %d has no holder", n)
		case !ok || found != n || keys[k]:
			return fmt.Errorf("invariant B2: node %d is not the one found by its key", n)
		case at.depth == 0 && (k != root(at.hash) || x.shardOf(at.seq) != number),
			at.depth != 0 && at.seq != block.Extend(at.parent, at.hash):
			return fmt.Errorf("invariant B3: node %d does not follow from its parent", n)
		}
		keys[k] = true
	}
	free := 0
	for n := s.free; n != noNode && free <= int(s.used); n = uint32(s.at(n).seq) {
		if s.at(n).depth != freeDepth {
			return fmt.Errorf("invariant B1: live node %d is on the free list", n)
		}
		free++
	}
	switch {
	case s.live != live || free != int(s.used)-live:
		return fmt.Errorf("invariant B1: %d live, %d free of %d, counted %d", live, free, s.used, s.live)
	case s.table.n != live:
		return fmt.Errorf("invariant B2: %d nodes, %d in the table", live, s.table.n)
	case s.pairs != pairs:
		return fmt.Errorf("invariant B4: %d pairs, counted %d", pairs, s.pairs)
	}
	if err := s.table.check(); err != nil {
		return err
	}
	return s.sets.check(refs)
}

func (s *sets) check(refs map[setID]uint32) error {
	unused := 0
	for r := range s.meta {
		id := isRow | setID(r)
		if s.meta[r].refs != refs[id] {
			return fmt.Errorf("invariant S3: row %d has %d references, counted %d", r, refs[id], s.meta[r].refs)
		}
		if refs[id] == 0 {
			unused++
			continue
		}
		hash := uint64(0)
		for slot := range worker.Slot(s.stride * 64) {
			if s.has(id, slot) {
				hash ^= setHash(uint32(slot))
			}
		}
		if s.size(id) < 2 {
			return fmt.Errorf("invariant S1: row %d has fewer than two members", r)
		}
		if hash != s.meta[r].hash {
			return fmt.Errorf("invariant S2: row %d has another hash", r)
		}
		for o := range s.meta[:r] {
			if s.meta[o].refs > 0 && slices.Equal(s.row(setID(o)), s.row(id)) {
				return fmt.Errorf("invariant S1: rows %d and %d are equal", o, r)
			}
		}
	}
	if unused != len(s.free) || s.ids.n != len(s.meta)-unused {
		return fmt.Errorf("invariant S3: %d of %d rows unused, %d on the free list, %d in the table", unused, len(s.meta), len(s.free), s.ids.n)
	}
	return s.ids.check()
}

func (t *table) check() error {
	n := 0
	for pos, e := range t.slots {
		if e == 0 {
			continue
		}
		n++
		for p := t.home(e >> 32); p != pos; p = t.next(p) {
			if t.slots[p] == 0 {
				return fmt.Errorf("invariant T: entry %d cannot be reached from its home", pos)
			}
		}
	}
	if n != t.n {
		return fmt.Errorf("invariant T: %d entries, counted %d", n, t.n)
	}
	return nil
}

func (x *sharded) checkHolder(slot worker.Slot, h *holder) error {
	if h.names.slots != nil && grownSize(len(h.names.slots), h.names.n) != len(h.names.slots) {
		return fmt.Errorf("invariant N: %d names in %d places", h.names.n, len(h.names.slots))
	}
	n, named := 0, make(map[place]uint32)
	for i := range h.names.slots {
		e := &h.names.slots[i]
		if !e.live() {
			continue
		}
		n++
		at := e.place()
		named[at]++
		if found := h.names.find(e.engine); found != e {
			return fmt.Errorf("invariant N: engine hash %d is not found in its place", e.engine)
		}
		if e.refs() == 0 || int(at.shard) >= len(x.shards) || at.node >= x.shards[at.shard].used ||
			!x.shards[at.shard].sets.has(x.shards[at.shard].at(at.node).set, slot) {
			return fmt.Errorf("invariant H1: engine hash %d names a block that is not held", e.engine)
		}
	}
	if n != h.names.n {
		return fmt.Errorf("invariant N: %d names, counted %d", n, h.names.n)
	}
	extra := 0
	for at, names := range named {
		if names > 1 {
			extra++
		}
		if h.extra[at] != names-1 {
			return fmt.Errorf("invariant H2: block %v has %d names, %d extra", at, names, h.extra[at])
		}
	}
	if extra != len(h.extra) {
		return fmt.Errorf("invariant H2: %d blocks have several names, counted %d", extra, len(h.extra))
	}
	return x.checkHeld(slot, h, len(named))
}

func (x *sharded) checkHeld(slot worker.Slot, h *holder, named int) error {
	held := 0
	for i := range x.shards {
		s := &x.shards[i]
		for n := range s.used {
			if at := s.at(n); at.depth != freeDepth && s.sets.has(at.set, slot) {
				held++
			}
		}
	}
	if held != named {
		return fmt.Errorf("invariant H2: %d blocks held, %d named", held, named)
	}
	if held != int(h.held.Load()) {
		return fmt.Errorf("invariant H3: %d blocks held, counted %d", held, h.held.Load())
	}
	return nil
}
