package indextest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/index/model"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// reports are faults that users of other routers reported, each as a case.
var reports = []struct {
	name string
	run  func(*testing.T, index.Index)
}{
	{"branches come and go under a living trunk", branchesUnderTrunk},
	{"removal after others' forks leaves no entry", removalAfterFork},
	{"a removed holder is gone everywhere", removedHolder},
	{"a block that names itself as parent is refused", selfParent},
	{"a removal is its sender's only", removalOfOneHolder},
	{"a clear is exactly as wide as its rank", clearedRank},
	{"blocks of a store are chained", storeChains},
	{"a dump rebuilds the same index", dumpRebuilds},
	{"an absent block does not stop a removal", absentInRemoval},
}

// https://github.com/ai-dynamo/dynamo/issues/10774 https://github.com/ai-dynamo/dynamo/pull/8127
func branchesUnderTrunk(t *testing.T, x index.Index) {
	const n = 1000
	trunk := prompt(1, n)
	names := engineNames(trunk)
	apply(t, x, 1, stored(trunk, 0, n))
	before := x.Stats()
	for i := range 10_000 {
		first := block.EngineHash(1_000_000 + 3*i)
		apply(t, x, 1, below(names[i%n], chain(first, first+1, first+2)))
		apply(t, x, 1, removed(first+2, first, first+1))
	}
	after := x.Stats()
	require.Equal(t, []int{n, n, before.Paths}, []int{after.Blocks, after.Pairs, after.Paths})
	require.LessOrEqual(t, after.Bytes, 2*before.Bytes)
	require.Equal(t, map[worker.Slot]int{1: n}, match(t, x, query(trunk)))
}

// https://github.com/ai-dynamo/dynamo/pull/11785 https://github.com/ai-dynamo/dynamo/pull/10836
func removalAfterFork(t *testing.T, x index.Index) {
	apply(t, x, 1, chain(1, 2, 3, 4))
	apply(t, x, 2, chain(1, 2, 9))
	for _, name := range []block.EngineHash{2, 1, 4, 3} {
		require.Equal(t, index.Applied{Removed: 1}, apply(t, x, 1, removed(name)))
	}
	require.Equal(t, []int{0, 3}, []int{x.Blocks(1), x.Blocks(2)})
	require.Equal(t, map[worker.Slot]int{2: 3}, match(t, x, asked(1, 2, 9)))
	require.Equal(t, index.Applied{Unknown: 1}, apply(t, x, 1, removed(3)))
}

// https://github.com/kubernetes-sigs/gateway-api-inference-extension/issues/1289
// https://github.com/llm-d/llm-d-router/issues/1736 https://github.com/smg-project/smg/pull/2132
// https://github.com/ai-dynamo/dynamo/pull/6569
func removedHolder(t *testing.T, x index.Index) {
	hashes := prompt(1, 10)
	const w1, w2r0, w2r1, w3 = 0, 1, 2, 3
	for _, slot := range []worker.Slot{w1, w2r0, w2r1, w3} {
		apply(t, x, slot, stored(hashes, 0, 10))
	}
	x.Drop(w2r1)
	require.Equal(t, map[worker.Slot]int{w1: 10, w2r0: 10, w3: 10}, match(t, x, query(hashes)))
	x.Drop(w2r0)
	require.Equal(t, map[worker.Slot]int{w1: 10, w3: 10}, match(t, x, query(hashes)))
	require.Empty(t, x.Dump(w2r0, 0))
	require.Empty(t, x.Dump(w2r1, 0))
	require.Equal(t, 20, x.Stats().Pairs)
	// Whoever gets the slot next starts empty: even the names are gone.
	refuse(t, x, w2r0, stored(hashes, 5, 10), index.ErrUnknownParent)
	require.Equal(t, map[worker.Slot]int{w1: 10, w3: 10}, match(t, x, query(hashes)))
}

// https://github.com/ai-dynamo/dynamo/issues/4394 https://github.com/ai-dynamo/dynamo/pull/4395
// https://github.com/ai-dynamo/dynamo/issues/3765
func selfParent(t *testing.T, x index.Index) {
	refuse(t, x, 0, below(5, chain(5)), index.ErrBadChain)
	apply(t, x, 0, chain(5))
	refuse(t, x, 0, below(5, chain(5)), index.ErrBadChain)
	require.Equal(t, index.Applied{Stored: 1}, apply(t, x, 0, below(5, chain(6))))
	require.Equal(t, map[worker.Slot]int{0: 2}, match(t, x, asked(5, 6)))
}

// https://github.com/vllm-project/aibrix/pull/2723
func removalOfOneHolder(t *testing.T, x index.Index) {
	apply(t, x, 1, chain(1, 2, 3))
	apply(t, x, 2, chain(1, 2, 3))
	apply(t, x, 1, removed(2))
	require.Equal(t, map[worker.Slot]int{1: 1, 2: 3}, match(t, x, asked(1, 2, 3)))
	x.Drop(1)
	require.Equal(t, index.Applied{Unknown: 1}, apply(t, x, 1, removed(3)))
	require.Equal(t, []int{3, 3, 0, 3}, []int{x.Stats().Blocks, x.Stats().Pairs, x.Blocks(1), x.Blocks(2)})
}

