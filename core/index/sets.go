package index

import (
	"math/bits"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A setID names a set of slots: 0 is the empty set, slot+1 the set of one slot, isRow|r the r-th row of a sets.
// Equal sets have equal ids, so a run of blocks with the same holders is recognised without looking at them.
type setID uint32

const isRow setID = 1 << 31

func lone(slot worker.Slot) setID { return setID(slot) + 1 }

// sets keeps the sets of two or more slots that the nodes of one shard refer to: each distinct set once, as a bitset.
// Rows are as wide as the largest slot among them needs, a power of two of words.
//
// Invariants:
//
//	S1  row r is words[r*stride:][:stride]; rows in use have two members or more, and no two are equal.
//	S2  meta[r].hash is the XOR of setHash over the members; table ids finds exactly the rows in use by it.
//	S3  meta[r].refs is the number of nodes whose set is row r; it is 0 exactly for the rows on the free list.
//
// Guard: the shard's mu.
type sets struct {
	stride int
	words  []uint64
	meta   []rowMeta
	free   []uint32
	ids    table
	work   []uint64 // the set looked for by intern
}

type rowMeta struct {
	hash uint64
	refs uint32
}

func (s *sets) row(r setID) []uint64 {
	i := int(r&^isRow) * s.stride
	return s.words[i : i+s.stride : i+s.stride]
}

func (s *sets) has(id setID, slot worker.Slot) bool {
	if id&isRow == 0 {
		return id == lone(slot)
	}
	w := int(slot >> 6)
	return w < s.stride && s.row(id)[w]>>(slot&63)&1 != 0
}

// size counts the members.
func (s *sets) size(id setID) int {
	if id&isRow == 0 {
		return int(min(id, 1))
	}
	n := 0
	for _, w := range s.row(id) {
		n += bits.OnesCount64(w)
	}
	return n
}

// add turns a node's reference to a set without the slot into one to the set with it.
func (s *sets) add(id setID, slot worker.Slot) setID {
	if id == 0 {
		return lone(slot)
	}
	top := slot
	if id&isRow == 0 {
		top = max(top, worker.Slot(id-1))
	}
	s.widen(int(top>>6) + 1)
	return s.flip(id, slot)
}

// sub turns a node's reference to a set with the slot into one to the set without it.
func (s *sets) sub(id setID, slot worker.Slot) setID {
	if id&isRow == 0 {
		return 0
	}
	return s.flip(id, slot)
}

// flip moves a reference from a set to the one that differs from it by one slot.
func (s *sets) flip(id setID, slot worker.Slot) setID {
	hash := setHash(uint32(slot))
	if id&isRow == 0 {
		clear(s.work)
		other := worker.Slot(id - 1)
		s.work[other>>6] |= 1 << (other & 63)
		hash ^= setHash(uint32(other))
	} else {
		copy(s.work, s.row(id))
		hash ^= s.meta[id&^isRow].hash
	}
	s.work[slot>>6] ^= 1 << (slot & 63)
	to := s.intern(hash)
	s.release(id)
	return to
}

// intern gives the id of the set in work, with one more reference.
func (s *sets) intern(hash uint64) setID {
	if only, ok := single(s.work); ok {
		return lone(only)
	}
	tag := tagOf(hash)
	for r, pos, ok := s.ids.scan(tag, s.ids.home(tag)); ok; r, pos, ok = s.ids.scan(tag, pos) {
		if s.meta[r].hash == hash && slices.Equal(s.row(setID(r)), s.work) {
			s.meta[r].refs++
			return isRow | setID(r)
		}
	}
	var r uint32
	if n := len(s.free); n > 0 {
		r, s.free = s.free[n-1], s.free[:n-1]
		copy(s.row(setID(r)), s.work)
	} else {
		r = uint32(len(s.meta))
		s.words = append(s.words, s.work...)
		s.meta = append(s.meta, rowMeta{})
	}
	s.meta[r] = rowMeta{hash, 1}
	s.ids.insert(tag, r)
	return isRow | setID(r)
}

// single gives the only member of a set.
func single(words []uint64) (worker.Slot, bool) {
	at := -1
	for i, w := range words {
		if w == 0 {
			continue
		}
		if at >= 0 || w&(w-1) != 0 {
			return 0, false
		}
		at = i<<6 + bits.TrailingZeros64(w)
	}
	return worker.Slot(max(at, 0)), at >= 0
}

func (s *sets) release(id setID) {
	if id&isRow == 0 {
		return
	}
	r := uint32(id &^ isRow)
	m := &s.meta[r]
	if m.refs--; m.refs > 0 {
		return
	}
	s.ids.remove(tagOf(m.hash), r)
	s.free = append(s.free, r)
	if len(s.free) == len(s.meta) {
		*s = sets{}
	}
}

// widen makes rows at least that many words wide.
func (s *sets) widen(words int) {
	if words <= s.stride {
		return
	}
	stride := 1 << bits.Len(uint(words-1))
	wide := make([]uint64, len(s.meta)*stride)
	for r := range s.meta {
		copy(wide[r*stride:], s.row(setID(r)))
	}
	s.stride, s.words, s.work = stride, wide, make([]uint64, stride)
}

func (s *sets) bytes() int {
	return 8*(cap(s.words)+cap(s.work)) + 16*cap(s.meta) + 4*cap(s.free) + s.ids.bytes()
}
