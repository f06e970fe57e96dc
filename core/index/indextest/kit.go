// Package indextest is one behaviour suite for every implementation of index.Index, with a driver that turns bytes into
// operations and compares an implementation with package model after each. It is for tests only.
package indextest

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Factory makes an empty index.
type Factory func() index.Index

// mix gives unrelated 64-bit values for small numbers (splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// prompt gives n block hashes, the same for the same family.
func prompt(family, n int) []block.Hash {
	hashes := make([]block.Hash, n)
	for i := range hashes {
		hashes[i] = block.Hash(mix(uint64(family)<<32 + uint64(i)))
	}
	return hashes
}

// engineNames gives each block of a prompt the name that an engine might: a function of the prefix.
func engineNames(hashes []block.Hash) []block.EngineHash {
	names := make([]block.EngineHash, len(hashes))
	for i, seq := range block.Sequences(nil, hashes) {
		names[i] = block.EngineHash(mix(uint64(seq)))
	}
	return names
}

func query(hashes []block.Hash) index.Query {
	return index.Query{Hashes: hashes, Sequences: block.Sequences(nil, hashes)}
}

func blocks(names []block.EngineHash, hashes []block.Hash) []event.Block {
	out := make([]event.Block, len(hashes))
	for i := range hashes {
		out[i] = event.Block{Engine: names[i], Hash: hashes[i]}
	}
	return out
}

// stored gives the event that adds blocks [from,to) of a prompt below the ones before.
func stored(hashes []block.Hash, from, to int) *event.Event {
	names := engineNames(hashes)
	ev := &event.Event{Kind: event.Stored, Blocks: blocks(names, hashes)[from:to]}
	if from > 0 {
		ev.HasParent, ev.Parent = true, names[from-1]
	}
	return ev
}

func removed(names ...block.EngineHash) *event.Event {
	return &event.Event{Kind: event.Removed, Removed: names}
}

// chain gives a stored event of blocks named and filled alike, for cases that name blocks themselves.
func chain(names ...block.EngineHash) *event.Event {
	ev := &event.Event{Kind: event.Stored}
	for _, n := range names {
		ev.Blocks = append(ev.Blocks, event.Block{Engine: n, Hash: block.Hash(mix(uint64(n)))})
	}
	return ev
}

// below makes it a child of a block.
func below(parent block.EngineHash, ev *event.Event) *event.Event {
	ev.HasParent, ev.Parent = true, parent
	return ev
}

// asked gives the query for blocks filled as chain fills them.
func asked(names ...block.EngineHash) index.Query {
	var hashes []block.Hash
	for _, b := range chain(names...).Blocks {
		hashes = append(hashes, b.Hash)
	}
	return query(hashes)
}

func apply(t testing.TB, x index.Index, slot worker.Slot, ev *event.Event) index.Applied {
	t.Helper()
	done, err := x.Apply(slot, ev, index.Count)
	require.NoError(t, err)
	return done
}

// match gives the rows of a query by slot, and fails on a row that no answer may have.
func match(t testing.TB, x index.Index, q index.Query) map[worker.Slot]int {
	rows := make(map[worker.Slot]int)
	for _, r := range x.Match(nil, q) {
		if rows[r.Slot] != 0 || r.Depth == 0 || int(r.Depth) > len(q.Hashes) {
			require.Fail(t, "a row that no answer may have", "%v, a query of %d blocks", r, len(q.Hashes))
		}
		rows[r.Slot] = int(r.Depth)
	}
	return rows
}

func none() map[worker.Slot]int { return map[worker.Slot]int{} }

// A held is one name of a dump, with the block it stands for.
type held struct {
	Engine block.EngineHash
	Seq    block.SequenceHash
}

// contents reads a dump: which name stands for which block. It fails if the dump is not what Dump promises.
func contents(t testing.TB, dump []event.Event, firstID uint64) []held {
	seqs := make(map[block.EngineHash]block.SequenceHash)
	var out []held
	for i, ev := range dump {
		if ev.ID != firstID+uint64(i) || ev.Kind != event.Stored || len(ev.Blocks) == 0 {
			require.Fail(t, "not an event of a dump", "%d: %v", i, ev)
		}
		var seq block.SequenceHash
		if ev.HasParent {
			var ok bool
			seq, ok = seqs[ev.Parent]
			require.True(t, ok, "a parent comes after its child")
		}
		for j, b := range ev.Blocks {
			if j == 0 && !ev.HasParent {
				seq = block.SequenceHash(b.Hash)
			} else {
				seq = block.Extend(seq, b.Hash)
			}
			if _, twice := seqs[b.Engine]; twice {
				require.Fail(t, "a name is dumped twice", "%d", b.Engine)
			}
			seqs[b.Engine] = seq
			out = append(out, held{b.Engine, seq})
		}
	}
	slices.SortFunc(out, func(a, b held) int { return cmp.Compare(a.Engine, b.Engine) })
	return out
}

// load applies the dumps of all slots below n to an empty index.
func load(t testing.TB, from, to index.Index, n worker.Slot) {
	t.Helper()
	for slot := range n {
		for _, ev := range from.Dump(slot, 0) {
			done, err := to.Apply(slot, &ev, index.Set)
			require.NoError(t, err)
			require.Zero(t, done.Unknown+done.Refused+done.Removed)
		}
	}
}

// restore applies the runs of an index to an empty one.
func restore(t testing.TB, from, to index.Index) {
	t.Helper()
	require.NoError(t, from.Runs(func(r *index.Run) error {
		require.NotEmpty(t, r.Slots)
		require.NotEmpty(t, r.Blocks)
		require.NotZero(t, r.References)
		ev := &event.Event{Kind: event.Stored, HasParent: r.HasParent, Parent: r.Parent, Blocks: r.Blocks}
		for _, slot := range r.Slots {
			for n := range r.References {
				done, err := to.Apply(slot, ev, index.Count)
				require.NoError(t, err)
				require.True(t, done.Removed == 0 && (n == 0 || done.Stored == 0), "%v, copy %d", done, n)
			}
		}
		return nil
	}))
}

// compareName asks both for the name of a block. Of several, each may give another: both must know it as that block's.
func compareName(t testing.TB, want, got index.Index, slot worker.Slot, q index.Query, depth int) {
	t.Helper()
	_, wantOK := want.Name(slot, q, depth)
	name, ok := got.Name(slot, q, depth)
	require.Equal(t, wantOK, ok, "slot %d, depth %d", slot, depth)
	if !ok {
		return
	}
	bare, ok := got.Name(slot, index.Query{Hashes: q.Hashes}, depth)
	names := contents(t, want.Dump(slot, 0), 0)
	for _, n := range []block.EngineHash{name, bare} {
		require.True(t, ok && slices.Contains(names, held{n, q.Sequences[depth-1]}), "slot %d, depth %d: %d", slot, depth, n)
	}
}
