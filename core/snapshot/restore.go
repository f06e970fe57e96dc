package snapshot

import (
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Applier is what a run is applied to: an index.Index for the device, a tier.Tiers for what is below.
type Applier interface {
	Apply(slot worker.Slot, ev *event.Event, counting index.Counting) (index.Applied, error)
}

// Restore applies a run to one slot, references included. The error, if it is refused, is that the parent is not there or
// that there is no room: an index with a byte bound may have evicted it, and the blocks below it are lost with it.
func Restore(x Applier, tier event.Tier, slot worker.Slot, r *index.Run) error {
	ev := event.Event{Kind: event.Stored, Tier: tier, HasParent: r.HasParent, Parent: r.Parent, Blocks: r.Blocks}
	for range r.References {
		if _, err := x.Apply(slot, &ev, index.Count); err != nil {
			return err
		}
	}
	return nil
}
