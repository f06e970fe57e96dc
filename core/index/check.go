package index

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// mustHold panics if an invariant is broken. Builds with the tag "invariants" call it after every change of a small
// index, the others never.
func (x *tree) mustHold() {
	const small = 300 // pairs: a check looks at everything
	n := 0
	for _, h := range *x.holders.Load() {
		if h != nil {
			n += int(h.held.Load())
		}
	}
	if n > small {
		return
	}
	if err := x.check(); err != nil {
		panic("index: broken " + err.Error())
	}
}

// A census is what the paths say should be elsewhere.
type census struct {
	units int             // of the arena
	lines int             // of tables, but for whole slabs
	held  []int           // by slot
	names []map[place]int // by lane: places that a slot of the lane knows by the path's name
	roots [1 << rootBits]uint32
}

// check verifies all invariants, by number. It takes all locks, in their order.
func (x *tree) check() error {
	x.grow.Lock()
	defer x.grow.Unlock()
	x.lockAll()
	defer x.unlockAll()
	for i := range x.shards {
		x.shards[i].mu.Lock()
		defer x.shards[i].mu.Unlock()
	}
	holders := *x.holders.Load()
	c := census{held: make([]int, len(holders)), names: make([]map[place]int, x.used)}
	for i := range c.names {
		c.names[i] = make(map[place]int)
	}
	for i := range x.shards {
		if err := x.shards[i].check(&c, holders); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
	}
	for i := range x.used {
		if err := x.lanes[i].check(&c); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	for slot, h := range holders {
		if h != nil {
			if err := x.checkHolder(worker.Slot(slot), h, &c); err != nil {
				return fmt.Errorf("slot %d: %w", slot, err)
			}
		}
	}
	for i := range c.roots {
		if got, begun := x.roots[i], x.begun[i>>6].Load()>>(i&63)&1 != 0; got != c.roots[i] || begun != (got > 0) {
			return fmt.Errorf("invariant H2: %d roots, counted %d, begun %t", c.roots[i], got, begun)
		}
	}
	return x.checkMemory(&c)
}

func (x *tree) checkMemory(c *census) error {
	if x.arena.runs.live != c.units || x.lines.runs.live != c.lines {
		return fmt.Errorf("invariant U1: %d and %d units in use, %d and %d handed out", c.units, c.lines, x.arena.runs.live, x.lines.runs.live)
	}
	for _, r := range x.heap.reserved {
		live := 0
		for _, c := range x.heap.pages.chunks {
			if c.base != nil && r.has(c.base) {
				live += int(c.units) * pageBytes
			}
		}
		if live == 0 || live != r.live || r.live > r.used || r.used > len(r.huge) {
			return fmt.Errorf("a reservation has %d bytes of regions, counted %d, %d cut off", live, r.live, r.used)
		}
	}
	for _, s := range []*space{&x.heap.pages, &x.arena.runs, &x.lines.runs} {
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *space) check() error {
	live, free, empty := 0, 0, 0
	for k := range s.chunks {
		c := &s.chunks[k]
		if c.base == nil {
			continue
		}
		set := 0
		for _, w := range c.free {
			set += bits.OnesCount64(w)
		}
		if set != int(c.units-c.live) {
			return fmt.Errorf("invariant U1: chunk %d has %d free units of %d, %d handed out", k, set, c.units, c.live)
		}
		if c.live == 0 {
			empty++
			if !slices.Contains(s.empty, uint32(k)) || s.live == 0 && c.units > s.small {
				return fmt.Errorf("invariant U3: chunk %d is empty", k)
			}
		}
		live += int(c.live)
		free += set
	}
	listed, gone := 0, 0
	for b, r := range s.bins {
		if (r != noRun) != (s.filled[b>>6]>>(b&63)&1 != 0) {
			return fmt.Errorf("invariant U2: bin %d", b)
		}
		for ; r != noRun; r = s.note(r.chunk(), r.unit()).next {
			n := s.note(r.chunk(), r.unit()).units
			c := &s.chunks[r.chunk()]
			is := func(u uint32) bool { return c.free[u>>6]>>(u&63)&1 != 0 }
			u := r.unit()
			if int(binOf(n)) != b || u > 0 && is(u-1) || u+n < c.units && is(u+n) || !is(u) || s.note(r.chunk(), u+n-1).first != u {
				return fmt.Errorf("invariant U2: free run %d of %d units", r, n)
			}
			listed += int(n)
			gone += int(s.note(r.chunk(), u).gone)
		}
	}
	if empty > 1 || empty != len(s.empty) {
		return fmt.Errorf("invariant U3: %d empty chunks, listed %d", empty, len(s.empty))
	}
	if live != s.live || listed != free || gone != s.gone {
		return fmt.Errorf("invariant U1: %d units handed out, counted %d; %d free, listed %d", live, s.live, free, listed)
	}
	return nil
}

func (p *pool) check() error {
	live := 0
	for k := range p.chunks {
		c := &p.chunks[k]
		n := int(p.per) - bits.OnesCount64(c.free)
		live += n
		if (n > 0) != (c.base != nil) {
			return fmt.Errorf("invariant P2: chunk %d has %d records", k, n)
		}
		if (c.free != 0) != (p.open[k>>6]>>(k&63)&1 != 0) || c.free != 0 && k>>6 < p.from {
			return fmt.Errorf("invariant P2: chunk %d is not listed as it is", k)
		}
	}
	if live != p.live {
		return fmt.Errorf("invariant P1: %d records, counted %d", live, p.live)
	}
	return nil
}

func (t *table) check(c *census) error {
	total, lines := 0, 0
	for i := range t.parts {
		p := &t.parts[i]
		n := uint32(0)
		for at := range p.lines {
			l := p.line(at)
			for k, e := range l {
				if e == 0 {
					continue
				}
				n++
				if k > 0 && l[k-1] == 0 {
					return fmt.Errorf("invariant T: a place before entry %d of line %d is empty", k, at)
				}
				for full := p.home(e >> placeBits); full != at; full = p.after(full) {
					if p.line(full)[lineEntries-1] == 0 {
						return fmt.Errorf("invariant T: entry %d of line %d cannot be reached from its home", k, at)
					}
				}
			}
		}
		if n != p.n || n > 0 && n >= p.size() || n == 0 && p.size() > 0 {
			return fmt.Errorf("invariant T: %d entries of %d, counted %d", n, p.size(), p.n)
		}
		total += int(n)
		lines += int(p.lines)
		c.lines += int(p.lines % slabLines)
	}
	if total != t.n || lines != t.units {
		return fmt.Errorf("invariant T: %d entries, counted %d; %d lines, counted %d", total, t.n, lines, t.units)
	}
	return nil
}

func (s *shard) check(c *census, holders []*holder) error {
	living, blocks, pairs, ghosts := 0, 0, 0, 0
	refs := make(map[setID]uint32)
	kids := make(map[uint32]uint32)
	lists := make([]int, listShifts)
	seen := make(map[block.SequenceHash]bool)
	for r := range uint32(len(s.paths.chunks)) * s.paths.per {
		if !s.paths.has(r) {
			continue
		}
		id := r + 1
		p := s.path(id)
		if p.parent != 0 {
			if !s.paths.has(p.parent - 1) {
				return fmt.Errorf("invariant B5: parent %d of path %d is gone", p.parent, id)
			}
			kids[p.parent]++
		}
		if p.n == 0 {
			ghosts++
			continue
		}
		living++
		c.units += int(p.units)
		if err := s.checkPath(id, p, c, seen); err != nil {
			return fmt.Errorf("path %d: %w", id, err)
		}
		if p.segs > inline {
			lists[p.ends[0]]++
		}
		var room [inline]seg
		segs := s.view(p, &room)
		from := uint32(0)
		for i, g := range segs {
			if g.end <= from || i > 0 && segs[i-1].set == g.set || i == len(segs)-1 && (g.set == 0 || g.end != uint32(p.n)) {
				return fmt.Errorf("invariant B4: path %d has intervals %v, %d blocks", id, segs, p.n)
			}
			refs[g.set]++
			n := int(g.end - from)
			if g.set != 0 {
				blocks += n
			}
			pairs += n * s.sets.size(g.set)
			s.count(id, p, from, g, c, holders)
			from = g.end
		}
	}
	for r := range uint32(len(s.paths.chunks)) * s.paths.per {
		if s.paths.has(r) {
			if p := s.path(r + 1); p.kids != kids[r+1] || p.n == 0 && p.kids == 0 {
				return fmt.Errorf("invariant B5: path %d has %d kids, counted %d", r+1, kids[r+1], p.kids)
			}
		}
	}
	switch {
	case living != s.living || s.heads.n != living || s.paths.live != living+ghosts:
		return fmt.Errorf("invariant B3: %d paths, counted %d, %d found by heads", living, s.living, s.heads.n)
	case blocks != s.blocks || pairs != s.pairs:
		return fmt.Errorf("invariant B4: %d blocks and %d pairs, counted %d and %d", blocks, pairs, s.blocks, s.pairs)
	}
	for k := range s.lists {
		if s.lists[k].live != lists[k] {
			return fmt.Errorf("invariant B4: %d lists, counted %d", lists[k], s.lists[k].live)
		}
	}
	for _, err := range []error{s.paths.check(), s.heads.check(c), s.sets.check(refs, c)} {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *shard) checkPath(id uint32, p *path, c *census, seen map[block.SequenceHash]bool) error {
	a := s.arrays(p)
	if int(p.n) > s.x.maxPath || unitsFor(uint32(p.n)) > uint32(p.units) {
		return fmt.Errorf("invariant B1: %d blocks in %d units", p.n, p.units)
	}
	seq := block.SequenceHash(a.hashes()[0])
	if p.root(a) {
		c.roots[rootOf(p.head)]++
	} else {
		seq = block.Extend(a.marks()[0], a.hashes()[0])
	}
	if seq != p.head || s.headed(p.head, a.marks()[0], a.hashes()[0]) != id {
		return fmt.Errorf("invariant B2: head %d", p.head)
	}
	if !s.lost && (p.parent == 0) != p.root(a) {
		return fmt.Errorf("invariant B7: parent %d", p.parent)
	}
	if !s.lost && p.parent != 0 {
		parent := s.path(p.parent)
		if p.at >= parent.n || s.seqAt(parent, uint32(p.at)) != a.marks()[0] {
			return fmt.Errorf("invariant B7: block %d of parent %d, of %d", p.at, p.parent, parent.n)
		}
	}
	for o := range p.n {
		if o > 0 {
			seq = block.Extend(seq, a.hashes()[o])
		}
		if o > 0 && o%unitBlocks == 0 && a.marks()[o/unitBlocks] != seq {
			return fmt.Errorf("invariant B2: mark of block %d", o)
		}
		if seen[seq] {
			return fmt.Errorf("invariant B3: block %d is in two places", seq)
		}
		seen[seq] = true
	}
	if seq != p.tail {
		return fmt.Errorf("invariant B2: tail %d", p.tail)
	}
	return nil
}

// count notes who holds the blocks of an interval, and who knows them by the path's names.
func (s *shard) count(id uint32, p *path, from uint32, g seg, c *census, holders []*holder) {
	s.sets.each(g.set, func(slot worker.Slot) {
		c.held[slot] += int(g.end - from)
		for o := from; o < g.end; o++ {
			if at := placeOf(s.number, id, o); holders[slot].record(at).own > 0 {
				c.names[int(slot)&(s.x.used-1)][at]++
			}
		}
	})
}

func (s *sets) check(refs map[setID]uint32, c *census) error {
	rows := 0
	known := make(map[string]bool)
	for id, n := range refs {
		if id&isRow == 0 {
			continue
		}
		rows++
		r, words := s.row(id), s.words(id)
		hash, size, text := uint64(0), 0, fmt.Sprint(words)
		s.each(id, func(slot worker.Slot) { hash ^= setHash(uint32(slot)); size++ })
		half := len(words) / 2
		switch {
		case size < 2 || known[text] || half > 0 && !slices.ContainsFunc(words[half:], func(w uint64) bool { return w != 0 }):
			return fmt.Errorf("invariant S1: row %x, %s", id, text)
		case hash != r.hash:
			return fmt.Errorf("invariant S2: row %x has another hash", id)
		case n != r.refs || size != int(r.size):
			return fmt.Errorf("invariant S3: row %x has %d references, counted %d", id, n, r.refs)
		}
		known[text] = true
	}
	live := 0
	for k := range s.rows {
		live += s.rows[k].live
		if err := s.rows[k].check(); err != nil {
			return err
		}
	}
	if live != rows || s.ids.n != rows {
		return fmt.Errorf("invariant S3: %d rows, counted %d, %d in the table", rows, live, s.ids.n)
	}
	return s.ids.check(c)
}

func (l *lane) check(c *census) error {
	if err := l.names.check(c); err != nil {
		return err
	}
	number := bits.TrailingZeros64(l.mask)
	names := c.names[number]
	if l.names.n != len(names)+l.dead.n {
		return fmt.Errorf("invariant N1: %d names and %d dead, %d in the table", len(names), l.dead.n, l.names.n)
	}
	if l.dead.n > l.names.n/deadShare || len(l.dead.pages) != (l.dead.n+deadNames-1)/deadNames {
		return fmt.Errorf("invariant N5: %d dead of %d in %d pages", l.dead.n, l.names.n, len(l.dead.pages))
	}
	used := make(map[block.EngineHash]bool)
	type entry struct {
		y  uint64 // but what a table does not look at
		at place
	}
	entryOf := func(name block.EngineHash, at place) entry {
		y := mixed(uint64(name))
		return entry{tagOf(y)<<placeBits | y&(nameParts-1), at}
	}
	entries := make(map[entry]int)
	for at := range names {
		s := &l.x.shards[at.shard()]
		name := s.arrays(s.path(at.path())).names()[at.offset()]
		if used[name] {
			return fmt.Errorf("invariant N2: name %d has two entries", name)
		}
		used[name] = true
		entries[entryOf(name, at)]++
	}
	for i := range l.dead.n {
		d := l.dead.pages[i/deadNames].names[i%deadNames]
		entries[entryOf(d.name, d.at)]++
	}
	for e, n := range entries {
		for p := l.names.probe(e.y); n > 0; n-- {
			at, ok := p.place()
			for ok && at != e.at {
				at, ok = p.place()
			}
			if !ok {
				return fmt.Errorf("invariant N1: an entry of place %x is not found", e.at)
			}
		}
	}
	return nil
}

func (x *tree) checkHolder(slot worker.Slot, h *holder, c *census) error {
	if int(h.held.Load()) != c.held[slot] {
		return fmt.Errorf("invariant H1: %d blocks held, counted %d", c.held[slot], h.held.Load())
	}
	listed := 0
	for at, r := range h.odd {
		s := &x.shards[at.shard()]
		if !s.lives(at.path()) {
			return fmt.Errorf("invariant N4: record of %x, which is gone", at)
		}
		p := s.path(at.path())
		set, _, _ := s.setAt(p, at.offset())
		if !p.odd || at.offset() >= uint32(p.n) || !s.sets.has(set, slot) || r.own == 0 && r.others == 0 || r.own == 1 && r.others == 0 {
			return fmt.Errorf("invariant N4: record %v of %x", r, at)
		}
		for name, n := r.first, r.others; n > 0; n-- {
			a, ok := h.others[name]
			if !ok || a.at != at || a.refs == 0 || a.hasNext != (n > 1) {
				return fmt.Errorf("invariant N4: name %d of %x", name, at)
			}
			listed++
			name = a.next
		}
	}
	if listed != len(h.others) {
		return fmt.Errorf("invariant N4: %d other names, listed %d", len(h.others), listed)
	}
	return nil
}
