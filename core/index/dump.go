package index

import (
	"cmp"
	"runtime"
	"slices"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/internal/offheap"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A dumper writes what one slot reaches as events. Several names of a block are all kept: one is the parent of what
// follows, each other one is an event of its own. It holds the lock of the slot's lane, so what the slot holds stays.
type dumper struct {
	h      *holder
	slot   worker.Slot
	s      *shard
	v      survey
	nextID uint64
	events []event.Event
	blocks []event.Block // of all events; never moved
	todo   []branch
	next   []branch      // of the block in hand
	more   []event.Event // names beside the chain's, of the event in hand
}

// A branch is a block that an event may go on with.
type branch struct {
	spot
	hash      block.Hash
	hasParent bool
	parent    block.EngineHash
}

// Dump implements Index.
func (x *tree) Dump(slot worker.Slot, firstID uint64) []event.Event {
	h := x.lookup(slot)
	if h == nil {
		return nil
	}
	l := x.lane(slot)
	l.mu.Lock()
	defer l.mu.Unlock()
	d := dumper{h: h, slot: slot, nextID: firstID}
	if n := int(h.held.Load()); n > 0 {
		d.blocks = make([]event.Block, 0, n)
		offheap.Populate(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(d.blocks))), n*int(unsafe.Sizeof(event.Block{}))))
		for i := range x.shards {
			d.shard(&x.shards[i])
		}
	}
	runtime.KeepAlive(x)
	return d.events
}

// shard walks depth first. A chain goes on with the child of the least content hash, and the others begin events of their
// own: so the events do not depend on how the blocks came to be there.
func (d *dumper) shard(s *shard) {
	d.s = s
	s.survey(&d.v, d.slot)
	d.begin()
	for len(d.todo) > 0 {
		b := d.todo[len(d.todo)-1]
		d.todo = d.todo[:len(d.todo)-1]
		ev := event.Event{Kind: event.Stored, HasParent: b.hasParent, Parent: b.parent}
		from := len(d.blocks)
		d.follow(&b)
		ev.Blocks = d.blocks[from:len(d.blocks):len(d.blocks)]
		d.add(ev)
		for _, ev := range d.more {
			d.add(ev)
		}
		d.more = d.more[:0]
	}
}

// begin makes branches of the roots.
func (d *dumper) begin() {
	d.s.rlock()
	defer d.s.mu.RUnlock()
	for _, id := range d.v.roots {
		d.todo = append(d.todo, branch{spot: spot{id, 0}, hash: d.s.first(d.s.path(id))})
	}
	slices.SortFunc(d.todo, byHash)
	d.events = slices.Grow(d.events, len(d.v.roots)+len(d.v.kids)) // no path begins more than one, but for other names
}

func byHash(a, b branch) int { return cmp.Compare(a.hash, b.hash) }

// first gives the content of a path's first block.
func (s *shard) first(p *path) block.Hash {
	a := s.arrays(p)
	return a.hashes()[0]
}

func (d *dumper) add(ev event.Event) {
	ev.ID = d.nextID
	d.nextID++
	d.events = append(d.events, ev)
}

// dumpSection is after how many blocks a dump lets writers at the shard, at the end of a path.
const dumpSection = 256

// follow writes the blocks of a chain from a branch on.
func (d *dumper) follow(b *branch) {
	for more := true; more; {
		d.s.rlock()
		for from := len(d.blocks); more && len(d.blocks)-from < dumpSection; {
			more = d.path(b)
		}
		d.s.mu.RUnlock()
	}
}

// path writes the blocks of a path that the slot holds without a hole, from a branch up to where the chain leaves the path. It
// moves the branch on to where it goes, and tells whether it does.
func (d *dumper) path(b *branch) bool {
	s := d.s
	p := s.path(b.path)
	n := s.reach(p, d.slot)
	a := s.arrays(p)
	kids := d.v.of(b.path)
	for len(kids) > 0 && kids[0].at() < b.offset {
		kids = kids[1:]
	}
	for {
		end := n
		if len(kids) > 0 && kids[0].at() < n {
			end = kids[0].at() + 1
		}
		d.write(b, p, a, end)
		next := d.next[:0]
		if end < n {
			next = append(next, branch{spot{b.path, end}, a.hashes()[end], true, b.parent})
		}
		for ; len(kids) > 0 && kids[0].at()+1 == end; kids = kids[1:] {
			if kid := s.path(kids[0].id()); s.holds(kid, d.slot) {
				next = append(next, branch{spot{kids[0].id(), 0}, s.first(kid), true, b.parent})
			}
		}
		d.next = next
		if len(next) == 0 {
			return false
		}
		if len(next) > 1 {
			slices.SortFunc(next, byHash)
			d.todo = append(d.todo, next[1:]...)
		}
		here := b.path
		if *b = next[0]; b.path != here {
			return true
		}
	}
}

