// Package worker names a worker rank and gives it a dense slot with a generation.
//
// A data-parallel rank of a worker is the unit that owns a KV cache, so it is the unit everything else counts by.
// The structures of the other packages are arrays indexed by Slot; a Table maps ranks to slots. A slot is reused
// after its rank is removed, and its generation grows then: whatever still holds an old Ref can be told so.
package worker

import (
	"cmp"
	"fmt"
)

// Rank names the holder of a KV cache: a worker and one of its data-parallel ranks (0 when it has only one).
type Rank struct {
	ID     uint64
	DPRank uint32
}

// String gives "worker/rank", ids in decimal.
func (r Rank) String() string { return fmt.Sprintf("%d/%d", r.ID, r.DPRank) }

// Compare orders by worker id, then rank.
func (r Rank) Compare(o Rank) int {
	if c := cmp.Compare(r.ID, o.ID); c != 0 {
		return c
	}
	return cmp.Compare(r.DPRank, o.DPRank)
}

// Slot is a dense index in [0, Table.Cap()), stable while its rank is registered.
type Slot uint32

// Ref is a slot at one generation. The zero Ref is never live.
type Ref struct {
	Slot Slot
	Gen  uint32
}

type entry struct {
	rank Rank
	gen  uint32 // odd while occupied, even while free
}

// Table maps ranks to slots. It is not safe for concurrent use: its owner guards it.
//
// Invariants: bySlot[s].gen is odd iff s is occupied iff byRank[bySlot[s].rank] == s; free holds exactly the other slots.
type Table struct {
	byRank map[Rank]Slot
	bySlot []entry
	free   []Slot
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{byRank: make(map[Rank]Slot)} }

// Add registers a rank and returns its reference. A rank already registered keeps its slot and generation.
func (t *Table) Add(r Rank) Ref {
	if s, ok := t.byRank[r]; ok {
		return Ref{s, t.bySlot[s].gen}
	}
	var s Slot
	if n := len(t.free); n > 0 {
		s, t.free = t.free[n-1], t.free[:n-1]
	} else {
		s = Slot(len(t.bySlot))
		t.bySlot = append(t.bySlot, entry{})
	}
	e := &t.bySlot[s]
	e.rank, e.gen = r, e.gen+1
	t.byRank[r] = s
	return Ref{s, e.gen}
}

// Remove frees the slot of a rank and tells which one it was.
func (t *Table) Remove(r Rank) (Ref, bool) {
	s, ok := t.byRank[r]
	if !ok {
		return Ref{}, false
	}
	delete(t.byRank, r)
	ref := Ref{s, t.bySlot[s].gen}
	t.bySlot[s] = entry{gen: ref.Gen + 1}
	t.free = append(t.free, s)
	return ref, true
}

// Lookup finds the reference of a rank.
func (t *Table) Lookup(r Rank) (Ref, bool) {
	s, ok := t.byRank[r]
	if !ok {
		return Ref{}, false
	}
	return Ref{s, t.bySlot[s].gen}, true
}

// Rank names the rank that occupies a slot.
func (t *Table) Rank(s Slot) (Rank, bool) {
	if int(s) >= len(t.bySlot) || t.bySlot[s].gen&1 == 0 {
		return Rank{}, false
	}
	return t.bySlot[s].rank, true
}

// Live tells whether the reference still names a registered rank.
func (t *Table) Live(ref Ref) bool {
	return int(ref.Slot) < len(t.bySlot) && ref.Gen&1 == 1 && t.bySlot[ref.Slot].gen == ref.Gen
}

// Len counts registered ranks; Cap is one more than the largest slot ever given.
func (t *Table) Len() int { return len(t.byRank) }

// Cap bounds the slots: every Slot of the table is below it.
func (t *Table) Cap() int { return len(t.bySlot) }
