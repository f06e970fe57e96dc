package index_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/index/indextest"
	"github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/internal/offheap"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func sharded() index.Index  { return index.New(index.Options{}) }
func oneShard() index.Index { return index.New(index.Options{OneShard: true}) }

// Short paths and many lanes, so that small prompts reach what long ones do.
func short() index.Index  { return index.NewSmall(index.Options{}, 8, 16) }
func single() index.Index { return index.NewSmall(index.Options{OneShard: true}, 1, 3) }

func TestSharded(t *testing.T)  { indextest.Run(t, sharded, index.Check) }
func TestOneShard(t *testing.T) { indextest.Run(t, oneShard, index.Check) }
func TestShort(t *testing.T)    { indextest.Run(t, short, index.Check) }
func TestModel(t *testing.T)    { indextest.Run(t, model.New, nil) }

func bounded(lanes, path int, room int64) func() (index.Index, int64) {
	return func() (index.Index, int64) { return index.NewBounded(lanes, path, room) }
}

func FuzzBounded(f *testing.F) {
	seeds := uint64(4)
	if indextest.Race {
		seeds = 1
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 5))
		data := make([]byte, 1200+seed)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		data[0] = byte(seed)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		room := int64(120_000 + len(data)%7*30_000)
		indextest.DriveBounded(t, data, bounded(1+len(data)%2, []int{3, 16, 1024}[len(data)%3], room), index.Check)
	})
}

// The index of one shard grows in larger steps while it is small; what that takes more is little.
func TestOneShardTakesLittleMore(t *testing.T) {
	one, many := oneShard(), sharded()
	defer one.Close()
	defer many.Close()
	most := 0
	for i := range 700 {
		ev := storeOf(alone(i, 400), 0, 400)
		for _, x := range []index.Index{one, many} {
			_, err := x.Apply(0, ev, index.Set)
			require.NoError(t, err)
		}
		names, fewest := one.Stats().Memory.Names, many.Stats().Memory.Names
		require.LessOrEqual(t, names, fewest+1<<20, "%d blocks", 400*(i+1))
		most = max(most, names-fewest)
	}
	require.Positive(t, most, "it grows like any other")
}

func FuzzIndex(f *testing.F) {
	seeds, err := filepath.Glob("testdata/fuzz/FuzzIndex/*")
	require.NoError(f, err)
	require.NotEmpty(f, seeds)
	f.Fuzz(func(t *testing.T, data []byte) {
		factories := [...]indextest.Factory{sharded, oneShard, short, single}
		indextest.Drive(t, data, factories[len(data)%len(factories)], index.Check)
	})
}

func TestSlotBeyondRangeIsRefused(t *testing.T) {
	x := sharded()
	ev := &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 1, Hash: 1}}}
	done, err := x.Apply(index.MaxSlots, ev, index.Count)
	require.ErrorIs(t, err, index.ErrSlotRange)
	require.Equal(t, index.Applied{Refused: 1}, done)
	x.Drop(index.MaxSlots)
	require.Empty(t, x.Dump(index.MaxSlots, 0))
	require.Zero(t, x.Blocks(index.MaxSlots))

	_, err = x.Apply(index.MaxSlots-1, ev, index.Count)
	require.NoError(t, err)
	_, err = x.Apply(3, ev, index.Count)
	require.NoError(t, err)
	q := index.Query{Hashes: []block.Hash{1}, Sequences: []block.SequenceHash{1}}
	require.ElementsMatch(t, []index.Overlap{{Slot: 3, Depth: 1}, {Slot: index.MaxSlots - 1, Depth: 1}}, x.Match(nil, q))
	require.NoError(t, index.Check(x))
}

// A root block can be made whose content hash is the sequence hash of another prompt's block. It is another block.
func TestCraftedRootIsNotAnotherPromptsBlock(t *testing.T) {
	x := oneShard()
	hashes := []block.Hash{11, 22, 33}
	seqs := block.Sequences(nil, hashes)
	fake := &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 1, Hash: block.Hash(seqs[1])}, {Engine: 2, Hash: 33}}}
	first := &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 3, Hash: 11}}}
	for _, ev := range []*event.Event{fake, first} {
		_, err := x.Apply(0, ev, index.Count)
		require.NoError(t, err)
	}
	require.Equal(t, []index.Overlap{{Slot: 0, Depth: 1}}, x.Match(nil, index.Query{Hashes: hashes, Sequences: seqs}))
	require.NoError(t, index.Check(x))
}

