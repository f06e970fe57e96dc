package index

import (
	"cmp"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A dumpRow is one name of a slot and the block it stands for.
type dumpRow struct {
	key
	engine block.EngineHash
	at     place
}

// Dump implements Index. Several names of a block are all kept: one is the parent of what follows, each other one
// is an event of its own.
func (x *sharded) Dump(slot worker.Slot, firstID uint64) []event.Event {
	h := x.lookup(slot)
	if h == nil {
		return nil
	}
	d := dumper{rows: x.rows(h)}
	d.link()
	return d.events(firstID)
}

// rows copies the names of a holder with their blocks, so that neither is locked while the dump is put together. The
// order is by shard and node: neighbours are read in one section.
func (x *sharded) rows(h *holder) []dumpRow {
	h.mu.Lock()
	defer h.mu.Unlock()
	rows := make([]dumpRow, 0, h.names.n)
	for i := range h.names.slots {
		if n := &h.names.slots[i]; n.live() {
			rows = append(rows, dumpRow{engine: n.engine, at: n.place()})
		}
	}
	slices.SortFunc(rows, func(a, b dumpRow) int {
		return cmp.Or(cmp.Compare(a.at.shard, b.at.shard), cmp.Compare(a.at.node, b.at.node), cmp.Compare(a.engine, b.engine))
	})
	for i := 0; i < len(rows); {
		s := &x.shards[rows[i].at.shard]
		s.mu.RLock()
		for end := min(len(rows), i+sectionBlocks); i < end && &x.shards[rows[i].at.shard] == s; i++ {
			rows[i].key = s.at(rows[i].at.node).key()
		}
		s.mu.RUnlock()
	}
	return rows
}

// A dumper turns rows into events. Lists of rows are linked by index, -1 ends them.
type dumper struct {
	rows    []dumpRow
	first   []int32 // first child of a row's block
	sibling []int32 // next child of the same parent
	roots   int32
	kept    int // rows that are linked
}

type dumpKey struct {
	shard uint32
	depth uint32
	seq   block.SequenceHash
}

// link hangs every reachable row below its parent's last name, the one that leads the list of its siblings, so that chains
// go on through it. Rows are taken by depth: parents are linked before.
func (d *dumper) link() {
	slices.SortFunc(d.rows, func(a, b dumpRow) int {
		return cmp.Or(cmp.Compare(a.depth, b.depth), cmp.Compare(a.at.shard, b.at.shard), cmp.Compare(a.seq, b.seq),
			cmp.Compare(a.engine, b.engine))
	})
	d.first, d.sibling, d.roots = make([]int32, len(d.rows)), make([]int32, len(d.rows)), -1
	byKey := make(map[dumpKey]int32, len(d.rows))
	for i := range d.rows {
		r := &d.rows[i]
		list := &d.roots
		if r.depth > 0 {
			parent, ok := byKey[dumpKey{r.at.shard, r.depth - 1, r.parent}]
			if !ok {
				continue // behind a hole
			}
			list = &d.first[parent]
		}
		d.first[i], d.sibling[i] = -1, *list
		*list = int32(i)
		d.kept++
		byKey[dumpKey{r.at.shard, r.depth, r.seq}] = int32(i)
	}
}

// events walks the linked rows depth first: a chain goes on with its first child, the others begin events of their own.
func (d *dumper) events(firstID uint64) []event.Event {
	var out []event.Event
	blocks := make([]event.Block, 0, d.kept)
	type start struct{ row, parent int32 }
	var todo []start
	later := func(list, parent int32) {
		for ; list >= 0; list = d.sibling[list] {
			todo = append(todo, start{list, parent})
		}
	}
	later(d.roots, -1)
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		ev := event.Event{ID: firstID + uint64(len(out)), Kind: event.Stored}
		if at.parent >= 0 {
			ev.HasParent, ev.Parent = true, d.rows[at.parent].engine
		}
		from := len(blocks)
		for row := at.row; row >= 0; row = d.first[row] {
			blocks = append(blocks, event.Block{Engine: d.rows[row].engine, Hash: d.rows[row].hash})
			if next := d.first[row]; next >= 0 {
				later(d.sibling[next], row)
			}
		}
		ev.Blocks = blocks[from:len(blocks):len(blocks)]
		out = append(out, ev)
	}
	return out
}
