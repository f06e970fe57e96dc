package index

import (
	"math/bits"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Match implements Index. What nobody holds the first block of, it answers without a lock.
func (x *tree) Match(dst []Overlap, q Query) []Overlap {
	if len(q.Hashes) == 0 || !x.begins(block.SequenceHash(q.Hashes[0])) {
		return dst
	}
	return x.match(dst, &q)
}

// match follows the query from path to path, keeps the slots that hold all of it so far, and writes a row for those that
// drop out. One shard is read-locked meanwhile.
//
//go:noinline
func (x *tree) match(dst []Overlap, q *Query) []Overlap {
	if len(q.Sequences) != len(q.Hashes) {
		q.Sequences = nil
	}
	s := &x.shards[x.shardOf(block.SequenceHash(q.Hashes[0]))]
	s.rlock()
	// Every slot in a set was known before it got in: read under the lock, this bounds them all.
	switch words := (len(*x.holders.Load()) + 63) / 64; {
	case words <= 4:
		var active [4]uint64
		dst = s.match(dst, q, active[:words])
	case words <= 64:
		dst = s.matchMany(dst, q, words)
	default:
		dst = s.matchMost(dst, q, words)
	}
	s.mu.RUnlock()
	return dst
}

// matchMany is a function of its own, as is matchMost, so that few slots do not pay for clearing a wide array.
//
//go:noinline
func (s *shard) matchMany(dst []Overlap, q *Query, words int) []Overlap {
	var active [64]uint64
	return s.match(dst, q, active[:words])
}

//go:noinline
func (s *shard) matchMost(dst []Overlap, q *Query, words int) []Overlap {
	var active [MaxSlots / 64]uint64
	return s.match(dst, q, active[:words])
}

// match needs active zeroed.
func (s *shard) match(dst []Overlap, q *Query, active []uint64) []Overlap {
	var set setID // of the block before; 0 at the first
	t := trail{s: s, q: q}
	for t.next() {
		if t.path.segs == 1 && t.path.sets[0] == set {
			continue
		}
		var room [inline]seg
		from := uint32(0)
		for _, g := range s.view(t.path, &room) {
			if g.set != set {
				at := uint32(t.depth) + from
				if at == 0 {
					s.fill(active, g.set)
				} else {
					var left bool
					if dst, left = s.narrow(dst, active, g.set, at); !left {
						return dst
					}
				}
				if set = g.set; set == 0 {
					return dst // a hole where the prompt begins
				}
			}
			if from = g.end; from >= t.count {
				break
			}
		}
	}
	if t.path != nil { // what it hangs on does not go before it
		s.x.stamp(t.path, s.x.now()+1)
	}
	for w, members := range active {
		if members != 0 {
			dst = appendRows(dst, w, members, uint32(t.depth))
		}
	}
	return dst
}

// A trail follows a query through the paths of a shard.
type trail struct {
	s     *shard
	q     *Query
	id    uint32
	path  *path
	a     arrays // of path
	depth int    // blocks of the query before path
	count uint32 // blocks of path that the query has
}

// next goes to the path that holds the next blocks of the query, false if there is none. depth then is all that was found.
func (t *trail) next() bool {
	before, at := block.SequenceHash(0), spot{}
	if t.path != nil {
		at = spot{t.id, t.count - 1}
		t.depth += int(t.count)
		if t.depth == len(t.q.Hashes) || t.path.kids == 0 && !t.s.lost { // B7: nothing is found behind it
			return false
		}
		if t.q.Sequences != nil {
			before = t.q.Sequences[t.depth-1]
		} else {
			before = t.s.seqAt(t.path, t.count-1)
		}
	}
	h := t.q.Hashes[t.depth]
	seq := block.SequenceHash(h)
	if t.path != nil {
		if t.q.Sequences != nil {
			seq = t.q.Sequences[t.depth]
		} else {
			seq = block.Extend(before, h)
		}
	}
	if t.id, t.a = t.s.lead(seq, before, h, at); t.id == 0 {
		return false
	}
	t.path = t.s.path(t.id)
	t.count = t.extent()
	return true
}

// extent counts the blocks of the path, which has the first, that the query goes on with.
func (t *trail) extent() uint32 {
	p := t.path
	n := min(int(p.n), len(t.q.Hashes)-t.depth)
	hashes, want := t.a.hashes()[:n], t.q.Hashes[t.depth:t.depth+n]
	if t.q.Sequences == nil {
		return uint32(1 + block.Common(hashes[1:], want[1:]))
	}
	seqs := t.q.Sequences[t.depth : t.depth+n]
	if n == int(p.n) && seqs[n-1] == p.tail {
		return uint32(n)
	}
	marks := t.a.marks()
	low, high := 0, (n-1)/unitBlocks // block 8*low is common, and perhaps 8*high
	for low < high {
		if m := int(uint(low+high+1) / 2); marks[m] == seqs[m*unitBlocks] {
			low = m
		} else {
			high = m - 1
		}
	}
	n = low*unitBlocks + 1
	for end := min(n+unitBlocks-1, len(want)); n < end && hashes[n] == want[n]; n++ {
	}
	return uint32(n)
}

// fill makes active the set.
func (s *shard) fill(active []uint64, set setID) {
	if set&isRow != 0 {
		copy(active, s.sets.words(set))
		return
	}
	if set != 0 {
		slot := set - 1
		active[slot>>6] = 1 << (slot & 63)
	}
}

// narrow keeps of active what is in the set and writes rows for the rest; it tells whether any is left.
func (s *shard) narrow(dst []Overlap, active []uint64, set setID, depth uint32) ([]Overlap, bool) {
	var row []uint64 // beyond its end no slot is a member
	only := set - 1
	if set&isRow != 0 {
		row = s.sets.words(set)
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

// appendRows writes a row for each member of the w-th word of a set. Members come in stretches, mostly; those who stand alone are
// found faster one by one.
func appendRows(dst []Overlap, w int, members uint64, depth uint32) []Overlap {
	n, more := len(dst), bits.OnesCount64(members)
	dst = slices.Grow(dst, more)[:n+more]
	rows := dst[n:]
	slot := worker.Slot(w << 6)
	if stretches := bits.OnesCount64(members &^ (members << 1)); 2*stretches > more {
		for i := range rows {
			rows[i] = Overlap{Slot: slot + worker.Slot(bits.TrailingZeros64(members)), Depth: depth}
			members &= members - 1
		}
		return dst
	}
	for members != 0 {
		skip := bits.TrailingZeros64(members)
		members >>= skip
		slot += worker.Slot(skip)
		k := bits.TrailingZeros64(^members)
		for i := range rows[:k] {
			rows[i] = Overlap{Slot: slot + worker.Slot(i), Depth: depth}
		}
		rows = rows[k:]
		slot += worker.Slot(k)
		members >>= k
	}
	return dst
}
