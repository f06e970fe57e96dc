package snapshot

import (
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Restore applies a run to one slot, references included. The index's error, if it refuses, is that the parent is not
// there: an index with a byte bound may have evicted it, and the blocks below it are lost with it.
func Restore(x index.Index, slot worker.Slot, r *index.Run) error {
	ev := event.Event{Kind: event.Stored, HasParent: r.HasParent, Parent: r.Parent, Blocks: r.Blocks}
	for range r.References {
		if _, err := x.Apply(slot, &ev, index.Count); err != nil {
			return err
		}
	}
	return nil
}