func TestMatchDoesNotAllocate(t *testing.T) {
	for _, slots := range []int{3, 64, 130, 4096, index.MaxSlots} {
		x := sharded()
		var hashes []block.Hash
		for i := range 256 {
			hashes = append(hashes, block.Hash(i*i+1))
		}
		for _, slot := range []int{0, 1, slots / 2, slots - 1} {
			ev := &event.Event{Kind: event.Stored}
			for i, h := range hashes[:200+min(slot, 56)] {
				ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(i), Hash: h})
			}
			_, err := x.Apply(worker.Slot(slot), ev, index.Count)
			require.NoError(t, err)
		}
		q := index.Query{Hashes: hashes, Sequences: block.Sequences(nil, hashes)}
		dst := make([]index.Overlap, 0, 4)
		require.Zero(t, testing.AllocsPerRun(100, func() { dst = x.Match(dst[:0], q) }), "%d slots", slots)
		require.NotEmpty(t, dst)
	}
}

// A store of what others know finds everything where it is.
func TestStoreOfKnownBlocksDoesNotAllocate(t *testing.T) {
	x := sharded()
	q := forked(1, 600)
	for slot := range worker.Slot(4) {
		_, err := x.Apply(slot, storeOf(q, 0, 600), index.Set)
		require.NoError(t, err)
	}
	again := storeOf(q, 0, 60)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for slot := range worker.Slot(4) {
			_, _ = x.Apply(slot, again, index.Set)
		}
	}))
	// Nor does one that comes and goes beside others that stay.
	gone := &event.Event{Kind: event.Removed}
	for i := 599; i >= 540; i-- {
		gone.Removed = append(gone.Removed, block.EngineHash(q.Sequences[i]+1))
	}
	back := storeOf(q, 540, 600)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = x.Apply(3, gone, index.Count)
		_, _ = x.Apply(3, back, index.Count)
	}))
	require.Equal(t, 600, x.Blocks(3))
}

// Twice some thousand chains of all lengths are stored, and removed in some order, block by block or from their ends.
func TestChainsRemovedInAnyOrderLeaveNothing(t *testing.T) {
	x := sharded()
	apply := func(slot worker.Slot, ev *event.Event) {
		_, err := x.Apply(slot, ev, index.Count)
		require.NoError(t, err)
	}
	apply(0, storeOf(forked(0, 30), 0, 30))
	start := x.Stats()
	chains := 5_000
	if indextest.Race {
		chains /= 5
	}
	for _, shuffle := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(1, 2))
		var gone []block.EngineHash
		for i := range chains {
			n := 1 + rng.IntN(40)
			ev := &event.Event{Kind: event.Stored}
			for range n {
				name := block.EngineHash(rng.Uint64())
				gone = append(gone, name)
				ev.Blocks = append(ev.Blocks, event.Block{Engine: name, Hash: block.Hash(rng.Uint64())})
			}
			apply(worker.Slot(i%3), ev)
		}
		full := x.Stats()
		require.Less(t, full.Bytes-start.Bytes, 50*full.Pairs, "bytes of a block of a short chain")
		if shuffle {
			rng.Shuffle(len(gone), func(i, j int) { gone[i], gone[j] = gone[j], gone[i] })
		}
		for slot := range worker.Slot(3) {
			for rest := gone; len(rest) > 0; rest = rest[min(len(rest), 100):] {
				apply(slot, &event.Event{Kind: event.Removed, Removed: rest[:min(len(rest), 100)]})
			}
		}
		end := x.Stats()
		require.Equal(t, []int{start.Blocks, start.Pairs, start.Paths}, []int{end.Blocks, end.Pairs, end.Paths})
		kept := full.Bytes
		if offheap.Release(offheap.Map(1)) {
			kept = 2 << 20
		}
		require.LessOrEqual(t, end.Bytes, start.Bytes+kept)
	}
	require.NoError(t, index.Check(x))
}

// Tables grow and shrink by their load alone; an empty index holds nothing but its holders.
func TestEverythingRemovedIsEverythingFreed(t *testing.T) {
	x := sharded()
	empty := x.Stats().Bytes
	var names []block.EngineHash
	for i := range 20_000 {
		names = append(names, block.EngineHash(i))
		ev := &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: names[i], Hash: block.Hash(i)}}}
		_, err := x.Apply(worker.Slot(i%5), ev, index.Count)
		require.NoError(t, err)
	}
	full := x.Stats().Bytes
	require.Greater(t, full, 20_000*(32+16))
	for slot := range worker.Slot(5) {
		_, err := x.Apply(slot, &event.Event{Kind: event.Removed, Removed: names}, index.Count)
		require.NoError(t, err)
	}
	const constant = 96 << 10 // a region, a directory of chunks, and the holders
	require.Less(t, x.Stats().Bytes, empty+constant)
}
