package index

import (
	"sync"
	"unsafe"
)

// An entry of a table is tag<<placeBits | place; 0 is none, since no place is 0.
//
// A table finds places by hash: open addressing in lines of 8 entries, a cache line each. An entry starts at the first
// entry of its home line and moves on by linear probing, around the end. It keeps only a tag of its hash: who looks up compares
// what is at the place. Growing needs nothing but the tags, which also are in the order of the homes.
//
// A table is cut into parts by other bits of the hash. Each grows and shrinks alone, by a quarter, so that no store waits
// for a large copy, and there is never much more memory than entries.
//
// Invariant T: a part holds n entries, each reachable from its home line without an empty place between; one place is
// always empty.
//
// Guard: its owner's lock.
type table struct {
	lines *lines
	parts []part // a power of two
	n     int
	units int // lines of all parts
}

type part struct {
	base  unsafe.Pointer // of lines
	run   run
	n     uint32
	lines uint32
}

const (
	placeBits = 38
	placeMask = 1<<placeBits - 1
	tagBits   = 64 - placeBits

	lineEntries = 8
	lineBytes   = lineEntries * 8
	maxLines    = chunkUnits * 7 / 8 // of a part, so that a chunk surely has a run of them
)

func newTable(l *lines, parts int) table { return table{lines: l, parts: make([]part, parts)} }

// own counts what the table keeps on the Go heap.
func (t *table) own() int { return len(t.parts) * int(unsafe.Sizeof(part{})) }

func (t *table) part(y uint64) *part { return &t.parts[y&uint64(len(t.parts)-1)] }

func tagOf(y uint64) uint64 { return y >> placeBits }

func (p *part) home(tag uint64) uint32 { return uint32(tag*uint64(p.lines)>>tagBits) * lineEntries }

func (p *part) entries() []uint64 { return unsafe.Slice((*uint64)(p.base), p.lines*lineEntries) }

// A probe goes through the places of a hash.
type probe struct {
	entries []uint64
	tag     uint64
	pos     uint32
}

func (t *table) probe(y uint64) probe {
	p := t.part(y)
	if p.lines == 0 {
		return probe{}
	}
	tag := tagOf(y)
	return probe{p.entries(), tag, p.home(tag)}
}

// next gives the next place with the same tag.
func (p *probe) next() (place, bool) {
	if len(p.entries) == 0 {
		return 0, false
	}
	for {
		e := p.entries[p.pos]
		if e == 0 {
			return 0, false
		}
		if p.pos++; p.pos == uint32(len(p.entries)) {
			p.pos = 0
		}
		if e>>placeBits == p.tag {
			return place(e & placeMask), true
		}
	}
}

// peek loads the first entry of a hash. A look at many hashes, one after the other, costs less if each was peeked at
// before: the loads do not wait for each other. The sum of what it gives must be kept somewhere, or nothing is loaded.
func (t *table) peek(y uint64) uint64 {
	p := t.part(y)
	if p.lines == 0 {
		return 0
	}
	return *(*uint64)(unsafe.Add(p.base, uintptr(p.home(tagOf(y)))*8))
}

// insert adds an entry; it fails if there is no room and no memory for more.
func (t *table) insert(y uint64, at place, must bool) bool {
	p := t.part(y)
	if size := p.lines * lineEntries; p.n+1 > size-size/8 && !t.resize(p, p.lines+p.lines/4+1, must) && p.n+1 >= size {
		return false
	}
	p.put(tagOf(y)<<placeBits | uint64(at))
	p.n++
	t.n++
	return true
}

func (p *part) put(e uint64) {
	entries := p.entries()
	pos := p.home(e >> placeBits)
	for entries[pos] != 0 {
		if pos++; pos == uint32(len(entries)) {
			pos = 0
		}
	}
	entries[pos] = e
}

// remove takes out an entry that is there.
func (t *table) remove(y uint64, at place) {
	p := t.part(y)
	entries := p.entries()
	tag := tagOf(y)
	e := tag<<placeBits | uint64(at)
	hole := p.home(tag)
	for entries[hole] != e {
		if hole++; hole == uint32(len(entries)) {
			hole = 0
		}
	}
	p.close(entries, hole)
	p.n--
	t.n--
	if p.n == 0 || p.lines > 2 && p.n < p.lines*lineEntries/3 {
		t.resize(p, (p.n+p.n/4+lineEntries-1)/lineEntries, true)
	}
}

