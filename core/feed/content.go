package feed

import (
	"math/bits"

	"github.com/dynamo-go/dynamo-go/core/event"
)

// A live batch is bytes, and an indexer's answer is events: what both have in common is what they do. So these are compared, to know
// whether a live batch was of the process that answers.

// contents folds the events of a batch into a fingerprint, beginning with 0. seed is random, so that nobody makes batches that look alike.
func contents(so uint64, ev *event.Event, seed uint64) uint64 {
	h := fold(so^seed, uint64(ev.Kind)|uint64(ev.Tier)<<8|uint64(len(ev.Blocks))<<16)
	if ev.HasParent {
		h = fold(h, uint64(ev.Parent)|1)
		h = fold(h, uint64(ev.Parent))
	}
	for i := range ev.Blocks {
		h = fold(fold(h, uint64(ev.Blocks[i].Engine)), uint64(ev.Blocks[i].Hash))
	}
	for _, name := range ev.Removed {
		h = fold(h, uint64(name))
	}
	return max(h, 1)
}

func fold(h, x uint64) uint64 {
	const a, b = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	high, low := bits.Mul64(h^a, x^b)
	return bits.RotateLeft64(h, 29) + (high ^ low)
}
