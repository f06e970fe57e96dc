package index

import (
	"cmp"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A survey is how the paths of a shard hang together, for those who walk them from the roots.
type survey struct {
	roots []uint32
	kids  []kid // by parent, then by the block they hang on
}

type kid struct{ parent, at, id uint32 }

// everyone stands for no slot in particular.
const everyone = ^worker.Slot(0)

// survey looks at all paths that a slot holds blocks of, or at all paths. The caller holds the lane's lock, or those of all lanes:
// then what it looks for stays as it is. A path's parent is a hint, and checked; where it is wrong, the block before is
// looked for among all blocks.
func (s *shard) survey(slot worker.Slot) survey {
	var v survey
	var ids []uint32
	lost := make(map[block.SequenceHash][]uint32)
	for k := uint32(0); ; k++ {
		s.rlock()
		if int(k) >= len(s.paths.chunks) {
			s.mu.RUnlock()
			break
		}
		for i := range s.paths.per {
			id := k*s.paths.per + i + 1
			if !s.lives(id) || slot != everyone && !s.holds(s.path(id), slot) {
				continue
			}
			ids = append(ids, id)
			s.place(&v, lost, id)
		}
		s.mu.RUnlock()
	}
	if len(lost) > 0 {
		s.seek(&v, lost, ids)
	}
	slices.SortFunc(v.kids, func(a, b kid) int {
		return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id))
	})
	return v
}

// holds tells whether a slot holds the first block of a path: whoever does not reaches none of it.
func (s *shard) holds(p *path, slot worker.Slot) bool {
	set, _, _ := s.setAt(p, 0)
	return s.sets.has(set, slot)
}

func (s *shard) place(v *survey, lost map[block.SequenceHash][]uint32, id uint32) {
	p := s.path(id)
	a := s.arrays(p)
	before := a.marks()[0]
	switch {
	case p.root(a):
		v.roots = append(v.roots, id)
	case s.lives(p.parent) && uint32(p.at) < uint32(s.path(p.parent).n) && s.seqAt(s.path(p.parent), uint32(p.at)) == before:
		v.kids = append(v.kids, kid{p.parent, uint32(p.at), id})
	default:
		lost[before] = append(lost[before], id)
	}
}

// seek computes the sequence hash of every block of the paths, and hangs on it what was lost.
func (s *shard) seek(v *survey, lost map[block.SequenceHash][]uint32, ids []uint32) {
	for _, parent := range ids {
		s.rlock()
		p := s.path(parent)
		a := s.arrays(p)
		seq := p.head
		for o, h := range a.hashes()[:p.n] {
			if o > 0 {
				seq = block.Extend(seq, h)
			}
			for _, id := range lost[seq] {
				v.kids = append(v.kids, kid{parent, uint32(o), id})
			}
		}
		s.mu.RUnlock()
	}
}

// of gives the kids of a path.
func (v *survey) of(parent uint32) []kid {
	low, _ := slices.BinarySearchFunc(v.kids, parent, func(k kid, id uint32) int { return cmp.Compare(k.parent, id) })
	high := low
	for high < len(v.kids) && v.kids[high].parent == parent {
		high++
	}
	return v.kids[low:high]
}
