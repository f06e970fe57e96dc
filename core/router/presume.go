package router

import (
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// This file is routing without events, or ahead of them: blocks are presumed to be where requests went.

// Presumed is the state of every rank of a router without events: nothing is known of what its engine holds.
const Presumed feed.State = "presumed"

const lru = "lru"

// presumes tells whether anything is presumed, and for how long.
func (c *Config) presumes() (ttlNanos int64, ok bool) {
	switch {
	case !c.UseKVEvents:
		return nanos(c.RouterTTLSecs), true
	case c.RouterPredictedTTLSecs != nil:
		return nanos(*c.RouterPredictedTTLSecs), true
	}
	return 0, false
}

// nanos is a time in nanoseconds; what does not fit is for ever.
func nanos(seconds float64) int64 {
	if ns := seconds * 1e9; ns < math.MaxInt64 {
		return int64(ns)
	}
	return math.MaxInt64
}

// presumption checks what the configuration says of it.
func (c *Config) presumption() (faults []error) {
	switch c.RouterApproximateCachePolicy {
	case "ttl":
	case lru:
		if c.UseKVEvents {
			faults = append(faults, fmt.Errorf("%w: router_approximate_cache_policy=lru requires use_kv_events=false", ErrInvalidArgument))
		}
	default:
		faults = append(faults, fmt.Errorf("%w: router_approximate_cache_policy=%q, expected \"ttl\" or \"lru\"", ErrInvalidArgument, c.RouterApproximateCachePolicy))
	}
	if c.RouterPredictedTTLSecs != nil && !c.UseKVEvents {
		faults = append(faults, fmt.Errorf("%w: router_predicted_ttl_secs=%v requires use_kv_events=true", ErrInvalidArgument, *c.RouterPredictedTTLSecs))
	}
	return faults
}

// matchBlocks finds for every slot how many leading blocks of the hashed prompt it holds, or is presumed to: the greater of
// both. The lower tiers go on from what the events say.
func (r *Router) matchBlocks(s *scratch) {
	q := index.Query{Hashes: s.hashes, Sequences: s.sequences}
	s.overlaps = s.overlaps[:0]
	if r.config.UseKVEvents {
		s.overlaps = r.index.Match(s.overlaps, q)
	}
	s.held = len(s.overlaps)
	r.extend(s, q)
	if r.presumed != nil {
		s.overlaps = r.presumed.Match(s.overlaps, q, r.now())
	}
}

// dump gives what a rank holds, or is presumed to if there are no events. k.mu is held.
func (r *Router) dump(k *rank, firstID uint64) []event.Event {
	if !r.config.UseKVEvents {
		return r.presumed.Dump(k.slot, firstID, r.now())
	}
	events := r.index.Dump(k.cache, firstID)
	return append(events, r.dumpTiers(k.cache, firstID+uint64(len(events)))...)
}

// presume records that a rank got a prompt. A booked request holds its blocks of an LRU rank until it ends (Router.ended).
// What cannot be presumed is not: a bounded index may refuse. r.mu is held.
func (r *Router) presume(s *scratch, q *Request, k *rank) {
	query := index.Query{Hashes: s.hashes, Sequences: s.sequences}
	if q.Book {
		_ = r.presumed.Acquire(k.slot, q.ID, query, 0, r.now())
	} else {
		_ = r.presumed.Route(k.slot, query, r.now())
	}
}

// ended hears of every booking that ends. r.mu is held.
func (r *Router) ended(id string, at load.Placement, now int64) {
	r.roomy = true
	r.freed(at.Rank)
	if at.Origin == 0 {
		r.tell(wire.SequenceFreed, id, at.Rank)
	}
	r.sampleEnded(id, at.Slot, now)
	r.release(id)
	if r.config.RouterApproximateCachePolicy == lru {
		_ = r.presumed.Release(id) // it may never have held anything
	}
}

// setCapacity tells how many blocks a rank has room for, where that matters. A rank whose room is unknown forgets by time.
// r.mu is held.
func (r *Router) setCapacity(k *rank) {
	const most = 1 << 40
	if r.config.RouterApproximateCachePolicy == lru {
		_ = r.presumed.SetCapacity(k.slot, min(k.worker.spec.TotalKVBlocks, most), 0) // in range: it cannot fail
	}
}
