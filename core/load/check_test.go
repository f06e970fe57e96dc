package load

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Check verifies the invariants of a ledger; see the comments of Ledger, tree and remembered.
func Check(t testing.TB, l *Ledger) {
	t.Helper()
	checkTree(t, &l.tree)
	type usage struct {
		ends map[nodeID]uint32
		load map[worker.Slot]tally
	}
	want := usage{map[nodeID]uint32{}, map[worker.Slot]tally{}}
	live := 0
	for i, r := range l.requests {
		if !r.live {
			require.Contains(t, l.free, uint32(i))
			continue
		}
		live++
		require.Equal(t, uint32(i), l.byID[r.id])
		require.NotContains(t, l.late.live, r.id)
		require.LessOrEqual(t, r.queued, r.deadline)
		_, queued := l.deadlines.order.Get(deadline{r.queued, uint32(i)})
		require.True(t, queued)
		want.ends[r.leaf]++
		sum := want.load[r.slot]
		sum.requests++
		sum.prefillTokens += r.prefillTokens
		sum.blocks += r.private
		sum.weight += r.privateWeight
		want.load[r.slot] = sum
	}
	require.Len(t, l.byID, live)
	require.Equal(t, live, l.deadlines.order.Len())
	require.Len(t, l.free, len(l.requests)-live)
	for id, n := range l.tree.nodes {
		require.Equal(t, want.ends[nodeID(id)], n.ends)
		for _, h := range n.holders {
			sum := want.load[h.slot]
			sum.blocks += int64(len(n.hashes))
			sum.weight += int64(len(n.hashes)) * int64(h.weight)
			want.load[h.slot] = sum
		}
	}
	for slot, got := range l.tallies {
		require.Equal(t, want.load[worker.Slot(slot)], got)
		require.True(t, got.weight >= 0 && got.weight <= got.blocks*unit)
	}
	require.LessOrEqual(t, len(l.late.queue)-l.late.head, maxRemembered)
	require.LessOrEqual(t, len(l.late.live), len(l.late.queue)-l.late.head)
}

func checkTree(t testing.TB, tr *tree) {
	t.Helper()
	children, xor := make([]uint32, len(tr.nodes)), make([]nodeID, len(tr.nodes))
	refs := make([]uint32, len(tr.nodes)) // of the children
	used := 0
	for i := range tr.nodes {
		id, n := nodeID(i), &tr.nodes[i]
		if id == root || slices.Contains(tr.unused, id) {
			require.Empty(t, n.hashes)
			require.Empty(t, n.holders)
			continue
		}
		used++
		require.NotEmpty(t, n.hashes, "I1")
		require.NotEmpty(t, n.holders, "I1")
		require.True(t, slices.IsSortedFunc(n.holders, func(a, b holder) int { return int(a.slot) - int(b.slot) }), "I1")
		require.Equal(t, id, tr.heads[edge{uint64(n.parent), n.hashes[0]}], "I2")
		require.True(t, len(n.hashes)*4 >= cap(n.hashes) || cap(n.hashes) == 1<<minClass, "I5: %d of %d", len(n.hashes), cap(n.hashes))
		children[n.parent]++
		xor[n.parent] ^= id
		for _, h := range n.holders {
			require.Positive(t, h.refs, "I1")
			require.LessOrEqual(t, h.weight, uint32(unit))
			refs[n.parent] += h.refs
			if n.parent != root {
				p := &tr.nodes[n.parent]
				at, ok := findHolder(p.holders, h.slot)
				require.True(t, ok && p.holders[at].refs >= h.refs, "I4")
			}
		}
	}
	require.Len(t, tr.heads, used, "I2")
	for i := range tr.nodes {
		n := &tr.nodes[i]
		require.Equal(t, children[i], n.children, "I3")
		require.Equal(t, xor[i], n.xor, "I3")
		if nodeID(i) != root {
			sum := n.ends + refs[i]
			for _, h := range n.holders {
				sum -= h.refs
			}
			require.Zero(t, sum, "I4")
		}
	}
}
