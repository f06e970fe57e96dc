package load

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Check verifies the invariants of a ledger; see the comments of Ledger, tree and remembered.
func Check(t testing.TB, l *Ledger) {
	t.Helper()
	checkTree(t, &l.tree)
	checkTable(t, &l.tree.heads)
	checkTable(t, &l.byID)
	type usage struct {
		ends map[nodeID]uint32
		load map[worker.Slot]tally
	}
	want := usage{map[nodeID]uint32{}, map[worker.Slot]tally{}}
	live, remote := 0, 0
	for i, r := range l.requests {
		if i == 0 {
			require.Equal(t, request{}, r)
			continue
		}
		if !r.live {
			require.Contains(t, l.free, uint32(i))
			continue
		}
		live++
		if r.origin != 0 {
			remote++
		}
		found, ok := l.find(r.id)
		require.True(t, ok && found == uint32(i) && r.hash == l.hash(r.id))
		require.NotContains(t, l.late.live, r.id)
		want.ends[r.leaf]++
		sum := want.load[r.slot]
		sum.requests++
		require.True(t, r.modeled || r.prefillNanos == 0)
		require.True(t, r.prefillTokens > 0 || !r.modeled)
		sum.blocks += r.private
		sum.weight += r.privateWeight
		want.load[r.slot] = sum
	}
	require.Equal(t, live, l.byID.used)
	require.Equal(t, remote, l.remote)
	require.Len(t, l.free, len(l.requests)-1-live)
	for deadlines, want := range map[*list]int{&l.deadlines: live - remote, &l.remoteDeadlines: remote} {
		order := walk(t, l, deadlines, byDeadline)
		require.Len(t, order, want)
		require.True(t, slices.IsSortedFunc(order, func(a, b uint32) int { return cmp.Compare(l.requests[a].deadline, l.requests[b].deadline) }))
		for _, i := range order {
			require.Equal(t, deadlines == &l.remoteDeadlines, l.requests[i].origin != 0)
		}
	}
	for id, n := range l.tree.nodes {
		require.Equal(t, want.ends[nodeID(id)], n.ends)
		for _, h := range l.tree.holders(&n) {
			sum := want.load[h.slot]
			sum.blocks += int64(len(n.hashes))
			sum.weight += int64(len(n.hashes)) * int64(h.weight)
			want.load[h.slot] = sum
		}
	}
	loads := l.Loads()
	require.Len(t, loads, len(l.tallies))
	decaying := 0
	for i := range l.tallies {
		slot, got := worker.Slot(i), l.tallies[i]
		checkBacklog(t, l, slot)
		here := walk(t, l, &l.tallies[i].live, bySlot)
		require.Len(t, here, int(got.requests))
		for _, r := range here {
			require.Equal(t, slot, l.requests[r].slot)
		}
		sum := want.load[slot]
		require.Equal(t, []int64{sum.blocks, sum.weight, int64(sum.requests)}, []int64{got.blocks, got.weight, int64(got.requests)})
		require.True(t, got.weight >= 0 && got.weight <= got.blocks*unit)
		require.Equal(t, l.Load(slot), loads[i])
		if got.decaying != 0 {
			decaying++
			require.Equal(t, slot, l.decaying[got.decaying-1])
		}
		require.Equal(t, got.prefill.decays(l.requests), got.decaying != 0)
	}
	require.Len(t, l.decaying, decaying)
	require.LessOrEqual(t, len(l.late.queue)-l.late.head, maxRemembered)
	require.LessOrEqual(t, len(l.late.live), len(l.late.queue)-l.late.head)
	bytes := 0
	for _, item := range l.late.queue {
		bytes += len(item.id)
	}
	require.Equal(t, bytes, l.late.bytes)
	require.LessOrEqual(t, bytes, maxRememberedBytes)
}

// checkTable verifies the invariant of a table.
func checkTable(t testing.TB, of *table) {
	t.Helper()
	used := 0
	for i, c := range of.cells {
		if c.value == 0 {
			continue
		}
		used++
		for at := of.home(c.hash); at != uint32(i); at = of.next(at) {
			require.NotZero(t, of.cells[at].value)
		}
	}
	require.Equal(t, of.used, used)
	require.LessOrEqual(t, used*2, len(of.cells))
}

