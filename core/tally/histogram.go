package tally

import "math/bits"

// Histogram counts observations by size.
type Histogram struct {
	Bounds []float64 // ascending
	Counts []uint64  // of the observations at most Bounds[i] and above the bound before; the last are above all bounds
	Sum    float64   // of the observations
}

// Total counts all observations.
func (h *Histogram) Total() uint64 {
	n := uint64(0)
	for _, c := range h.Counts {
		n += c
	}
	return n
}

const buckets = 24

// histogram counts whole numbers. The zero value is empty.
type histogram struct {
	counts [buckets]uint64
	sum    int64
}

func (h *histogram) add(bucket int, value int64) {
	h.counts[bucket]++
	h.sum += value
}

// show gives n bounds and one bucket beyond, in units of which the values counted have `per`.
func (h *histogram) show(n int, bound func(i int) float64, per float64) Histogram {
	out := Histogram{Counts: append([]uint64(nil), h.counts[:n+1]...), Sum: float64(h.sum) / per}
	for i := range n {
		out.Bounds = append(out.Bounds, bound(i))
	}
	return out
}

// doubling gives the bucket of a value among the bounds first, 2*first, 4*first, ... of which there are n.
func doubling(value, first int64, n int) int {
	if value <= first {
		return 0
	}
	return min(bits.Len64(uint64((value+first-1)/first-1)), n)
}
