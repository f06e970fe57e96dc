package xxh3

import "math/bits"

// key is the part of the secret that 64 bytes use, in the order of use, with the seed mixed in.
type key [8]uint64

func newKey(seed uint64) key {
	return key{
		secret00 + seed, secret08 - seed, secret32 + seed, secret40 - seed,
		secret48 + seed, secret56 - seed, secret16 + seed, secret24 - seed,
	}
}

// blocksGo hashes len(dst) blocks of tokens.
func blocksGo(dst []uint64, tokens []uint32, k *key) {
	for i := range dst {
		dst[i] = k.sum((*[Tokens]uint32)(tokens[i*Tokens:]))
	}
}

// bothGo hashes the blocks from the one at from on, and chains them to what seqs holds before it. The chain's latency hides
// the hashing of the next block.
func bothGo(dst, seqs []uint64, tokens []uint32, k *key, from int) {
	if from == len(dst) {
		return
	}
	seqs = seqs[:len(dst)]
	var parent uint64
	if from == 0 {
		parent = k.sum((*[Tokens]uint32)(tokens))
		dst[0], seqs[0] = parent, parent
		from = 1
	} else {
		parent = seqs[from-1]
	}
	for i := from; i < len(dst); i++ {
		h := k.sum((*[Tokens]uint32)(tokens[i*Tokens:]))
		parent = Chain(parent, h)
		dst[i], seqs[i] = h, parent
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
