package queue

import (
	"strings"

	"github.com/tidwall/btree"
)

// class is the state of a Class.
//
// Invariants (checked in the tests):
//
//	C1  lanes holds exactly the lanes with items.
//	C2  A lane is in heads, and its place is -1, or in blocked of its kind at its place: there its head did not fit when it was
//	    last asked.
//	C3  held sums up the items of all lanes.
//	C4  A class without items has no deficit.
//	C5  Of blocked, the first toAsk of its kind are to be asked again, now; all of them after that if the kind is woken.
type class[T any] struct {
	config  *Class
	lanes   map[string]*lane[T]
	heads   *btree.BTreeG[*lane[T]] // by the key of the head
	blocked [kinds][]*lane[T]
	toAsk   [kinds]int
	woken   [kinds]bool
	deficit int64
	held    Stats
}

// kind tells bound lanes from others.
type kind int

const (
	open kind = iota
	bound
	kinds
)

// lane holds the items of a class that can go to the same ranks.
type lane[T any] struct {
	name  string
	kind  kind
	items *btree.BTreeG[entry[T]]
	head  *Item[T] // the first of items
	place int
}

// entry has the key by value: with 100,000 items, comparisons that follow no pointer push and take 1.7 times as fast.
type entry[T any] struct {
	key
	item *Item[T]
}

func newClass[T any](config *Class) *class[T] {
	less := func(a, b *lane[T]) bool { return a.head.key.before(&b.head.key) }
	return &class[T]{
		config: config, lanes: map[string]*lane[T]{}, heads: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true}),
	}
}

func newLane[T any](name string) *lane[T] {
	less := func(a, b entry[T]) bool { return a.before(&b.key) }
	kind := open
	if strings.HasPrefix(name, Bound) {
		kind = bound
	}
	return &lane[T]{name: name, kind: kind, items: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true}), place: -1}
}

func (c *class[T]) empty() bool { return len(c.lanes) == 0 }

func (c *class[T]) add(it *Item[T]) {
	c.place(it)
	c.held.add(&it.Request)
}

// place puts an item into its lane.
func (c *class[T]) place(it *Item[T]) {
	l := c.lanes[it.Lane]
	if l == nil {
		l = newLane[T](it.Lane)
		c.lanes[it.Lane] = l
	}
	it.lane = l
	l.items.Set(entry[T]{it.key, it})
	if l.head == nil || it.key.before(&l.head.key) {
		c.lead(l, it)
	}
}

func (c *class[T]) remove(it *Item[T]) {
	c.leave(it)
	c.held.subtract(&it.Request)
	if c.empty() {
		c.deficit = 0
	}
}

// leave takes an item out of its lane.
func (c *class[T]) leave(it *Item[T]) {
	l := it.lane
	l.items.Delete(entry[T]{key: it.key})
	if it == l.head {
		next, _ := l.items.Min()
		c.lead(l, next.item)
	}
	it.lane = nil
}

// move puts an item into another lane.
func (c *class[T]) move(it *Item[T], lane string) {
	c.leave(it)
	it.Lane = lane
	c.place(it)
}

// lead gives a lane another head, which is to be asked; without one the lane ends.
func (c *class[T]) lead(l *lane[T], head *Item[T]) {
	switch {
	case l.place >= 0:
		c.unblock(l)
	case l.head != nil && head != nil && c.heads.Len() == 1:
		l.head = head // it is the only one, so its place in heads stays
		return
	case l.head != nil:
		c.heads.Delete(l)
	}
	l.head = head
	if head == nil {
		delete(c.lanes, l.name)
	} else {
		c.heads.Set(l)
	}
}

// candidate gives the first item that fits, nil if none does; ok is false if there was no time to find it. Lanes whose head does not
// fit are not asked again until they are woken. A head that does not fit and belongs to another lane by now moves there.
func (c *class[T]) candidate(fits func(*Item[T]) bool, q *Queue[T]) (it *Item[T], ok bool) {
	for kind := range kinds {
		if c.toAsk[kind] == 0 && c.woken[kind] { // else those are asked that were woken before, and these when it is called again
			c.toAsk[kind], c.woken[kind] = len(c.blocked[kind]), false
		}
		for c.toAsk[kind] > 0 {
			if q.late() {
				return nil, false
			}
			c.askLast(kind, fits, q.Lane)
		}
	}
	for {
		l, ok := c.heads.Min()
		if !ok {
			return nil, true
		}
		if q.late() {
			return nil, false
		}
		if fits(l.head) {
			return l.head, true
		}
		if q.Lane != nil {
			if name := q.Lane(l.head); name != l.name {
				c.move(l.head, name)
				continue
			}
		}
		c.heads.Delete(l)
		blocked := &c.blocked[l.kind]
		l.place = len(*blocked)
		*blocked = append(*blocked, l)
	}
}

// askLast asks the head of the last of the blocked lanes that are to be asked.
func (c *class[T]) askLast(kind kind, fits func(*Item[T]) bool, lane func(*Item[T]) string) {
	c.toAsk[kind]--
	l := c.blocked[kind][c.toAsk[kind]]
	if fits(l.head) {
		c.unblock(l)
		c.heads.Set(l)
	} else if lane != nil {
		if name := lane(l.head); name != l.name {
			c.move(l.head, name)
		}
	}
}

// unblock takes a lane out of blocked. The caller puts it into heads. The lane that takes its place there may be asked once more than needed.
func (c *class[T]) unblock(l *lane[T]) {
	blocked := c.blocked[l.kind]
	last := len(blocked) - 1
	blocked[l.place] = blocked[last]
	blocked[l.place].place = l.place
	blocked[last] = nil
	c.blocked[l.kind] = blocked[:last]
	c.toAsk[l.kind] = min(c.toAsk[l.kind], last)
	l.place = -1
}

// wakeLane makes Next ask a lane again.
func (c *class[T]) wakeLane(name string) {
	if l := c.lanes[name]; l != nil && l.place >= 0 {
		c.unblock(l)
		c.heads.Set(l)
	}
}
