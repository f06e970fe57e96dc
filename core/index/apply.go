package index

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A writer applies one event to one slot. It holds the lane's mu all the time, and a shard's mu for sections of at most
// sectionBlocks blocks.
type writer struct {
	x        *tree
	l        *lane
	h        *holder
	slot     worker.Slot
	counting Counting

	locked *shard // nil between sections
	spent  int    // blocks touched in this section
	short  bool   // the bound left no room for the next block
	side   int    // bytes of the slot's exceptions that the heap knows of
	told   int    // blocks that the slot's counter knows of
	done   Applied
}

// Apply implements Index.
func (x *tree) Apply(slot worker.Slot, ev *event.Event, counting Counting) (Applied, error) {
	if x.closed.Load() {
		return Applied{Refused: refused(ev)}, ErrClosed
	}
	h, err := x.holder(slot)
	if err != nil {
		return Applied{Refused: refused(ev)}, err
	}
	w := writer{x: x, l: x.lane(slot), h: h, slot: slot, counting: counting}
	w.l.mu.Lock()
	w.side = h.sideBytes()
	switch ev.Kind {
	case event.Stored:
		x.clock.Add(1)
		err = w.store(ev)
	case event.Removed:
		w.remove(ev.Removed)
	case event.Cleared:
		w.clear()
	}
	w.publish()
	w.l.sweep(x.sweep)
	w.l.mu.Unlock()
	if invariants {
		x.mustHold()
	}
	runtime.KeepAlive(x)
	return w.done, err
}

func refused(ev *event.Event) int {
	if ev.Kind == event.Stored {
		return len(ev.Blocks)
	}
	return 0
}

// Drop implements Index.
func (x *tree) Drop(slot worker.Slot) {
	h := x.lookup(slot)
	if h == nil {
		return
	}
	w := writer{x: x, l: x.lane(slot), h: h, slot: slot}
	w.l.mu.Lock()
	w.side = h.sideBytes()
	w.clear()
	w.publish()
	w.l.sweep(0)
	h.evicted.Store(0)
	h.frugal.Store(false)
	w.l.mu.Unlock()
	if invariants {
		x.mustHold()
	}
	runtime.KeepAlive(x)
}

// enter locks a shard for so many blocks more, or goes on with it if it is locked and they fit into the section. What the
// slot holds is where it was, everything else may have moved.
func (w *writer) enter(number uint32, blocks int) *shard {
	s := &w.x.shards[number]
	if w.locked == s && w.spent+blocks <= sectionBlocks {
		w.spent += blocks
		return s
	}
	w.exit()
	s.lock()
	w.locked, w.spent = s, blocks
	return s
}

func (w *writer) exit() {
	if w.locked != nil {
		w.locked.mu.Unlock()
		w.locked = nil
	}
}

// publish ends the section and brings the counters up to date.
func (w *writer) publish() {
	w.exit()
	gained := w.done.Stored - w.done.Removed
	w.h.held.Add(int64(gained - w.told))
	w.told = gained
	side := w.h.sideBytes()
	w.x.heap.note(side - w.side)
	w.side = side
}

// locate gives the block that the lane's table has a name for. Its shard is locked then. but is a slot that does not use the name,
// though it may hold the block without a record yet; or everyone.
func (w *writer) locate(name block.EngineHash, but worker.Slot) (place, bool) {
	for p := w.l.names.probe(mixed(uint64(name))); ; {
		at, ok := p.place()
		if !ok {
			return 0, false
		}
		s := w.enter(at.shard(), 1)
		if w.l.dead.n > 0 && !w.l.uses(s, at, but) {
			continue
		}
		if p := s.path(at.path()); s.arrays(p).names()[at.offset()] == name {
			return at, true
		}
	}
}

// find gives the block that the slot knows by a name, and whether by the path's. Its shard is locked then.
func (w *writer) find(name block.EngineHash) (at place, own, ok bool) {
	if a, ok := w.h.others[name]; ok {
		w.enter(a.at.shard(), 1)
		return a.at, false, true
	}
	at, ok = w.locate(name, everyone)
	if !ok {
		return 0, false, false
	}
	s := w.locked
	p := s.path(at.path())
	set, _, _ := s.setAt(p, at.offset())
	if !s.sets.has(set, w.slot) || p.odd && w.h.record(at).own == 0 {
		return 0, false, false
	}
	return at, true, true
}

