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
// for a large copy, and there is never much more memory than entries. An eager table's parts double as long as they are small: growing by a
// quarter copies each entry four times, and what that saves of one small table is not a megabyte. The lines of a part are in slabs,
// each a page of the heap but for the last one, so that what one part gives back fits another.
//
// Invariant T: a part holds n entries, each reachable from its home line without an empty place between, before
// which there is none in a line either; one place is always empty.
//
// Guard: its owner's lock.
type table struct {
	lines *lines
	parts []part // a power of two
	n     int
	units int  // lines of all parts
	eager bool // of an index that has little else
}

type part struct {
	slabs []slab
	n     uint32
	lines uint32
}

type slab struct {
	base unsafe.Pointer // of slabLines lines, or of those that are left
	run  run
}

const (
	placeBits = 38
	placeMask = 1<<placeBits - 1
	tagBits   = 64 - placeBits

	lineEntries = 8
	lineBytes   = lineEntries * 8
	slabLines   = pageBytes / lineBytes
	slabEntries = slabLines * lineEntries
	fewLines    = 4 * slabLines
)

func newTable(l *lines, parts int) table { return table{lines: l, parts: make([]part, parts)} }

// own counts what the table keeps on the Go heap, but for the parts' lists of slabs.
func (t *table) own() int { return len(t.parts) * int(unsafe.Sizeof(part{})) }

func (t *table) part(y uint64) *part { return &t.parts[y&uint64(len(t.parts)-1)] }

func tagOf(y uint64) uint64 { return y >> placeBits }

// home gives the number of the home line.
func (p *part) home(tag uint64) uint32 { return uint32(tag * uint64(p.lines) >> tagBits) }

// size counts the places for entries.
func (p *part) size() uint32 { return p.lines * lineEntries }

func (p *part) line(n uint32) *line {
	return (*line)(unsafe.Add(p.slabs[n/slabLines].base, uintptr(n%slabLines)*lineBytes))
}

// after gives the number of the next line, around the end.
func (p *part) after(n uint32) uint32 {
	if n++; n == p.lines {
		return 0
	}
	return n
}

// entries gives the places of a slab.
func (p *part) entries(k int) []uint64 {
	return unsafe.Slice((*uint64)(p.slabs[k].base), min(slabEntries, p.size()-uint32(k)*slabEntries))
}

// A line is looked at as a whole, without branches: where something is in it cannot be predicted.
type line [lineEntries]uint64

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

// has tells whether an entry of a line has a tag.
func (l *line) has(tag uint64) bool {
	any := false
	if l[0]>>placeBits == tag {
		any = true
	}
	if l[1]>>placeBits == tag {
		any = true
	}
	if l[2]>>placeBits == tag {
		any = true
	}
	if l[3]>>placeBits == tag {
		any = true
	}
	if l[4]>>placeBits == tag {
		any = true
	}
	if l[5]>>placeBits == tag {
		any = true
	}
	if l[6]>>placeBits == tag {
		any = true
	}
	if l[7]>>placeBits == tag {
		any = true
	}
	return any
}

// lacks tells that no place has the hash's tag. A tag of 0 is that of an empty place too, so of that one it may tell too
// little.
func (t *table) lacks(y uint64) bool {
	p, tag := t.part(y), tagOf(y)
	if p.lines == 0 {
		return true
	}
	for n := p.home(tag); ; n = p.after(n) {
		l := p.line(n)
		if l.has(tag) {
			return false
		}
		if l[lineEntries-1] == 0 {
			return true
		}
	}
}

// A probe goes through the places of a hash.
type probe struct {
	part *part
	tag  uint64
	line uint32
	next int // of the line
}

func (t *table) probe(y uint64) probe {
	p, tag := t.part(y), tagOf(y)
	return probe{part: p, tag: tag, line: p.home(tag)}
}

// place gives the next place with the same tag.
func (p *probe) place() (place, bool) {
	if p.part.lines == 0 {
		return 0, false
	}
	for {
		l := p.part.line(p.line)
		for i := p.next; i < lineEntries; i++ {
			e := l[i]
			if e == 0 {
				return 0, false
			}
			if e>>placeBits == p.tag {
				p.next = i + 1
				return place(e & placeMask), true
			}
		}
		p.line, p.next = p.part.after(p.line), 0
	}
}

// prefetch has the lines where some hashes are loaded, of at most sectionBlocks, for those who look at all of them soon. An entry
// is in its home line, mostly, or in the next.
func (t *table) prefetch(ys []uint64) {
	var at [2 * sectionBlocks]uintptr
	for i, y := range ys {
		if p := t.part(y); p.lines > 0 {
			at[2*i] = uintptr(unsafe.Pointer(p.line(p.home(tagOf(y)))))
			at[2*i+1] = at[2*i] + lineBytes
		}
	}
	prefetch.Lines(at[:2*len(ys)])
}

// insert adds an entry; it fails if there is no room and no memory for more.
func (t *table) insert(y uint64, at place, must bool) bool {
	p := t.part(y)
	if size := p.size(); p.n+1 > size-size/8 && !t.resize(p, t.larger(p.lines), must) && p.n+1 >= size {
		return false
	}
	p.put(tagOf(y)<<placeBits | uint64(at))
	p.n++
	t.n++
	return true
}

// larger gives how many lines a part of so many gets when they are full.
func (t *table) larger(lines uint32) uint32 {
	if t.eager && lines < fewLines/2 {
		return 2*lines + 1
	}
	return whole(lines + lines/4 + 1)
}

