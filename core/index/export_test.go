package index

// Check verifies the invariants of an index of New.
func Check(x Index) error { return x.(*tree).check() }

// NewSmall is New with other limits: lanes, a power of two up to 8, and blocks of a path.
func NewSmall(o Options, lanes, path int) Index { return newTree(o, lanes, path) }
