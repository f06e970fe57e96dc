package index

import (
	"math/bits"
	"math/rand/v2"
)

// Block hashes are computed by a public formula, so whoever chooses prompts could choose hashes that crowd one place of
// a table. Positions therefore depend on numbers that differ from process to process; results do not.
var (
	mixAdd, mixMul   = rand.Uint64(), rand.Uint64() | 1
	rootAdd, rootMul = rand.Uint64(), rand.Uint64() | 1 // others: a shard's roots must not crowd a part of its tables
	setMix           = rand.Uint64()
)

// mixed gives the 64 bits that place a key in a table.
func mixed(key uint64) uint64 { return fold(key^mixAdd, mixMul) }

// mixedRoot gives the 64 bits that choose the shard of a prompt's first block, and its counter among the roots.
func mixedRoot(key uint64) uint64 { return fold(key^rootAdd, rootMul) }

func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

// setHash gives the bits a slot contributes to the hash of a set, which is the XOR over its members (splitmix64).
func setHash(slot uint32) uint64 {
	x := setMix + uint64(slot)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
