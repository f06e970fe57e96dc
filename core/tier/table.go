package tier

// tables finds ids by hash: many small tables that grow one at a time, so that no event waits long for one.
type tables struct {
	parts [tableParts]table
	room  int // entries of all parts, live or not
}

const tableParts = 256

func (t *tables) part(hash uint64) *table { return &t.parts[hash>>56] }

// probe gives the ids under a hash, one after the other; its owner compares what they stand for.
func (t *tables) probe(hash uint64) probe { return t.part(hash).probe(uint32(hash)) }

// peek loads what a probe will look at first.
func (t *tables) peek(hash uint64) uint64 {
	if p := t.part(hash); len(p.slots) > 0 {
		return p.slots[p.home(uint32(hash))]
	}
	return 0
}

func (t *tables) insert(hash uint64, id uint32) {
	p := t.part(hash)
	t.room -= len(p.slots)
	p.insert(uint32(hash), id)
	t.room += len(p.slots)
}

func (t *tables) remove(hash uint64, id uint32) {
	p := t.part(hash)
	t.room -= len(p.slots)
	p.remove(uint32(hash), id)
	t.room += len(p.slots)
}

// growth gives the bytes that one more entry takes while a part is copied.
func (t *tables) growth(hash uint64) int { return t.part(hash).growth() }

func (t *tables) bytes() int { return 8 * t.room }

// A table finds ids by tag: open addressing with linear probing.
//
// Invariant T: slots holds n entries, each reachable from its home without an empty place between; an entry is
// tag<<32 | id+1, so that moving entries needs nothing but the entries.
type table struct {
	slots []uint64 // 0 is empty
	n     int
}

type probe struct {
	slots []uint64
	tag   uint32
	pos   int
}

func (t *table) probe(tag uint32) probe {
	if t.n == 0 {
		return probe{}
	}
	return probe{t.slots, tag, t.home(tag)}
}

func (p *probe) next() (id uint32, ok bool) {
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
func (t *table) home(tag uint32) int { return int(uint64(tag) * uint64(len(t.slots)) >> 32) }

func (t *table) after(pos int) int {
	if pos++; pos < len(t.slots) {
		return pos
	}
	return 0
}

func (t *table) insert(tag uint32, id uint32) {
	if size := grown(len(t.slots), t.n+1); size != len(t.slots) {
		t.resize(size)
	}
	t.put(uint64(tag)<<32 | uint64(id+1))
	t.n++
}

func (t *table) put(e uint64) {
	pos := t.home(uint32(e >> 32))
	for t.slots[pos] != 0 {
		pos = t.after(pos)
	}
	t.slots[pos] = e
}

func (t *table) resize(size int) {
	old := t.slots
	t.slots = make([]uint64, size)
	for _, e := range old {
		if e != 0 {
			t.put(e)
		}
	}
}

// remove takes out an entry that is there.
func (t *table) remove(tag uint32, id uint32) {
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

func (t *table) growth() int {
	if size := grown(len(t.slots), t.n+1); size != len(t.slots) {
		return 8 * size
	}
	return 0
}

// grown gives the size a table needs for n entries: the same while it is at most three quarters full, where linear
// probing still finds a missing key within a cache line or two, otherwise half as much again.
func grown(size, n int) int {
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
