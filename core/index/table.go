package index

import (
	"sync"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/internal/prefetch"
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
// Invariant T: a part holds n entries, each reachable from its home line without an empty place between, before
// which there is none in a line either; one place is always empty.
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

// A line is looked at as a whole, without branches: where something is in it cannot be predicted.
type line [lineEntries]uint64

func (p *part) line(tag uint64) *line {
	return (*line)(unsafe.Add(p.base, uintptr(p.home(tag))*8))
}

// used counts the entries of a line: they are at its beginning.
func (l *line) used() int {
	n := 0
	if l[0] != 0 {
		n = 1
	}
	if l[1] != 0 {
		n = 2
	}
	if l[2] != 0 {
		n = 3
	}
	if l[3] != 0 {
		n = 4
	}
	if l[4] != 0 {
		n = 5
	}
	if l[5] != 0 {
		n = 6
	}
	if l[6] != 0 {
		n = 7
	}
	if l[7] != 0 {
		n = 8
	}
	return n
}

// find gives where an entry is in a line, lineEntries if it is not.
func (l *line) find(e uint64) int {
	n := lineEntries
	if l[0] == e {
		n = 0
	}
	if l[1] == e {
		n = 1
	}
	if l[2] == e {
		n = 2
	}
	if l[3] == e {
		n = 3
	}
	if l[4] == e {
		n = 4
	}
	if l[5] == e {
		n = 5
	}
	if l[6] == e {
		n = 6
	}
	if l[7] == e {
		n = 7
	}
	return n
}

// near tells whether an entry of a line has a tag, or all places of it are taken.
func (l *line) near(tag uint64) bool {
	any := l[7]
	if l[0]>>placeBits == tag {
		any = 1
	}
	if l[1]>>placeBits == tag {
		any = 1
	}
	if l[2]>>placeBits == tag {
		any = 1
	}
	if l[3]>>placeBits == tag {
		any = 1
	}
	if l[4]>>placeBits == tag {
		any = 1
	}
	if l[5]>>placeBits == tag {
		any = 1
	}
	if l[6]>>placeBits == tag {
		any = 1
	}
	return any != 0
}

// lacks tells that no place has the hash's tag.
func (t *table) lacks(y uint64) bool {
	p := t.part(y)
	if p.lines == 0 || !p.line(tagOf(y)).near(tagOf(y)) {
		return true
	}
	all := t.probe(y)
	_, ok := all.next()
	return !ok
}

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

// prefetch has the lines where some hashes are loaded, of at most sectionBlocks, for those who look at all of them soon. An entry
// is in its home line, mostly, or in the next.
func (t *table) prefetch(ys []uint64) {
	var at [2 * sectionBlocks]uintptr
	for i, y := range ys {
		p := t.part(y)
		at[2*i] = uintptr(p.base) + uintptr(p.home(tagOf(y)))*8
		at[2*i+1] = at[2*i] + lineBytes
	}
	prefetch.Lines(at[:2*len(ys)])
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
	l := p.line(e >> placeBits)
	if n := l.used(); n < lineEntries {
		l[n] = e
		return
	}
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
	tag := tagOf(y)
	e := tag<<placeBits | uint64(at)
	l := p.line(tag)
	if i, n := l.find(e), l.used(); i < lineEntries && n < lineEntries {
		last := &l[n-1]
		l[i] = *last
		*last = 0
	} else {
		entries := p.entries()
		hole := p.home(tag) + uint32(i)
		if hole == uint32(len(entries)) {
			hole = 0
		}
		for entries[hole] != e {
			if hole++; hole == uint32(len(entries)) {
				hole = 0
			}
		}
		p.close(entries, hole)
	}
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
