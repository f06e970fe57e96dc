package router

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/tier"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// This file is where the lower tiers (pinned host memory, disk, external) meet the device's index: what they hold goes on
// where the device match of a rank ends.

// lowerTiers are those that package tier holds, nearest first.
var lowerTiers = [...]event.Tier{event.HostPinned, event.Disk, event.External}

// extend finds how far the lower tiers go on from the device matches in s.overlaps.
func (r *Router) extend(s *scratch, q index.Query) {
	s.extensions = s.extensions[:0]
	s.holders = r.tiers.Holders(s.holders[:0])
	if len(s.holders) == 0 {
		return
	}
	s.depths = sized(s.depths, int(s.holders[len(s.holders)-1])+1)
	for _, slot := range s.holders {
		s.depths[slot] = 0
	}
	for _, o := range s.overlaps {
		if int(o.Slot) < len(s.depths) {
			s.depths[o.Slot] = o.Depth
		}
	}
	s.starts = s.starts[:0]
	for _, slot := range s.holders {
		at := tier.Start{Slot: slot, Depth: s.depths[slot]}
		if at.Depth > 0 {
			var held bool
			if at.Parent, held = r.index.Name(slot, q, int(at.Depth)); !held {
				continue // not any more
			}
		}
		s.starts = append(s.starts, at)
	}
	s.extensions = r.tiers.Extend(s.extensions, q.Hashes, s.starts)
}

// gatherTiers lays the extensions out by slot. Blocks that are presumed on the device are not counted again. r.mu is held.
func (r *Router) gatherTiers(s *scratch, slots int) {
	if len(s.extensions) == 0 {
		return
	}
	s.host, s.disk = sized(s.host, slots), sized(s.disk, slots)
	clear(s.host)
	clear(s.disk)
	for _, x := range s.extensions {
		slot := r.caches.owners[x.Slot]
		if slot == nobody {
			continue
		}
		again := s.device[slot] - s.depths[x.Slot]
		host := min(x.Host, again)
		s.host[slot] = x.Host - host
		disk := x.Disk + x.External
		s.disk[slot] = disk - min(disk, again-host)
	}
	s.view.Host, s.view.Disk = s.host, s.disk
}

// cached tells how many tokens of the prompt a slot need not compute.
func (r *Router) cached(s *scratch, slot worker.Slot, w *schedule.Weights) int64 {
	var host, disk uint32
	if s.view.Host != nil {
		host, disk = s.host[slot], s.disk[slot]
	}
	return schedule.EffectiveCachedTokens(s.device[slot], host, disk, w, r.blockSize)
}

// applyAny applies an event to the tier it is of, or to all if it clears. The view's rank is locked, and alive.
func (r *Router) applyAny(v *view, ev *event.Event, counting index.Counting) (index.Applied, error) {
	if ev.Kind == event.Cleared {
		done, err := r.index.Apply(v.cache, ev, counting)
		below, _ := r.tiers.Apply(v.cache, ev, counting) // it cannot fail
		done.Removed += below.Removed
		r.drop(v.cache) // what the bound took is not missing any more
		v.partial = ""
		return done, err
	}
	apply := r.index.Apply
	if ev.Tier != event.Device {
		apply = r.tiers.Apply
	}
	done, err := apply(v.cache, ev, counting)
	if errors.Is(err, tier.ErrFull) || errors.Is(err, index.ErrFull) {
		err, v.partial = nil, "max_bytes: there was no room for some blocks"
	}
	return done, err
}

// What a part of the router may take of Config.MaxBytes, in eighths.
type share int64

const (
	forTiers share = iota
	forPresumed
	forDevice
)

// share gives the bound of a part, 0 if there is none.
func (c *Config) share(of share) int64 {
	eighths := [...]int64{forTiers: 1, forPresumed: 1, forDevice: 7}
	switch _, presumes := c.presumes(); {
	case !c.UseKVEvents:
		eighths = [...]int64{forTiers: 1, forPresumed: 6, forDevice: 1}
	case presumes:
		eighths[forDevice]--
	}
	return c.MaxBytes / 8 * eighths[of]
}

// presumedBounds splits what is for presumed blocks: half is for their index, about 220 bytes for a prompt of one block, and
// half for what else is known of them, 320 bytes for each 32 blocks that came together, and 160 for a booking.
func (c *Config) presumedBounds() (ofIndex, rest int64) {
	n := c.share(forPresumed)
	return n - n/2, n / 2
}

// evictedBlocks counts what the byte bound took from a rank's cache of what its events said.
func (r *Router) evictedBlocks(cache worker.Slot) uint64 {
	return r.index.Evicted(cache) + r.tiers.Evicted(cache)
}

// evictedPresumed counts what it took of what a rank is presumed to hold.
func (r *Router) evictedPresumed(slot worker.Slot) uint64 {
	if r.presumed == nil {
		return 0
	}
	return r.presumed.Evicted(slot)
}

// drop forgets everything in a cache.
func (r *Router) drop(cache worker.Slot) {
	r.index.Drop(cache)
	r.tiers.Drop(cache)
}

// dumpTiers gives what a cache holds in the lower tiers.
func (r *Router) dumpTiers(cache worker.Slot, firstID uint64) (events []event.Event) {
	for _, t := range lowerTiers {
		events = append(events, r.tiers.Dump(cache, t, firstID+uint64(len(events)))...)
	}
	return events
}
