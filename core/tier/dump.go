package tier

import (
	"cmp"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Dump gives what a slot holds in a lower tier as Stored events of that tier, consecutive blocks in one event, numbered
// from firstID. Applied with Set to empty tiers, in any order, they give the same extensions. Of any other tier it
// gives nothing. It looks at every edge of the tier.
func (t *Tiers) Dump(slot worker.Slot, tier event.Tier, firstID uint64) []event.Event {
	if t.Blocks(slot, tier) == 0 {
		return nil
	}
	var held []edge
	t.scan(tier, func(e *edges, id uint32) {
		if e.sets.has(e.at(id).owners, slot) {
			held = append(held, *e.at(id))
		}
	})
	d := dumper{edges: held, first: make(map[block.EngineHash]int32, len(held)), sibling: make([]int32, len(held)), seen: make([]bool, len(held))}
	return d.events(tier, firstID)
}

// scan shows every live edge of a tier, by number. What is applied meanwhile may be seen or not.
func (t *Tiers) scan(tier event.Tier, f func(e *edges, id uint32)) {
	i, err := number(tier)
	if err != nil {
		return
	}
	for from, more := uint32(0), true; more; from += sectionEdges {
		t.rlock()
		if e := t.tiers[i]; e == nil {
			more = false
		} else {
			for id := from; id < min(from+sectionEdges, e.used); id++ {
				if e.at(id).kind != free {
					f(e, id)
				}
			}
			more = from+sectionEdges < e.used
		}
		t.mu.RUnlock()
	}
}

// A dumper turns edges into events. Lists of edges are linked by index, -1 ends them.
type dumper struct {
	edges   []edge
	first   map[block.EngineHash]int32 // first edge below a name
	sibling []int32                    // next edge below the same parent
	seen    []bool
}

func (d *dumper) events(tier event.Tier, firstID uint64) []event.Event {
	children := make(map[block.EngineHash]bool, len(d.edges))
	for i := range d.edges {
		e := &d.edges[i]
		children[e.child] = true
		d.sibling[i] = -1
		if e.kind == inner {
			if next, ok := d.first[block.EngineHash(e.parent)]; ok {
				d.sibling[i] = next
			}
			d.first[block.EngineHash(e.parent)] = int32(i)
		}
	}
	var out []event.Event
	emit := func(i int32) {
		for todo := []int32{i}; len(todo) > 0; {
			i := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if d.seen[i] {
				continue
			}
			ev := event.Event{ID: firstID + uint64(len(out)), Kind: event.Stored, Tier: tier}
			if e := &d.edges[i]; e.kind == inner {
				ev.HasParent, ev.Parent = true, block.EngineHash(e.parent)
			}
			for i >= 0 && !d.seen[i] {
				e := &d.edges[i]
				if ev.HasParent && e.child == ev.Parent {
					todo = append(todo, i) // a ring: its last block would be the event's own parent
					break
				}
				d.seen[i] = true
				ev.Blocks = append(ev.Blocks, event.Block{Engine: e.child, Hash: e.hash})
				next, ok := d.first[e.child]
				if !ok {
					break
				}
				for s := d.sibling[next]; s >= 0; s = d.sibling[s] {
					todo = append(todo, s)
				}
				i = next
			}
			out = append(out, ev)
		}
	}
	for i := range d.edges { // first what hangs below nothing of this tier, then rings
		if e := &d.edges[i]; e.kind == root || !children[block.EngineHash(e.parent)] {
			emit(int32(i))
		}
	}
	for i := range d.edges {
		if !d.seen[i] {
			emit(int32(i))
		}
	}
	return out
}

// Runs calls f for everything of a lower tier as runs, as the index does; a run may come before the one its parent is in.
// Applied to each of its slots, References times with Count, the runs make tiers with the same answers, names and references.
// What the Run refers to is valid until f returns. The first error of f ends it and is returned. What is applied meanwhile
// may be in the runs or not.
func (t *Tiers) Runs(tier event.Tier, f func(*index.Run) error) error {
	i, err := number(tier)
	if err != nil {
		return err
	}
	r := runner{}
	for from := uint32(0); ; {
		t.rlock()
		e := t.tiers[i]
		more := e != nil && from < e.used
		if more {
			from = r.collect(e, from)
		}
		t.mu.RUnlock()
		if !more {
			return nil
		}
		if err := r.give(f); err != nil {
			return err
		}
	}
}

// maxRun bounds the blocks of a run, which are copied under the lock.
const maxRun = 1024

// A runner copies one run under the lock and gives it away without.
type runner struct {
	run     index.Run
	holders []owner
}

type owner struct {
	slot       worker.Slot
	references uint32
}

// collect copies the first run at or after an edge, and tells where to go on.
func (r *runner) collect(e *edges, from uint32) uint32 {
	r.holders, r.run.Blocks = r.holders[:0], r.run.Blocks[:0]
	for ; from < e.used && e.at(from).kind == free; from++ {
		if from%sectionEdges == sectionEdges-1 {
			return from + 1
		}
	}
	if from == e.used {
		return from
	}
	at := e.at(from)
	r.run.HasParent, r.run.Parent = at.kind == inner, 0
	if at.kind == inner {
		r.run.Parent = block.EngineHash(at.parent)
	}
	r.run.Slots = e.sets.appendMembers(r.run.Slots[:0], at.owners)
	for _, slot := range r.run.Slots {
		r.holders = append(r.holders, owner{slot, e.references(from, slot)})
	}
	slices.SortFunc(r.holders, func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.references, b.references), cmp.Compare(a.slot, b.slot))
	})
	for id := from; ; {
		r.run.Blocks = append(r.run.Blocks, e.block(id))
		if id++; id == e.used || len(r.run.Blocks) == maxRun || !r.goesOn(e, id) {
			return id
		}
	}
}

// goesOn tells whether an edge continues the run.
func (r *runner) goesOn(e *edges, id uint32) bool {
	last := r.run.Blocks[len(r.run.Blocks)-1].Engine
	at, before := e.at(id), e.at(id-1)
	if at.kind != inner || block.EngineHash(at.parent) != last || at.owners != before.owners {
		return false
	}
	if r.run.HasParent && at.child == r.run.Parent { // a ring; by E3 the other names are no repetition
		return false
	}
	for _, o := range r.holders {
		if e.references(id, o.slot) != o.references {
			return false
		}
	}
	return true
}

// give calls f once for each number of references.
func (r *runner) give(f func(*index.Run) error) error {
	for from := 0; from < len(r.holders); {
		run := r.run
		run.References, run.Slots = r.holders[from].references, r.run.Slots[:0]
		for ; from < len(r.holders) && r.holders[from].references == run.References; from++ {
			run.Slots = append(run.Slots, r.holders[from].slot)
		}
		if err := f(&run); err != nil {
			return err
		}
	}
	return nil
}
