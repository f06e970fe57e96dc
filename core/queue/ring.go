package queue

// ring is the state of the deficit round robin over the classes.
type ring[T any] struct {
	next       int        // where the next round begins: behind the class served last
	carry      int        // the class served last, if it has credit left; else -1
	candidates []*Item[T] // of the present Next, by class
}

func newRing[T any](classes int) ring[T] {
	return ring[T]{carry: -1, candidates: make([]*Item[T], classes)}
}

// Next takes out the item that goes next among those that fit, nil if none fits, or if there is no More time to find out. fits tells whether
// a request would find room now: an eligible rank that is not busy, or no eligible rank at all, so that placing it gives the proper error. It must not
// call the queue. A lane whose head does not fit is not asked again until Wake, or until another item heads it.
//
// The class that was served last goes on while its credit pays for its first item. Else the classes are visited once, from
// the one behind it: each with an item that fits is served if its credit, or its credit and one quantum, pays for it. If that
// serves none, all of them get as many quanta as the first of them needs.
func (q *Queue[T]) Next(fits func(*Item[T]) bool) *Item[T] {
	r := &q.ring
	carried := r.carry
	r.carry = -1
	if q.waiting == 0 {
		return nil
	}
	defer clear(r.candidates)
	if carried >= 0 {
		it, ok := q.classes[carried].candidate(fits, q)
		if !ok {
			r.carry = carried
			return nil
		}
		if it != nil && it.cost() <= q.classes[carried].deficit {
			return q.serve(it)
		}
		r.candidates[carried] = it
	}
	for i := range q.classes {
		at := (r.next + i) % len(q.classes)
		c := q.classes[at]
		if at != carried {
			var ok bool
			if r.candidates[at], ok = c.candidate(fits, q); !ok {
				q.unvisit(i)
				r.carry = carried
				return nil
			}
		}
		it := r.candidates[at]
		if it == nil {
			continue
		}
		if it.cost() > c.deficit {
			c.deficit += c.config.Quantum
		}
		if it.cost() <= c.deficit {
			return q.serve(it)
		}
	}
	q.fastForward()
	for i := range q.classes {
		at := (r.next + i) % len(q.classes)
		if it := r.candidates[at]; it != nil && it.cost() <= q.classes[at].deficit {
			return q.serve(it)
		}
	}
	return nil
}

// unvisit takes back what the first n classes of a round were given, which served none of them.
func (q *Queue[T]) unvisit(n int) {
	for i := range n {
		at := (q.ring.next + i) % len(q.classes)
		if q.ring.candidates[at] != nil {
			q.classes[at].deficit -= q.classes[at].config.Quantum
		}
	}
}

// fastForward gives every class with a candidate the fewest rounds that let one of them be served. No class gets more than its
// candidate costs and one quantum, so no credit exceeds twice MaxTokens.
func (q *Queue[T]) fastForward() {
	rounds := int64(0)
	for at, it := range q.ring.candidates {
		if it != nil {
			c := q.classes[at]
			missing := it.cost() - c.deficit // > 0
			if n := (missing-1)/c.config.Quantum + 1; rounds == 0 || n < rounds {
				rounds = n
			}
		}
	}
	for at, it := range q.ring.candidates {
		if it != nil {
			c := q.classes[at]
			c.deficit += rounds * c.config.Quantum
		}
	}
}

func (q *Queue[T]) serve(it *Item[T]) *Item[T] {
	c := q.classes[it.Class]
	c.deficit -= it.cost()
	q.Remove(it)
	q.ring.next = (it.Class + 1) % len(q.classes)
	if c.deficit > 0 {
		q.ring.carry = it.Class
	}
	return it
}
