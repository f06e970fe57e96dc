package workload_test

import (
	"iter"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	. "github.com/dynamo-go/dynamo-go/core/internal/workload"
)

// The expected values of this file are what the peers' generator gives.

func TestPrimitives(t *testing.T) {
	require.Equal(t, uint64(0xe220a8397b1dcdaf), Mix(0))
	require.Equal(t, uint64(0x910a2dec89025cc1), Mix(1))
	require.Equal(t, block.Hash(0xd0734750fde362b3), Hash(1, 2, 3))
	require.Equal(t, []block.SequenceHash{1, 16740963408272063728, 5417695437591212399}, block.Sequences(nil, []block.Hash{1, 2, 3}))
	require.Equal(t, []block.Token{41336, 49888, 28772, 69472}, Tokens(nil, 0, 4))
	require.Equal(t, []block.Hash{3186742186885586561, 12405685978817917069}, block.Hashes(nil, Tokens(nil, 0, 32), BlockSize, nil))
}

type counts struct{ workers, target, events, pairs, unique, users, placed int }

func checkBase(t testing.TB, want counts, digest uint64) *Base {
	b := NewBase(want.workers, want.target)
	require.Equal(t, want, counts{want.workers, want.target, length(b.Stores(Peer)), b.Pairs, b.Unique, b.Users, b.Placed})
	require.Equal(t, digest, Digest(b.Stores(Peer)))
	return b
}

func length(ops iter.Seq[Op]) (n int) {
	for range ops {
		n++
	}
	return n
}

func TestBase(t *testing.T) {
	checkBase(t, counts{1, 100_000, 6354, 100231, 100231, 365, 365}, 0x862ed8c9ad55a1a7)
	b := checkBase(t, counts{64, 200_000, 12852, 200129, 131782, 456, 596}, 0x7ec772e09547669a)
	for _, s := range b.Sessions(10) {
		require.GreaterOrEqual(t, len(s), 96)
		require.LessOrEqual(t, len(s), 576)
	}
	require.Equal(t, b.Sessions(3), b.Sessions(10)[:3])
}

func TestRemovesTakeEveryOtherConversation(t *testing.T) {
	b := checkBase(t, counts{64, 1_000_000, 63787, 1000112, 661607, 2409, 3180}, 0x57d2ea949a9c59f3)
	require.Equal(t, uint64(0xac7a0c845732ad52), Digest(b.Removes(Peer)))
	events, names := 0, 0
	for op := range b.Removes(Engine) {
		events++
		names += len(op.Event.Removed)
	}
	require.Equal(t, []int{27082, 428956}, []int{events, names})
}

func TestChains(t *testing.T) {
	for _, c := range []struct {
		Chains
		digest uint64
	}{
		{Chains{1, PlainChain}, 0x385f68fef3eb26f1},
		{Chains{1, ForkedChain}, 0x556e66e55605454d},
		{Chains{8, PlainChain}, 0xf6a7b1ff7736e7ac},
		{Chains{8, ForkedChain}, 0x0296b8b6cba0d999},
	} {
		require.Equal(t, c.digest, Digest(c.Stores(Peer)), "%+v", c.Chains)
	}
	for kind, want := range map[Kind]int{PlainChain: 4521984, ForkedChain: 4526188} {
		pairs := 0
		for op := range (Chains{64, kind}).Stores(Engine) {
			pairs += len(op.Event.Blocks)
		}
		require.Equal(t, want, pairs)
	}
}

func TestQueriesHitAsFarAsTheySay(t *testing.T) {
	for _, c := range []Chains{{8, PlainChain}, {8, ForkedChain}, {1, TextChain}} {
		stored := map[block.Hash]bool{}
		for op := range c.Stores(Engine) {
			for _, b := range op.Event.Blocks {
				stored[b.Hash] = true
			}
		}
		queries := c.Queries(256, 25)
		require.Len(t, queries, 64)
		for _, q := range queries {
			require.Len(t, q, 256)
			for i, h := range q {
				require.Equal(t, i < 25, stored[h])
			}
		}
		for _, h := range Misses(1)[0] {
			require.False(t, stored[h])
		}
	}
}