// write writes the blocks of a path from a branch to end.
func (d *dumper) write(b *branch, p *path, a arrays, end uint32) {
	from := len(d.blocks)
	hashes, names := a.hashes()[b.offset:end], a.names()[b.offset:end]
	blocks := slices.Grow(d.blocks, len(hashes))[:from+len(hashes)]
	d.blocks, blocks = blocks, blocks[from:]
	names = names[:len(blocks)]
	hashes = hashes[:len(blocks)]
	for i := range blocks {
		blocks[i] = event.Block{Engine: names[i], Hash: hashes[i]}
	}
	if p.odd && len(d.h.odd) > 0 {
		d.rename(blocks, placeOf(d.s.number, b.path, b.offset), *b)
	}
	b.hasParent, b.parent = true, blocks[len(blocks)-1].Engine
}

// reach counts the leading blocks of a path that a slot holds.
func (s *shard) reach(p *path, slot worker.Slot) uint32 {
	var room [inline]seg
	n := uint32(0)
	for _, g := range s.view(p, &room) {
		if !s.sets.has(g.set, slot) {
			break
		}
		n = g.end
	}
	return n
}

// rename gives blocks the names the slot knows them by where those are not the path's.
func (d *dumper) rename(blocks []event.Block, first place, b branch) {
	for i := range blocks {
		r, ok := d.h.odd[first+place(i)]
		if ok {
			name := blocks[i]
			other := r.first
			if r.own == 0 {
				blocks[i].Engine = r.first
				other = d.h.others[r.first].next
				r.others--
			}
			for ; r.others > 0; r.others-- {
				ev := event.Event{Kind: event.Stored, HasParent: b.hasParent, Parent: b.parent}
				ev.Blocks = []event.Block{{Engine: other, Hash: name.Hash}}
				d.more = append(d.more, ev)
				other = d.h.others[other].next
			}
		}
		b.hasParent, b.parent = true, blocks[i].Engine
	}
}

// Name implements Index.
func (x *tree) Name(slot worker.Slot, q Query, depth int) (block.EngineHash, bool) {
	h := x.lookup(slot)
	if h == nil || depth < 1 || depth > len(q.Hashes) {
		return 0, false
	}
	if len(q.Sequences) != len(q.Hashes) {
		q.Sequences = nil
	} else {
		q.Sequences = q.Sequences[:depth]
	}
	q.Hashes = q.Hashes[:depth]
	name, odd, ok := x.name(slot, q, nil)
	if odd {
		l := x.lane(slot)
		l.mu.Lock()
		name, _, ok = x.name(slot, q, h)
		l.mu.Unlock()
	}
	return name, ok
}

// name gives the name of a query's last block. odd tells that it takes the records of the slot to know it, which are h's; the
// caller then holds the lane's lock.
func (x *tree) name(slot worker.Slot, q Query, h *holder) (name block.EngineHash, odd, ok bool) {
	s := &x.shards[x.shardOf(block.SequenceHash(q.Hashes[0]))]
	s.rlock()
	defer s.mu.RUnlock()
	t := trail{s: s, q: &q}
	for t.next() {
		if n := s.reach(t.path, slot); n < t.count {
			return 0, false, false
		}
	}
	if t.depth < len(q.Hashes) {
		return 0, false, false
	}
	at := t.count - 1
	name = s.arrays(t.path).names()[at]
	if !t.path.odd {
		return name, false, true
	}
	if h == nil {
		return 0, true, false
	}
	if r := h.record(placeOf(s.number, t.id, at)); r.own == 0 {
		name = r.first
	}
	return name, false, true
}
