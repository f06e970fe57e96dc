package index

import "math/rand/v2"

// Block hashes are computed by a public formula, so whoever chooses prompts could choose hashes that crowd one place of
// a table. Positions therefore depend on odd multipliers that differ from process to process; results do not.
var (
	tableMix = rand.Uint64() | 1
	shardMix = rand.Uint64() | 1 // another one: a shard's roots must not crowd one sixteenth of its table
	setMix   = rand.Uint64()
)

// tagOf gives the 32 bits that place a hash in a table.
func tagOf(h uint64) uint64 { return h * tableMix >> 32 }

// setHash gives the bits a slot contributes to the hash of a set, which is the XOR over its members (splitmix64).
func setHash(slot uint32) uint64 {
	x := setMix + uint64(slot)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// homeOf spreads tags evenly over a table of any size, in the order of the tags.
func homeOf(tag uint64, size int) int { return int(tag * uint64(size) >> 32) }

// grownSize gives the size a table needs for n entries: the same while it is at most three quarters full, where linear
// probing still finds a missing key within a cache line or two, otherwise half as much again.
func grownSize(size, n int) int {
	for n*4 > size*3 {
		size = max(16, size+size/2)
	}
	return size
}

// trimmedSize gives the size to which a table with n entries is cut: the same unless less than a sixth is used, so that
// a table never grows and shrinks in turns.
func trimmedSize(size, n int) int {
	switch {
	case n == 0:
		return 0
	case size > 64 && n*6 < size:
		return 2 * n
	}
	return size
}
