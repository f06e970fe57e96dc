package block_test

import (
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// Lists that differ anywhere, or nowhere, and again behind: what counts is the first difference.
func TestCommon(t *testing.T) {
	require.Zero(t, block.Common[block.Hash](nil, nil))
	require.Zero(t, block.Common([]block.Hash{1}, nil))
	rng := rand.New(rand.NewSource(1))
	for range 20_000 {
		a := make([]block.Hash, rng.Intn(600))
		for i := range a {
			a[i] = block.Hash(rng.Uint64())
		}
		b := append([]block.Hash(nil), a[:rng.Intn(len(a)+1)]...)
		b = append(b, make([]block.Hash, rng.Intn(300))...)
		for range rng.Intn(3) {
			if len(b) > 0 {
				b[rng.Intn(len(b))] ^= 1 << rng.Intn(64)
			}
		}
		want := 0
		for want < min(len(a), len(b)) && a[want] == b[want] {
			want++
		}
		require.Equal(t, want, block.Common(a, b))
		require.Equal(t, want, block.Common(b, a))
	}
}

func BenchmarkCommon(b *testing.B) {
	x, y := make([]block.Hash, 128), make([]block.Hash, 128)
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			block.Common(x[:64], y)
		}
	})
	y[64] = 1
	b.Run("half", func(b *testing.B) {
		for b.Loop() {
			block.Common(x, y)
		}
	})
}
