package workload

import (
	"iter"

	"github.com/dynamo-go/dynamo-go/core/event"
)

// Digest sums up a stream of events, order included. Two generators that give the same digest under Peer names make the
// same stream.
func Digest(ops iter.Seq[Op]) uint64 {
	var h uint64
	add := func(n uint64) { h = Mix(h ^ n) }
	for op := range ops {
		add(uint64(op.Slot))
		add(op.Event.ID)
		if op.Event.Kind == event.Stored {
			add(uint64(op.Event.Parent))
		}
		for _, b := range op.Event.Blocks {
			add(uint64(b.Hash))
			add(uint64(b.Engine))
		}
		for _, name := range op.Event.Removed {
			add(uint64(name))
		}
	}
	return h
}
