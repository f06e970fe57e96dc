package index

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// ErrFull is Apply's answer to a store for which the byte bound leaves no room, whatever goes; or, without a bound, one that goes
// beyond the paths or names that are possible. Applied tells how many of its first
// blocks were stored nevertheless, and Refused how many were not.
var ErrFull = errors.New("index is full")

const (
	minBound = 1 << 20 // bytes: an empty index and a table or two
	minSlack = 128 << 10

	evictBlocks = 64 // of a path at a time
	evictRounds = 64 // for one event: then it is refused
	samples     = 64 // paths looked at for each that goes
	keptSamples = 16
)

// Under a bound, memory is asked for politely where a store can be broken off, and is refused from slack bytes before the
// bound on. What cannot be broken off, sets and lists of intervals above all, takes of the slack.
func (h *heap) bound(bytes int64) {
	if bytes > 0 {
		h.hard = max(bytes, minBound)
		h.limit = h.hard - max(h.hard/16, minSlack)
	}
}

// tight tells whether so much of the slack is used that a store should wait until something is gone.
func (h *heap) tight(more int) bool {
	if h.limit == 0 {
		return false
	}
	h.mu.Lock()
	free := h.mapped.Load() - int64(h.pages.live)*pageBytes
	h.mu.Unlock()
	slack := h.hard - h.limit
	return h.bytes()-free > h.limit+slack/2 || h.bytes()+int64(more) > h.hard-slack/4
}

// An evictor chooses the paths that were not used for longest, among those that nothing hangs on. It looks at some paths
// each time, one after the other, and keeps the oldest it saw: of few paths it finds the oldest, of many an old one.
//
// Guard: mu, before the lanes' locks.
type evictor struct {
	mu     sync.Mutex
	shard  uint32 // where it looks next
	record uint32
	kept   []candidate // oldest first
}

type candidate struct {
	shard, id, stamp uint32
}

// now gives the time for stamps: the number of stores so far. A match after a store is later than it.
func (x *tree) now() uint32 { return x.clock.Load() }

// stamp notes that a path is used. Readers of a shard may do it too.
func (x *tree) stamp(p *path, now uint32) {
	if x.heap.limit > 0 && atomic.LoadUint32(&p.stamp) != now {
		atomic.StoreUint32(&p.stamp, now)
	}
}

// evict takes dead names out of the tables; or if there are none, up to so many blocks from everyone: the ends of paths, least
// recently used first. It gives how many, 0 if there is nothing to take. It takes the locks of all lanes.
func (x *tree) evict(blocks int) int {
	x.evictor.mu.Lock()
	defer x.evictor.mu.Unlock()
	x.lockAll()
	defer x.unlockAll()
	gone := 0
	for i := range x.used {
		l := &x.lanes[i]
		gone += l.dead.n
		l.sweep(l.dead.n)
	}
	if gone > 0 {
		return gone
	}
	for gone < blocks {
		c, ok := x.oldest()
		if !ok {
			break
		}
		gone += x.cutTail(&x.shards[c.shard], c.id, evictBlocks)
	}
	return gone
}

// oldest looks at some more paths, and gives the oldest of those kept that is still as it was.
func (x *tree) oldest() (candidate, bool) {
	e := &x.evictor
	for tries := 0; tries < 4; tries++ {
		n := 0
		for range shardCount + 1 {
			s := &x.shards[e.shard]
			end := uint32(len(s.paths.chunks)) * s.paths.per
			for ; e.record < end && n < samples; e.record++ {
				if s.lives(e.record + 1) {
					n++
					e.consider(candidate{e.shard, e.record + 1, atomic.LoadUint32(&s.path(e.record + 1).stamp)}, s)
				}
			}
			if n == samples {
				break
			}
			e.shard, e.record = (e.shard+1)%shardCount, 0
		}
		for len(e.kept) > 0 {
			c := e.kept[0]
			e.kept = e.kept[:copy(e.kept, e.kept[1:])]
			s := &x.shards[c.shard]
			if s.lives(c.id) && s.path(c.id).kids == 0 && atomic.LoadUint32(&s.path(c.id).stamp) == c.stamp {
				return c, true
			}
		}
		if n == 0 {
			break
		}
	}
	return candidate{}, false
}

