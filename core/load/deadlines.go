package load

import (
	"cmp"

	"github.com/tidwall/btree"
)

// deadlines orders live requests by when to look at them next. A renewal does not move its item: the request's own
// deadline may be later than its place here, never earlier.
type deadlines struct {
	order *btree.BTreeG[deadline]
}

type deadline struct {
	at      int64
	request uint32
}

func newDeadlines() deadlines {
	less := func(a, b deadline) bool {
		if c := cmp.Compare(a.at, b.at); c != 0 {
			return c < 0
		}
		return a.request < b.request
	}
	return deadlines{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (d deadlines) add(at int64, request uint32)    { d.order.Set(deadline{at, request}) }
func (d deadlines) remove(at int64, request uint32) { d.order.Delete(deadline{at, request}) }

// popBefore takes the earliest request whose time is before now.
func (d deadlines) popBefore(now int64) (uint32, bool) {
	first, ok := d.order.Min()
	if !ok || first.at >= now {
		return 0, false
	}
	d.order.Delete(first)
	return first.request, true
}
