package index

import (
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// dead are names that a lane's table has an entry for although no slot of the lane uses them any more: a cleared slot leaves many
// at once, and later events take them out, some each. A dead entry may be of a place that is another block's by now, or nobody's.
// Whoever looks up names while there are dead ones makes sure that what is found is in use.
//
// It is a stack in pages of the heap.
type dead struct {
	heap  *heap
	pages []deadPage
	n     int
}

type deadPage struct {
	run   run
	names *[deadNames]deadName
}

type deadName struct {
	name block.EngineHash
	at   place
}

const (
	deadNames = pageBytes / int(unsafe.Sizeof(deadName{}))
	deadShare = 4
)

// push adds a name, false if the bound leaves no memory for it.
func (d *dead) push(n deadName) bool {
	if d.n == len(d.pages)*deadNames {
		r, base, ok := d.heap.take(1, false)
		if !ok {
			return false
		}
		before := d.own()
		d.pages = append(d.pages, deadPage{r, (*[deadNames]deadName)(base)})
		d.heap.note(d.own() - before)
	}
	d.pages[d.n/deadNames].names[d.n%deadNames] = n
	d.n++
	return true
}

// top gives the last names, up to so many.
func (d *dead) top(most int) []deadName {
	if d.n == 0 {
		return nil
	}
	last := (d.n - 1) / deadNames
	n := d.n - last*deadNames
	return d.pages[last].names[max(0, n-most):n]
}

// pop takes the last n names off: no more than top gave.
func (d *dead) pop(n int) {
	if d.n -= n; d.n%deadNames == 0 && n > 0 {
		last := len(d.pages) - 1
		d.heap.put(d.pages[last].run, 1)
		before := d.own()
		if d.pages = d.pages[:last]; last == 0 {
			d.pages = nil
		}
		d.heap.note(d.own() - before)
	}
}

// own counts what it keeps on the Go heap.
func (d *dead) own() int { return cap(d.pages) * int(unsafe.Sizeof(deadPage{})) }

// bury lets a name die, whose block no slot of the lane is to know by it any more.
func (l *lane) bury(name block.EngineHash, at place) {
	if !l.dead.push(deadName{name, at}) {
		l.names.remove(mixed(uint64(name)), at)
	}
}

// sweep takes so many dead names out of the table, more if there are too many.
func (l *lane) sweep(n int) {
	for ; l.dead.n > 0; n -= sectionBlocks {
		most := max(n, l.dead.n-l.names.n/deadShare)
		if most <= 0 {
			break
		}
		some := l.dead.top(min(most, sectionBlocks))
		var ys [sectionBlocks]uint64
		for i, d := range some {
			ys[i] = mixed(uint64(d.name))
		}
		l.names.prefetch(ys[:len(some)])
		for i, d := range some {
			l.names.remove(ys[i], d.at)
		}
		l.dead.pop(len(some))
	}
}

// uses tells whether a slot of the lane, other than one, knows what is at a place by its path's name. The place may be that of a
// dead name.
func (l *lane) uses(s *shard, at place, but worker.Slot) bool {
	if !s.lives(at.path()) {
		return false
	}
	p := s.path(at.path())
	if at.offset() >= uint32(p.n) {
		return false
	}
	set, _, _ := s.setAt(p, at.offset())
	return l.named(s, p, at, set, but)
}
