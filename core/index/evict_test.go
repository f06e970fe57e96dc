package index_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/index/indextest"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func TestBoundHoldsWhileStoresGoOn(t *testing.T) {
	const bound, slots = 1 << 20, 8
	x := index.New(index.Options{MaxBytes: bound})
	var blocks uint64
	for i := range 1000 {
		q := forked(i, 150)
		for from := 0; from < 150; from += 30 {
			_, err := x.Apply(worker.Slot(i%slots), storeOf(q, from, from+30), index.Count)
			require.NoError(t, err)
			require.LessOrEqual(t, x.Stats().Bytes, bound)
		}
		require.Equal(t, []index.Overlap{{Slot: worker.Slot(i % slots), Depth: 150}}, deepest(x.Match(nil, q)), "what was stored last is there")
	}
	for slot := range worker.Slot(slots) {
		blocks += uint64(x.Blocks(slot))
		require.NotZero(t, x.Evicted(slot))
	}
	require.Greater(t, blocks, uint64(bound/60), "the bound is made use of")
	require.NoError(t, index.Check(x))
	x.Drop(3)
	require.Zero(t, x.Evicted(3))
}

// deepest keeps the rows of the greatest depth.
func deepest(rows []index.Overlap) []index.Overlap {
	var out []index.Overlap
	for _, r := range rows {
		if len(out) > 0 && r.Depth > out[0].Depth {
			out = out[:0]
		}
		if len(out) == 0 || r.Depth == out[0].Depth {
			out = append(out, r)
		}
	}
	return out
}

// prompt 0 is asked for all the time, so it stays, whole; of the others the oldest go, from their ends.
func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	x := index.New(index.Options{MaxBytes: 1 << 20})
	const n, prompts = 200, 400
	depth := func(i int) int {
		for _, r := range x.Match(nil, alone(i, n)) {
			return int(r.Depth)
		}
		return 0
	}
	for i := range prompts {
		_, err := x.Apply(0, storeOf(alone(i, n), 0, n), index.Count)
		require.NoError(t, err)
		require.Equal(t, n, depth(0))
	}
	require.NotZero(t, x.Evicted(0))
	gone, partial := 0, 0
	for i := 1; i < prompts; i++ { // asking changes what is old, but nothing is stored
		switch d := depth(i); {
		case d == 0:
			gone++
			require.LessOrEqual(t, i, gone+40, "an older one is there")
		case d < n:
			partial++
		}
	}
	require.Greater(t, gone, prompts/4)
	require.LessOrEqual(t, partial, 40)
}

// alone gives the i-th prompt of n blocks, which shares nothing with others.
func alone(i, n int) index.Query {
	hashes := forked(i, 3*n).Hashes[2*n:]
	return index.Query{Hashes: hashes, Sequences: block.Sequences(nil, hashes)}
}

func TestStoreThatCannotFitIsRefused(t *testing.T) {
	const bound, n = 1 << 20, 200_000
	x := index.New(index.Options{MaxBytes: bound})
	huge := forked(1, n)
	done, err := x.Apply(0, storeOf(huge, 0, n), index.Count)
	require.ErrorIs(t, err, index.ErrFull)
	require.Equal(t, n, done.Stored+done.Refused)
	require.LessOrEqual(t, x.Stats().Bytes, bound)
	require.NoError(t, index.Check(x))
	_, err = x.Apply(0, &event.Event{Kind: event.Cleared}, index.Count)
	require.NoError(t, err)
	_, err = x.Apply(0, storeOf(forked(2, 90), 0, 90), index.Count)
	require.NoError(t, err)
}

// Prompts of one block are paths of their own, which take five times the memory: the bound holds, and little is refused.
func TestBoundHoldsForShortPrompts(t *testing.T) {
	bound, n := 2<<20, 40_000
	if indextest.Race {
		bound, n = 1<<20, 12_000
	}
	x := index.New(index.Options{MaxBytes: int64(bound)})
	full := 0
	for i := range n {
		ev := &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: block.EngineHash(i), Hash: block.Hash(i)}}}
		if _, err := x.Apply(worker.Slot(i%5), ev, index.Count); err != nil {
			require.ErrorIs(t, err, index.ErrFull)
			full++
		}
		if i%16 == 0 {
			require.LessOrEqual(t, x.Stats().Bytes, bound)
		}
	}
	require.Less(t, full, n/100)
	require.Greater(t, x.Stats().Blocks, bound/1000)
	require.NoError(t, index.Check(x))
}

// A slot whose stores may not evict stores as long as there is room: what it is told was refused is the rest, and nobody lost anything.
func TestStoresThatMayNotEvict(t *testing.T) {
	x := index.New(index.Options{MaxBytes: 1 << 20})
	const n = 100
	for i := range 50 {
		_, err := x.Apply(0, storeOf(alone(i, n), 0, n), index.Set)
		require.NoError(t, err)
	}
	x.SetEvicts(1, false)
	stored, i := 0, 0
	for ; ; i++ {
		done, err := x.Apply(1, storeOf(alone(1000+i, n), 0, n), index.Set)
		stored += done.Stored
		if err != nil {
			require.ErrorIs(t, err, index.ErrFull)
			require.Positive(t, done.Refused)
			require.Equal(t, n, done.Stored+done.Refused)
			rows := x.Match(nil, alone(1000+i, n))
			if done.Stored > 0 {
				require.Equal(t, []index.Overlap{{Slot: 1, Depth: uint32(done.Stored)}}, rows, "the first ones are stored")
			}
			break
		}
	}
	require.Greater(t, i, 50, "there was room")
	require.Equal(t, 50*n, x.Blocks(0))
	require.Equal(t, stored, x.Blocks(1))
	require.Zero(t, x.Evicted(0)+x.Evicted(1))

	x.SetEvicts(1, true)
	for i := 0; x.Evicted(0)+x.Evicted(1) == 0; i++ { // what was refused may have needed more than another store does
		require.Less(t, i, 500)
		_, err := x.Apply(1, storeOf(alone(2000+i, n), 0, n), index.Set)
		require.NoError(t, err)
	}
	x.SetEvicts(1, false)
	x.Drop(1)
	for i := range 500 {
		_, err := x.Apply(1, storeOf(alone(3000+i, n), 0, n), index.Set)
		require.NoError(t, err, "a slot that was dropped may evict again")
	}
}

// A path that was chosen to go next, and then got a branch, stays: what hangs on it would be hidden.
func TestWhatGotABranchMeanwhileStays(t *testing.T) {
	x, _ := index.NewBounded(1, 1024, 1<<20)
	first, second := alone(1, 10), alone(2, 10)
	for _, q := range []index.Query{first, second} {
		_, err := x.Apply(0, storeOf(q, 0, 10), index.Count)
		require.NoError(t, err)
	}
	require.Equal(t, 10, index.Evict(x, 1))
	require.Empty(t, x.Match(nil, first))
	branch := storeOf(second, 4, 5)
	branch.Blocks[0] = event.Block{Engine: 1, Hash: 1}
	_, err := x.Apply(0, branch, index.Count)
	require.NoError(t, err)
	require.Equal(t, 1, index.Evict(x, 1), "the branch")
	require.Equal(t, []index.Overlap{{Slot: 0, Depth: 10}}, x.Match(nil, second))
	require.Equal(t, uint64(11), x.Evicted(0))
}
