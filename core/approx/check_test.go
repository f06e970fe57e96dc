package approx

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// SetSection makes sections small, so that few blocks are many.
func (x *Approx) SetSection(blocks int) { x.section = blocks }

// Empty tells whether nothing is left, and no memory of runs and heads either.
func (x *Approx) Empty() bool {
	t := &x.tree
	return t.live == 0 && t.room == 0 && len(t.heads) == 0 && t.peak <= shrinkAbove && cap(t.runs) <= shrinkAbove &&
		x.expiring == order{} && len(x.leases) == 0
}

// Check verifies the invariants; see the comments of Approx, tree and order.
func Check(t testing.TB, x *Approx) {
	t.Helper()
	tr := &x.tree
	require.Empty(t, x.gone.Removed)
	checkTree(t, tr)
	seen := make([]bool, len(tr.runs))
	checkOrder(t, tr, x.expiring, seen, func(r *run) { require.Zero(t, x.capacity(r.slot), "A2") })
	for slot := range x.ranks {
		k := &x.ranks[slot]
		require.True(t, k.capacity > 0 || k.idle == order{}, "A2")
		checkOrder(t, tr, k.idle, seen, func(r *run) { require.True(t, int(r.slot) == slot && r.refs == 0, "A2") })
	}
	refs, blocks, private := make([]uint32, len(tr.runs)), make([]int64, len(x.ranks)), make([]int64, len(x.ranks))
	for _, l := range x.leases {
		require.Positive(t, x.capacity(l.slot))
		private[l.slot] += l.private
		for id := l.end; id != none; id = tr.runs[id].parent {
			require.Equal(t, l.slot, tr.runs[id].slot)
			refs[id]++
		}
	}
	named := map[worker.Slot]map[block.EngineHash]bool{}
	for id := range tr.runs {
		r := &tr.runs[id]
		if len(r.hashes) == 0 {
			continue
		}
		require.Equal(t, refs[id], r.refs, "A3")
		require.Equal(t, seen[id], r.listed, "A2")
		require.Equal(t, x.capacity(r.slot) == 0 || r.refs == 0, r.listed, "A2")
		blocks[r.slot] += int64(len(r.hashes))
		if named[r.slot] == nil {
			named[r.slot] = map[block.EngineHash]bool{}
		}
		for _, h := range r.hashes {
			named[r.slot][block.EngineHash(h)] = true
		}
	}
	for slot := range x.ranks {
		k := &x.ranks[slot]
		require.Equal(t, blocks[slot], k.blocks, "A4")
		require.Equal(t, private[slot], k.private, "A4")
		require.True(t, k.capacity == 0 || k.blocks+k.private <= k.capacity || k.idle.first == none, "A4")
		if x.inner.Evicted(worker.Slot(slot)) == 0 {
			require.Equal(t, int(k.blocks), x.inner.Blocks(worker.Slot(slot)), "A1")
		}
		for _, ev := range x.inner.Dump(worker.Slot(slot), 0) {
			require.Equal(t, event.Stored, ev.Kind)
			for _, b := range ev.Blocks {
				require.True(t, named[worker.Slot(slot)][b.Engine], "A1")
				delete(named[worker.Slot(slot)], b.Engine)
			}
		}
		require.True(t, len(named[worker.Slot(slot)]) == 0 || x.inner.Evicted(worker.Slot(slot)) > 0, "A1")
	}
	due := int64(math.MaxInt64)
	if x.expiring.first != none {
		due = tr.runs[x.expiring.first].deadline
	}
	require.Equal(t, due, x.due.Load(), "A5")
}

func checkTree(t testing.TB, tr *tree) {
	t.Helper()
	live, room := 0, 0
	children := make([]uint32, len(tr.runs))
	for i := range tr.runs {
		id, r := runID(i), &tr.runs[i]
		room += cap(r.hashes)
		if len(r.hashes) == 0 {
			continue
		}
		live++
		require.Equal(t, id, tr.heads[edgeOf(r.slot, r.parent, r.hashes[0])], "T1")
		require.True(t, len(r.hashes)*4 >= cap(r.hashes) || cap(r.hashes) <= minRoom, "T4: %d of %d", len(r.hashes), cap(r.hashes))
		if r.parent != none {
			p := &tr.runs[r.parent]
			children[r.parent]++
			require.Equal(t, p.slot, r.slot, "T2")
			require.True(t, p.deadline >= r.deadline && p.refs >= r.refs, "T3")
		}
	}
	require.Equal(t, live, tr.live, "T1")
	require.Len(t, tr.heads, live, "T1")
	require.Equal(t, room, tr.room, "T4")
	unused := 0
	for id := tr.unused; id != none; id = tr.runs[id].next {
		require.Empty(t, tr.runs[id].hashes)
		unused++
	}
	require.Equal(t, len(tr.runs)-1, live+unused)
	for i := range tr.runs {
		require.Equal(t, children[i], tr.runs[i].children, "T2")
	}
}

func checkOrder(t testing.TB, tr *tree, o order, seen []bool, each func(*run)) {
	t.Helper()
	prev, deadline := none, int64(math.MinInt64)
	for id := o.first; id != none; id = tr.runs[id].next {
		r := &tr.runs[id]
		require.Equal(t, prev, r.prev)
		require.True(t, r.listed && !seen[id])
		require.True(t, r.parent == none || !seen[r.parent], "O1")
		require.GreaterOrEqual(t, r.deadline, deadline, "O2")
		seen[id] = true
		each(r)
		prev, deadline = id, r.deadline
	}
	require.Equal(t, prev, o.last)
}
