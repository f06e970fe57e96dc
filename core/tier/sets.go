package tier

import (
	"math/bits"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/internal/idtable"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A setID names a set of slots: 0 is the empty set, slot+1 the set of one slot, isRow|r the r-th row of a sets.
// Equal sets have equal ids, so a walk looks at a set only where it changes.
type setID uint32

const isRow setID = 1 << 31

func lone(slot worker.Slot) setID { return setID(slot) + 1 }

// sets keeps the sets of two or more slots that edges refer to: each distinct set once, as a bitset. Rows are as wide as
// the largest slot among them needs, a power of two of words.
//
// Invariants:
//
//	S1  row r is words[r*stride:][:stride]; rows in use have two members or more, and no two are equal.
//	S2  meta[r].hash is the XOR of slotHash over the members; ids finds exactly the rows in use by it.
//	S3  meta[r].refs is the number of edges whose owners are row r; it is 0 exactly for the rows on the free list.
type sets struct {
	stride int
	words  []uint64 // cap(meta) rows
	meta   []rowMeta
	free   []uint32
	ids    idtable.Table
	work   []uint64 // the set looked for by intern
}

type rowMeta struct {
	hash uint64
	refs uint32
}

func (s *sets) row(id setID) []uint64 {
	i := int(id&^isRow) * s.stride
	return s.words[i : i+s.stride : i+s.stride]
}

func (s *sets) has(id setID, slot worker.Slot) bool {
	if id&isRow == 0 {
		return id == lone(slot)
	}
	w := int(slot >> 6)
	return w < s.stride && s.row(id)[w]>>(slot&63)&1 != 0
}

// appendMembers appends the slots of a set, ascending.
func (s *sets) appendMembers(dst []worker.Slot, id setID) []worker.Slot {
	switch {
	case id == 0:
		return dst
	case id&isRow == 0:
		return append(dst, worker.Slot(id-1))
	}
	for w, members := range s.row(id) {
		for ; members != 0; members &= members - 1 {
			dst = append(dst, worker.Slot(w<<6+bits.TrailingZeros64(members)))
		}
	}
	return dst
}

// add turns an edge's reference to a set without the slot into one to the set with it.
func (s *sets) add(id setID, slot worker.Slot) setID {
	if id == 0 {
		return lone(slot)
	}
	if rows, stride := s.shape(id, slot); rows != cap(s.meta) || stride != s.stride {
		s.resize(rows, stride)
	}
	return s.flip(id, slot)
}

// growth gives the bytes that add, or sub of a row, takes at most while rows are copied.
func (s *sets) growth(id setID, slot worker.Slot) int {
	if id == 0 {
		return 0
	}
	n := s.ids.Growth()
	if rows, stride := s.shape(id, slot); rows != cap(s.meta) || stride != s.stride {
		n += rowsBytes(rows, stride)
	}
	return n
}

// shape gives how many rows of how many words there must be to add a slot to a set.
func (s *sets) shape(id setID, slot worker.Slot) (rows, stride int) {
	top := slot
	if id&isRow == 0 {
		top = max(top, worker.Slot(id-1))
	}
	rows, stride = cap(s.meta), s.stride
	if need := int(top>>6) + 1; need > stride {
		stride = 1 << bits.Len(uint(need-1))
	}
	if len(s.free) == 0 && len(s.meta) == rows {
		rows = max(4, rows+rows/2)
	}
	return rows, stride
}

func (s *sets) resize(rows, stride int) {
	words := make([]uint64, rows*stride)
	for r := range s.meta {
		copy(words[r*stride:], s.row(setID(r)))
	}
	s.words = words
	if rows != cap(s.meta) {
		s.meta = append(make([]rowMeta, 0, rows), s.meta...)
		s.free = append(make([]uint32, 0, rows), s.free...)
	}
	if stride != s.stride {
		s.stride, s.work = stride, make([]uint64, stride)
	}
}

// sub turns an edge's reference to a set with the slot into one to the set without it. That may be a new row.
func (s *sets) sub(id setID, slot worker.Slot) setID {
	if id&isRow == 0 {
		return 0
	}
	if rows, stride := s.shape(id, slot); rows != cap(s.meta) {
		s.resize(rows, stride)
	}
	return s.flip(id, slot)
}

// flip moves a reference from a set to the one that differs from it by one slot.
func (s *sets) flip(id setID, slot worker.Slot) setID {
	hash := slotHash(uint32(slot))
	if id&isRow == 0 {
		clear(s.work)
		other := worker.Slot(id - 1)
		s.work[other>>6] |= 1 << (other & 63)
		hash ^= slotHash(uint32(other))
	} else {
		copy(s.work, s.row(id))
		hash ^= s.meta[id&^isRow].hash
	}
	s.work[slot>>6] ^= 1 << (slot & 63)
	to := s.intern(hash)
	s.release(id)
	return to
}

// intern gives the id of the set in work, with one more reference. There is room for a row.
func (s *sets) intern(hash uint64) setID {
	if only, ok := single(s.work); ok {
		return lone(only)
	}
	tag := uint32(hash)
	for p := s.ids.Probe(tag); ; {
		r, ok := p.Next()
		if !ok {
			break
		}
		if s.meta[r].hash == hash && slices.Equal(s.row(setID(r)), s.work) {
			s.meta[r].refs++
			return isRow | setID(r)
		}
	}
	var r uint32
	if n := len(s.free); n > 0 {
		r, s.free = s.free[n-1], s.free[:n-1]
	} else {
		r = uint32(len(s.meta))
		s.meta = s.meta[:r+1]
	}
	copy(s.row(setID(r)), s.work)
	s.meta[r] = rowMeta{hash, 1}
	s.ids.Insert(tag, r)
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
	s.ids.Remove(uint32(m.hash), r)
	s.free = append(s.free, r)
	if len(s.free) == len(s.meta) {
		*s = sets{}
	}
}

func rowsBytes(rows, stride int) int { return 8*rows*stride + (16+4)*rows + 8*stride }

func (s *sets) bytes() int { return rowsBytes(cap(s.meta), s.stride) + s.ids.Bytes() }