// parent is find for the block that an event goes on from: most often the slot's last one.
func (w *writer) parent(name block.EngineHash) (place, bool) {
	if at := w.h.last; at != 0 && len(w.h.others) == 0 {
		s := w.enter(at.shard(), 1)
		// Whatever is there now: if the slot knows a block of this name by it, it is the block.
		if id := at.path(); s.paths.has(id - 1) {
			p := s.path(id)
			if o := at.offset(); !p.odd && o < uint32(p.n) && s.arrays(p).names()[o] == name {
				if set, _, _ := s.setAt(p, o); s.sets.has(set, w.slot) {
					return at, true
				}
			}
		}
	}
	at, _, ok := w.find(name)
	return at, ok
}

func (w *writer) store(ev *event.Event) error {
	if bad, ok := repeated(ev); ok {
		w.done.Refused = len(ev.Blocks)
		return fmt.Errorf("%w: engine hash %d", ErrBadChain, bad)
	}
	parent, hasParent := ev.Parent, ev.HasParent
	blocks := ev.Blocks
	for rounds := 0; ; rounds++ {
		n, err := w.storeBlocks(hasParent, parent, blocks)
		if err != nil && rounds == 0 {
			if w.h.evicted.Load() > 0 {
				w.refuse(blocks) // the parent may have been evicted
			} else {
				w.done.Refused = len(blocks)
			}
			return err
		}
		if n > 0 {
			hasParent, parent = true, blocks[n-1].Engine
		}
		if blocks = blocks[n:]; !w.short {
			return nil
		}
		if w.short = false; err != nil || w.x.heap.limit == 0 || w.h.frugal.Load() || rounds == evictRounds || !w.makeRoom() {
			w.refuse(blocks)
			return fmt.Errorf("%w: %d bytes", ErrFull, w.x.heap.bytes())
		}
	}
}

// storeBlocks stores blocks below a name, or as the first of a prompt, as long as there is room, and gives how many.
func (w *writer) storeBlocks(hasParent bool, parent block.EngineHash, blocks []event.Block) (int, error) {
	var number uint32
	var at spot
	if hasParent {
		place, ok := w.parent(parent)
		if !ok {
			w.short = w.x.heap.limit > 0
			return 0, fmt.Errorf("%w: parent %d, slot %d", ErrUnknownParent, parent, w.slot)
		}
		number, at = place.shard(), spot{place.path(), place.offset()}
	} else if len(blocks) > 0 {
		number = w.x.shardOf(block.SequenceHash(blocks[0].Hash))
	}
	if len(blocks) > 0 && w.x.heap.tight(0) {
		w.exit()
		w.short = true
		return 0, nil
	}
	total := len(blocks)
	fresh := 0                    // names of the next blocks that are known to name nothing
	var seqs []block.SequenceHash // of the next blocks, if they are known
	for len(blocks) > 0 {
		s := w.enter(number, 1)
		next, seq, before, ok := s.after(at, blocks[0].Hash)
		n, look := 0, !ok
		switch {
		case ok:
			if at.path != next.path {
				s.hang(next.path, at)
			}
			n, look = w.hold(s, next, blocks, fresh)
		case fresh > 0:
			if len(seqs) == 0 {
				seqs = w.chain(seq, blocks[:fresh])
			}
			n, next = w.create(s, at, before, seqs[:fresh], blocks[:fresh])
		}
		if n == 0 && look && fresh == 0 && !w.short {
			w.exit() // looking at names may take long: they are not near each other
			ahead := blocks[:min(len(blocks), sectionBlocks)]
			w.reach(ahead)
			if seqs = nil; !ok {
				seqs = w.chain(seq, ahead) // while they are on their way
			}
			if fresh = w.fresh(ahead); fresh > 0 {
				continue
			}
		}
		if n == 0 && !w.short {
			seqs = nil // storeOne has its own
			if next, ok = w.storeOne(number, at, &blocks[0]); ok {
				n = 1
			}
		}
		if n > 0 {
			at = spot{next.path, next.offset + uint32(n) - 1}
			blocks, fresh, seqs = blocks[n:], max(0, fresh-n), seqs[min(n, len(seqs)):]
		}
		if w.short {
			break
		}
	}
	if at.path != 0 && !w.short {
		w.h.last = placeOf(number, at.path, at.offset)
	}
	return total - len(blocks), nil
}

