// Package idtable finds 32-bit numbers by hash, without pointers for the collector to follow. Its owner compares what they stand for.
package idtable

// Tables finds ids by hash: many small tables that grow one at a time, so that no event waits long for one.
type Tables struct {
	parts [parts]Table
	room  int // entries of all parts, live or not
}

const parts = 256

func (t *Tables) part(hash uint64) *Table { return &t.parts[hash>>56] }

// Probe gives the ids under a hash, one after the other; its owner compares what they stand for.
func (t *Tables) Probe(hash uint64) Probe { return t.part(hash).Probe(uint32(hash)) }

// Peek loads what a Probe will look at first.
func (t *Tables) Peek(hash uint64) uint64 {
	if p := t.part(hash); len(p.slots) > 0 {
		return p.slots[p.home(uint32(hash))]
	}
	return 0
}

// Insert adds an id.
func (t *Tables) Insert(hash uint64, id uint32) {
	p := t.part(hash)
	t.room -= len(p.slots)
	p.Insert(uint32(hash), id)
	t.room += len(p.slots)
}

// Remove takes out an id that is there.
func (t *Tables) Remove(hash uint64, id uint32) {
	p := t.part(hash)
	t.room -= len(p.slots)
	p.Remove(uint32(hash), id)
	t.room += len(p.slots)
}

// Growth gives the bytes that one more entry takes while a part is copied.
func (t *Tables) Growth(hash uint64) int { return t.part(hash).Growth() }

// Bytes is the memory of the entries.
func (t *Tables) Bytes() int { return 8 * t.room }

// Len counts the ids.
func (t *Tables) Len() (n int) {
	for i := range t.parts {
		n += t.parts[i].n
	}
	return n
}

// A Table finds ids by tag: open addressing with linear probing.
//
// Invariant T: slots holds n entries, each reachable from its home without an empty place between; an entry is
// tag<<32 | id+1, so that moving entries needs nothing but the entries.
type Table struct {
	slots []uint64 // 0 is empty
	n     int
}

// A Probe goes through the ids under one hash. The table must not change meanwhile.
type Probe struct {
	slots []uint64
	tag   uint32
	pos   int
}

// Probe gives the ids under a tag.
func (t *Table) Probe(tag uint32) Probe {
	if t.n == 0 {
		return Probe{}
	}
	return Probe{t.slots, tag, t.home(tag)}
}

// Next gives another id, false after the last.
func (p *Probe) Next() (id uint32, ok bool) {
	for len(p.slots) > 0 {
		e := p.slots[p.pos]
		if e == 0 {
			break
		}
		if p.pos++; p.pos == len(p.slots) {
			p.pos = 0
		}
		if uint32(e>>32) == p.tag {
			return uint32(e) - 1, true
		}
	}
	return 0, false
}

// home spreads tags evenly over a table of any size, in the order of the tags.
func (t *Table) home(tag uint32) int { return int(uint64(tag) * uint64(len(t.slots)) >> 32) }

func (t *Table) after(pos int) int {
	if pos++; pos < len(t.slots) {
		return pos
	}
	return 0
}

// Insert adds an id.
func (t *Table) Insert(tag uint32, id uint32) {
	if size := Grown(len(t.slots), t.n+1); size != len(t.slots) {
		t.resize(size)
	}
	t.put(uint64(tag)<<32 | uint64(id+1))
	t.n++
}

func (t *Table) put(e uint64) {
	pos := t.home(uint32(e >> 32))
	for t.slots[pos] != 0 {
		pos = t.after(pos)
	}
	t.slots[pos] = e
}

func (t *Table) resize(size int) {
	old := t.slots
	t.slots = make([]uint64, size)
	for _, e := range old {
		if e != 0 {
			t.put(e)
		}
	}
}

// Remove takes out an entry that is there.
func (t *Table) Remove(tag uint32, id uint32) {
	hole := t.home(tag)
	for e := uint64(tag)<<32 | uint64(id+1); t.slots[hole] != e; {
		hole = t.after(hole)
	}
	for pos := t.after(hole); t.slots[pos] != 0; pos = t.after(pos) {
		if mayFill(hole, t.home(uint32(t.slots[pos]>>32)), pos) {
			t.slots[hole] = t.slots[pos]
			hole = pos
		}
	}
	t.slots[hole] = 0
	t.n--
	if size := trimmed(len(t.slots), t.n); size == 0 {
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

// Growth gives the bytes that one more entry takes while the table is copied.
func (t *Table) Growth() int {
	if size := Grown(len(t.slots), t.n+1); size != len(t.slots) {
		return 8 * size
	}
	return 0
}

// Grown gives the size a table needs for n entries: the same while it is at most three quarters full, where linear
// probing still finds a missing key within a cache line or two, otherwise half as much again.
func Grown(size, n int) int {
	for n*4 > size*3 {
		size = max(8, size+size/2)
	}
	return size
}

// trimmed gives the size to which a table with n entries is cut: the same unless less than a sixth is used, so that a
// table never grows and shrinks in turns.
func trimmed(size, n int) int {
	switch {
	case n == 0:
		return 0
	case size > 64 && n*6 < size:
		return 2 * n
	}
	return size
}

// Bytes is the memory of the entries.
func (t *Table) Bytes() int { return 8 * len(t.slots) }

// Len counts the ids.
func (t *Table) Len() int { return t.n }