// consider keeps a candidate if it is among the oldest.
func (e *evictor) consider(c candidate, s *shard) {
	if s.path(c.id).kids > 0 {
		return
	}
	i := len(e.kept)
	for i > 0 && e.kept[i-1].stamp > c.stamp {
		i--
	}
	for _, k := range e.kept {
		if k.shard == c.shard && k.id == c.id {
			return
		}
	}
	if i == keptSamples {
		return
	}
	if len(e.kept) < keptSamples {
		e.kept = append(e.kept, c)
	}
	copy(e.kept[i+1:], e.kept[i:])
	e.kept[i] = c
}

// cutTail takes the last blocks of a path from everyone who holds them.
func (x *tree) cutTail(s *shard, id uint32, blocks uint32) int {
	s.lock()
	defer s.mu.Unlock()
	p := s.path(id)
	n := uint32(p.n)
	to := n - min(n, blocks)
	var room [inline]seg
	segs := s.view(p, &room)
	k := len(segs)
	for k > 0 {
		g, from := segs[k-1], uint32(0)
		if k > 1 {
			from = segs[k-2].end
		}
		if g.end <= to {
			break
		}
		cut := max(from, to)
		x.strip(s, id, p, g.set, cut, g.end)
		s.pairs -= int(g.end-cut) * s.sets.size(g.set)
		if g.set != 0 {
			s.blocks -= int(g.end - cut)
		}
		if cut > from {
			break
		}
		s.sets.release(g.set)
		k--
	}
	out := append(s.work[:0], segs[:k]...)
	s.work = out
	if k > 0 {
		out[k-1].end = min(out[k-1].end, to)
	}
	s.settle(id, p, out)
	return int(n - to)
}

// strip takes blocks [from,to) of a path, which a set of slots hold, out of what lanes and holders know.
func (x *tree) strip(s *shard, id uint32, p *path, set setID, from, to uint32) {
	if set == 0 {
		return
	}
	names := s.arrays(p).names()
	for i := range x.used {
		l := &x.lanes[i]
		if !s.sets.anyOf(set, l.mask, everyone) {
			continue
		}
		for o := from; o < to; o++ {
			if at := placeOf(s.number, id, o); !p.odd || l.named(s, p, at, set, everyone) {
				l.names.remove(mixed(uint64(names[o])), at)
			}
		}
	}
	holders := *x.holders.Load()
	s.sets.each(set, func(slot worker.Slot) {
		h := holders[slot]
		h.held.Add(-int64(to - from))
		h.evicted.Add(uint64(to - from))
		if !p.odd || len(h.odd) == 0 {
			return
		}
		side := h.sideBytes()
		for o := from; o < to; o++ {
			at := placeOf(s.number, id, o)
			if r, ok := h.odd[at]; ok {
				h.dropOthers(&r)
				h.unset(at)
			}
		}
		x.heap.note(h.sideBytes() - side)
	})
}

// SetEvicts implements Index.
func (x *tree) SetEvicts(slot worker.Slot, may bool) {
	if h, err := x.holder(slot); err == nil {
		h.frugal.Store(!may)
	}
}

// makeRoom lets others go on while blocks are evicted, false if there were none. The slot's blocks may be among them.
func (w *writer) makeRoom() bool {
	w.publish()
	w.l.mu.Unlock()
	n := w.x.evict(evictBlocks)
	w.l.mu.Lock()
	w.side = w.h.sideBytes()
	return n > 0
}

// refuse ends a store that the bound leaves no room for. What the slot knew by the names of the blocks is not theirs any more:
// the engine uses them for others now.
func (w *writer) refuse(blocks []event.Block) {
	w.done.Refused += len(blocks)
	for i := range blocks {
		if at, own, ok := w.find(blocks[i].Engine); ok {
			w.forget(blocks[i].Engine, at, own)
		}
	}
}
