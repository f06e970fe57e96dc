package block_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
)

type golden struct {
	Local []struct {
		BlockSize int           `json:"block_size"`
		Tokens    []block.Token `json:"tokens"`
		LoRA      string        `json:"lora"`
		Salt      string        `json:"salt"`
		MM        [][]uint64    `json:"mm_hashes"`
		Eagle     bool          `json:"eagle"`
		Want      []string      `json:"want"`
	} `json:"local"`
	Sequence []struct {
		Local []string `json:"local"`
		Want  []string `json:"want"`
	} `json:"sequence"`
}

func numbers[H ~uint64](t *testing.T, texts []string) []H {
	t.Helper()
	var out []H
	for _, s := range texts {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		out = append(out, H(n))
	}
	return out
}

func TestGoldenHashes(t *testing.T) {
	data, err := os.ReadFile("../../testdata/golden/hashes.json")
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(data, &g))
	require.NotEmpty(t, g.Local)
	require.NotEmpty(t, g.Sequence)
	for i, c := range g.Local {
		id := &block.Identity{LoRAName: c.LoRA, CacheSalt: c.Salt, MM: c.MM, Eagle: c.Eagle}
		want := numbers[block.Hash](t, c.Want)
		require.Equal(t, want, block.Hashes(nil, c.Tokens, c.BlockSize, id), "local %d", i)
		hashes, seqs := block.Both(nil, nil, c.Tokens, c.BlockSize, id)
		require.Equal(t, want, hashes, "local %d", i)
		require.Equal(t, block.Sequences(nil, want), seqs, "local %d", i)
	}
	for i, c := range g.Sequence {
		got := block.Sequences(nil, numbers[block.Hash](t, c.Local))
		require.Equal(t, numbers[block.SequenceHash](t, c.Want), got, "sequence %d", i)
	}
}

func ascending(n int) []block.Token {
	tokens := make([]block.Token, n)
	for i := range tokens {
		tokens[i] = block.Token(i)
	}
	return tokens
}

// TestAdapterAndSaltArePartOfTheIdentity pins the matrix of adapter and cache salt to the values of Dynamo 1.6.1, so that
// a formula changed on one side fails here.
// https://github.com/ai-dynamo/dynamo/pull/6517 https://github.com/ai-dynamo/dynamo/pull/8197
func TestAdapterAndSaltArePartOfTheIdentity(t *testing.T) {
	for _, c := range []struct {
		lora, salt string
		want       block.Hash
	}{
		{"", "", 9143094415614847814},
		{"adapter-a", "", 6665157333201000639},
		{"", "tenant-a", 17009624042690211646},
		{"adapter-a", "tenant-a", 8269515957840517240},
	} {
		id := &block.Identity{LoRAName: c.lora, CacheSalt: c.salt}
		require.Equal(t, []block.Hash{c.want}, block.Hashes(nil, ascending(4), 4, id), "%+v", c)
	}
	require.Equal(t, block.Hashes(nil, ascending(4), 4, nil), block.Hashes(nil, ascending(4), 4, &block.Identity{}))

	seen := map[block.Hash]string{}
	for _, lora := range []string{"", "A", "B", "t1"} {
		for _, salt := range []string{"", "t1", "t2", "A"} {
			id := &block.Identity{LoRAName: lora, CacheSalt: salt}
			for i, h := range block.Hashes(nil, ascending(32), 16, id) {
				name := fmt.Sprintf("%q %q %d", lora, salt, i)
				require.NotContains(t, seen, h, name)
				seen[h] = name
			}
		}
	}
	require.Len(t, seen, 32)
}

// TestPromptsShareNoBlockUnlessTheyShareTokens checks that nothing but tokens makes a first block, and how many blocks
// short and exact prompts have. https://github.com/kubernetes-sigs/gateway-api-inference-extension/issues/1333
func TestPromptsShareNoBlockUnlessTheyShareTokens(t *testing.T) {
	for _, size := range []int{1, 4, 16} {
		one, two := ascending(4*size), ascending(8 * size)[4*size:]
		a, b := block.Hashes(nil, one, size, nil), block.Hashes(nil, two, size, nil)
		for _, h := range a {
			require.NotContains(t, b, h)
		}
		for k := range 5 {
			for _, extra := range []int{0, 1, size - 1} {
				want := k + extra/size
				require.Len(t, block.Hashes(nil, ascending(k*size+extra), size, nil), want)
				require.Equal(t, want, block.Count(k*size+extra, size, false))
			}
		}
	}
}

