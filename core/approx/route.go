package approx

import (
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// maxRankBlocks bounds capacities and private blocks, so that no sum can overflow.
const maxRankBlocks = 1 << 40

// Route presumes that a slot holds the prompt's blocks from now on, because it got the request. An LRU rank has them used
// and released. Errors: ErrInvalid, and the index's (a slot out of range, a chain that is none).
func (x *Approx) Route(slot worker.Slot, q index.Query, now int64) error {
	if err := check(slot, q); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.settle()
	if x.capacity(slot) > 0 {
		end, _, err := x.hold(slot, none, x.fit(slot, q))
		x.unhold(slot, end)
		return err
	}
	return x.route(slot, q, now)
}

// route is Route for a TTL rank.
func (x *Approx) route(slot worker.Slot, q index.Query, now int64) error {
	// More than comes in goes out, so that what is due cannot pile up.
	x.expire(now, x.section+2*len(q.Sequences))
	x.flush()
	if x.ttl <= 0 || len(q.Sequences) == 0 {
		return nil
	}
	end, _, err := x.put(slot, none, x.fit(slot, q))
	if err != nil {
		return err
	}
	x.latest = max(x.latest, roundUp(addSaturating(now, x.ttl)))
	o := x.orders(slot)
	for id := end; id != none; id = x.tree.at(id).parent {
		x.tree.take(o, id)
		x.tree.at(id).deadline = x.latest
		x.tree.push(o, id)
	}
	x.tree.tidy(o, end)
	return nil
}

// Acquire holds the prompt's blocks of a slot for a request, and so many private ones that nobody shares, until Release. On
// a TTL rank it is Route, and the id holds nothing. Errors: those of Route, ErrDuplicateLease.
func (x *Approx) Acquire(slot worker.Slot, id string, q index.Query, private int, now int64) error {
	if err := check(slot, q); err != nil {
		return err
	}
	if private < 0 || private > maxRankBlocks {
		return fmt.Errorf("%w: %d private blocks of %q are not in [0, %d]", ErrInvalid, private, id, int64(maxRankBlocks))
	}
	x.mu.Lock()
	defer x.settle()
	if _, ok := x.leases[id]; ok {
		return fmt.Errorf("%w: %q", ErrDuplicateLease, id)
	}
	if x.capacity(slot) == 0 {
		return x.route(slot, q, now)
	}
	end, _, err := x.hold(slot, none, x.fit(slot, q))
	if err != nil {
		return err
	}
	if !x.lend(lease{id: id, slot: slot, end: end, private: int64(private)}) {
		x.unhold(slot, end)
	}
	x.evict(slot)
	return nil
}

// Materialise adds to what a request holds the full blocks that it generated: they continue its prompt and those
// materialised before. Errors: ErrInvalid, ErrLeaseNotFound, and the index's: index.ErrUnknownParent if its byte bound took
// what they continue.
func (x *Approx) Materialise(id string, q index.Query) error {
	if err := check(0, q); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.settle()
	if _, ok := x.leases[id]; ok {
		x.free(runsOf(len(q.Sequences)) + 1) // that may take this lease too
		x.flush()
	}
	l, ok := x.leases[id]
	if !ok {
		return fmt.Errorf("%w: %q", ErrLeaseNotFound, id)
	}
	end, known, err := x.hold(l.slot, l.end, q)
	if err != nil {
		return err
	}
	l.end, l.private = end, l.private+int64(known)
	x.ranks[l.slot].private += int64(known)
	x.evict(l.slot)
	return nil
}

// Release ends what a request holds: its blocks stay as long as the capacity allows. Errors: ErrLeaseNotFound.
func (x *Approx) Release(id string) error {
	x.mu.Lock()
	defer x.settle()
	l, ok := x.leases[id]
	if !ok {
		return fmt.Errorf("%w: %q", ErrLeaseNotFound, id)
	}
	x.end(l)
	return nil
}

// SetCapacity makes a slot an LRU rank of so many blocks, or a TTL rank again if they are 0. The rank is cleared if its
// policy changes, or its incarnation: a number that tells an engine from the one before it. Errors: ErrInvalid.
func (x *Approx) SetCapacity(slot worker.Slot, blocks, incarnation uint64) error {
	if slot >= MaxSlots || blocks > maxRankBlocks {
		return fmt.Errorf("%w: capacity of %d blocks for slot %d, at most %d and %d", ErrInvalid, blocks, slot, int64(maxRankBlocks), MaxSlots-1)
	}
	x.mu.Lock()
	defer x.settle()
	k := x.rank(slot)
	if (k.capacity > 0) != (blocks > 0) || k.incarnation != incarnation {
		x.clear(slot)
	}
	k.capacity, k.incarnation = int64(blocks), incarnation
	if blocks > 0 {
		x.evict(slot)
	}
	return nil
}

func check(slot worker.Slot, q index.Query) error {
	switch {
	case len(q.Hashes) != len(q.Sequences):
		return fmt.Errorf("%w: %d block hashes with %d sequence hashes", ErrInvalid, len(q.Hashes), len(q.Sequences))
	case slot >= MaxSlots:
		return fmt.Errorf("%w: slot %d is not below %d", ErrInvalid, slot, MaxSlots)
	}
	return nil
}

// put makes a slot have the blocks that continue a run, or the whole prompt if that is none. It gives the run that ends
// with the last of them, for the caller to put into the list, and how many of them the slot had already.
func (x *Approx) put(slot worker.Slot, from runID, q index.Query) (end runID, known int, err error) {
	x.yield(slot, x.section+2*len(q.Sequences))
	at := x.tree.find(slot, from, q.Sequences)
	stored := at.depth
	if from == none && x.inner.Evicted(slot) > 0 {
		stored = 0 // the index may lack any of them
	}
	if stored < len(q.Sequences) {
		if err := x.apply(slot, from, stored, q); err != nil {
			return none, 0, err
		}
	}
	end = at.run
	if end != none && at.within < int(x.tree.at(end).n) {
		end = x.tree.split(end, at.within)
	}
	if rest := q.Sequences[at.depth:]; len(rest) > 0 {
		end = x.tree.add(slot, end, rest)
		x.rank(slot).blocks += int64(len(rest))
	}
	return end, at.depth, nil
}

// apply stores the blocks after the first depth ones in the index, which has those.
func (x *Approx) apply(slot worker.Slot, from runID, depth int, q index.Query) error {
	ev := &x.store
	switch {
	case depth > 0:
		ev.HasParent, ev.Parent = true, block.EngineHash(q.Sequences[depth-1])
	case from != none:
		ev.HasParent, ev.Parent = true, x.tree.last(from)
	default:
		ev.HasParent = false
	}
	ev.Blocks = ev.Blocks[:0]
	for i := depth; i < len(q.Hashes); i++ {
		ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(q.Sequences[i]), Hash: q.Hashes[i]})
	}
	_, err := x.inner.Apply(slot, ev, index.Set)
	if cap(ev.Blocks) > keepBlocks {
		ev.Blocks = nil
	}
	return err
}

