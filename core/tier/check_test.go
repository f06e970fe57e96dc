package tier

import (
	"fmt"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/internal/idtable"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Check verifies all invariants, for tests of other packages.
func Check(t *Tiers) error { return t.check() }

// check verifies all invariants, by number, and that the counters of slots are what the edges say. Nothing may be applied
// meanwhile.
func (t *Tiers) check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := 0
	for i, e := range t.tiers {
		if e == nil {
			continue
		}
		if err := e.check(); err != nil {
			return fmt.Errorf("tier %d: %w", i, err)
		}
		all += e.pairs
	}
	if n := int(t.pairs.Load()); n != all {
		return fmt.Errorf("%d pairs, counted %d", all, n)
	}
	holders := *t.holders.Load()
	for slot := range holders {
		h := holders[slot].Load()
		for i, e := range t.tiers {
			if h == nil || e == nil {
				continue
			}
			n := 0
			for id := range e.used {
				if e.sets.has(e.at(id).owners, worker.Slot(slot)) {
					n++
				}
			}
			if got := int(h.pairs[i].Load()); got != n {
				return fmt.Errorf("slot %d, tier %d: %d edges, counted %d", slot, i, n, got)
			}
		}
	}
	return nil
}

func (e *edges) check() error {
	live, pairs, owned := 0, 0, 0
	keys, children := make(map[key]int), make(map[block.EngineHash]int)
	refs := make(map[setID]uint32)
	places := make(map[worker.Slot]map[key]bool)
	names := make(map[worker.Slot]map[block.EngineHash]bool)
	for id := range e.used {
		at := e.at(id)
		if at.kind == free {
			continue
		}
		live++
		refs[at.owners]++
		owners := e.sets.appendMembers(nil, at.owners)
		pairs += len(owners)
		if len(owners) == 0 {
			return fmt.Errorf("invariant E1: edge %d has no owner", id)
		}
		byKey, byName := at.key().place(at.child, owners[0], at.own)
		if at.own {
			owned++
		} else if at.kind == inner {
			keys[at.key()]++
			children[at.child]++
			if keys[at.key()] > crowd || children[at.child] > crowd {
				return fmt.Errorf("invariant E6: edge %d is one too many at its place", id)
			}
		}
		switch {
		case at.kind == root && (len(owners) != 1 || uint64(owners[0]) != at.parent):
			return fmt.Errorf("invariant E4: edge %d at the root of slot %d is of %v", id, at.parent, owners)
		case at.own && (at.kind != inner || len(owners) != 1):
			return fmt.Errorf("invariant E6: edge %d is of %v alone", id, owners)
		case !found(&e.byKey, byKey, id) || !found(&e.byName, byName, id):
			return fmt.Errorf("invariant E2: edge %d is not found", id)
		}
		for _, slot := range owners {
			if places[slot] == nil {
				places[slot], names[slot] = make(map[key]bool), make(map[block.EngineHash]bool)
			}
			if places[slot][at.key()] || names[slot][at.child] {
				return fmt.Errorf("invariant E3: slot %d has another edge like %d", slot, id)
			}
			places[slot][at.key()], names[slot][at.child] = true, true
		}
	}
	unused := 0
	for id := e.free; id != noEdge && unused <= int(e.used); id = uint32(e.at(id).parent) {
		if e.at(id).kind != free {
			return fmt.Errorf("invariant E1: live edge %d is on the free list", id)
		}
		unused++
	}
	if live != e.live || pairs != e.pairs || unused != int(e.used)-live {
		return fmt.Errorf("invariant E1: %d edges, %d pairs, %d free of %d, counted %d, %d", live, pairs, unused, e.used, e.live, e.pairs)
	}
	for at, n := range e.extra {
		if n == 0 || at.edge >= e.used || !e.sets.has(e.at(at.edge).owners, at.slot) {
			return fmt.Errorf("invariant E5: %d references of slot %d to edge %d", n, at.slot, at.edge)
		}
	}
	if owned != e.owned {
		return fmt.Errorf("invariant E6: %d own edges, counted %d", owned, e.owned)
	}
	if err := checkTables(&e.byKey, live); err != nil {
		return err
	}
	if err := checkTables(&e.byName, live); err != nil {
		return err
	}
	return e.sets.check(refs)
}

func found(t *idtable.Tables, hash uint64, id uint32) bool {
	for p := t.Probe(hash); ; {
		next, ok := p.Next()
		if !ok || next == id {
			return ok
		}
	}
}

func checkTables(t *idtable.Tables, live int) error {
	if n := t.Len(); n != live {
		return fmt.Errorf("invariant E2: %d edges, %d in a table", live, n)
	}
	return t.Check()
}

// Owned counts the own edges of a tier.
func Owned(t *Tiers, tier event.Tier) int {
	if e := t.tiers[tier-event.HostPinned]; e != nil {
		return e.owned
	}
	return 0
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
		for _, slot := range s.appendMembers(nil, id) {
			hash ^= slotHash(uint32(slot))
		}
		if s.size(id) < 2 || hash != s.meta[r].hash {
			return fmt.Errorf("invariant S1, S2: row %d has %d members, or another hash", r, s.size(id))
		}
		for o := range s.meta[:r] {
			if s.meta[o].refs > 0 && slices.Equal(s.row(setID(o)), s.row(id)) {
				return fmt.Errorf("invariant S1: rows %d and %d are equal", o, r)
			}
		}
	}
	if unused != len(s.free) || s.ids.Len() != len(s.meta)-unused {
		return fmt.Errorf("invariant S3: %d of %d rows unused, %d on the free list, %d in the table", unused, len(s.meta), len(s.free), s.ids.Len())
	}
	return s.ids.Check()
}

// size counts the members.
func (s *sets) size(id setID) int { return len(s.appendMembers(nil, id)) }
