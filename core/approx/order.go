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

type link struct {
	prev, next runID
}

// orders are the two lists that a run is in, or not: of all ranks with a policy, and of its rank.
type orders [2]*order

// push puts a run that is in no list at the ends.
func (t *tree) push(o orders, id runID) {
	t.at(id).listed = true
	for i := range o {
		t.link(o, i, o[i].last, id)
		t.link(o, i, id, none)
	}
}

// take takes a run out, if it is in.
func (t *tree) take(o orders, id runID) {
	r := t.at(id)
	if !r.listed {
		return
	}
	for i := range o {
		t.link(o, i, r.links[i].prev, r.links[i].next)
		r.links[i] = link{}
	}
	r.listed = false
}

// link makes two runs neighbours; none is what is before the first and after the last.
func (t *tree) link(o orders, i int, a, b runID) {
	if a == none {
		o[i].first = b
	} else {
		t.at(a).links[i].next = b
	}
	if b == none {
		o[i].last = a
	} else {
		t.at(b).links[i].prev = a
	}
}
