package wire

// slab cuts slices from shared memory, so that a batch of many small events allocates a few times.
type slab[T any] struct{ free []T }

// take gives n zeroed elements that nothing else uses. What follows in the payload holds at most more elements: the slab
// is never larger than that. None are nil.
func (s *slab[T]) take(n, more int) []T {
	if n == 0 {
		return nil
	}
	if n > len(s.free) {
		s.free = make([]T, max(n, min(more, slabSize)))
	}
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// slabSize is 8 KiB of hashes or 4 KiB of tokens: more would outlive small batches, less serves few events.
const slabSize = 1024
