package index

import (
	"math/bits"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A survey is how the paths of a shard hang together, for those who walk them from the roots.
type survey struct {
	roots []uint32
	kids  []kid // in order

	ids  []uint32                        // of all paths, once one is lost
	lost map[block.SequenceHash][]uint32 // paths that are not where they hang, by the block before them
}

// A kid says which path hangs on which block: the parent's number, then the block's, then its own, so that those of
// a parent are together, and those of a block of it.
type kid uint64

func kidOf(parent, at, id uint32) kid {
	return kid(parent)<<(offsetBits+pathBits) | kid(at)<<pathBits | kid(id)
}

func (k kid) parent() uint32 { return uint32(k >> (offsetBits + pathBits)) }
func (k kid) at() uint32     { return uint32(k>>pathBits) & (maxPath - 1) }
func (k kid) id() uint32     { return uint32(k) & maxPaths }

// everyone stands for no slot in particular.
const everyone = ^worker.Slot(0)

// survey looks at all paths that a slot holds the first block of, or at all paths. The caller holds the lane's lock, or those
// of all lanes: then what it looks for stays as it is. Where a path's parent may not be that of the block before it, that is
// looked for among all blocks. v is used again.
func (s *shard) survey(v *survey, slot worker.Slot) {
	v.roots, v.kids, v.ids, v.lost = v.roots[:0], v.kids[:0], v.ids[:0], nil
	for k := 0; s.surveyChunk(v, k, slot); k++ {
	}
	if len(v.lost) > 0 {
		s.seek(v)
	}
	slices.Sort(v.kids)
}

// surveyChunk looks at the paths of a chunk of records, false if there is no such chunk.
func (s *shard) surveyChunk(v *survey, k int, slot worker.Slot) bool {
	s.rlock()
	defer s.mu.RUnlock()
	if k >= len(s.paths.chunks) {
		return false
	}
	c := &s.paths.chunks[k]
	for left := s.paths.all() &^ c.free; left != 0; left &= left - 1 {
		id := uint32(k)<<s.paths.shift + uint32(bits.TrailingZeros64(left)) + 1
		p := s.path(id)
		if p.n == 0 || slot != everyone && !s.holds(p, slot) {
			continue
		}
		v.ids = append(v.ids, id)
		s.place(v, p, id)
	}
	return true
}

// holds tells whether a slot holds the first block of a path: whoever does not reaches none of it.
func (s *shard) holds(p *path, slot worker.Slot) bool {
	if p.segs > inline {
		return s.sets.has(s.list(p)[0].set, slot)
	}
	return s.sets.has(p.sets[0], slot)
}

func (s *shard) place(v *survey, p *path, id uint32) {
	if !s.lost {
		if p.parent == 0 {
			v.roots = append(v.roots, id)
		} else {
			v.kids = append(v.kids, kidOf(p.parent, uint32(p.at), id))
		}
		return
	}
	a := s.arrays(p)
	before := a.marks()[0]
	switch {
	case p.root(a):
		v.roots = append(v.roots, id)
	case s.lives(p.parent) && uint32(p.at) < uint32(s.path(p.parent).n) && s.seqAt(s.path(p.parent), uint32(p.at)) == before:
		v.kids = append(v.kids, kidOf(p.parent, uint32(p.at), id))
	default:
		if v.lost == nil {
			v.lost = make(map[block.SequenceHash][]uint32)
		}
		v.lost[before] = append(v.lost[before], id)
	}
}

// seek computes the sequence hash of every block of the paths, and hangs on it what was lost.
func (s *shard) seek(v *survey) {
	for _, parent := range v.ids {
		s.rlock()
		p := s.path(parent)
		a := s.arrays(p)
		seq := p.head
		for o, h := range a.hashes()[:p.n] {
			if o > 0 {
				seq = block.Extend(seq, h)
			}
			for _, id := range v.lost[seq] {
				v.kids = append(v.kids, kidOf(parent, uint32(o), id))
			}
		}
		s.mu.RUnlock()
	}
}

// of gives the kids of a path.
func (v *survey) of(parent uint32) []kid {
	low, _ := slices.BinarySearch(v.kids, kidOf(parent, 0, 0))
	high := low
	for high < len(v.kids) && v.kids[high].parent() == parent {
		high++
	}
	return v.kids[low:high]
}