// hold puts blocks into an LRU rank, and refers to them once more.
func (x *Approx) hold(slot worker.Slot, from runID, q index.Query) (end runID, known int, err error) {
	end, known, err = x.put(slot, from, q)
	if err != nil {
		return none, 0, err
	}
	if end == none {
		return from, 0, nil
	}
	idle := x.orders(slot)
	for id := end; id != from; id = x.tree.at(id).parent {
		x.tree.take(idle, id)
		x.tree.at(id).refs++
	}
	x.tree.tidy(idle, end)
	return end, known, nil
}

// unhold takes a reference from a run and all before it, and evicts what is too much then.
func (x *Approx) unhold(slot worker.Slot, end runID) {
	idle := x.orders(slot)
	for id := end; id != none; id = x.tree.at(id).parent {
		r := x.tree.at(id)
		if r.refs--; r.refs == 0 {
			x.tree.push(idle, id)
		}
	}
	x.tree.tidy(idle, end)
	x.evict(slot)
}

// roundUp gives the end of the bucket that a moment is in.
func roundUp(at int64) int64 {
	over := at % bucketNanos
	if over == 0 {
		return at
	}
	if over < 0 {
		over += bucketNanos
	}
	return addSaturating(at-over, bucketNanos)
}

// addSaturating adds b >= 0.
func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
