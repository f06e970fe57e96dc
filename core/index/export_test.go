package index

// Check verifies the invariants of an index of New.
func Check(x Index) error { return x.(*tree).check() }

// NewSmall is New with other limits: lanes, a power of two up to 8, and blocks of a path. Dead names go one by one, so that there
// are some for many events.
func NewSmall(o Options, lanes, path int) Index {
	t := newTree(o, lanes, path)
	t.sweep = 1
	return t
}

// NewBounded is NewSmall with a bound of so many bytes above what an empty index takes, however few.
func NewBounded(lanes, path int, room int64) (x Index, bound int64) {
	t := NewSmall(Options{}, lanes, path).(*tree)
	t.heap.hard = t.heap.bytes() + room
	t.heap.limit = t.heap.hard - room/2
	return t, t.heap.hard
}

// Dead counts entries of names that nobody uses any more.
func Dead(x Index) (n int) {
	t := x.(*tree)
	for i := range t.used {
		n += t.lanes[i].dead.n
	}
	return n
}

// Evict makes room as a store does that finds none.
func Evict(x Index, blocks int) int { return x.(*tree).evict(blocks) }
