package approx

import (
	"math"
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// SetSection makes sections small, so that few blocks are many.
func (x *Approx) SetSection(blocks int) { x.section = blocks }

// BytesOf gives the bound at which there are so many runs, and leases in proportion.
func BytesOf(runs int) int64 {
	return int64(treeBytes+bufferBytes+16*int(unsafe.Sizeof(rank{}))+runs*(bytesPerRun+1))/3*4 + 8
}

// Empty tells whether nothing is left, and no memory of runs and heads either.
func (x *Approx) Empty() bool {
	t := &x.tree
	return t.live == 0 && t.used == 1 && len(t.pages) == 1 && t.heads.Len() == 0 && x.expiring == order{} && x.idle == order{} &&
		len(x.leases) == 0 && x.leaseMax <= keepLeases
}

// Check verifies the invariants; see the comments of Approx, tree and order.
func Check(t testing.TB, x *Approx) {
	t.Helper()
	tr := &x.tree
	require.Empty(t, x.gone.Removed)
	checkTree(t, tr)
	seen := [2][]bool{make([]bool, tr.used), make([]bool, tr.used)}
	checkOrder(t, tr, 0, x.expiring, seen[0], func(r *run) { require.Zero(t, x.capacity(r.slot), "A2") })
	checkOrder(t, tr, 0, x.idle, seen[0], func(r *run) { require.True(t, x.capacity(r.slot) > 0 && r.refs == 0, "A2") })
	for slot := range x.ranks {
		k := &x.ranks[slot]
		checkOrder(t, tr, 1, k.order, seen[1], func(r *run) { require.Equal(t, slot, int(r.slot), "A2") })
	}
	refs, blocks, private := make([]uint32, tr.used), make([]int64, len(x.ranks)), make([]int64, len(x.ranks))
	leased, n := 0, 0
	var prev *lease
	for l := x.oldest; l != nil; prev, l = l, l.next {
		require.True(t, x.leases[l.id] == l && l.prev == prev, "A6")
		leased += l.bytes()
		require.Positive(t, x.capacity(l.slot))
		private[l.slot] += l.private
		for id := l.end; id != none; id = tr.at(id).parent {
			require.Equal(t, l.slot, tr.at(id).slot)
			refs[id]++
		}
		n++
	}
	require.True(t, x.newest == prev && n == len(x.leases) && leased == x.leased && leased <= x.leaseMax, "A6")
	named := map[worker.Slot]map[block.EngineHash]bool{}
	for id := range tr.used {
		r := tr.at(id)
		if r.n == 0 {
			continue
		}
		require.Equal(t, refs[id], r.refs, "A3")
		require.Equal(t, seen[0][id], r.listed, "A2")
		require.Equal(t, seen[1][id], r.listed, "A2")
		require.Equal(t, x.capacity(r.slot) == 0 || r.refs == 0, r.listed, "A2")
		blocks[r.slot] += int64(r.n)
		if named[r.slot] == nil {
			named[r.slot] = map[block.EngineHash]bool{}
		}
		for _, h := range r.blocks() {
			named[r.slot][block.EngineHash(h)] = true
		}
	}
	for slot := range x.ranks {
		k := &x.ranks[slot]
		require.Equal(t, blocks[slot], k.blocks, "A4")
		require.Equal(t, private[slot], k.private, "A4")
		require.True(t, k.capacity == 0 || k.blocks+k.private <= k.capacity || k.order.first == none, "A4")
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
		due = tr.at(x.expiring.first).deadline
	}
	require.Equal(t, due, x.due.Load(), "A5")
}

func checkTree(t testing.TB, tr *tree) {
	t.Helper()
	live := 0
	children := make([]uint32, tr.used)
	for id := range tr.used {
		r := tr.at(id)
		if r.n == 0 {
			continue
		}
		live++
		require.Equal(t, id, tr.next(r.slot, r.parent, r.hashes[0]), "T1")
		if r.parent != none {
			p := tr.at(r.parent)
			children[r.parent]++
			require.True(t, p.n > 0 && p.slot == r.slot, "T2")
			require.True(t, p.deadline >= r.deadline && p.refs >= r.refs, "T3")
		}
	}
	require.Equal(t, live, tr.live, "T1")
	require.Equal(t, live, tr.heads.Len(), "T1")
	require.NoError(t, tr.heads.Check())
	unused := 0
	for id := tr.unused; id != none; id = tr.at(id).links[0].next {
		require.Zero(t, tr.at(id).n)
		unused++
	}
	require.Equal(t, int(tr.used)-1, live+unused)
	for id := range tr.used {
		require.Equal(t, children[id], tr.at(id).children, "T2")
	}
}

func checkOrder(t testing.TB, tr *tree, i int, o order, seen []bool, each func(*run)) {
	t.Helper()
	prev, deadline := none, int64(math.MinInt64)
	for id := o.first; id != none; id = tr.at(id).links[i].next {
		r := tr.at(id)
		require.Equal(t, prev, r.links[i].prev)
		require.True(t, r.listed && !seen[id])
		require.True(t, r.parent == none || !seen[r.parent], "O1")
		require.GreaterOrEqual(t, r.deadline, deadline, "O2")
		seen[id] = true
		each(r)
		prev, deadline = id, r.deadline
	}
	require.Equal(t, prev, o.last)
}

func TestTheCollectorDoesNotLookAtRuns(t *testing.T) {
	for kinds := []reflect.Type{reflect.TypeFor[run]()}; len(kinds) > 0; kinds = kinds[1:] {
		switch k := kinds[0]; k.Kind() {
		case reflect.Struct:
			for i := range k.NumField() {
				kinds = append(kinds, k.Field(i).Type)
			}
		case reflect.Array:
			kinds = append(kinds, k.Elem())
		default:
			require.True(t, k.Kind() == reflect.Bool || k.Kind() <= reflect.Uint64, "%v", k)
		}
	}
}
