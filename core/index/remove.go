package index

import (
	"github.com/dynamo-go/dynamo-go/core/block"
)

// remove takes one reference of each name.
func (w *writer) remove(gone []block.EngineHash) {
	for len(gone) > 0 {
		some := gone[:min(len(gone), sectionBlocks)]
		gone = gone[len(some):]
		ys := w.l.ys[:len(some)]
		for i, name := range some {
			ys[i] = mixed(uint64(name))
		}
		w.l.names.prefetch(ys)
		for i := 0; i < len(some); i++ {
			at, own, ok := w.find(some[i])
			switch {
			case !ok:
				w.done.Unknown++
			case own && !w.locked.path(at.path()).odd:
				i += w.removeRun(at, some[i:], ys[i:]) - 1
			default:
				w.removeOne(at, own, some[i])
			}
		}
	}
}

// removeRun takes the slot from a block that it knows once, and from those beside it in the same interval as long as the next
// names are theirs, in either direction. It gives how many. The block's shard is locked. ys place the names in the table.
func (w *writer) removeRun(at place, gone []block.EngineHash, ys []uint64) int {
	s := w.locked
	p := s.path(at.path())
	names := s.arrays(p).names()
	set, from, end := s.setAt(p, at.offset())
	low := at.offset()
	high := low + 1
	var places [sectionBlocks]place
	places[0] = at
	n := 1
	for ; n < len(gone); n++ {
		switch {
		case low > from && names[low-1] == gone[n]:
			low--
			places[n] = placeOf(s.number, at.path(), low)
			continue
		case high < end && names[high] == gone[n]:
			places[n] = placeOf(s.number, at.path(), high)
			high++
			continue
		}
		break
	}
	dead := !s.sets.anyOf(set, w.l.mask, w.slot)
	s.edit(at.path(), low, high, w.slot, false)
	n = int(high - low)
	w.done.Removed += n
	w.exit()
	if dead {
		for i, at := range places[:n] {
			w.l.names.remove(ys[i], at)
		}
	}
	return n
}

// removeOne takes one reference of a name; the last one takes the name.
func (w *writer) removeOne(at place, own bool, name block.EngineHash) {
	if !own {
		if a := w.h.others[name]; a.refs > 1 {
			a.refs--
			w.h.others[name] = a
			return
		}
	} else if r := w.h.record(at); r.own > 1 {
		r.own--
		w.h.set(w.locked.path(at.path()), at, r)
		return
	}
	w.forget(name, at, own)
}

// forget takes a name from a block, and the slot from its holders if it knows it by no other.
func (w *writer) forget(name block.EngineHash, at place, own bool) {
	s := w.enter(at.shard(), 1)
	p := s.path(at.path())
	r := w.h.record(at)
	if own {
		set, _, _ := s.setAt(p, at.offset())
		if !w.l.named(s, p, at, set, w.slot) {
			w.l.names.remove(mixed(uint64(name)), at)
		}
		r.own = 0
	} else {
		w.h.dropOther(name, &r)
	}
	if r.own > 0 || r.others > 0 {
		w.h.set(p, at, r)
		return
	}
	w.h.unset(at)
	s.edit(at.path(), at.offset(), at.offset()+1, w.slot, false)
	w.done.Removed++
}

// clear takes everything: it looks at all paths. The names of blocks that no other slot of the lane knows die.
func (w *writer) clear() {
	left := int(w.h.held.Load())
	for i := range w.x.shards {
		for k := uint32(0); w.done.Removed < left && w.clearChunk(&w.x.shards[i], k); k++ {
		}
	}
	w.h.odd, w.h.others, w.h.last = nil, nil, 0
}

// clearChunk takes the slot from the paths of a chunk of a shard's records, false if there is no such chunk.
func (w *writer) clearChunk(s *shard, k uint32) bool {
	s.lock()
	if int(k) >= len(s.paths.chunks) {
		s.mu.Unlock()
		return false
	}
	for i := range s.paths.per {
		id := k*s.paths.per + i + 1
		if s.lives(id) {
			w.leave(s, id)
		}
	}
	s.mu.Unlock()
	return true
}

// lives tells whether a number is that of a path that is no ghost.
func (s *shard) lives(id uint32) bool { return s.paths.has(id-1) && s.path(id).n > 0 }

// leave takes the slot from a path, interval by interval from its tail.
func (w *writer) leave(s *shard, id uint32) {
	for end := uint32(s.path(id).n); end > 0; {
		p := s.path(id)
		set, from, _ := s.setAt(p, end-1)
		if s.sets.has(set, w.slot) {
			w.leaveNames(s, p, set, placeOf(s.number, id, from), int(end-from))
			s.edit(id, from, end, w.slot, false)
			w.done.Removed += int(end - from)
			if !s.lives(id) {
				return
			}
			from = min(from, uint32(s.path(id).n)) // holes went with it
		}
		end = from
	}
}

// leaveNames lets the path's names die that nobody of the lane uses without the slot.
func (w *writer) leaveNames(s *shard, p *path, set setID, first place, n int) {
	names := s.arrays(p).names()[first.offset():][:n]
	if !p.odd {
		if !s.sets.anyOf(set, w.l.mask, w.slot) {
			for i, name := range names {
				w.l.bury(name, first+place(i))
			}
		}
		return
	}
	for i, name := range names {
		at := first + place(i)
		if w.h.record(at).own > 0 && !w.l.named(s, p, at, set, w.slot) {
			w.l.bury(name, at)
		}
	}
}
