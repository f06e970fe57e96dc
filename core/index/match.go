package index

import (
	"math/bits"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Match implements Index: it walks the blocks from the first, keeps the slots that hold all of them, and writes a row
// for those that drop out. One shard is read-locked meanwhile.
func (x *sharded) Match(dst []Overlap, q Query) []Overlap {
	if len(q.Hashes) == 0 {
		return dst
	}
	if len(q.Sequences) != len(q.Hashes) {
		q.Sequences = block.Sequences(nil, q.Hashes)
	}
	s := &x.shards[x.shardOf(q.Sequences[0])]
	s.mu.RLock()
	defer s.mu.RUnlock()
	// Every slot in a set was known before it got in: read under the lock, this bounds them all.
	switch words := (len(*x.holders.Load()) + 63) / 64; {
	case words <= 4:
		var active [4]uint64
		return s.match(dst, q, active[:words])
	case words <= 64:
		return s.matchMany(dst, q, words)
	default:
		return s.matchMost(dst, q, words)
	}
}

// matchMany is a function of its own, as is matchMost, so that few slots do not pay for clearing a wide array.
//
//go:noinline
func (s *shard) matchMany(dst []Overlap, q Query, words int) []Overlap {
	var active [64]uint64
	return s.match(dst, q, active[:words])
}

//go:noinline
func (s *shard) matchMost(dst []Overlap, q Query, words int) []Overlap {
	var active [MaxSlots / 64]uint64
	return s.match(dst, q, active[:words])
}

// match needs active zeroed.
func (s *shard) match(dst []Overlap, q Query, active []uint64) []Overlap {
	k := key{seq: q.Sequences[0], hash: q.Hashes[0]}
	n, ok := s.find(&k, noNode)
	if !ok {
		return dst
	}
	set := s.at(n).set
	s.fill(active, set)
	depth := 1
	for ; depth < len(q.Hashes); depth++ {
		k = key{q.Sequences[depth], k.seq, q.Hashes[depth], uint32(depth)}
		if n, ok = s.find(&k, n); !ok {
			break
		}
		if next := s.at(n).set; next != set {
			set = next
			if dst, ok = s.narrow(dst, active, set, uint32(depth)); !ok {
				return dst
			}
		}
	}
	for w, members := range active {
		dst = appendRows(dst, w, members, uint32(depth))
	}
	return dst
}

// fill makes active the set.
func (s *shard) fill(active []uint64, set setID) {
	if set&isRow != 0 {
		copy(active, s.sets.row(set))
		return
	}
	slot := set - 1
	active[slot>>6] = 1 << (slot & 63)
}

// narrow keeps of active what is in the set and writes rows for the rest; it tells whether any is left.
func (s *shard) narrow(dst []Overlap, active []uint64, set setID, depth uint32) ([]Overlap, bool) {
	var row []uint64 // beyond its end no slot is a member
	only := set - 1
	if set&isRow != 0 {
		row = s.sets.row(set)
	}
	left := uint64(0)
	for w, was := range active {
		members := uint64(0)
		switch {
		case w < len(row):
			members = row[w]
		case row == nil && w == int(only>>6):
			members = 1 << (only & 63)
		}
		if gone := was &^ members; gone != 0 {
			dst = appendRows(dst, w, gone, depth)
			active[w] = was & members
		}
		left |= active[w]
	}
	return dst, left != 0
}

// appendRows writes a row for each member of the w-th word of a set.
func appendRows(dst []Overlap, w int, members uint64, depth uint32) []Overlap {
	for ; members != 0; members &= members - 1 {
		slot := worker.Slot(w<<6 + bits.TrailingZeros64(members))
		dst = append(dst, Overlap{Slot: slot, Depth: depth})
	}
	return dst
}
