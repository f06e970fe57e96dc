package index

// A table finds ids by hash: open addressing with linear probing. Its owner compares what the id stands for.
//
// Invariant T: slots holds n entries, each reachable from its home without an empty place between; an entry is
// tag<<32 | id+1, so that moving entries needs nothing but the entries.
type table struct {
	slots []uint64 // 0 is empty
	n     int
}

func (t *table) next(pos int) int {
	if pos++; pos < len(t.slots) {
		return pos
	}
	return 0
}

// scan gives the first id with that tag at or after pos, and where to go on.
func (t *table) scan(tag uint64, pos int) (id uint32, after int, ok bool) {
	if len(t.slots) == 0 {
		return 0, 0, false
	}
	for {
		e := t.slots[pos]
		if e == 0 {
			return 0, pos, false
		}
		pos = t.next(pos)
		if e>>32 == tag {
			return uint32(e) - 1, pos, true
		}
	}
}

func (t *table) home(tag uint64) int { return homeOf(tag, len(t.slots)) }

func (t *table) insert(tag uint64, id uint32) {
	if size := grownSize(len(t.slots), t.n+1); size != len(t.slots) {
		t.resize(size)
	}
	t.place(tag<<32 | uint64(id+1))
	t.n++
}

func (t *table) place(e uint64) {
	pos := t.home(e >> 32)
	for t.slots[pos] != 0 {
		pos = t.next(pos)
	}
	t.slots[pos] = e
}

func (t *table) resize(size int) {
	old := t.slots
	t.slots = make([]uint64, size)
	for _, e := range old {
		if e != 0 {
			t.place(e)
		}
	}
}

// remove takes out an entry that is there.
func (t *table) remove(tag uint64, id uint32) {
	hole := t.home(tag)
	for e := tag<<32 | uint64(id+1); t.slots[hole] != e; {
		hole = t.next(hole)
	}
	for pos := t.next(hole); t.slots[pos] != 0; pos = t.next(pos) {
		if mayFill(hole, t.home(t.slots[pos]>>32), pos) {
			t.slots[hole] = t.slots[pos]
			hole = pos
		}
	}
	t.slots[hole] = 0
	t.n--
	if size := trimmedSize(len(t.slots), t.n); size == 0 {
		t.slots = nil
	} else if size != len(t.slots) {
		t.resize(size)
	}
}

// mayFill tells whether an entry at pos may move back to hole: its home is not between them (around the end).
func mayFill(hole, home, pos int) bool {
	if hole <= pos {
		return home <= hole || home > pos
	}
	return home <= hole && home > pos
}

func (t *table) bytes() int { return cap(t.slots) * 8 }
