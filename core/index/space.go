package index

import (
	"math/bits"
	"slices"
	"unsafe"
)

// A run names consecutive units of a space: chunk<<unitBits | first unit.
type run uint32

const (
	unitBits   = 13
	chunkUnits = 1 << unitBits // at most, in a chunk
	noRun      = ^run(0)

	exactBins = 64 // runs of fewer units have a bin of their own, longer ones share: 8 bins per doubling
	binCount  = exactBins + 8*(unitBits+1-6)
)

func (r run) chunk() uint32 { return uint32(r) >> unitBits }
func (r run) unit() uint32  { return uint32(r) % chunkUnits }

// A space hands out runs of units and joins what comes back with its free neighbours. A free run is kept in its own
// memory: a note at its first unit, and at its last one where the first is. Finding a run is a look at a bitmap of bins.
//
// Invariants (check verifies each by number):
//
//	U1  a bit of a chunk's free is set exactly for the units that no run handed out covers, and live counts the others.
//	U2  free runs are maximal, and each is in the list of its bin; filled has a bit for each list that is not empty.
//	U3  empty has the chunks without units handed out: at most one, after surplus, and none larger than small when live is 0.
//
// Guard: its owner's lock.
type space struct {
	unit   uintptr // bytes of a unit, enough for a note
	chunks []chunk
	unused []uint32 // numbers of chunks given back
	bins   [binCount]run
	filled [2]uint64
	live   int // units handed out
	empty  []uint32
	small  uint32 // units of a chunk that may stay when nothing is handed out
	gone   int    // units within free runs whose memory is given back to the system: only of a heap
	words  int    // of the chunks' free
}

type chunk struct {
	base  unsafe.Pointer // nil: given back
	units uint32
	live  uint32
	free  []uint64
	from  run // where the chunk's own memory comes from: pages of the heap
}

// A note is what a free run says of itself. first is valid at its last unit, the rest at its first.
type note struct {
	units      uint32
	prev, next run
	first      uint32
	gone       uint32 // of the space's
}

func newSpace(unit uintptr) space {
	s := space{unit: unit}
	for i := range s.bins {
		s.bins[i] = noRun
	}
	return s
}

func (s *space) at(r run) unsafe.Pointer {
	return unsafe.Add(s.chunks[r.chunk()].base, uintptr(r.unit())*s.unit)
}

func (s *space) note(chunk, unit uint32) *note {
	return (*note)(unsafe.Add(s.chunks[chunk].base, uintptr(unit)*s.unit))
}

// binOf gives the bin a free run is kept in: that of the greatest size it can serve.
func binOf(units uint32) uint32 {
	if units < exactBins {
		return units
	}
	k := uint32(bits.Len32(units)) - 4 // units>>k is 8 to 15
	return exactBins + 8*(k-3) + units>>k - 8
}

// binFor gives the first bin whose runs are all long enough.
func binFor(units uint32) uint32 {
	if units < exactBins {
		return units
	}
	k := uint32(bits.Len32(units)) - 4
	return binOf(units + 1<<k - 1)
}

// sure gives the length of a chunk that has a run of that many units for certain.
func sure(units uint32) uint32 {
	if units < exactBins {
		return units
	}
	k := uint32(bits.Len32(units)) - 4
	return (units + 1<<k - 1) >> k << k
}

// take gives a run of that many units, if a chunk has one.
func (s *space) take(units uint32) (run, bool) {
	b := binFor(units)
	w := b >> 6
	found := s.filled[w] >> (b & 63) << (b & 63)
	if found == 0 && w == 0 {
		w, found = 1, s.filled[1]
	}
	if found == 0 {
		return noRun, false
	}
	r := s.bins[w<<6+uint32(bits.TrailingZeros64(found))]
	size := s.unlink(r)
	c := &s.chunks[r.chunk()]
	if size > units {
		s.link(r+run(units), size-units)
	}
	flip(c.free, r.unit(), units)
	if c.live == 0 {
		s.empty = slices.DeleteFunc(s.empty, func(k uint32) bool { return k == r.chunk() })
	}
	c.live += units
	s.live += int(units)
	return r, true
}

