package index

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A lane finds the blocks that a group of slots name.
//
// Nearly always every slot that holds a block knows it by the name in its path, once: then the block has one entry in the
// lane's table, whatever the number of slots. What differs is kept beside it, by slot: see holder.
//
// Invariants (check verifies each by number):
//
//	N1  the table has an entry for a block exactly if a slot of the lane knows it by its path's name: one entry, of that name;
//	    and besides one for each of the dead, which may be of any place, and equal to an entry in use.
//	N2  no two entries in use are of one name. A slot that uses the name for another block has it among its others.
//	N5  after an event, at most one of deadShare entries is dead.
//
// Guard: mu.
type lane struct {
	mu    sync.Mutex
	x     *tree
	mask  uint64 // the lane's slots in each word of a set
	names table  // engine hash -> place
	dead  dead   // entries of names that nobody uses any more

	// What a writer knows of the next blocks.
	ys   [sectionBlocks]uint64 // of their names
	seqs [sectionBlocks]block.SequenceHash

	_ [64]byte
}

// A holder is what the index knows of one slot.
//
// Invariants:
//
//	N3  without a record in odd, a slot that is in a block's set knows it by its path's name, once.
//	N4  a record in odd counts the references by the path's name, and heads a list of the slot's other names of the block;
//	    others has exactly the names in these lists. No record says what its absence says, and none is without a name.
//
// Guard: the lane's mu, but for the counters.
type holder struct {
	odd    map[place]record
	others map[block.EngineHash]alias
	last   place // that was stored last: the parent of the next event is most often there

	held    atomic.Int64
	evicted atomic.Uint64
	frugal  atomic.Bool // its stores evict nothing
}

// A record is what a slot knows of one block.
type record struct {
	own    uint32 // references by the name in the path
	others uint32 // other names
	first  block.EngineHash
}

// An alias is another name of a block, in the list of its record.
type alias struct {
	at               place
	refs             uint32
	hasPrev, hasNext bool
	prev, next       block.EngineHash
}

const (
	holderBytes = int(unsafe.Sizeof(holder{})) + 16
	oddBytes    = 56 // of an entry of odd: key, value, control byte, free room
	otherBytes  = 72

	maxReferences = 1<<32 - 1 // a count stops there: the block may then be removed too early, never too late
)

func (l *lane) init(x *tree, number int) {
	l.x = x
	for j := number; j < 64; j += x.used {
		l.mask |= 1 << j
	}
	l.names = newTable(&x.lines, nameParts)
	l.names.eager = x.one
	l.dead.heap = x.heap
	x.heap.note(l.names.own())
}

// sideBytes estimates what odd and others of all slots of the lane take.
func (l *lane) sideBytes() int {
	n := 0
	for slot, h := range *l.x.holders.Load() {
		if h != nil && l.x.lane(worker.Slot(slot)) == l {
			n += h.sideBytes()
		}
	}
	return n
}

func (h *holder) sideBytes() int { return len(h.odd)*oddBytes + len(h.others)*otherBytes }

// record gives what a holder knows of a block it holds.
func (h *holder) record(at place) record {
	if r, ok := h.odd[at]; ok {
		return r
	}
	return record{own: 1}
}

// set keeps what a holder knows of a block it holds, in a path whose odd is set if that is anything of note.
func (h *holder) set(p *path, at place, r record) {
	if r.own == 1 && r.others == 0 {
		h.unset(at)
		return
	}
	p.odd = true
	if h.odd == nil {
		h.odd = make(map[place]record)
	}
	h.odd[at] = r
}

func (h *holder) unset(at place) {
	if delete(h.odd, at); len(h.odd) == 0 {
		h.odd = nil
	}
}

// addOther adds a name to the list of a record.
func (h *holder) addOther(name block.EngineHash, at place, r *record) {
	if h.others == nil {
		h.others = make(map[block.EngineHash]alias)
	}
	a := alias{at: at, refs: 1, hasNext: r.others > 0, next: r.first}
	if a.hasNext {
		next := h.others[a.next]
		next.hasPrev, next.prev = true, name
		h.others[a.next] = next
	}
	h.others[name] = a
	r.first = name
	r.others++
}

// dropOther takes a name from the list of its record.
func (h *holder) dropOther(name block.EngineHash, r *record) {
	a := h.others[name]
	delete(h.others, name)
	if len(h.others) == 0 {
		h.others = nil
	}
	if a.hasPrev {
		prev := h.others[a.prev]
		prev.hasNext, prev.next = a.hasNext, a.next
		h.others[a.prev] = prev
	} else {
		r.first = a.next
	}
	if a.hasNext {
		next := h.others[a.next]
		next.hasPrev, next.prev = a.hasPrev, a.prev
		h.others[a.next] = next
	}
	r.others--
}

// dropOthers takes all names from the list of a record.
func (h *holder) dropOthers(r *record) {
	for r.others > 0 {
		h.dropOther(r.first, r)
	}
}

// named tells whether a slot of the lane, other than one, knows a block by its path's name. set is the block's.
func (l *lane) named(s *shard, p *path, at place, set setID, but worker.Slot) bool {
	if !p.odd {
		return s.sets.anyOf(set, l.mask, but)
	}
	found := false
	holders := *l.x.holders.Load()
	s.sets.each(set, func(slot worker.Slot) {
		if !found && slot != but && l.x.lane(slot) == l {
			found = holders[slot].record(at).own > 0
		}
	})
	return found
}
