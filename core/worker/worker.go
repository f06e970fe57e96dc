// Package worker names a worker rank and gives it a dense slot.
//
// A data-parallel rank of a worker is the unit that owns a KV cache, so it is the unit everything else counts by.
// The structures of the other packages are arrays indexed by Slot; a Table maps ranks to slots. A slot is used again
// only after its rank was removed: the owner of the table empties what the slot indexes before it does that, and lets
// nothing through that was queued for the old rank.
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

// Table maps ranks to slots. It is not safe for concurrent use: its owner guards it.
//
// Invariant: the slots below limit are those of slots' values and those of free, each once.
type Table struct {
	slots map[Rank]Slot
	free  []Slot
	limit Slot
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{slots: make(map[Rank]Slot)} }

// Add registers a rank and returns its slot. A rank already registered keeps its own.
func (t *Table) Add(r Rank) Slot {
	s, ok := t.slots[r]
	if ok {
		return s
	}
	if n := len(t.free); n > 0 {
		s, t.free = t.free[n-1], t.free[:n-1]
	} else {
		s = t.limit
		t.limit++
	}
	t.slots[r] = s
	return s
}

// Remove gives the slot of a rank back and tells which one it was.
func (t *Table) Remove(r Rank) (Slot, bool) {
	s, ok := t.slots[r]
	if ok {
		delete(t.slots, r)
		t.free = append(t.free, s)
	}
	return s, ok
}

// Len counts registered ranks.
func (t *Table) Len() int { return len(t.slots) }

// Cap bounds the slots: every Slot given so far is below it.
func (t *Table) Cap() int { return int(t.limit) }
