package radix

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func stored(parent block.EngineHash, hashes ...block.Hash) *event.Event {
	ev := &event.Event{Kind: event.Stored, HasParent: parent != 0, Parent: parent}
	for _, h := range hashes {
		ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(h) + 1000, Hash: h})
	}
	return ev
}

func of(ev *event.Event, dpRank uint32) *event.Event {
	ev.DPRank = dpRank
	return ev
}

// found gives a match as a map.
func found(t *Tree, hashes ...block.Hash) map[worker.Rank]uint32 {
	rows := map[worker.Rank]uint32{}
	for _, m := range t.Find(nil, hashes) {
		rows[m.Rank] = m.Blocks
	}
	return rows
}

func TestRanksComeWithTheirFirstStoreAndGoWithTheirWorker(t *testing.T) {
	tree := New()
	defer tree.Close()
	require.ErrorIs(t, tree.Apply(7, &event.Event{Kind: event.Removed, Removed: []block.EngineHash{1}}), ErrUnknownBlock)
	require.NoError(t, tree.Apply(7, &event.Event{Kind: event.Cleared}))
	require.ErrorIs(t, tree.Apply(7, stored(99, 1)), index.ErrUnknownParent)
	require.Empty(t, tree.known)

	require.NoError(t, tree.Apply(7, stored(0, 1, 2, 3)))
	require.NoError(t, tree.Apply(7, of(stored(0, 1, 2), 1)))
	require.NoError(t, tree.Apply(8, stored(0, 1, 2, 3, 4)))
	require.Equal(t, map[worker.Rank]uint32{{ID: 7}: 3, {ID: 7, DPRank: 1}: 2, {ID: 8}: 4}, found(tree, 1, 2, 3, 4, 5))
	require.Empty(t, found(tree, 2, 3))
	require.Empty(t, found(tree))

	require.NoError(t, tree.Apply(7, &event.Event{Kind: event.Cleared}))
	require.Equal(t, map[worker.Rank]uint32{{ID: 7, DPRank: 1}: 2, {ID: 8}: 4}, found(tree, 1, 2, 3, 4))
	tree.Remove(7)
	tree.Remove(7)
	require.NoError(t, tree.Apply(9, stored(0, 1)), "takes a slot that is free again")
	require.Equal(t, map[worker.Rank]uint32{{ID: 8}: 4, {ID: 9}: 1}, found(tree, 1, 2, 3, 4))
	require.Len(t, tree.ranks, 3)
}

func TestStoringTwiceIsOneReference(t *testing.T) {
	tree := New()
	defer tree.Close()
	require.NoError(t, tree.Apply(7, stored(0, 1, 2)))
	require.NoError(t, tree.Apply(7, stored(0, 1, 2)))
	err := tree.Apply(7, &event.Event{Kind: event.Removed, Removed: []block.EngineHash{5, 1002}})
	require.ErrorIs(t, err, ErrUnknownBlock)
	require.EqualError(t, err, "rank 7/0: block to remove is not held by this worker rank: 1 of 2")
	require.Equal(t, map[worker.Rank]uint32{{ID: 7}: 1}, found(tree, 1, 2))
}

func TestLowerTiersAreRefused(t *testing.T) {
	tree := New()
	defer tree.Close()
	ev := stored(0, 1)
	ev.Tier = event.Disk
	require.EqualError(t, tree.Apply(7, ev), "only device blocks are kept: storage_tier is disk")
	require.Empty(t, tree.known)
}

func TestRanksAreBounded(t *testing.T) {
	tree := New()
	defer tree.Close()
	require.Equal(t, MaxRanks, tree.limit)
	tree.limit = 3
	for i := range uint64(3) {
		require.NoError(t, tree.Apply(i, stored(0, 1)))
	}
	require.EqualError(t, tree.Apply(3, stored(0, 1)), "too many ranks: 3")
	require.NoError(t, tree.Apply(2, stored(0, 2)))
	tree.Remove(1)
	require.NoError(t, tree.Apply(3, stored(0, 1)))
}

func TestFindAllocatesNothing(t *testing.T) {
	tree := New()
	defer tree.Close()
	require.NoError(t, tree.Apply(7, stored(0, 1, 2, 3)))
	rows := make([]Match, 0, 4)
	query := []block.Hash{1, 2, 3}
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { rows = tree.Find(rows[:0], query) }), 0.0)
}

// TestMatchesBesideChangesNameTheRank: a slot that changes hands is never named after the wrong rank.
func TestMatchesBesideChangesNameTheRank(t *testing.T) {
	tree := New()
	defer tree.Close()
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for i := uint64(1); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = tree.Apply(i, stored(0, block.Hash(i%3+1))) // worker i holds block i%3+1 alone
			tree.Remove(i - 1)
		}
	})
	for range 2000 {
		for h := block.Hash(1); h <= 3; h++ {
			for _, m := range tree.Find(nil, []block.Hash{h}) {
				require.Equal(t, uint64(h), m.Rank.ID%3+1)
			}
		}
	}
	close(stop)
	writer.Wait()
}

