package index

import (
	"math/bits"
	"unsafe"
)

// A pool keeps records of one size by number, in chunks of up to 64 that never move. A chunk without records is given back,
// its numbers are used again. New records take the lowest number free, so that high chunks empty.
//
// Invariants (check verifies each by number):
//
//	P1  a bit of a chunk's free is set exactly for the numbers without a record; live counts records.
//	P2  a chunk has memory if it has a record; open has a bit for each chunk with a free number, below `from` none is set.
//
// Guard: its owner's lock.
type pool struct {
	heap   *heap
	size   uintptr // bytes of a record
	per    uint32  // records of a chunk: a power of two
	shift  uint32
	pages  uint32 // of a chunk
	chunks []poolChunk
	open   []uint64
	from   int // word of open to look at first
	live   int
	noted  int
	held   int // chunks with memory
}

type poolChunk struct {
	base unsafe.Pointer
	free uint64
	run  run
}

func newPool(h *heap, size uintptr) pool {
	per := uint32(64)
	for per > 1 && uintptr(per)*size > 2*pageBytes {
		per /= 2
	}
	return pool{heap: h, size: size, per: per, shift: uint32(bits.TrailingZeros32(per)), pages: pagesOf(uintptr(per) * size)}
}

func (p *pool) at(n uint32) unsafe.Pointer {
	return unsafe.Add(p.chunks[n>>p.shift].base, uintptr(n&(p.per-1))*p.size)
}

// has tells whether a number is that of a record.
func (p *pool) has(n uint32) bool {
	k := n >> p.shift
	return int(k) < len(p.chunks) && p.chunks[k].free>>(n&(p.per-1))&1 == 0
}

// all is the free of a chunk without records.
func (p *pool) all() uint64 { return ^uint64(0) >> (64 - p.per) }

// take gives the number of a new record, not zeroed, below limit. It fails at the limit, or if the bound of the heap
// forbids it and it must not.
func (p *pool) take(limit uint32, must bool) (uint32, bool) {
	for p.from < len(p.chunks)>>6 && p.open[p.from] == 0 {
		p.from++
	}
	if p.from == len(p.open) {
		p.open = append(p.open, 0)
	}
	k := p.from<<6 + bits.TrailingZeros64(p.open[p.from])
	if p.open[p.from] == 0 {
		k = len(p.chunks)
	}
	if k == len(p.chunks) {
		if uint64(k)<<p.shift >= uint64(limit) {
			return 0, false
		}
		p.chunks = append(p.chunks, poolChunk{free: p.all()})
		p.open[k>>6] |= 1 << (k & 63)
	}
	c := &p.chunks[k]
	if c.base == nil {
		r, base, ok := p.heap.take(p.pages, must)
		if !ok {
			return 0, false
		}
		c.base, c.run = base, r
		p.held++
	}
	i := bits.TrailingZeros64(c.free)
	if c.free &= c.free - 1; c.free == 0 {
		p.open[k>>6] &^= 1 << (k & 63)
	}
	p.live++
	p.settle()
	return uint32(k)<<p.shift | uint32(i), true
}

// put takes a record back.
func (p *pool) put(n uint32) {
	k := n >> p.shift
	c := &p.chunks[k]
	c.free |= 1 << (n & (p.per - 1))
	p.open[k>>6] |= 1 << (k & 63)
	p.from = min(p.from, int(k>>6))
	p.live--
	if c.free != p.all() {
		return
	}
	p.heap.put(c.run, p.pages)
	c.base = nil
	p.held--
	for len(p.chunks) > 0 && p.chunks[len(p.chunks)-1].base == nil {
		last := len(p.chunks) - 1
		p.open[last>>6] &^= 1 << (last & 63)
		p.chunks = p.chunks[:last]
	}
	p.open = p.open[:(len(p.chunks)+63)/64]
	p.from = min(p.from, len(p.open))
	switch n := len(p.chunks); {
	case n == 0:
		p.chunks, p.open = nil, nil
	case cap(p.chunks) > 64 && n < cap(p.chunks)/4:
		p.chunks = append(make([]poolChunk, 0, 2*n), p.chunks...)
		p.open = append(make([]uint64, 0, cap(p.chunks)/64+1), p.open...)
	}
	p.settle()
}

// settle tells the heap what the pool keeps on the Go heap.
func (p *pool) settle() {
	if n := cap(p.chunks)*int(unsafe.Sizeof(poolChunk{})) + cap(p.open)*8; n != p.noted {
		p.heap.note(n - p.noted)
		p.noted = n
	}
}

func (p *pool) bytes() int { return p.noted + p.held*int(p.pages)*pageBytes }
