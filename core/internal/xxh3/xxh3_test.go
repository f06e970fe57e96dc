package xxh3

import (
	"encoding/binary"
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"
	peer "github.com/zeebo/xxh3"
)

func randomTokens(n int) []uint32 {
	rng := rand.New(rand.NewSource(1))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32()
	}
	return tokens
}

// reference hashes as the definition says: tokens as bytes, then zeebo/xxh3.
func reference(tokens []uint32, seed uint64) (blocks, seqs []uint64) {
	var buf []byte
	for len(tokens) >= Tokens {
		buf = buf[:0]
		for _, t := range tokens[:Tokens] {
			buf = binary.LittleEndian.AppendUint32(buf, t)
		}
		tokens = tokens[Tokens:]
		blocks = append(blocks, peer.HashSeed(buf, seed))
		if len(blocks) == 1 {
			seqs = append(seqs, blocks[0])
			continue
		}
		pair := binary.LittleEndian.AppendUint64(nil, seqs[len(seqs)-1])
		pair = binary.LittleEndian.AppendUint64(pair, blocks[len(blocks)-1])
		seqs = append(seqs, peer.HashSeed(pair, ChainSeed))
	}
	return blocks, seqs
}

func requireAgrees(t *testing.T, tokens []uint32, seed uint64) {
	t.Helper()
	want, wantSeqs := reference(tokens, seed)
	n := len(tokens) / Tokens
	got, both, seqs := make([]uint64, n), make([]uint64, n), make([]uint64, n)
	Blocks(got, tokens, seed)
	Both(both, seqs, tokens, seed)
	if n == 0 {
		return
	}
	require.Equal(t, want, got)
	require.Equal(t, want, both)
	require.Equal(t, wantSeqs, seqs)
}

func TestAgreesWithZeebo(t *testing.T) {
	tokens := randomTokens(64*Tokens + 5)
	for _, seed := range []uint64{0, 1, ChainSeed, 1 << 63, ^uint64(0)} {
		for n := range 66 {
			requireAgrees(t, tokens[:min(n*Tokens+n%Tokens, len(tokens))], seed)
		}
	}
}

func FuzzAgreesWithZeebo(f *testing.F) {
	f.Add(make([]byte, 64), uint64(0))
	f.Add(make([]byte, 200), uint64(ChainSeed))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		tokens := make([]uint32, len(data)/4)
		for i := range tokens {
			tokens[i] = binary.LittleEndian.Uint32(data[i*4:])
		}
		requireAgrees(t, tokens, seed)
	})
}

func TestDoesNotAllocate(t *testing.T) {
	tokens := randomTokens(4096)
	blocks, seqs := make([]uint64, 256), make([]uint64, 256)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		Both(blocks, seqs, tokens, 99)
		Blocks(blocks, tokens, ChainSeed)
		blocks[0] = Chain(seqs[0], blocks[1])
	}))
}

func BenchmarkHash(b *testing.B) {
	for _, n := range []int{16, 256, 8192} {
		tokens := randomTokens(n * Tokens)
		blocks, seqs := make([]uint64, n), make([]uint64, n)
		buf := make([]byte, 0, n*64)
		for _, t := range tokens {
			buf = binary.LittleEndian.AppendUint32(buf, t)
		}
		run := func(name string, f func()) {
			b.Run(fmt.Sprintf("impl=%s/n=%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(len(buf)))
				for b.Loop() {
					f()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/block")
			})
		}
		run("both", func() { Both(blocks, seqs, tokens, ChainSeed) })
		run("blocks", func() { Blocks(blocks, tokens, ChainSeed) })
		run("zeebo-both", func() {
			var pair [16]byte
			for i := range blocks {
				blocks[i] = peer.HashSeed(buf[i*64:i*64+64], ChainSeed)
				binary.LittleEndian.PutUint64(pair[:], seqs[max(i-1, 0)])
				binary.LittleEndian.PutUint64(pair[8:], blocks[i])
				seqs[i] = peer.HashSeed(pair[:], ChainSeed)
			}
		})
	}
}
