package tier

import (
	"math/bits"
	"math/rand/v2"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Engines choose names, and block hashes are public: what crowds a table must not be known to either. Positions therefore
// depend on numbers that differ from process to process; results do not.
var (
	parentMix, contentMix = rand.Uint64(), rand.Uint64()
	childMix, otherMix    = rand.Uint64(), rand.Uint64()
	rootMix, setMix       = rand.Uint64(), rand.Uint64()
)

// keyHash places an edge by its parent and content.
func keyHash(parent uint64, root bool, content block.Hash) uint64 {
	if root {
		parent ^= rootMix
	}
	return fold(parent^parentMix, uint64(content)^contentMix)
}

// nameHash places an edge below another block by its child.
func nameHash(child block.EngineHash) uint64 { return fold(uint64(child)^childMix, otherMix) }

// ownNameHash places the child of an edge at the root, or of an own one: one for each slot.
func ownNameHash(child block.EngineHash, slot worker.Slot) uint64 {
	return fold(uint64(child)^childMix, rootMix^uint64(slot))
}

// fold multiplies to 128 bits and folds the halves.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

// slotHash gives the bits a slot contributes to the hash of a set, which is the XOR over its members (splitmix64).
func slotHash(slot uint32) uint64 {
	x := setMix + uint64(slot)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
