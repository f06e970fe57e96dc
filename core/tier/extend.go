package tier

import (
	"cmp"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Start is where the device match of a slot ended: the slot holds the first Depth blocks of the query on its device, and
// names the last of them Parent (index.Index.Name tells). At depth 0 Parent means nothing. If the slot has several names for
// that block, what hangs below the others is not found.
type Start struct {
	Slot   worker.Slot
	Depth  uint32
	Parent block.EngineHash
}

// Extension is how many blocks of the query follow in each tier, after those of the device and of the tiers before it.
type Extension struct {
	Slot     worker.Slot
	Host     uint32
	Disk     uint32
	External uint32

	at position // zero outside Extend
}

// A position is where the walk of a slot stands.
type position struct {
	depth  uint32           // blocks of the query that are behind it
	parent block.EngineHash // the last of them, if there is one
	next   uint32           // while a group is split: the edge this slot goes on by
	ended  bool             // in this tier
}

// in gives the count of a tier.
func (x *Extension) in(tier int) *uint32 {
	switch event.HostPinned + event.Tier(tier) {
	case event.HostPinned:
		return &x.Host
	case event.Disk:
		return &x.Disk
	}
	return &x.External
}

// sectionSteps bounds what a walk does under the lock, to some tens of microseconds if nothing is in a processor's cache:
// a writer waits no longer.
const sectionSteps = 128

// Extend appends a row for each start whose match goes on in a lower tier, in no particular order, and returns the
// extended slice. hashes are the content hashes of the whole query. A slot has one start; starts of slots that hold
// nothing, or of depth len(hashes) or more, cost next to nothing. Slots that stand below the same engine hash walk
// together. It allocates only if dst is too short.
//
// Every block counted was held when the walk came by; events that are applied meanwhile may be seen or not.
func (t *Tiers) Extend(dst []Extension, hashes []block.Hash, starts []Start) []Extension {
	if t.Empty() {
		return dst
	}
	first := len(dst)
	for _, s := range starts {
		if int(s.Depth) < len(hashes) && t.Holds(s.Slot) {
			dst = append(dst, Extension{Slot: s.Slot, at: position{depth: s.Depth, parent: s.Parent}})
		}
	}
	rows := dst[first:]
	if len(rows) == 0 {
		return dst
	}
	w := walker{t: t, hashes: hashes}
	t.rlock()
	for tier := range lowest {
		w.walk(tier, rows)
	}
	t.mu.RUnlock()
	kept := first
	for _, x := range rows {
		if x.Host+x.Disk+x.External > 0 {
			x.at = position{}
			dst[kept] = x
			kept++
		}
	}
	return dst[:kept]
}

// A walker holds the lock for reading, for sections of at most sectionSteps blocks.
type walker struct {
	t      *Tiers
	hashes []block.Hash
	tier   int
	spent  int // steps of this section
}

// step counts a step, and tells whether a new section began: what was learnt from edges may be out of date then.
func (w *walker) step() bool {
	if w.spent++; w.spent < sectionSteps {
		return false
	}
	w.t.mu.RUnlock()
	w.t.rlock()
	w.spent = 0
	return true
}

// edges gives the tier, nil if there is nothing in it.
func (w *walker) edges() *edges { return w.t.tiers[w.tier] }

// walk brings every row as far as one tier goes.
func (w *walker) walk(tier int, rows []Extension) {
	if w.tier = tier; w.edges() == nil || w.edges().live == 0 {
		return
	}
	for i := range rows {
		if x := &rows[i]; x.at.depth > 0 {
			x.at.ended = false
		} else {
			w.walkRoot(x)
		}
	}
	slices.SortFunc(rows, together)
	for len(rows) > 0 {
		if rows[0].at.ended {
			rows = rows[1:]
			continue
		}
		n := 1
		for n < len(rows) && together(rows[n], rows[0]) == 0 {
			n++
		}
		w.walkGroup(rows[:n])
	}
}

// together orders rows so that those that ended are first, and those at one position are next to each other.
func together(a, b Extension) int {
	if a.at.ended != b.at.ended {
		if a.at.ended {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.at.depth, b.at.depth), cmp.Compare(a.at.parent, b.at.parent))
}

// walkRoot goes the first step of a slot that has nothing yet: its edges at the root are its own.
func (w *walker) walkRoot(x *Extension) {
	w.step()
	id, ok := w.edges().find(rootKey(x.Slot, w.hashes[0]), 0, x.Slot)
	if x.at.ended = !ok; ok {
		x.at.depth, x.at.parent = 1, w.edges().at(id).child
		*x.in(w.tier)++
	}
}

// walkGroup goes on with slots that stand at one position, until all of them end or they part.
func (w *walker) walkGroup(group []Extension) {
	from, parent := group[0].at.depth, group[0].at.parent
	depth := from
	id, owners := noEdge, setID(0) // the edge gone last, and a set that has the whole group
	for ; int(depth) < len(w.hashes); depth++ {
		if w.step() {
			id, owners = noEdge, 0
		}
		e, k := w.edges(), below(parent, w.hashes[depth])
		if id++; id == 0 || id >= e.used || e.at(id).key() != k || !e.own(group, id, &owners) {
			var ok bool
			if id, ok = e.findAll(group, k, &owners); !ok {
				break
			}
		}
		parent = e.at(id).child
	}
	e := w.edges()
	parted := int(depth) < len(w.hashes) && e.part(group, below(parent, w.hashes[depth]))
	for i := range group {
		x := &group[i]
		*x.in(w.tier) += depth - from
		x.at.depth, x.at.parent, x.at.ended = depth, parent, true
		if parted && x.at.next != noEdge {
			*x.in(w.tier)++
			x.at.depth, x.at.parent, x.at.ended = depth+1, e.at(x.at.next).child, false
		}
	}
	if parted {
		slices.SortFunc(group, together)
	}
}

// own tells whether all slots of a group own an edge. It remembers the set for which that was so.
func (e *edges) own(group []Extension, id uint32, owners *setID) bool {
	set := e.at(id).owners
	if set == *owners {
		return true
	}
	for i := range group {
		if !e.sets.has(set, group[i].Slot) {
			return false
		}
	}
	*owners = set
	return true
}

// findAll gives the edge with a key that a whole group owns.
func (e *edges) findAll(group []Extension, k key, owners *setID) (uint32, bool) {
	for p := e.byKey.Probe(k.tableHash()); ; {
		id, ok := p.Next()
		if !ok {
			break
		}
		if e.at(id).key() == k && e.own(group, id, owners) {
			return id, true
		}
	}
	if len(group) > 1 {
		return noEdge, false
	}
	id := e.findOwn(k, group[0].Slot)
	return id, id != noEdge
}

// part gives each slot of a group the edge with a key that it owns, noEdge if it has none, and tells whether any has one.
func (e *edges) part(group []Extension, k key) bool {
	if len(group) == 1 {
		return false
	}
	any := false
	for i := range group {
		group[i].at.next = e.findOwn(k, group[i].Slot)
		any = any || group[i].at.next != noEdge
	}
	for p := e.byKey.Probe(k.tableHash()); ; {
		id, ok := p.Next()
		if !ok {
			return any
		}
		if e.at(id).key() != k {
			continue
		}
		for i := range group {
			if e.sets.has(e.at(id).owners, group[i].Slot) {
				group[i].at.next = id
				any = true
			}
		}
	}
}
