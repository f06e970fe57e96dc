// Package xxh3 computes XXH3-64 for the two inputs that block hashing is made of: 64 bytes (16 tokens) and 16 bytes
// (a parent's sequence hash and a block hash). Everything else goes to zeebo/xxh3, which is also the check of both.
//
// The specialised paths are the published XXH3 formulas for these two lengths with all branches on the length gone and
// the seed folded into the secret once per call. They read tokens as numbers, never as bytes, so they give the same
// values on hosts of any byte order, and the compiler still loads two tokens at a time on little-endian ones.
package xxh3

import (
	"math/bits"

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

// Blocks writes the hash of each 16 tokens, as little-endian uint32s, to dst, which holds exactly one hash per 16 tokens.
func Blocks[H ~uint64](dst []H, tokens []uint32, seed uint64) {
	k := newKey(seed)
	for i := range dst {
		dst[i] = H(k.sum((*[Tokens]uint32)(tokens[i*Tokens:])))
	}
}

// Both writes the hashes of Blocks and the sequence hashes they chain to, in one pass: the chain's latency hides the
// hashing of the next block. seqs is as long as dst.
func Both[H, S ~uint64](dst []H, seqs []S, tokens []uint32, seed uint64) {
	if len(dst) == 0 {
		return
	}
	k := newKey(seed)
	seqs = seqs[:len(dst)]
	prev := k.sum((*[Tokens]uint32)(tokens))
	dst[0], seqs[0] = H(prev), S(prev)
	for i := 1; i < len(dst); i++ {
		h := k.sum((*[Tokens]uint32)(tokens[i*Tokens:]))
		prev = Chain(prev, h)
		dst[i], seqs[i] = H(h), S(prev)
	}
}

// key is the part of the secret that 64 bytes use, in the order of use, with the seed mixed in.
type key [8]uint64

func newKey(seed uint64) key {
	return key{
		secret00 + seed, secret08 - seed, secret32 + seed, secret40 - seed,
		secret48 + seed, secret56 - seed, secret16 + seed, secret24 - seed,
	}
}

func (k *key) sum(t *[Tokens]uint32) uint64 {
	a := fold(pair(t[0], t[1])^k[0], pair(t[2], t[3])^k[1]) + fold(pair(t[4], t[5])^k[2], pair(t[6], t[7])^k[3])
	b := fold(pair(t[8], t[9])^k[4], pair(t[10], t[11])^k[5]) + fold(pair(t[12], t[13])^k[6], pair(t[14], t[15])^k[7])
	return avalanche(start64 + a + b)
}

// pair is the little-endian word of two tokens.
func pair(low, high uint32) uint64 { return uint64(low) | uint64(high)<<32 }

// fold multiplies to 128 bits and folds the halves.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func avalanche(h uint64) uint64 {
	h ^= h >> 37
	h *= avalancher
	return h ^ h>>32
}
