package router

import (
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// This file is the cache that all ranks share, of which the router knows what a request says (Prompt.Shared).

// checkShared refuses ranges that are empty, overlap or are out of order.
func checkShared(ranges [][2]uint32) error {
	end := uint32(0)
	for i, r := range ranges {
		if r[0] >= r[1] || i > 0 && r[0] < end {
			return fmt.Errorf("%w: shared blocks [%d, %d) behind %d: expected ranges [start, end) that ascend and are not empty", ErrInvalidArgument, r[0], r[1], end)
		}
		end = r[1]
	}
	return nil
}

// share lays out by slot how many of the shared blocks are beyond those that the slot's device holds. r.mu is held.
func (r *Router) share(s *scratch, ranges [][2]uint32) {
	if len(ranges) == 0 {
		return
	}
	s.beyond = sized(s.beyond, s.view.Slots)
	for slot := range s.beyond {
		s.beyond[slot] = beyond(ranges, s.device[slot], uint32(len(s.hashes)))
	}
	s.view.Shared = s.beyond
}

// beyond counts the positions in [from, to) that ranges cover.
func beyond(ranges [][2]uint32, from, to uint32) (n uint32) {
	for _, r := range ranges {
		if start, end := max(r[0], from), min(r[1], to); start < end {
			n += end - start
		}
	}
	return n
}

// sharedBeyond is a slot's element of view.Shared, nil if nothing is known of a shared cache.
func (s *scratch) sharedBeyond(slot worker.Slot) *uint32 {
	if s.view.Shared == nil {
		return nil
	}
	n := s.beyond[slot]
	return &n
}

func (r *Router) showShared(out *OverlapScores, s *scratch, p *Prompt) {
	if out.SharedCache.Enabled = len(p.Shared) > 0; out.SharedCache.Enabled {
		out.SharedCache.Ranges = append(out.SharedCache.Ranges, p.Shared...)
		out.SharedCache.TotalHitBlocks = int(beyond(p.Shared, 0, uint32(len(s.hashes))))
	}
}
