package index

import (
	"math/bits"
	"slices"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A setID names a set of slots: 0 is the empty set, slot+1 the set of one slot, isRow|class|record a row of a sets.
// Equal sets have equal ids, so a run of blocks with the same holders is recognised without looking at them.
type setID uint32

const (
	isRow      setID = 1 << 31
	classShift       = 27
	rowMask          = 1<<classShift - 1
	setClasses       = 11 // the widest has a bit for each of MaxSlots
)

func lone(slot worker.Slot) setID { return setID(slot) + 1 }

func (id setID) class() int { return int(id>>classShift) & 15 }

// sets keeps the sets of two or more slots that the paths of one shard refer to: each distinct set once, as a bitset. A row
// of class k has 1<<k words, the fewest that hold its largest member.
//
// Invariants (check verifies each by number):
//
//	S1  rows in use have two members or more, are of the least class, and no two are equal.
//	S2  a row's hash is the XOR of setHash over the members; table ids finds exactly the rows in use by it.
//	S3  a row's refs is the number of intervals whose set it is, 1 or more, and size its members.
//
// Guard: the shard's mu.
type sets struct {
	heap *heap
	rows [setClasses]pool
	ids  table
	work []uint64 // the set looked for by intern
}

// A row is followed by its words.
type row struct {
	hash uint64
	refs uint32
	size uint32
}

func newSets(h *heap, l *lines) sets {
	s := sets{heap: h, ids: newTable(l, 1)}
	for k := range s.rows {
		s.rows[k] = newPool(h, unsafe.Sizeof(row{})+8<<k)
	}
	return s
}

func (s *sets) row(id setID) *row { return (*row)(s.rows[id.class()].at(uint32(id & rowMask))) }

// words gives the bits of a row.
func (s *sets) words(id setID) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(s.row(id)), unsafe.Sizeof(row{}))), 1<<id.class())
}

func (s *sets) has(id setID, slot worker.Slot) bool {
	if id&isRow == 0 {
		return id == lone(slot)
	}
	w := uint32(slot >> 6)
	return w < 1<<id.class() && s.words(id)[w]>>(slot&63)&1 != 0
}

// size counts the members.
func (s *sets) size(id setID) int {
	if id&isRow == 0 {
		return int(min(id, 1))
	}
	return int(s.row(id).size)
}

// anyOf tells whether a set has a member, other than one slot, among those that mask has in each word.
func (s *sets) anyOf(id setID, mask uint64, but worker.Slot) bool {
	if id&isRow == 0 {
		return id != 0 && id != lone(but) && mask>>((id-1)&63)&1 != 0
	}
	for w, members := range s.words(id) {
		if members &= mask; w == int(but>>6) {
			members &^= 1 << (but & 63)
		}
		if members != 0 {
			return true
		}
	}
	return false
}

// each calls f for the members.
func (s *sets) each(id setID, f func(worker.Slot)) {
	if id&isRow == 0 {
		if id != 0 {
			f(worker.Slot(id - 1))
		}
		return
	}
	for w, members := range s.words(id) {
		for ; members != 0; members &= members - 1 {
			f(worker.Slot(w<<6 + bits.TrailingZeros64(members)))
		}
	}
}

// retain adds a reference.
func (s *sets) retain(id setID) setID {
	if id&isRow != 0 {
		s.row(id).refs++
	}
	return id
}

// add turns a reference to a set without the slot into one to the set with it.
func (s *sets) add(id setID, slot worker.Slot) setID {
	if id == 0 {
		return lone(slot)
	}
	return s.flip(id, slot)
}

// sub turns a reference to a set with the slot into one to the set without it.
func (s *sets) sub(id setID, slot worker.Slot) setID {
	if id&isRow == 0 {
		return 0
	}
	return s.flip(id, slot)
}

// flip moves a reference from a set to the one that differs from it by one slot.
func (s *sets) flip(id setID, slot worker.Slot) setID {
	var few [1]uint64
	var words []uint64
	hash := setHash(uint32(slot))
	top := slot
	if id&isRow == 0 {
		other := worker.Slot(id - 1)
		top = max(top, other)
		hash ^= setHash(uint32(other))
	} else {
		words = s.words(id)
		top = max(top, worker.Slot(len(words)*64-1))
		hash ^= s.row(id).hash
	}
	n := int(top>>6) + 1
	work := few[:]
	if n > 1 {
		if n > cap(s.work) {
			s.heap.note(8 * (n - cap(s.work)))
			s.work = make([]uint64, n)
		}
		work = s.work[:n]
	}
	clear(work[copy(work, words):])
	if words == nil {
		work[(id-1)>>6] |= 1 << ((id - 1) & 63)
	}
	work[slot>>6] ^= 1 << (slot & 63)
	to := s.intern(work, hash)
	s.release(id)
	return to
}

// intern gives the id of a set that is not empty, with one more reference.
func (s *sets) intern(work []uint64, hash uint64) setID {
	for work[len(work)-1] == 0 {
		work = work[:len(work)-1]
	}
	size := 0
	for _, w := range work {
		size += bits.OnesCount64(w)
	}
	if size == 1 {
		return lone(worker.Slot((len(work)-1)<<6 + bits.TrailingZeros64(work[len(work)-1])))
	}
	class := bits.Len(uint(len(work) - 1))
	for p := s.ids.probe(hash); ; {
		at, ok := p.place()
		if !ok {
			break
		}
		id := setID(at)
		if r := s.row(id); id.class() == class && r.hash == hash && slices.Equal(s.words(id)[:len(work)], work) &&
			int(r.size) == size {
			r.refs++
			return id
		}
	}
	n, _ := s.rows[class].take(rowMask, true)
	id := isRow | setID(class)<<classShift | setID(n)
	*s.row(id) = row{hash, 1, uint32(size)}
	words := s.words(id)
	clear(words[copy(words, work):])
	s.ids.insert(hash, place(id), true)
	return id
}

func (s *sets) release(id setID) {
	if id&isRow == 0 {
		return
	}
	r := s.row(id)
	if r.refs--; r.refs > 0 {
		return
	}
	s.ids.remove(r.hash, place(id))
	s.rows[id.class()].put(uint32(id & rowMask))
}

func (s *sets) bytes() int {
	n := s.ids.bytes() + cap(s.work)*8
	for k := range s.rows {
		n += s.rows[k].bytes()
	}
	return n
}
