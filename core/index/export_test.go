package index

// Check verifies the invariants of an index of New.
func Check(x Index) error { return x.(*tree).check() }

// NewSmall is New with other limits: lanes, a power of two up to 8, and blocks of a path.
func NewSmall(o Options, lanes, path int) Index { return newTree(o, lanes, path) }

// NewBounded is NewSmall with a bound of so many bytes above what an empty index takes, however few.
func NewBounded(lanes, path int, room int64) (x Index, bound int64) {
	t := newTree(Options{}, lanes, path)
	t.heap.hard = t.heap.bytes() + room
	t.heap.limit = t.heap.hard - room/2
	return t, t.heap.hard
}