// reach has the places of names loaded that fresh looks at next, at most a section.
func (w *writer) reach(blocks []event.Block) {
	ys := w.l.ys[:len(blocks)]
	for i := range blocks {
		ys[i] = mixed(uint64(blocks[i].Engine))
	}
	w.l.names.prefetch(ys)
}

// fresh counts the leading blocks whose names neither the lane's table nor the slot has.
func (w *writer) fresh(blocks []event.Block) int {
	for i := range blocks {
		if !w.l.names.lacks(w.l.ys[i]) { // at worst another name with the same tag: then it takes longer
			if w.l.dead.n == 0 {
				return i
			}
			_, used := w.locate(blocks[i].Engine, everyone)
			if w.exit(); used {
				return i
			}
		}
		if len(w.h.others) > 0 {
			if _, ok := w.h.others[blocks[i].Engine]; ok {
				return i
			}
		}
	}
	return len(blocks)
}

// chain gives the sequence hashes of blocks, at most a section, the first of which is known. They are valid until the next call.
func (w *writer) chain(seq block.SequenceHash, blocks []event.Block) []block.SequenceHash {
	seqs := w.l.seqs[:len(blocks)]
	seqs[0] = seq
	for i := 1; i < len(seqs); i++ {
		seq = block.Extend(seq, blocks[i].Hash)
		seqs[i] = seq
	}
	return seqs
}

// create stores new blocks of fresh names below a spot, and gives how many and the first. None: there is no room.
func (w *writer) create(s *shard, at spot, before block.SequenceHash, seqs []block.SequenceHash, blocks []event.Block) (int, spot) {
	w.spent = sectionBlocks
	first, n := s.create(at, before, seqs, blocks, w.slot)
	w.exit()
	if n == 0 {
		w.short = true
		return 0, first
	}
	w.done.Stored += int(n)
	return w.name(placeOf(s.number, first.path, first.offset), blocks[:n]), first
}

// name enters the path's names of consecutive blocks, which the slot has just got, into the table. It gives how many: what the table has
// no room for, the slot does not keep.
func (w *writer) name(at place, blocks []event.Block) int {
	for i := range blocks {
		if w.l.names.insert(mixed(uint64(blocks[i].Engine)), at+place(i), false) {
			continue
		}
		first, n := at.offset(), uint32(len(blocks))
		w.enter(at.shard(), 1).edit(at.path(), first+uint32(i), first+n, w.slot, false)
		w.done.Stored -= len(blocks) - i
		w.short = true
		return i
	}
	return len(blocks)
}

// hold makes the slot a holder of blocks that are there, beginning with next, and gives of how many. They end where names have to
// be looked at one by one; look tells that knowing more fresh names would help.
func (w *writer) hold(s *shard, next spot, blocks []event.Block, fresh int) (n int, look bool) {
	p := s.path(next.path)
	set, _, end := s.setAt(p, next.offset)
	room := min(len(blocks), int(end-next.offset), max(1, sectionBlocks-w.spent))
	a := s.arrays(p)
	hashes, names := a.hashes()[next.offset:], a.names()[next.offset:]
	if set == 0 { // a hole: whatever names are there are nobody's
		for n < min(room, fresh) && blocks[n].Hash == hashes[n] {
			names[n] = blocks[n].Engine
			n++
		}
		return w.take(s, next, blocks[:n], true), true
	}
	if p.odd {
		return 0, false
	}
	for n < room && blocks[n].Hash == hashes[n] && blocks[n].Engine == names[n] {
		n++
	}
	switch {
	case n == 0:
		return 0, false
	case s.sets.has(set, w.slot):
		if w.counting != Set {
			return 0, false
		}
		w.done.Duplicate += n
		w.spent += n
		w.x.stamp(p, w.x.now())
	case s.sets.anyOf(set, w.l.mask, w.slot):
		if len(w.h.others) > 0 {
			return 0, false
		}
		w.take(s, next, blocks[:n], false)
	default:
		n = min(n, fresh)
		return w.take(s, next, blocks[:n], true), true
	}
	return n, false
}

// take makes the slot a holder of blocks by the path's names, which the table has or is to have. It gives how many.
func (w *writer) take(s *shard, first spot, blocks []event.Block, name bool) int {
	n := len(blocks)
	if n == 0 {
		return 0
	}
	w.x.stamp(s.path(first.path), w.x.now())
	s.edit(first.path, first.offset, first.offset+uint32(n), w.slot, true)
	w.done.Stored += n
	w.spent += n
	if name {
		w.exit()
		n = w.name(placeOf(s.number, first.path, first.offset), blocks)
	}
	return n
}

