package load

// table finds things by the hash of their key: open addressing, at most half full. It keeps 32 bits of the hash and a number from 1 on; the
// caller, who has the keys, compares them. A Go map hashes each key anew for each of its calls, and costs several times as much.
//
//	for i := t.home(hash); t.cells[i].value != 0; i = t.next(i) { if c := t.cells[i]; c.hash == hash && ... }
//
// Invariant: between a cell's home and the cell there is no empty one.
type table struct {
	cells []cell // a power of two of them
	used  int
}

type cell struct{ hash, value uint32 } // value 0: empty

func newTable() table { return table{cells: make([]cell, 16)} }

func (t *table) home(hash uint32) uint32 { return hash & uint32(len(t.cells)-1) }
func (t *table) next(i uint32) uint32    { return (i + 1) & uint32(len(t.cells)-1) }

// add adds a value that is not there under this hash.
func (t *table) add(hash, value uint32) {
	if t.used++; t.used*2 > len(t.cells) {
		old := t.cells
		t.cells = make([]cell, 2*len(old))
		for _, c := range old {
			if c.value != 0 {
				t.place(c)
			}
		}
	}
	t.place(cell{hash, value})
}

func (t *table) place(c cell) {
	i := t.home(c.hash)
	for t.cells[i].value != 0 {
		i = t.next(i)
	}
	t.cells[i] = c
}

// find gives the cell of a value that is there under this hash.
func (t *table) find(hash, value uint32) uint32 {
	i := t.home(hash)
	for t.cells[i] != (cell{hash, value}) {
		i = t.next(i)
	}
	return i
}

// replace puts another value in the place of one that is there under this hash.
func (t *table) replace(hash, value, by uint32) { t.cells[t.find(hash, value)].value = by }

// remove takes a value out that is there under this hash, and closes the gap.
func (t *table) remove(hash, value uint32) {
	t.used--
	gap := t.find(hash, value)
	for i := t.next(gap); t.cells[i].value != 0; i = t.next(i) {
		home := t.home(t.cells[i].hash)
		if (i-home)&uint32(len(t.cells)-1) >= (i-gap)&uint32(len(t.cells)-1) {
			t.cells[gap], gap = t.cells[i], i
		}
	}
	t.cells[gap] = cell{}
}