// extend makes a run longer in its place, if what follows is free.
func (s *space) extend(r run, units, more uint32) bool {
	c := &s.chunks[r.chunk()]
	end := r.unit() + units
	if end >= c.units || c.free[end>>6]>>(end&63)&1 == 0 || s.note(r.chunk(), end).units < more {
		return false
	}
	if size := s.unlink(r + run(units)); size > more {
		s.link(r+run(units+more), size-more)
	}
	flip(c.free, end, more)
	c.live += more
	s.live += int(more)
	return true
}

// put takes a run back. The owner then gives back what surplus gives.
func (s *space) put(r run, units uint32) {
	c := &s.chunks[r.chunk()]
	flip(c.free, r.unit(), units)
	c.live -= units
	s.live -= int(units)
	if u := r.unit(); u > 0 && c.free[(u-1)>>6]>>((u-1)&63)&1 != 0 {
		left := r - run(u) + run(s.note(r.chunk(), u-1).first)
		units += s.unlink(left)
		r = left
	}
	if end := r.unit() + units; end < c.units && c.free[end>>6]>>(end&63)&1 != 0 {
		units += s.unlink(r + run(units))
	}
	s.link(r, units)
	if c.live == 0 {
		s.empty = append(s.empty, r.chunk())
	}
}

// surplus gives an empty chunk that is not worth keeping, which the space then forgets. One is kept, so that what comes and goes
// does not take and give back a chunk each time.
func (s *space) surplus() (chunk, bool) {
	for i, k := range s.empty {
		if len(s.empty) > 1 || s.live == 0 && s.chunks[k].units > s.small {
			s.empty = slices.Delete(s.empty, i, i+1)
			return s.drop(k), true
		}
	}
	return chunk{}, false
}

func (s *space) link(r run, units uint32) {
	b := binOf(units)
	next := s.bins[b]
	if next != noRun {
		s.note(next.chunk(), next.unit()).prev = r
	}
	n := s.note(r.chunk(), r.unit())
	n.units, n.prev, n.next, n.gone = units, noRun, next, 0
	s.note(r.chunk(), r.unit()+units-1).first = r.unit()
	s.bins[b] = r
	s.filled[b>>6] |= 1 << (b & 63)
}

func (s *space) unlink(r run) uint32 {
	n := s.note(r.chunk(), r.unit())
	s.gone -= int(n.gone)
	b := binOf(n.units)
	if n.prev == noRun {
		s.bins[b] = n.next
		if n.next == noRun {
			s.filled[b>>6] &^= 1 << (b & 63)
		}
	} else {
		s.note(n.prev.chunk(), n.prev.unit()).next = n.next
	}
	if n.next != noRun {
		s.note(n.next.chunk(), n.next.unit()).prev = n.prev
	}
	return n.units
}

// add takes memory for a chunk into the space.
func (s *space) add(base unsafe.Pointer, units uint32, from run) uint32 {
	var k uint32
	if n := len(s.unused); n > 0 {
		k, s.unused = s.unused[n-1], s.unused[:n-1]
	} else {
		k = uint32(len(s.chunks))
		s.chunks = append(s.chunks, chunk{})
	}
	s.chunks[k] = chunk{base: base, units: units, free: make([]uint64, (units+63)/64), from: from}
	s.words += len(s.chunks[k].free)
	flip(s.chunks[k].free, 0, units)
	s.link(run(k<<unitBits), units)
	s.empty = append(s.empty, k)
	return k
}

// drop forgets an empty chunk and gives what it was made of.
func (s *space) drop(k uint32) chunk {
	c := s.chunks[k]
	s.unlink(run(k << unitBits))
	s.words -= len(c.free)
	s.chunks[k] = chunk{}
	s.unused = append(s.unused, k)
	if len(s.unused) == len(s.chunks) {
		s.chunks, s.unused = nil, nil
	}
	return c
}

// own counts what the space itself keeps on the Go heap.
func (s *space) own() int {
	return cap(s.chunks)*int(unsafe.Sizeof(chunk{})) + cap(s.unused)*4 + s.words*8
}

// flip inverts n bits from bit i on.
func flip(words []uint64, i, n uint32) {
	for n > 0 {
		k := min(n, 64-i&63)
		words[i>>6] ^= ^uint64(0) >> (64 - k) << (i & 63)
		i, n = i+k, n-k
	}
}
