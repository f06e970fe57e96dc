package index

// Check verifies the invariants of an index of New.
func Check(x Index) error { return x.(*sharded).check() }