// storeOne stores a block below a spot, whatever its name is, and gives where it is; false if there is no room.
func (w *writer) storeOne(number uint32, at spot, b *event.Block) (spot, bool) {
	if w.x.heap.tight(oddBytes + otherBytes + w.h.sideBytes() - w.side) {
		w.short = true
		return spot{}, false
	}
	known, own, ok := w.find(b.Engine)
	s := w.enter(number, 1)
	next, _, _, there := s.after(at, b.Hash)
	if ok && there && known == placeOf(number, next.path, next.offset) {
		w.again(s, next, known, own, b.Engine)
		return next, true
	}
	if ok {
		w.forget(b.Engine, known, own)
		s = w.enter(number, 1)
	}
	next, seq, before, there := s.after(at, b.Hash)
	if !there {
		one := [1]event.Block{*b}
		var n uint32
		if next, n = s.create(at, before, w.chain(seq, one[:]), one[:], w.slot); n == 0 {
			w.short = true
			return spot{}, false
		}
		w.done.Stored++
		w.enterName(s, next, b.Engine, record{})
		return next, true
	}
	p := s.path(next.path)
	set, _, _ := s.setAt(p, next.offset)
	place := placeOf(number, next.path, next.offset)
	if set == 0 {
		s.arrays(p).names()[next.offset] = b.Engine
	}
	r := record{}
	if s.sets.has(set, w.slot) {
		r = w.h.record(place)
		w.done.Duplicate++
	} else {
		s.edit(next.path, next.offset, next.offset+1, w.slot, true)
		w.done.Stored++
	}
	w.enterName(s, next, b.Engine, r)
	return next, true
}

// again stores a name for the block it already names.
func (w *writer) again(s *shard, at spot, known place, own bool, name block.EngineHash) {
	w.done.Duplicate++
	switch {
	case own:
		r := w.h.record(known)
		if r.own = counted(r.own, w.counting); r != w.h.record(known) {
			w.h.set(s.path(at.path), known, r)
		}
	default:
		a := w.h.others[name]
		a.refs = counted(a.refs, w.counting)
		w.h.others[name] = a
	}
}

func counted(refs uint32, counting Counting) uint32 {
	if counting == Set {
		return 1
	}
	return min(refs, maxReferences-1) + 1
}

// enterName adds a name, that names nothing of the slot, to a block it holds. r is what it knows of the block so far.
func (w *writer) enterName(s *shard, at spot, name block.EngineHash, r record) {
	place := placeOf(s.number, at.path, at.offset)
	known, taken := w.locate(name, w.slot) // which holds the block, but does not know it by this name yet
	s = w.enter(s.number, 1)
	p := s.path(at.path)
	if s.arrays(p).names()[at.offset] == name && (!taken || known == place) {
		r.own++
		if !taken {
			w.l.names.insert(mixed(uint64(name)), place, true)
		}
	} else {
		w.h.addOther(name, place, &r)
	}
	w.h.set(p, place, r)
}

// repeated finds an engine hash that is twice among the parent and the blocks.
func repeated(ev *event.Event) (block.EngineHash, bool) {
	if len(ev.Blocks) > 2*sectionBlocks {
		return repeatedSorted(ev)
	}
	const words = 64
	var seen [words]uint64 // a bit for some thousand classes of names: only of a class seen before a name is looked for
	if ev.HasParent {
		y := mixed(uint64(ev.Parent))
		seen[y>>6%words] |= 1 << (y & 63)
	}
	for i := range ev.Blocks {
		name := ev.Blocks[i].Engine
		y := mixed(uint64(name))
		w, bit := &seen[y>>6%words], uint64(1)<<(y&63)
		if *w&bit != 0 && (ev.HasParent && name == ev.Parent || named(ev.Blocks[:i], name)) {
			return name, true
		}
		*w |= bit
	}
	return 0, false
}

func named(blocks []event.Block, name block.EngineHash) bool {
	for i := range blocks {
		if blocks[i].Engine == name {
			return true
		}
	}
	return false
}

func repeatedSorted(ev *event.Event) (block.EngineHash, bool) {
	all := make([]block.EngineHash, 0, len(ev.Blocks)+1)
	if ev.HasParent {
		all = append(all, ev.Parent)
	}
	for i := range ev.Blocks {
		all = append(all, ev.Blocks[i].Engine)
	}
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			return all[i], true
		}
	}
	return 0, false
}
