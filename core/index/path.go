package index

import (
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// A place is where a block lives: a shard, a path of it, and how many blocks of the path are before. It is never 0.
type place uint64

const (
	shardBits  = 4
	shardCount = 1 << shardBits
	pathBits   = 24
	offsetBits = 10

	maxPath  = 1 << offsetBits // blocks of a path: what a growing one copies, and what one block can keep alive, is bounded
	maxPaths = 1<<pathBits - 1 // of a shard
)

func placeOf(shard, path, offset uint32) place {
	return place(shard)<<(pathBits+offsetBits) | place(path)<<offsetBits | place(offset)
}

func (at place) shard() uint32  { return uint32(at >> (pathBits + offsetBits)) }
func (at place) path() uint32   { return uint32(at>>offsetBits) & maxPaths }
func (at place) offset() uint32 { return uint32(at) & (maxPath - 1) }

// A seg is an interval of a path: the blocks from the end of the one before to end, and the set of slots that hold each of them.
type seg struct {
	end uint32
	set setID
}

// A path is a run of consecutive blocks: it grows at its tail alone, and a branch is a path of its own. Blocks are never moved between
// paths, so a set of holders that changes is an interval that changes. A block that nobody holds stays as a hole until the
// blocks behind it in the path are gone.
//
// 64 bytes: a cache line.
//
// Invariants (check verifies each by number):
//
//	B1  0 < n <= cap of the index; hashes[i] and names[i] of its arrays are those of its blocks.
//	B2  head is the sequence hash of the first block, tail of the last; marks[0] is that of the block before the path, 0 if
//	    the path begins a prompt; marks[k] that of block 8k. Each extends the one before.
//	B3  a block is in one place only: behind the block before it in the same path, or first in a path that heads finds.
//	B4  intervals are in order and end at n; neighbours differ, and the last is not empty.
//	B5  parent is 0 or a path of the shard, living or a ghost, which was that of the block before; kids counts the paths whose parent
//	    this is. A path with kids that lost its blocks is a ghost: n is 0, and nothing else of it is kept.
//	B6  odd is set if some holder knows a block of the path by more, or by others, than its name in the path, once.
//	B7  while the shard's lost is unset, the block before is that of parent at the offset at; there is none without a parent.
type path struct {
	head, tail block.SequenceHash
	run        run
	n          uint16
	units      uint8 // of the run
	odd        bool
	parent     uint32
	kids       uint32
	at         uint16 // block of the parent that the path hangs on: a hint
	segs       uint16
	stamp      uint32 // when it was last used
	ends       [inline]uint16
	sets       [inline]setID // with more intervals than fit, ends[0] is the class and sets[0] the record of a list
}

const (
	inline     = 4
	minList    = 8 // intervals of the shortest list
	listShifts = 8 // lists have 8 to 1024 intervals
)

const _ = -(unsafe.Sizeof(path{}) % 64) // a path is a cache line

func unitsFor(blocks uint32) uint32 { return (blocks + unitBlocks - 1) / unitBlocks }

// view gives the intervals of a path, in room if they are inline. They are not to be changed.
func (s *shard) view(p *path, room *[inline]seg) []seg {
	if p.segs > inline {
		return s.list(p)[:p.segs]
	}
	for i := range room {
		room[i] = seg{uint32(p.ends[i]), p.sets[i]}
	}
	return room[:p.segs]
}

func (s *shard) list(p *path) []seg {
	return unsafe.Slice((*seg)(s.lists[p.ends[0]].at(uint32(p.sets[0]))), minList<<p.ends[0])
}

// setSegs replaces the intervals of a path.
func (s *shard) setSegs(p *path, segs []seg) {
	class := 0
	for minList<<class < len(segs) {
		class++
	}
	switch {
	case len(segs) <= inline:
		s.freeList(p)
		for i, g := range segs {
			p.ends[i], p.sets[i] = uint16(g.end), g.set
		}
	case p.segs <= inline || int(p.ends[0]) != class:
		s.freeList(p)
		n, _ := s.lists[class].take(rowMask, true)
		p.ends[0], p.sets[0] = uint16(class), setID(n)
		fallthrough
	default:
		p.segs = uint16(len(segs))
		copy(s.list(p), segs)
	}
	p.segs = uint16(len(segs))
}

func (s *shard) freeList(p *path) {
	if p.segs > inline {
		s.lists[p.ends[0]].put(uint32(p.sets[0]))
	}
}

// find gives the interval that a block is in.
func find(segs []seg, offset uint32) int {
	low, high := 0, len(segs)-1
	for low < high {
		if m := int(uint(low+high) / 2); offset < segs[m].end {
			high = m
		} else {
			low = m + 1
		}
	}
	return low
}

// setAt gives the holders of a block, and the ends of the interval it is in.
func (s *shard) setAt(p *path, offset uint32) (set setID, from, end uint32) {
	if p.segs == 1 {
		return p.sets[0], 0, uint32(p.n)
	}
	var room [inline]seg
	segs := s.view(p, &room)
	i := find(segs, offset)
	if i > 0 {
		from = segs[i-1].end
	}
	return segs[i].set, from, segs[i].end
}
