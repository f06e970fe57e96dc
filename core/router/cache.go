package router

import (
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// This file is where a rank's blocks are: in a slot of the index and the tiers, its cache. That is another number than the rank's
// own slot, by which its load is known. So a whole new view of a rank is built in a cache that nobody sees, and takes the place of
// the old one in one step: a decision goes by the one or by the other.

// view is what is known of a rank's blocks.
type view struct {
	cache   worker.Slot // in the index and the tiers
	partial string      // why it is partial though the feed, if there is one, lost nothing; or ""
}

// nobody owns a cache that is free, or whose blocks are not to be seen.
const nobody = ^worker.Slot(0)

// caches says whose the slots of the index and the tiers are. Router.mu guards it.
//
// Invariant: what is free is empty in the index and the tiers.
type caches struct {
	owners []worker.Slot // by cache
	free   []worker.Slot
	hidden int // taken and nobody's
}

// take gives a cache to a rank's slot, or to nobody. The caller sees to it that there are not more than index.MaxSlots.
func (c *caches) take(owner worker.Slot) (cache worker.Slot) {
	if n := len(c.free); n > 0 {
		cache, c.free = c.free[n-1], c.free[:n-1]
	} else {
		cache = worker.Slot(len(c.owners))
		c.owners = append(c.owners, nobody)
	}
	if c.owners[cache] = owner; owner == nobody {
		c.hidden++
	}
	return cache
}

// give takes back a cache, which is empty.
func (c *caches) give(cache worker.Slot) {
	if c.owners[cache] == nobody {
		c.hidden--
	}
	c.owners[cache] = nobody
	c.free = append(c.free, cache)
}

// swap lets a hidden cache have the place of another.
func (c *caches) swap(hidden, shown worker.Slot) {
	c.owners[hidden], c.owners[shown] = c.owners[shown], nobody
}

// Renew implements feed.Replacer: it begins a new view of the rank, in a cache that nobody sees. Its stores evict nothing.
func (s sink) Renew(id worker.Rank) {
	r, k := s.r, s.rank
	s.abandon()
	r.mu.Lock()
	k.mu.Lock()
	room := !k.dead && r.table.Len()+r.caches.hidden < index.MaxSlots
	if room {
		k.next = &view{cache: r.caches.take(nobody)}
		r.index.SetEvicts(k.next.cache, false)
		k.intake.Reset()
	}
	k.mu.Unlock()
	r.mu.Unlock()
	if !room {
		s.Reset(id)
	}
}

// Commit implements feed.Replacer: what was applied since Renew is what the rank holds. Matches that are under way start over.
func (s sink) Commit(worker.Rank) {
	r, k := s.r, s.rank
	r.mu.Lock()
	k.mu.Lock()
	old, next := k.view, k.next
	if next != nil {
		r.caches.swap(next.cache, old.cache)
		k.view, k.next = *next, nil
		r.index.SetEvicts(k.cache, true)
		r.epoch.Add(1)
	}
	k.mu.Unlock()
	r.mu.Unlock()
	if next != nil {
		r.empty(old.cache)
	}
}

// abandon forgets what was applied since Renew.
func (s sink) abandon() {
	k := s.rank
	k.mu.Lock()
	next := k.next
	k.next = nil
	k.mu.Unlock()
	if next != nil {
		s.r.empty(next.cache)
	}
}

// empty drops what is in nobody's cache and gives it back. No lock of the router is held: it may take a while.
func (r *Router) empty(cache worker.Slot) {
	r.drop(cache)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.caches.give(cache)
	r.epoch.Add(1) // it may be another rank's soon, and rows of it are on their way
}

// Apply implements feed.Sink. What the byte bound leaves no room for beside the old view, of an event for a new one, lets the new
// one take the old one's place at once, as far as it goes.
func (s sink) Apply(id worker.Rank, ev *event.Event) (done index.Applied, err error) {
	r, k := s.r, s.rank
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return index.Applied{}, fmt.Errorf("%w: %v", feed.ErrUnknownRank, id)
	}
	if k.next == nil {
		return r.apply(k, &k.view, ev, s.counting)
	}
	missing := k.next.partial // of events before
	done, err = r.apply(k, k.next, ev, s.counting)
	rest, some := rest(ev, done, s.counting)
	if k.next.partial == "" || !some {
		return done, err
	}
	k.next.partial = missing
	k.mu.Unlock()
	s.Commit(id)
	if k.mu.Lock(); k.dead {
		return done, fmt.Errorf("%w: %v", feed.ErrUnknownRank, id)
	}
	more, err := r.apply(k, &k.view, rest, s.counting)
	done.Stored, done.Duplicate, done.Refused = done.Stored+more.Stored, done.Duplicate+more.Duplicate, more.Refused
	return done, err
}

// rest is what was refused of an event for lack of room, if that is known and can be stored after all.
func rest(ev *event.Event, done index.Applied, counting index.Counting) (*event.Event, bool) {
	switch {
	case done.Refused == 0:
		return nil, false
	case ev.Tier != event.Device:
		return ev, counting == index.Set // any of its blocks may have been: with Set it does no harm to store the others again
	}
	left := *ev
	n := len(ev.Blocks) - done.Refused
	if left.Blocks = ev.Blocks[n:]; n > 0 {
		left.HasParent, left.Parent = true, ev.Blocks[n-1].Engine
	}
	return &left, true
}

// Reset implements feed.Sink.
func (s sink) Reset(worker.Rank) {
	s.abandon()
	k := s.rank
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.dead {
		s.r.drop(k.cache)
		k.partial = ""
		k.intake.Reset()
	}
}