// walk gives the requests of a list, and verifies its links.
func walk(t testing.TB, l *Ledger, q *list, which int) []uint32 {
	t.Helper()
	var order []uint32
	prev := uint32(0)
	for i := q.first; i != 0; i = l.requests[i].links[which].next {
		require.True(t, l.requests[i].live)
		require.Equal(t, prev, l.requests[i].links[which].prev)
		order, prev = append(order, i), i
	}
	require.Equal(t, prev, q.last)
	return order
}

func checkBacklog(t testing.TB, l *Ledger, slot worker.Slot) {
	t.Helper()
	b := &l.tallies[slot].prefill
	got := backlog{order: b.order, since: b.since}
	order := walk(t, l, &b.order, byPrefill)
	for _, i := range order {
		r := &l.requests[i]
		require.Equal(t, slot, r.slot)
		got.tokens += r.prefillTokens
		got.nanos += r.prefillNanos
		if !r.modeled {
			got.unmodeled++
		}
	}
	require.Equal(t, got, *b)
	require.True(t, len(order) == 0 || b.since <= l.now)
	for i := range l.requests {
		r := &l.requests[i]
		require.Equal(t, r.slot == slot && r.prefillTokens > 0, slices.Contains(order, uint32(i)))
	}
}

func checkTree(t testing.TB, tr *tree) {
	t.Helper()
	children, xor := make([]uint32, len(tr.nodes)), make([]nodeID, len(tr.nodes))
	refs := make([]uint32, len(tr.nodes))  // of the children
	crowds := make([]bool, len(tr.crowds)) // of a node
	used := 0
	for i := range tr.nodes {
		id, n := nodeID(i), &tr.nodes[i]
		if id == root || slices.Contains(tr.unused, id) {
			require.Equal(t, node{children: n.children, xor: n.xor, ends: n.ends}, *n)
			continue
		}
		used++
		require.NotEmpty(t, n.hashes, "I1")
		holders := tr.holders(n)
		require.NotEmpty(t, holders, "I1")
		require.True(t, slices.IsSortedFunc(holders, func(a, b holder) int { return int(a.slot) - int(b.slot) }), "I1")
		found, ok := tr.child(n.parent, n.hashes[0])
		require.True(t, ok && found == id, "I2")
		require.Equal(t, tr.hash(n.parent, n.hashes[0]), n.head, "I2")
		if n.crowd != 0 {
			require.Zero(t, n.lone)
			require.Greater(t, len(holders), 1)
			require.False(t, crowds[n.crowd], "I6")
			crowds[n.crowd] = true
		}
		require.True(t, len(n.hashes)*4 >= cap(n.hashes) || cap(n.hashes) == 1<<minClass, "I5: %d of %d", len(n.hashes), cap(n.hashes))
		children[n.parent]++
		xor[n.parent] ^= id
		for _, h := range holders {
			require.Positive(t, h.refs, "I1")
			require.LessOrEqual(t, h.weight, uint32(unit))
			refs[n.parent] += h.refs
			if n.parent != root {
				p := &tr.nodes[n.parent]
				above := tr.holders(p)
				at, ok := findHolder(above, h.slot)
				require.True(t, ok && above[at].refs >= h.refs, "I4")
			}
		}
	}
	require.Equal(t, used, tr.heads.used, "I2")
	for _, k := range tr.idle {
		require.False(t, crowds[k], "I6")
		require.Empty(t, tr.crowds[k], "I6")
		crowds[k] = true
	}
	for k := range crowds {
		require.Equal(t, k != 0, crowds[k], "I6")
	}
	for i := range tr.nodes {
		n := &tr.nodes[i]
		require.Equal(t, children[i], n.children, "I3")
		require.Equal(t, xor[i], n.xor, "I3")
		if nodeID(i) != root {
			sum := n.ends + refs[i]
			for _, h := range tr.holders(n) {
				sum -= h.refs
			}
			require.Zero(t, sum, "I4")
		}
	}
}