// https://github.com/vllm-project/aibrix/pull/2385 https://github.com/llm-d/llm-d-kv-cache/pull/593
// https://github.com/ai-dynamo/dynamo/pull/1279 https://github.com/lightseekorg/tokenspeed/pull/166
func clearedRank(t *testing.T, x index.Index) {
	hashes := prompt(1, 10)
	const rank0, rank1, other = 0, 1, 2
	for _, slot := range []worker.Slot{rank0, rank1, other} {
		apply(t, x, slot, stored(hashes, 0, 10))
	}
	require.Equal(t, index.Applied{Removed: 10}, apply(t, x, rank0, &event.Event{Kind: event.Cleared}))
	require.Equal(t, map[worker.Slot]int{rank1: 10, other: 10}, match(t, x, query(hashes)))
	refuse(t, x, rank0, stored(hashes, 1, 2), index.ErrUnknownParent)
	apply(t, x, rank0, stored(hashes, 0, 4))
	require.Equal(t, map[worker.Slot]int{rank0: 4, rank1: 10, other: 10}, match(t, x, query(hashes)))
	require.Equal(t, index.Applied{}, apply(t, x, 77, &event.Event{Kind: event.Cleared}))
}

// https://github.com/ai-dynamo/dynamo/pull/671 https://github.com/NVIDIA/TensorRT-LLM/issues/3543
func storeChains(t *testing.T, x index.Index) {
	apply(t, x, 1, chain(1, 2, 3))
	require.Equal(t, map[worker.Slot]int{1: 3}, match(t, x, asked(1, 2, 3)))
	apply(t, x, 1, below(2, chain(4)))
	require.Equal(t, map[worker.Slot]int{1: 3}, match(t, x, asked(1, 2, 4)))
}

// https://github.com/ai-dynamo/dynamo/pull/2057 https://github.com/ai-dynamo/dynamo/pull/10542
// https://github.com/ai-dynamo/dynamo/pull/2756
func dumpRebuilds(t *testing.T, x index.Index) {
	rng := rand.New(rand.NewPCG(3, 4))
	const slots = 10 // five workers, two ranks each
	var prompts [][]block.Hash
	for i := range 60 { // a random tree: each prompt leaves an older one somewhere
		hashes := prompt(i, 33)
		if i > 5 {
			old := prompts[rng.IntN(len(prompts))]
			copy(hashes, old[:rng.IntN(len(old))])
		}
		prompts = append(prompts, hashes)
	}
	for slot := range worker.Slot(slots) {
		for i, hashes := range prompts {
			if rng.IntN(2) == 0 {
				continue
			}
			apply(t, x, slot, stored(hashes, 0, 33))
			if i%3 == 0 { // holes, and tails cut off
				names := engineNames(hashes)
				apply(t, x, slot, removed(names[rng.IntN(33)], names[rng.IntN(33)]))
				apply(t, x, slot, removed(names[20+rng.IntN(13):]...))
			}
		}
		for most := x.Blocks(slot) * 7 / 10; x.Blocks(slot) > most; { // ends of what is there, 30 % in all
			apply(t, x, slot, removed(engineNames(prompts[rng.IntN(len(prompts))])[15+rng.IntN(18):]...))
		}
	}
	again := model.New()
	load(t, x, again, slots)
	for range 1000 {
		hashes := prompts[rng.IntN(len(prompts))]
		q := query(hashes[:1+rng.IntN(len(hashes))])
		require.Equal(t, match(t, x, q), match(t, again, q))
	}
	for slot := range worker.Slot(slots) {
		require.Equal(t, contents(t, x.Dump(slot, 0), 0), contents(t, again.Dump(slot, 0), 0))
	}
	// And the other way round: what a copy dumps, this index loads.
	for slot := range worker.Slot(slots) {
		x.Drop(slot)
	}
	load(t, again, x, slots)
	for slot := range worker.Slot(slots) {
		require.Equal(t, contents(t, again.Dump(slot, 0), 0), contents(t, x.Dump(slot, 0), 0))
	}
}

// https://github.com/ai-dynamo/dynamo/pull/14652 https://github.com/ai-dynamo/dynamo/pull/10916
func absentInRemoval(t *testing.T, x index.Index) {
	apply(t, x, 1, chain(1, 2, 3, 4))
	require.Equal(t, index.Applied{Removed: 2, Unknown: 1}, apply(t, x, 1, removed(99, 3, 4)))
	require.Equal(t, map[worker.Slot]int{1: 2}, match(t, x, asked(1, 2, 3, 4)))
	require.Equal(t, index.Applied{Removed: 1}, apply(t, x, 1, removed(1)))
	require.Equal(t, index.Applied{Removed: 1}, apply(t, x, 1, removed(2)))
	require.Zero(t, x.Blocks(1))
	apply(t, x, 1, chain(1, 2, 3, 4))
	require.Equal(t, map[worker.Slot]int{1: 4}, match(t, x, asked(1, 2, 3, 4)))
	// Descendants of a removed block are kept.
	apply(t, x, 1, removed(2))
	apply(t, x, 1, below(1, chain(2)))
	require.Equal(t, map[worker.Slot]int{1: 4}, match(t, x, asked(1, 2, 3, 4)))
}
