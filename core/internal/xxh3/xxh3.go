// Package xxh3 computes XXH3-64 for the two inputs that block hashing is made of: 64 bytes (16 tokens) and 16 bytes
// (a parent's sequence hash and a block hash). Everything else goes to zeebo/xxh3, which is also the check of both.
//
// The specialised paths are the published XXH3 formulas for these two lengths with all branches on the length gone and
// the seed folded into the secret once per call. On amd64 the kernels of kernel_amd64.s do it, that of Both with AVX2; their twins in kernel_go.go do the rest, and everything on other machines and under the build tag noasm. The
// twins read tokens as numbers, never as bytes, so they give the same values on hosts of any byte order.
//
// A chain cannot be faster than its latency, 13 cycles a block. Measured on 128 blocks, in cycles a block of AMD's first Zen: Both 18 and
// Blocks 12; twins 25 and 17. Who needs no sequence hashes, as most decisions, does not pay for them.
package xxh3

import (
	"math/bits"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// ChainSeed is the seed of the chain, whatever seed the blocks were hashed with.
const ChainSeed = 1337

// Tokens is how many tokens the 64-byte path takes.
const Tokens = 16

// The default secret of XXH3, as little-endian words by byte offset.
const (
	secret00 uint64 = 0xbe4ba423396cfeb8
	secret08 uint64 = 0x1cad21f72c81017c
	secret16 uint64 = 0xdb979083e96dd4de
	secret24 uint64 = 0x1f67b3b7a4a44072
	secret32 uint64 = 0x78e5c0cc4ee679cb
	secret40 uint64 = 0x2172ffcc7dd05a82
	secret48 uint64 = 0x8e2443f7744608b8
	secret56 uint64 = 0x4c263a81e69035e0
)

const (
	start64    uint64 = (64 * 0x9e3779b185ebca87) & (1<<64 - 1) // length times PRIME64_1
	avalancher uint64 = 0x165667919e3779f9

	chainLow  uint64 = (secret24 ^ secret32) + ChainSeed
	chainHigh uint64 = (secret40 ^ secret48) - ChainSeed
)

// Sum hashes any bytes with any seed.
func Sum(b []byte, seed uint64) uint64 { return xxh3.HashSeed(b, seed) }

// SumString hashes the bytes of a string with any seed.
func SumString(s string, seed uint64) uint64 { return xxh3.HashStringSeed(s, seed) }

// Chain hashes LE64(parent) || LE64(block) with ChainSeed: one step of a sequence hash.
func Chain(parent, block uint64) uint64 {
	low, high := parent^chainLow, block^chainHigh
	return avalanche(16 + bits.ReverseBytes64(low) + high + fold(low, high))
}

// Blocks writes the hash of each 16 tokens, as little-endian uint32s, to dst. tokens holds 16 for each hash; more are
// ignored, fewer are a bug that panics.
func Blocks[H ~uint64](dst []H, tokens []uint32, seed uint64) {
	k := newKey(seed)
	blocks(words(dst), tokens[:len(dst)*Tokens], &k)
}

// Both writes the hashes of Blocks and the sequence hashes they chain to, in one pass. seqs is as long as dst.
func Both[H, S ~uint64](dst []H, seqs []S, tokens []uint32, seed uint64) {
	k := newKey(seed)
	both(words(dst), words(seqs[:len(dst)]), tokens[:len(dst)*Tokens], &k)
}

// words gives hashes as what they are.
func words[H ~uint64](h []H) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(h))), len(h))
}
