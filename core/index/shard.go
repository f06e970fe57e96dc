package index

import (
	"sync"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A shard holds the paths of all prompts whose first block falls to it. Its structures refer to each other by number.
//
// Guard: mu. Writers: writer and evictor, in sections of at most sectionBlocks blocks. Readers: match, Name, dump.
type shard struct {
	mu     sync.RWMutex
	x      *tree
	number uint32

	paths pool  // record r is path r+1, so that no path is 0
	heads table // sequence hash of a path's first block -> path
	lists [listShifts]pool
	sets  sets

	living int  // paths that are no ghosts
	lost   bool // some path may be without the block before it: unset, every path's parent is where it hangs
	blocks int  // that some slot holds
	pairs  int  // of block and slot: the sum of the sizes of the blocks' sets

	work []seg
	_    [64]byte // keeps neighbours' locks off this cache line
}

func (s *shard) init(x *tree, number uint32) {
	s.x, s.number = x, number
	s.paths = newPool(x.heap, unsafe.Sizeof(path{}))
	s.heads = newTable(&x.lines, headParts)
	s.sets = newSets(x.heap, &x.lines)
	for k := range s.lists {
		s.lists[k] = newPool(x.heap, unsafe.Sizeof(seg{})*minList<<k)
	}
}

// A lock that is taken is free again after a few microseconds, since sections are short; a caller that parks loses more
// than that, and many times more if it is bound to an OS thread. So both kinds of callers try for a while first.
const spins = 1000

func (s *shard) rlock() {
	for range spins {
		if s.mu.TryRLock() {
			return
		}
	}
	s.mu.RLock()
}

func (s *shard) lock() {
	for range spins {
		if s.mu.TryLock() {
			return
		}
	}
	s.mu.Lock()
}

func (s *shard) path(id uint32) *path { return (*path)(s.paths.at(id - 1)) }

func (s *shard) arrays(p *path) arrays { return s.x.arena.arrays(p.run, uint32(p.units)) }

// root tells whether a path begins a prompt.
func (p *path) root(a arrays) bool {
	return a.marks()[0] == 0 && block.SequenceHash(a.hashes()[0]) == p.head
}

// seqAt gives the sequence hash of a block of a path: its tail's, or a few steps from the mark before it.
func (s *shard) seqAt(p *path, offset uint32) block.SequenceHash {
	if offset+1 == uint32(p.n) {
		return p.tail
	}
	a := s.arrays(p)
	return a.seqAt(p.head, offset)
}

func (a arrays) seqAt(head block.SequenceHash, offset uint32) block.SequenceHash {
	seq := head
	if k := offset / unitBlocks; k > 0 {
		seq = a.marks()[k]
	}
	for _, h := range a.hashes()[offset&^(unitBlocks-1)+1 : offset+1] {
		seq = block.Extend(seq, h)
	}
	return seq
}

// headed gives the path that begins with a block, 0 if none does. before is the sequence hash of the block before it, 0 for
// the first of a prompt: comparing it and the content too makes a block crafted to collide another block.
func (s *shard) headed(seq, before block.SequenceHash, h block.Hash) uint32 {
	id, _ := s.lead(seq, before, h, spot{path: ^uint32(0)})
	return id
}

// lead is headed, and gives the path's arrays too. at is the block before, if the caller knows it: a path that is known to hang
// there is that of the block, and needs no look at its mark, which is far from its hashes.
func (s *shard) lead(seq, before block.SequenceHash, h block.Hash, at spot) (uint32, arrays) {
	for p := s.heads.probe(mixed(uint64(seq))); ; {
		id, ok := p.place()
		if !ok {
			return 0, arrays{}
		}
		c := s.path(uint32(id))
		if c.head != seq {
			continue
		}
		hangs := !s.lost && c.parent == at.path && uint32(c.at) == at.offset
		if a := s.arrays(c); a.hashes()[0] == h && (hangs || a.marks()[0] == before) {
			return uint32(id), a
		}
	}
}

// A spot is a block of a shard by path and offset; the zero spot is before the first block of a prompt.
type spot struct{ path, offset uint32 }

// after gives the block with that content below a spot, if it is there. seq is its sequence hash if it is not
// the next of the spot's path.
func (s *shard) after(at spot, h block.Hash) (next spot, seq, before block.SequenceHash, ok bool) {
	if at.path == 0 {
		seq = block.SequenceHash(h)
		id := s.headed(seq, 0, h)
		return spot{id, 0}, seq, 0, id != 0
	}
	p := s.path(at.path)
	if o := at.offset + 1; o < uint32(p.n) {
		if a := s.arrays(p); a.hashes()[o] == h {
			return spot{at.path, o}, 0, 0, true
		}
	}
	before = s.seqAt(p, at.offset)
	seq = block.Extend(before, h)
	id := s.headed(seq, before, h)
	return spot{id, 0}, seq, before, id != 0
}

// hang makes a path the child of another. It may have been another's: of one that ended, and was stored again.
func (s *shard) hang(id uint32, parent spot) {
	p := s.path(id)
	p.at = uint16(parent.offset)
	if p.parent == parent.path {
		return
	}
	s.unhang(p)
	p.parent = parent.path
	if parent.path != 0 {
		s.path(parent.path).kids++
	}
}

func (s *shard) unhang(p *path) {
	if p.parent == 0 {
		return
	}
	parent := s.path(p.parent)
	parent.stamp = max(parent.stamp, p.stamp) // it was used whenever what hangs on it was
	if parent.kids--; parent.kids == 0 && parent.n == 0 {
		s.paths.put(p.parent - 1)
	}
	p.parent = 0
}

// create stores blocks that are not there below a spot, for one slot: behind it, if it is the tail of its path, otherwise as a
// path. It stops before a block that is there, and at the end of the path; it gives the first new block and how many
// there are, 0 if the bound leaves no room. seqs are the blocks' sequence hashes, before is that of the spot.
func (s *shard) create(at spot, before block.SequenceHash, seqs []block.SequenceHash, blocks []event.Block, slot worker.Slot) (spot, uint32) {
	room := uint32(min(len(blocks), sectionBlocks, s.x.maxPath))
	behind := false
	if at.path != 0 {
		n := uint32(s.path(at.path).n)
		if behind = n == at.offset+1 && n < uint32(s.x.maxPath); behind {
			room = min(room, uint32(s.x.maxPath)-n)
		}
	}
	n := room
	if s.lost {
		for n = 1; n < room && s.headed(seqs[n], seqs[n-1], blocks[n].Hash) == 0; n++ {
		}
	}
	first := spot{at.path, at.offset + 1}
	if behind && !s.extend(s.path(at.path), n) {
		behind = false
	}
	if !behind {
		id := s.newPath(seqs[0], n)
		if id == 0 {
			return spot{}, 0
		}
		first = spot{id, 0}
		s.hang(id, at)
		a := s.arrays(s.path(id))
		a.marks()[0] = before
	}
	p := s.path(first.path)
	s.x.stamp(p, s.x.now())
	a := s.arrays(p)
	hashes, names, marks := a.hashes()[first.offset:], a.names()[first.offset:], a.marks()
	for i := range n {
		hashes[i], names[i] = blocks[i].Hash, blocks[i].Engine
		if o := first.offset + i; o%unitBlocks == 0 && o > 0 {
			marks[o/unitBlocks] = seqs[i]
		}
	}
	p.n = uint16(first.offset + n)
	p.tail = seqs[n-1]
	s.lengthen(p, seg{uint32(p.n), lone(slot)})
	s.blocks += int(n)
	s.pairs += int(n)
	if !behind && p.root(a) {
		s.x.countRoot(seqs[0], 1)
	}
	return first, n
}

// lengthen adds an interval at the end of a path.
func (s *shard) lengthen(p *path, g seg) {
	var room [inline]seg
	segs := s.view(p, &room)
	s.work = append(s.work[:0], segs...)
	if k := len(segs); k > 0 && segs[k-1].set == g.set {
		s.work[k-1].end = g.end // a lone slot: nothing is counted
	} else {
		s.work = append(s.work, g)
	}
	s.setSegs(p, s.work)
}

// newPath makes a path that heads finds, with room for blocks, and nothing else. 0 if the bound leaves no room.
func (s *shard) newPath(head block.SequenceHash, blocks uint32) uint32 {
	units := unitsFor(blocks)
	r, ok := s.x.arena.take(units)
	if !ok {
		return 0
	}
	// Under a bound these two take of the slack: a page of records is seldom free where the arena has room.
	n, ok := s.paths.take(maxPaths, true)
	if !ok {
		s.x.arena.put(r, units)
		return 0
	}
	if !s.heads.insert(mixed(uint64(head)), place(n+1), true) {
		s.paths.put(n)
		s.x.arena.put(r, units)
		return 0
	}
	*s.path(n + 1) = path{head: head, run: r, units: uint8(units)}
	s.living++
	return n + 1
}

// extend makes room for more blocks at the tail of a path.
func (s *shard) extend(p *path, more uint32) bool {
	need, have := unitsFor(uint32(p.n)+more), uint32(p.units)
	if need <= have {
		return true
	}
	a := &s.x.arena
	want := min(need+need/growShare, unitsFor(uint32(s.x.maxPath)))
	if a.extend(p.run, have, want-have) {
		s.relay(p, want)
		return true
	}
	r, ok := a.take(want)
	if !ok {
		if want = need; !a.extend(p.run, have, want-have) {
			if r, ok = a.take(want); !ok {
				return false
			}
		} else {
			s.relay(p, want)
			return true
		}
	}
	s.move(p, r, want)
	return true
}

// growShare: a path that grows gets a tenth more room than it needs, since most of those that grow go on growing.
const growShare = 10

// relay makes the arrays of a path longer where they are.
func (s *shard) relay(p *path, units uint32) {
	old, now := s.x.arena.arrays(p.run, uint32(p.units)), s.x.arena.arrays(p.run, units)
	copy(now.marks(), old.marks())
	copy(now.names(), old.names()[:p.n])
	p.units = uint8(units)
}

// move copies the arrays of a path into another run.
func (s *shard) move(p *path, r run, units uint32) {
	old, now := s.arrays(p), s.x.arena.arrays(r, units)
	copy(now.hashes(), old.hashes()[:p.n])
	copy(now.names(), old.names()[:p.n])
	copy(now.marks(), old.marks()[:unitsFor(uint32(p.n))])
	s.x.arena.put(p.run, uint32(p.units))
	p.run, p.units = r, uint8(units)
}

// edit makes the slot a holder of blocks [from,to) of a path, or no longer one. The blocks are of one interval. A path
// that nobody holds any more is gone afterwards.
func (s *shard) edit(id, from, to uint32, slot worker.Slot, add bool) {
	p := s.path(id)
	var room [inline]seg
	segs := s.view(p, &room)
	i := find(segs, from)
	start, old := uint32(0), segs[i]
	if i > 0 {
		start = segs[i-1].end
	}
	if start < from {
		s.sets.retain(old.set)
	}
	if to < old.end {
		s.sets.retain(old.set)
	}
	n := int(to - from)
	now := setID(0)
	if add {
		now = s.sets.add(old.set, slot)
		s.pairs += n
		if old.set == 0 {
			s.blocks += n
		}
	} else {
		now = s.sets.sub(old.set, slot)
		s.pairs -= n
		if now == 0 {
			s.blocks -= n
		}
	}
	if len(segs) == 1 && start == from && old.end == to && now != 0 {
		p.sets[0] = now
		return
	}
	s.splice(id, p, segs, i, start, from, to, now)
}

// splice puts [from,to) with its new set in the place of the interval it was a part of.
func (s *shard) splice(id uint32, p *path, segs []seg, i int, start, from, to uint32, now setID) {
	old := segs[i]
	out := append(s.work[:0], segs[:i]...)
	if start < from {
		out = append(out, seg{from, old.set})
	}
	if k := len(out); k > 0 && out[k-1].set == now {
		out[k-1].end = to
		s.sets.release(now)
	} else {
		out = append(out, seg{to, now})
	}
	rest := segs[i+1:]
	if to < old.end {
		out = append(out, seg{old.end, old.set})
	} else if len(rest) > 0 && rest[0].set == now {
		out[len(out)-1].end = rest[0].end
		s.sets.release(now)
		rest = rest[1:]
	}
	out = append(out, rest...)
	s.work = out
	s.settle(id, p, out)
}

// settle gives a path its intervals. Holes at its end are cut off; a path of holes alone is gone.
func (s *shard) settle(id uint32, p *path, out []seg) {
	for len(out) > 0 && out[len(out)-1].set == 0 {
		out = out[:len(out)-1]
	}
	if len(out) == 0 {
		s.free(id, p)
		return
	}
	s.setSegs(p, out)
	if n := out[len(out)-1].end; n < uint32(p.n) {
		s.cut(p, n)
	}
}

// cut makes a path shorter.
func (s *shard) cut(p *path, n uint32) {
	a := s.arrays(p)
	s.lost = s.lost || p.kids > 0
	p.tail = a.seqAt(p.head, n-1)
	p.n = uint16(n)
	have, need := uint32(p.units), unitsFor(n)
	if have == need || have < 2*need && s.x.heap.limit == 0 {
		return // it may grow again
	}
	now := s.x.arena.arrays(p.run, need)
	copy(now.names(), a.names()[:n])
	copy(now.marks(), a.marks()[:need])
	p.units = uint8(need)
	s.x.arena.put(p.run+run(need), have-need)
}

// free ends a path whose intervals are gone.
func (s *shard) free(id uint32, p *path) {
	a := s.arrays(p)
	if p.root(a) {
		s.x.countRoot(p.head, -1)
	}
	s.heads.remove(mixed(uint64(p.head)), place(id))
	s.x.arena.put(p.run, uint32(p.units))
	s.freeList(p)
	s.unhang(p)
	if s.living--; s.living == 0 {
		s.lost = false
	}
	if kids := p.kids; kids > 0 {
		s.lost = true
		*p = path{kids: kids, stamp: p.stamp}
		return
	}
	s.paths.put(id - 1)
}
