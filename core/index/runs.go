package index

import (
	"math/bits"
	"runtime"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Runs implements Index. One shard at a time is copied, while events wait; then they go on, and the runs are handed over.
func (x *tree) Runs(f func(*Run) error) error {
	r := runner{x: x}
	for i := range x.shards {
		x.lockAll()
		r.shard(&x.shards[i])
		x.unlockAll()
		for i := range r.out {
			if err := f(&r.out[i]); err != nil {
				return err
			}
		}
		clear(r.out)
		r.out = r.out[:0]
	}
	runtime.KeepAlive(x)
	return nil
}

// A runner walks a shard from its roots, with the set of slots that reach a block. It holds the locks of all lanes.
type runner struct {
	x       *tree
	s       *shard
	v       survey
	holders []*holder
	out     []Run

	words  int
	active []uint64 // who reaches the blocks in hand
	todo   []task
	sets   []uint64 // of the tasks
}

// A task is a path to walk, and who reaches the block it hangs on.
type task struct {
	id     uint32
	parent spot // zero for a root
	set    int  // where its set is
}

func (r *runner) shard(s *shard) {
	r.s, r.holders = s, *r.x.holders.Load()
	s.survey(&r.v, everyone)
	r.words = (len(r.holders) + 63) / 64
	r.active = make([]uint64, r.words)
	r.sets = r.sets[:0]
	for range r.words {
		r.sets = append(r.sets, ^uint64(0))
	}
	for _, id := range r.v.roots {
		r.todo = append(r.todo, task{id: id})
	}
	for len(r.todo) > 0 {
		t := r.todo[len(r.todo)-1]
		r.todo = r.todo[:len(r.todo)-1]
		copy(r.active, r.sets[t.set:])
		top := 0
		if n := len(r.todo); n > 0 {
			top = r.todo[n-1].set
		}
		r.sets = r.sets[:top+r.words] // a task is above those that were there before it
		r.walk(t)
	}
}

// walk makes the runs of a path, and tasks of what hangs on it.
func (r *runner) walk(t task) {
	s, p := r.s, r.s.path(t.id)
	var room [inline]seg
	kids, from, parent := r.v.of(t.id), uint32(0), t.parent
	for _, g := range s.view(p, &room) {
		if !r.narrow(g.set) {
			return
		}
		r.stretch(t.id, p, from, g.end, parent)
		set := -1
		for len(kids) > 0 && kids[0].at() < g.end {
			if set < 0 {
				set = len(r.sets)
				r.sets = append(r.sets, r.active...)
			}
			r.todo = append(r.todo, task{kids[0].id(), spot{t.id, kids[0].at()}, set})
			kids = kids[1:]
		}
		from, parent = g.end, spot{t.id, g.end - 1}
	}
}

func (r *runner) narrow(set setID) bool {
	left := uint64(0)
	for w := range r.active {
		r.active[w] &= r.s.sets.word(set, w)
		left |= r.active[w]
	}
	return left != 0
}

// word gives the w-th word of a set.
func (s *sets) word(id setID, w int) uint64 {
	if id&isRow != 0 {
		if words := s.words(id); w < len(words) {
			return words[w]
		}
		return 0
	}
	if slot := id - 1; id != 0 && int(slot>>6) == w {
		return 1 << (slot & 63)
	}
	return 0
}

// stretch makes the runs of the blocks [from,to) of a path, which the active slots reach.
func (r *runner) stretch(id uint32, p *path, from, to uint32, parent spot) {
	a := r.s.arrays(p)
	blocks := make([]event.Block, to-from)
	for i := range blocks {
		blocks[i] = event.Block{Engine: a.names()[from+uint32(i)], Hash: a.hashes()[from+uint32(i)]}
	}
	first := placeOf(r.s.number, id, from)
	groups := make(map[block.EngineHash]int) // a parent's name -> its run
	for w, members := range r.active {
		for ; members != 0; members &= members - 1 {
			slot := worker.Slot(w<<6 + bits.TrailingZeros64(members))
			run := Run{HasParent: parent.path != 0, Parent: r.nameAt(slot, parent), Blocks: blocks, References: 1}
			if p.odd && r.special(slot, first, len(blocks)) {
				r.single(slot, first, run)
				continue
			}
			i, ok := groups[run.Parent]
			if !ok {
				i = len(r.out)
				groups[run.Parent] = i
				r.out = append(r.out, run)
			}
			r.out[i].Slots = append(r.out[i].Slots, slot)
		}
	}
}

// nameAt gives the name of a block that the slot's chains go on through.
func (r *runner) nameAt(slot worker.Slot, at spot) block.EngineHash {
	if at.path == 0 {
		return 0
	}
	p := r.s.path(at.path)
	if p.odd {
		if rec := r.holders[slot].record(placeOf(r.s.number, at.path, at.offset)); rec.own == 0 {
			return rec.first
		}
	}
	return r.s.arrays(p).names()[at.offset]
}

// special tells whether a slot knows any of some blocks by more, or others, than the path's names.
func (r *runner) special(slot worker.Slot, first place, n int) bool {
	odd := r.holders[slot].odd
	if len(odd) == 0 {
		return false
	}
	for i := range n {
		if _, ok := odd[first+place(i)]; ok {
			return true
		}
	}
	return false
}

// single makes the runs of a slot that knows some of the blocks in its own way: run after run of equal references, then
// the other names of each block.
func (r *runner) single(slot worker.Slot, first place, run Run) {
	h := r.holders[slot]
	run.Slots = []worker.Slot{slot}
	blocks := append([]event.Block(nil), run.Blocks...)
	var more []Run
	from, refs := 0, uint32(0)
	flush := func(to int) {
		if to > from {
			run.Blocks, run.References = blocks[from:to:to], refs
			r.out = append(r.out, run)
			run.HasParent, run.Parent, from = true, blocks[to-1].Engine, to
		}
	}
	hasParent, parent := run.HasParent, run.Parent
	for i := range blocks {
		rec := h.record(first + place(i))
		count, other := rec.own, rec.first
		if rec.own == 0 {
			blocks[i].Engine = rec.first
			count, other = h.others[rec.first].refs, h.others[rec.first].next
			rec.others--
		}
		for ; rec.others > 0; rec.others-- {
			named := event.Block{Engine: other, Hash: blocks[i].Hash}
			more = append(more, Run{run.Slots, hasParent, parent, []event.Block{named}, h.others[other].refs})
			other = h.others[other].next
		}
		if count != refs {
			flush(i)
			refs = count
		}
		hasParent, parent = true, blocks[i].Engine
	}
	flush(len(blocks))
	r.out = append(r.out, more...)
}