// TestEngineNamesAreConsistent checks that a stream names the same block the same way as a parent, stored and removed.
func TestEngineNamesAreConsistent(t *testing.T) {
	b := NewBase(4, 20_000)
	named := map[[2]uint64]bool{}
	for op := range b.Stores(Engine) {
		if op.Event.HasParent {
			require.True(t, named[[2]uint64{uint64(op.Slot), uint64(op.Event.Parent)}])
		}
		for _, bl := range op.Event.Blocks {
			key := [2]uint64{uint64(op.Slot), uint64(bl.Engine)}
			require.False(t, named[key])
			named[key] = true
		}
	}
	require.Len(t, named, b.Pairs)
	for op := range b.Removes(Engine) {
		require.Equal(t, event.Removed, op.Event.Kind)
		for _, name := range op.Event.Removed {
			require.True(t, named[[2]uint64{uint64(op.Slot), uint64(name)}])
		}
	}
}

func TestTextsAreTheTextChains(t *testing.T) {
	queries := Chains{64, TextChain}.Queries(1024, 1024)
	for i, text := range Texts(1024) {
		require.Equal(t, queries[i], block.Hashes(nil, text, BlockSize, nil))
	}
	require.Len(t, queries, 16)
}

func TestChurnEndsWhereItBegan(t *testing.T) {
	b := NewBase(64, 200_000)
	held := map[[2]uint64]bool{}
	apply := func(op Op) {
		for _, bl := range op.Event.Blocks {
			held[[2]uint64{uint64(op.Slot), uint64(bl.Engine)}] = true
		}
		for _, name := range op.Event.Removed {
			delete(held, [2]uint64{uint64(op.Slot), uint64(name)})
		}
	}
	for op := range b.Stores(Engine) {
		apply(op)
	}
	before := maps.Clone(held)
	churn := b.Churn(Engine)
	for i, op := range churn {
		if op.Event.Kind == event.Stored && i > 0 && churn[i-1].Event.Kind == event.Removed {
			require.Less(t, len(held), len(before)*3/4)
		}
		apply(op)
	}
	require.Equal(t, before, held)
}

func TestLongChainIsOneChain(t *testing.T) {
	hashes, ops := LongChain(Peer)
	require.Len(t, hashes, 1_000_000)
	var last block.EngineHash
	n := 0
	for i, op := range ops {
		require.Equal(t, i > 0, op.Event.HasParent)
		require.Equal(t, last, op.Event.Parent)
		for _, b := range op.Event.Blocks {
			if b.Hash != hashes[n] {
				t.Fatalf("block %d", n)
			}
			last, n = b.Engine, n+1
		}
	}
	require.Equal(t, len(hashes), n)
}

func TestDecisionPrompts(t *testing.T) {
	d := NewDecision()
	first := d.Prompt(nil)
	require.Len(t, first, PromptTokens)
	require.Equal(t, Tokens(nil, 1_000_000, PromptTokens/2), first[PromptTokens/2:])
	require.Contains(t, d.Prefixes(), first[:PromptTokens/2])
	require.NotEqual(t, first[PromptTokens/2:], d.Prompt(nil)[PromptTokens/2:])
	holders := 0
	for w := range 64 {
		if d.Holds(w, 3) {
			holders++
		}
	}
	require.Equal(t, 16, holders)
	require.Len(t, NewActive().Request(0), 128)
	require.Equal(t, Selection{64, 16 * 33, 33, 16}, NewSelection(33))
}

// BenchmarkBase makes the stream of five million pairs and checks it.
func BenchmarkBase(b *testing.B) {
	for b.Loop() {
		checkBase(b, counts{64, 5_000_000, 316349, 5000006, 3547128, 12964, 17230}, 0x42c9b3cc54538eef)
	}
}
