package xxh3

import (
	"encoding/binary"
	"fmt"
	"math/rand"
	"slices"
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

// kernels are those that this processor has and may not choose.
var kernels = map[string]func(dst []uint64, tokens []uint32, k *key){}

// requireAgrees checks the kernels of this build and their twins, which must leave alone what is around their output.
func requireAgrees(t *testing.T, tokens []uint32, seed uint64) {
	t.Helper()
	want, wantSeqs := reference(tokens, seed)
	n := len(tokens) / Tokens
	k := newKey(seed)
	check := func(name string, want []uint64, f func(dst []uint64)) {
		const fence = 0xfe9ce
		room := slices.Repeat([]uint64{fence}, n+8)
		f(room[4 : 4+n])
		around := append(slices.Clone(room[:4]), room[4+n:]...)
		require.Equal(t, slices.Repeat([]uint64{fence}, 8), around, name)
		require.True(t, slices.Equal(want, room[4:4+n]), "%s of %d blocks, seed %d", name, n, seed)
	}
	hashes := make([]uint64, n)
	check("Blocks", want, func(dst []uint64) { Blocks(dst, tokens, seed) })
	for name, blocks := range kernels {
		check(name, want, func(dst []uint64) { blocks(dst, tokens, &k) })
	}
	check("blocksGo", want, func(dst []uint64) { blocksGo(dst, tokens, &k) })
	check("hashes of Both", want, func(dst []uint64) { Both(dst, make([]uint64, n), tokens, seed) })
	check("sequences of Both", wantSeqs, func(dst []uint64) { Both(hashes, dst, tokens, seed) })
	for _, from := range []int{0, n / 2, n} {
		check("bothGo", wantSeqs, func(dst []uint64) {
			copy(dst, wantSeqs[:from])
			bothGo(hashes, dst, tokens, &k, from)
		})
	}
	require.True(t, slices.Equal(want, hashes))
}

func TestAgreesWithZeebo(t *testing.T) {
	tokens := randomTokens(240*Tokens + 5)
	for _, seed := range []uint64{0, 1, ChainSeed, 1 << 63, ^uint64(0)} {
		for n := range 67 {
			requireAgrees(t, tokens[n%5:][:n*Tokens+n%Tokens], seed)
		}
		for n := 67; n < 240; n += 7 { // more than any kernel fetches ahead
			requireAgrees(t, tokens[n%5:][:n*Tokens+n%Tokens], seed)
		}
	}
}

// TestAgreesWithZeeboWhereHalvesCarry feeds what carries between the halves of a multiplication, or never does.
func TestAgreesWithZeeboWhereHalvesCarry(t *testing.T) {
	k := newKey(ChainSeed)
	rng := rand.New(rand.NewSource(2))
	for range 500 {
		tokens := make([]uint32, 8*Tokens)
		for i := range tokens {
			tokens[i] = []uint32{0, 1, 1 << 31, 1<<32 - 1}[rng.Intn(4)]
			if rng.Intn(2) == 0 { // the word that is multiplied, not the one before the key
				tokens[i] ^= uint32(k[i%Tokens/2] >> (32 * (i % 2)))
			}
		}
		requireAgrees(t, tokens, ChainSeed)
	}
}

// TestLongPromptsAreHashedInPieces checks lengths around the most that one call of a kernel takes.
func TestLongPromptsAreHashedInPieces(t *testing.T) {
	tokens := randomTokens(8198 * Tokens)
	for _, n := range []int{4095, 4096, 4097, 4103, 8191, 8192, 8198} {
		requireAgrees(t, tokens[:n*Tokens], ChainSeed)
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
		k := newKey(ChainSeed)
		run("both-go", func() { bothGo(blocks, seqs, tokens, &k, 0) })
		run("blocks-go", func() { blocksGo(blocks, tokens, &k) })
		run("chain", func() {
			parent := blocks[0]
			for i, h := range blocks {
				parent = Chain(parent, h)
				seqs[i] = parent
			}
		})
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