// close empties a place. In a line that is not full the last entry takes it, since nothing went on from there. In a full
// one the last entry does too, and leaves its own place to the next entry that was there for want of room.
func (p *part) close(entries []uint64, hole uint32) {
	for {
		end := hole | (lineEntries - 1)
		last := end
		for entries[last] == 0 {
			last--
		}
		entries[hole] = entries[last]
		entries[last] = 0
		if last < end {
			return
		}
		hole = end
		pos := end
		for {
			if pos++; pos == uint32(len(entries)) {
				pos = 0
			}
			e := entries[pos]
			if e == 0 {
				return
			}
			if mayFill(hole, p.home(e>>placeBits), pos) {
				entries[hole] = e
				hole = pos
				break
			}
		}
	}
}

// mayFill tells whether an entry at pos may move back to hole: its home is not between them (around the end).
func mayFill(hole, home, pos uint32) bool {
	if hole <= pos {
		return home <= hole || home > pos
	}
	return home <= hole && home > pos
}

// resize gives a part another number of lines, enough for its entries.
func (t *table) resize(p *part, lines uint32, must bool) bool {
	if lines > maxLines {
		return false
	}
	old := *p
	if lines == 0 {
		*p = part{}
	} else {
		r, base, ok := t.lines.take(lines, must)
		if !ok {
			return false
		}
		p.run, p.base, p.lines = r, base, lines
		clear(p.entries())
		p.fill(old.entries())
	}
	t.units += int(lines) - int(old.lines)
	if old.lines > 0 {
		t.lines.put(old.run, old.lines)
	}
	return true
}

// fill puts entries into an empty part. It counts what is in each line, so that it need not look for the end of what is there.
func (p *part) fill(from []uint64) {
	const most = 1024 // lines: the counts are on the stack
	var counts [most]uint8
	if p.lines > most {
		for _, e := range from {
			if e != 0 {
				p.put(e)
			}
		}
		return
	}
	entries := p.entries()
	for _, e := range from {
		if e == 0 {
			continue
		}
		line := uint32((e >> placeBits) * uint64(p.lines) >> tagBits)
		for counts[line%most] == lineEntries {
			if line++; line == p.lines {
				line = 0
			}
		}
		n := &counts[line%most]
		entries[line*lineEntries+uint32(*n)] = e
		*n++
	}
}

func (t *table) bytes() int { return t.units*lineBytes + t.own() }

// lines is the memory of all tables of an index.
//
// Guard: mu.
type lines struct {
	mu   sync.Mutex
	runs space
	heap *heap
}

// A chunk of lines is small, so that a part that outlives others does not keep much.
const (
	minLinePages = 1
	maxLinePages = 4
)

func (l *lines) take(n uint32, must bool) (run, unsafe.Pointer, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.runs.take(n)
	if !ok {
		if !l.grow(n, must) {
			return noRun, nil, false
		}
		r, _ = l.runs.take(n)
	}
	return r, l.runs.at(r), true
}

func (l *lines) grow(n uint32, must bool) bool {
	least := pagesOf(uintptr(sure(n)) * lineBytes)
	many := min(max(uint32(l.runs.live*lineBytes/pageBytes/16), minLinePages), maxLinePages)
	for _, pages := range [...]uint32{max(many, least), least} {
		if from, base, ok := l.heap.take(pages, must && pages == least); ok {
			before := l.runs.own()
			l.runs.add(base, pages*(pageBytes/lineBytes), from)
			l.heap.note(l.runs.own() - before)
			return true
		}
	}
	return false
}

func (l *lines) put(r run, n uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs.put(r, n)
	before := l.runs.own()
	for c, ok := l.runs.surplus(); ok; c, ok = l.runs.surplus() {
		l.heap.put(c.from, pagesOf(uintptr(c.units)*lineBytes))
	}
	l.heap.note(l.runs.own() - before)
}
