package wire

// slab cuts slices from shared memory, so that a batch of many small events allocates a few times.
type slab[T any] struct {
	free []T
	kept []T // the largest, for rewind
}

// take gives n elements that nothing else uses, to be filled. What follows in the payload holds at most more elements: the slab
// is never larger than that. None are nil.
func (s *slab[T]) take(n, more int) []T {
	if n == 0 {
		return nil
	}
	if n > len(s.free) {
		s.free = make([]T, max(n, min(more, slabSize)))
		if len(s.free) > len(s.kept) {
			s.kept = s.free
		}
	}
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// slabSize is 8 KiB of hashes or 4 KiB of tokens: more would outlive small batches, less serves few events.
const slabSize = 1024

// rewind makes everything that was taken free again; a slab that one large batch needed is not kept.
func (s *slab[T]) rewind() {
	if len(s.kept) > 4*slabSize {
		s.kept = nil
	}
	s.free = s.kept
}