// literal is the truth: an index of its own for each rank.
type literal map[worker.Rank]index.Index

func (l literal) apply(id uint64, ev *event.Event) (unknown int, err error) {
	rank := worker.Rank{ID: id, DPRank: ev.DPRank}
	x, ok := l[rank]
	if !ok {
		if ev.Kind != event.Stored {
			return len(ev.Removed), nil
		}
		x = model.New()
	}
	applied, err := x.Apply(0, ev, index.Set)
	if err == nil {
		l[rank] = x
	}
	return applied.Unknown, err
}

func (l literal) find(hashes []block.Hash) map[worker.Rank]uint32 {
	rows := map[worker.Rank]uint32{}
	for rank, x := range l {
		for _, r := range x.Match(nil, index.Query{Hashes: hashes}) {
			rows[rank] = r.Depth
		}
	}
	return rows
}

func FuzzTree(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0, 2, 2, 3, 4, 1, 0, 0, 6, 0, 1, 0, 0, 1, 2, 9, 5, 1, 0, 0})
	f.Add([]byte{0, 1, 0, 8, 1, 1, 3, 2, 3, 1, 2, 1, 4, 1, 0, 0, 0, 5, 0, 8, 7, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		tree, truth := New(), literal{}
		defer tree.Close()
		for ; len(ops) >= 4; ops = ops[4:] {
			step(t, tree, truth, ops[0], ops[1], ops[2], ops[3])
		}
		again := New()
		defer again.Close()
		for _, re := range tree.Dump() {
			require.NoError(t, again.Apply(re.WorkerID, &re.Event))
		}
		compare(t, again, truth)
	})
}

// chain is a prompt of n blocks; families share their first blocks.
func chain(family byte, n int) []block.Hash {
	hashes := make([]block.Hash, n)
	for i := range hashes {
		hashes[i] = block.Hash(i + 1)
		if i >= int(family%4) {
			hashes[i] += block.Hash(family%8) * 100
		}
	}
	return hashes
}

func step(t *testing.T, tree *Tree, truth literal, op, who, family, n byte) {
	id, rank := uint64(who%4), uint32(who/4%2)
	hashes := chain(family, int(n%8))
	var ev *event.Event
	switch op % 8 {
	case 0, 1, 2:
		ev = stored(0, hashes...)
	case 3:
		ev = stored(block.EngineHash(n)+1000, chain(family, 8)[n%8:]...)
	case 4, 5:
		ev = &event.Event{Kind: event.Removed}
		for _, b := range stored(0, hashes...).Blocks[len(hashes)/2:] {
			ev.Removed = append(ev.Removed, b.Engine)
		}
	case 6:
		ev = &event.Event{Kind: event.Cleared}
	case 7:
		tree.Remove(id)
		for r := range truth {
			if r.ID == id {
				delete(truth, r)
			}
		}
	}
	if ev != nil {
		missed, want := truth.apply(id, of(ev, rank))
		err := tree.Apply(id, ev)
		switch {
		case want != nil:
			require.ErrorIs(t, err, want)
		case missed > 0:
			require.ErrorIs(t, err, ErrUnknownBlock)
		default:
			require.NoError(t, err)
		}
	}
	compare(t, tree, truth)
}

func compare(t *testing.T, tree *Tree, truth literal) {
	for family := range byte(8) {
		hashes := chain(family, 9)
		require.Equal(t, truth.find(hashes), found(tree, hashes...), "family %d", family)
		require.Equal(t, truth.find(hashes[:3]), found(tree, hashes[:3]...), "family %d", family)
	}
}

func TestDumpIsNumberedAndNamesRanks(t *testing.T) {
	tree := New()
	defer tree.Close()
	for id := range uint64(3) {
		require.NoError(t, tree.Apply(id, of(stored(0, 1, 2), uint32(id))))
	}
	tree.Remove(1)
	all := tree.Dump()
	require.Len(t, all, 2)
	require.True(t, slices.IsSortedFunc(all, func(a, b event.RouterEvent) int { return int(a.Event.ID) - int(b.Event.ID) }))
	require.Equal(t, []uint64{0, 2}, []uint64{all[0].WorkerID, all[1].WorkerID})
	require.Equal(t, []uint32{0, 2}, []uint32{all[0].Event.DPRank, all[1].Event.DPRank})
	require.Equal(t, []uint64{0, 1}, []uint64{all[0].Event.ID, all[1].Event.ID})
}