func (p *part) put(e uint64) {
	for n := p.home(e >> placeBits); ; n = p.after(n) {
		l := p.line(n)
		if k := l.used(); k < lineEntries {
			l[k] = e
			return
		}
	}
}

// remove takes out an entry that is there.
func (t *table) remove(y uint64, at place) {
	p := t.part(y)
	tag := tagOf(y)
	e := tag<<placeBits | uint64(at)
	n := p.home(tag)
	i := p.line(n).find(e)
	for i == lineEntries {
		n = p.after(n)
		i = p.line(n).find(e)
	}
	p.close(n, i)
	p.n--
	t.n--
	if p.n == 0 || p.lines > 2 && p.n < p.size()/3 {
		t.resize(p, (p.n+p.n/4+lineEntries-1)/lineEntries, true)
	}
}

// close empties a place of a line. The last entry of the line takes it. If the line was full, an entry that was stored behind for want
// of room takes the place of that one, and leaves its own.
func (p *part) close(hole uint32, i int) {
	for {
		l := p.line(hole)
		last := l.used() - 1
		l[i] = l[last]
		l[last] = 0
		if last < lineEntries-1 {
			return
		}
		if hole, i = p.stray(hole); i == lineEntries {
			return
		}
		l[last] = p.line(hole)[i]
	}
}

// stray finds an entry whose home is a line, or one before, among those that are stored behind it; i is lineEntries if there is none.
func (p *part) stray(home uint32) (n uint32, i int) {
	for n = p.after(home); ; n = p.after(n) {
		for i, e := range p.line(n) {
			if e == 0 {
				return 0, lineEntries
			}
			if mayMove(home, p.home(e>>placeBits), n) {
				return n, i
			}
		}
	}
}

// mayMove tells whether an entry of line n may move back to another: its home is not behind that (around the end).
func mayMove(to, home, n uint32) bool {
	if to <= n {
		return home <= to || home > n
	}
	return home <= to && home > n
}

// whole gives a number of lines near another, of whole slabs if there are more than a few.
func whole(lines uint32) uint32 {
	if lines < fewLines {
		return lines
	}
	return (lines + slabLines/2) / slabLines * slabLines
}

// scratch are lists for the entries of a part while it changes its size.
var scratch = sync.Pool{New: func() any { return new([]uint64) }}

// resize gives a part another number of lines, enough for its entries.
func (t *table) resize(p *part, lines uint32, must bool) bool {
	list := scratch.Get().(*[]uint64)
	defer scratch.Put(list)
	all := (*list)[:0]
	for k := range p.slabs {
		all = append(all, p.entries(k)...)
	}
	*list = all
	was, dir := p.lines, len(p.slabs)
	if !t.lines.fit(p, lines, must) {
		return false
	}
	t.units += int(lines) - int(was)
	t.lines.heap.note((len(p.slabs) - dir) * int(unsafe.Sizeof(slab{})))
	for k := range p.slabs {
		clear(p.entries(k))
	}
	p.fill(all)
	return true
}

// fill puts entries into an empty part. It counts what is in each line, so that it need not look for the end of what is there.
func (p *part) fill(from []uint64) {
	const most = 4096 // lines: the counts are on the stack
	var counts [most]uint8
	if p.lines > most {
		for _, e := range from {
			if e != 0 {
				p.put(e)
			}
		}
		return
	}
	for _, e := range from {
		if e == 0 {
			continue
		}
		n := p.home(e >> placeBits)
		for counts[n%most] == lineEntries {
			n = p.after(n)
		}
		k := &counts[n%most]
		p.line(n)[*k%lineEntries] = e
		*k++
	}
}

func (t *table) bytes() int { return t.units*lineBytes + t.own() }

// lines is the memory of all tables of an index: of their slabs that are not whole.
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

// fit gives a part slabs for that many lines, false if there is no memory for them. What is in the slabs it has is kept where the slab
// is.
func (l *lines) fit(p *part, lines uint32, must bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep := min(lines, p.lines) / slabLines // slabs that are whole before and after
	slabs := append(make([]slab, 0, (lines+slabLines-1)/slabLines), p.slabs[:keep]...)
	for at := keep * slabLines; at < lines; at += slabLines {
		r, base, ok := l.take(min(slabLines, lines-at), must)
		if !ok {
			l.put(slabs[keep:], at-keep*slabLines)
			return false
		}
		slabs = append(slabs, slab{base, r})
	}
	l.put(p.slabs[keep:], p.lines-keep*slabLines)
	p.slabs, p.lines = slabs, lines
	return true
}

// take gives a run of lines, or the page of a whole slab.
func (l *lines) take(n uint32, must bool) (run, unsafe.Pointer, bool) {
	if n == slabLines {
		return l.heap.take(1, must)
	}
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

// put takes slabs back, which have that many lines.
func (l *lines) put(slabs []slab, lines uint32) {
	for _, s := range slabs {
		if lines < slabLines {
			l.runs.put(s.run, lines)
			break
		}
		l.heap.put(s.run, 1)
		lines -= slabLines
	}
	before := l.runs.own()
	for c, ok := l.runs.surplus(); ok; c, ok = l.runs.surplus() {
		l.heap.put(c.from, pagesOf(uintptr(c.units)*lineBytes))
	}
	l.heap.note(l.runs.own() - before)
}