func TestCountNeedsFullBlocks(t *testing.T) {
	for _, c := range []struct {
		tokens, size int
		eagle        bool
		want         int
	}{
		{0, 4, false, 0}, {3, 4, false, 0}, {4, 4, false, 1}, {7, 4, false, 1},
		{0, 4, true, 0}, {4, 4, true, 0}, {5, 4, true, 1}, {8, 4, true, 1}, {9, 4, true, 2},
		{9, 0, false, 0}, {9, -1, true, 0},
	} {
		require.Equal(t, c.want, block.Count(c.tokens, c.size, c.eagle), "%+v", c)
		id := &block.Identity{Eagle: c.eagle}
		require.Len(t, block.Hashes(nil, ascending(c.tokens), c.size, id), c.want, "%+v", c)
	}
}

// TestFusedPassEqualsTheSteps checks every way to the same hashes against the definition: one block after the other,
// then one chain step after the other.
func TestFusedPassEqualsTheSteps(t *testing.T) {
	rng := rand.New(rand.NewSource(7))
	ids := []*block.Identity{
		nil,
		{LoRAName: "x", CacheSalt: "y"},
		{Eagle: true},
		{MM: [][]uint64{nil, {3, 1, 3}, {}}},
	}
	for range 200 {
		tokens := ascending(rng.Intn(200))
		rng.Shuffle(len(tokens), func(i, j int) { tokens[i], tokens[j] = tokens[j], tokens[i] })
		size, id := []int{1, 3, 16, 64}[rng.Intn(4)], ids[rng.Intn(len(ids))]
		hashes, seqs := block.Both([]block.Hash{1}, []block.SequenceHash{2, 3}, tokens, size, id)
		require.Equal(t, block.Hash(1), hashes[0])
		require.Equal(t, []block.SequenceHash{2, 3}, seqs[:2])
		require.Len(t, hashes[1:], block.Count(len(tokens), size, id != nil && id.Eagle))
		require.Len(t, seqs[2:], len(hashes)-1)
		var prev block.SequenceHash
		for i, h := range hashes[1:] {
			alone := block.Identity{}
			window := tokens[i*size : (i+1)*size]
			if id != nil {
				alone = *id
				alone.MM = nil
				if i < len(id.MM) {
					alone.MM = id.MM[i : i+1]
				}
				if id.Eagle {
					window = tokens[i*size : (i+1)*size+1]
				}
			}
			require.Equal(t, []block.Hash{h}, block.Hashes(nil, window, size, &alone))
			if i == 0 {
				prev = block.SequenceHash(h)
			} else {
				prev = block.Extend(prev, h)
			}
			require.Equal(t, prev, seqs[2+i])
		}
	}
}

func TestMultimodalHashesAreASortedListNotASet(t *testing.T) {
	hash := func(mm ...uint64) block.Hash {
		return block.Hashes(nil, ascending(4), 4, &block.Identity{MM: [][]uint64{mm}})[0]
	}
	require.Equal(t, hash(42, 7), hash(7, 42))
	require.NotEqual(t, hash(7), hash(7, 7))
	require.Equal(t, hash(), block.Hashes(nil, ascending(4), 4, nil)[0])
	many := make([]uint64, 1000)
	for i := range many {
		many[i] = uint64(i)
	}
	before := append([]uint64(nil), many...)
	require.NotEqual(t, hash(many...), hash(many[1:]...))
	require.Equal(t, before, many)
}

func TestCheckSize(t *testing.T) {
	for _, size := range []int64{1, 16, block.MaxSize} {
		require.NoError(t, block.CheckSize(size))
	}
	for _, size := range []int64{0, -1, block.MaxSize + 1, 1 << 32, math.MinInt64} {
		err := block.CheckSize(size)
		require.ErrorIs(t, err, block.ErrSize)
		require.ErrorContains(t, err, strconv.FormatInt(size, 10))
	}
}

func TestHashingDoesNotAllocate(t *testing.T) {
	tokens := ascending(4096)
	hashes, seqs := make([]block.Hash, 0, 4096), make([]block.SequenceHash, 0, 4096)
	for _, size := range []int{1, 4, 16, 64, 1024} {
		for _, id := range []*block.Identity{
			nil,
			{LoRAName: "adapter", CacheSalt: "salt"},
			{Eagle: true},
			{MM: [][]uint64{{3, 2, 1}}},
		} {
			if size == 1024 && id != nil && id.MM != nil {
				continue // with objects, a block of this size is copied to the heap
			}
			require.Zero(t, testing.AllocsPerRun(10, func() {
				hashes, seqs = block.Both(hashes[:0], seqs[:0], tokens, size, id)
			}), "size %d id %+v", size, id)
		}
	}
}
