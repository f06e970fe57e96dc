package approx

// order is a list of runs, the least recently used first, linked through them.
//
// Invariants (check verifies each by number):
//
//	O1  a run that others continue comes after all of them that are in the list.
//	O2  deadlines never decrease.
type order struct {
	first, last runID
}

// push puts a run that is in no list at the end.
func (t *tree) push(o *order, id runID) {
	t.runs[id].listed = true
	t.link(o, o.last, id)
	t.link(o, id, none)
}

// take takes a run out, if it is in.
func (t *tree) take(o *order, id runID) {
	r := &t.runs[id]
	if !r.listed {
		return
	}
	t.link(o, r.prev, r.next)
	r.prev, r.next, r.listed = none, none, false
}

// link makes two runs neighbours; none is what is before the first and after the last.
func (t *tree) link(o *order, a, b runID) {
	if a == none {
		o.first = b
	} else {
		t.runs[a].next = b
	}
	if b == none {
		o.last = a
	} else {
		t.runs[b].prev = a
	}
}
