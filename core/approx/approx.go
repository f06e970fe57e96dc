package approx

import (
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const (
	// DefaultTTLNanos is how long a routed block is presumed held, as in Dynamo.
	DefaultTTLNanos = 120 * 1_000_000_000

	// MaxSlots bounds worker slots, because ranks are an array by slot.
	MaxSlots = 1 << 20

	// bucketNanos is what deadlines are rounded up to.
	bucketNanos = 100_000_000

	// sectionBlocks bounds what a match ends that finds blocks due, and what a route ends besides twice what it brings: some
	// microseconds, for the removal of a block from the index costs a tenth to a third of one.
	sectionBlocks = 32

	// batchBlocks bounds what Expire ends under one lock, and the names in one event for the index.
	batchBlocks = 256

	// keepBlocks is what room is kept for between calls; the buffer of a longer prompt is not kept.
	keepBlocks = 4096

	leaseBytes  = 160      // of a lease and its map entry with free room, besides its id
	keepLeases  = 64 << 10 // bytes of leases: what a map that once had more is worth giving back
	bufferBytes = keepBlocks*int(unsafe.Sizeof(event.Block{})) + batchBlocks*8*2
)

// Options of New.
type Options struct {
	TTLNanos int64 // how long a routed block is presumed held; <= 0: not at all. The default is the caller's: DefaultTTLNanos
	// MaxBytes bounds Stats.Bytes, which is all but the index: that has a bound of its own. A quarter is for leases. 0: unbounded.
	MaxBytes int64
}

// rank is what is known of one slot.
type rank struct {
	capacity    int64  // blocks; 0: TTL
	incarnation uint64 // of the capacity
	blocks      int64  // in the tree
	private     int64  // of the leases
	evicted     uint64 // blocks given up because the index evicted as many
	lost        uint64 // blocks that MaxBytes took or left out
	order       order  // TTL: all runs; LRU: those that no request holds, by release
}

// lease is what a request holds of an LRU rank. Leases are in a list, by acquisition.
type lease struct {
	id      string
	slot    worker.Slot
	end     runID // the last run of its blocks, held whole; none: it has no full block
	private int64 // blocks that nobody shares

	prev, next *lease
}

func (l *lease) bytes() int { return leaseBytes + len(l.id) }

// Approx presumes what ranks hold. See the package comment. It is safe for concurrent use.
//
// Invariants (check verifies each by number; those of tree and order are beside their types):
//
//	A1  the index has exactly the blocks of the tree, but for those it evicted itself, each under one name.
//	A2  a run of a TTL rank is in expiring and its rank's order; a run of an LRU rank is in idle and its rank's order if and
//	    only if refs is 0.
//	A3  refs of a run is the number of leases whose blocks include it.
//	A4  blocks and private are the sums over the tree and the leases; an LRU rank is over its capacity only while it has
//	    no idle run.
//	A5  due is the first deadline in expiring.
//	A6  leases and the list from oldest to newest have the same; leased is their bytes, leaseMax the most since their map was made.
type Approx struct {
	inner   index.Index
	ttl     int64
	section int          // sectionBlocks, but for tests
	due     atomic.Int64 // no block ends before; math.MaxInt64: none ends. Written under mu

	mu       sync.Mutex
	tree     tree
	maxBytes int
	expiring order  // runs of TTL ranks
	idle     order  // runs of LRU ranks that no request holds
	latest   int64  // the latest deadline given
	ranks    []rank // by slot; those beyond are zero
	leases   map[string]*lease
	oldest   *lease
	newest   *lease
	leased   int // bytes of leases
	leaseMax int // the most they were since the map was made, which does not shrink
	stats    Stats

	// Buffers of one call.
	store    event.Event
	gone     event.Event // blocks of goneSlot that the index is still to forget
	goneSlot worker.Slot
}

// New presumes in an empty index, which is its own from now on.
func New(inner index.Index, o Options) *Approx {
	x := &Approx{
		inner: inner, ttl: o.TTLNanos, section: sectionBlocks, latest: math.MinInt64, tree: newTree(), leases: map[string]*lease{}, maxBytes: int(o.MaxBytes),
		store: event.Event{Kind: event.Stored}, gone: event.Event{Kind: event.Removed},
	}
	x.due.Store(math.MaxInt64)
	return x
}

// Match appends a row per slot that is presumed to hold the first block, as index.Match does. While nothing is due it
// takes no lock of Approx.
func (x *Approx) Match(dst []index.Overlap, q index.Query, now int64) []index.Overlap {
	if now < x.due.Load() || !x.expireSome(now, x.section) {
		return x.inner.Match(dst, q)
	}
	from := len(dst)
	dst = x.inner.Match(dst, q)
	if len(q.Sequences) != len(q.Hashes) {
		q.Sequences = block.Sequences(nil, q.Hashes)
	}
	return x.cut(dst, from, q.Sequences, now)
}

// expireSome ends at most so many blocks that are due, and tells whether that left any.
func (x *Approx) expireSome(now int64, blocks int) bool {
	x.mu.Lock()
	defer x.settle()
	x.expire(now, blocks)
	return x.pending(now)
}

// cut shortens the rows of dst from one on to what lives at now.
func (x *Approx) cut(dst []index.Overlap, from int, seqs []block.SequenceHash, now int64) []index.Overlap {
	x.mu.Lock()
	defer x.mu.Unlock()
	kept := dst[:from]
	for _, row := range dst[from:] {
		if x.capacity(row.Slot) == 0 {
			row.Depth = uint32(x.tree.living(row.Slot, seqs[:row.Depth], now))
		}
		if row.Depth > 0 {
			kept = append(kept, row)
		}
	}
	return kept
}

// Expire ends all that is due. Others get in between batches.
func (x *Approx) Expire(now int64) {
	for x.expireSome(now, batchBlocks) {
	}
}

// Blocks counts the blocks that a slot is presumed to hold.
func (x *Approx) Blocks(slot worker.Slot, now int64) int {
	x.Expire(now)
	return x.inner.Blocks(slot)
}

// Dump gives a slot's blocks as index.Dump does, each named by its sequence hash.
func (x *Approx) Dump(slot worker.Slot, firstID uint64, now int64) []event.Event {
	x.Expire(now)
	return x.inner.Dump(slot, firstID)
}

// Drop forgets everything of a slot, its capacity and its leases included.
func (x *Approx) Drop(slot worker.Slot) {
	x.mu.Lock()
	defer x.settle()
	if int(slot) < len(x.ranks) {
		x.clear(slot)
		x.ranks[slot] = rank{}
	}
}

// Close closes the index.
func (x *Approx) Close() { x.inner.Close() }

// Stats counts what Approx has.
type Stats struct {
	Index   index.Stats // of its index, bytes included
	Bytes   int         // of what Approx has besides
	Runs    int
	Leases  int
	Expired uint64 // blocks whose time ended
	Evicted uint64 // blocks that a capacity, the index's bound or MaxBytes took or left out
}

// Stats counts, after ending what is due.
func (x *Approx) Stats(now int64) Stats {
	x.Expire(now)
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.stats
	st.Index = x.inner.Stats()
	st.Runs, st.Leases = x.tree.live, len(x.leases)
	st.Bytes = x.tree.bytes() + x.rankBytes() + x.leaseMax +
		cap(x.store.Blocks)*int(unsafe.Sizeof(event.Block{})) + cap(x.gone.Removed)*8
	return st
}

func (x *Approx) rankBytes() int { return cap(x.ranks) * int(unsafe.Sizeof(rank{})) }

// Evicted counts the blocks of a slot that MaxBytes and the index's bound took or left out since it was last emptied.
func (x *Approx) Evicted(slot worker.Slot) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.inner.Evicted(slot)
	if int(slot) < len(x.ranks) {
		n += x.ranks[slot].lost
	}
	return n
}

// settle ends a call that changed something: the index forgets what is gone, and Match learns what is due next.
func (x *Approx) settle() {
	x.flush()
	due := int64(math.MaxInt64)
	if first := x.expiring.first; first != none {
		due = x.tree.at(first).deadline
	}
	x.due.Store(due)
	x.mu.Unlock()
}

func (x *Approx) capacity(slot worker.Slot) int64 {
	if int(slot) < len(x.ranks) {
		return x.ranks[slot].capacity
	}
	return 0
}

// orders gives the lists that runs of a slot are in.
func (x *Approx) orders(slot worker.Slot) orders {
	all := &x.expiring
	if x.capacity(slot) > 0 {
		all = &x.idle
	}
	return orders{all, &x.rank(slot).order}
}

func (x *Approx) rank(slot worker.Slot) *rank {
	if n := int(slot) + 1 - len(x.ranks); n > 0 {
		x.ranks = append(x.ranks, make([]rank, n)...)
	}
	return &x.ranks[slot]
}

func (x *Approx) pending(now int64) bool {
	first := x.expiring.first
	return first != none && x.tree.at(first).deadline <= now
}

// expire ends what is due, at most so many blocks.
func (x *Approx) expire(now int64, blocks int) {
	for blocks > 0 && x.pending(now) {
		n := x.shorten(x.expiring.first, blocks)
		x.stats.Expired += uint64(n)
		blocks -= n
	}
}

// evict takes idle blocks of an LRU rank as long as it is over its capacity.
func (x *Approx) evict(slot worker.Slot) {
	for {
		k := &x.ranks[slot]
		over := k.blocks + k.private - k.capacity
		if over <= 0 || k.order.first == none {
			return
		}
		x.stats.Evicted += uint64(x.shorten(k.order.first, int(over)))
	}
}

// yield gives up as many blocks of a slot's list, the least recently used ones, as the index evicted from the slot, at
// most so many: so the memory of the tree is bounded where that of the index is.
func (x *Approx) yield(slot worker.Slot, most int) {
	all := x.inner.Evicted(slot)
	if all == 0 {
		return
	}
	k := x.rank(slot)
	for left := min(uint64(most), all-k.evicted); left > 0 && k.order.first != none; {
		n := uint64(x.shorten(k.order.first, int(left)))
		x.stats.Evicted += n
		k.evicted += n
		left -= n
	}
	x.flush()
}

// shorten takes at most n blocks from the end of a run, the first of a list, and tells how many.
func (x *Approx) shorten(id runID, n int) int {
	r := x.tree.at(id)
	n = min(n, int(r.n))
	if x.goneSlot != r.slot || len(x.gone.Removed)+n > batchBlocks {
		x.flush()
	}
	x.goneSlot = r.slot
	for i := range n {
		x.gone.Removed = append(x.gone.Removed, block.EngineHash(r.hashes[int(r.n)-1-i]))
	}
	x.ranks[r.slot].blocks -= int64(n)
	x.tree.shorten(x.orders(r.slot), id, n)
	return n
}

// flush makes the index forget what is gone.
func (x *Approx) flush() {
	if len(x.gone.Removed) == 0 {
		return
	}
	// A removal is never refused; a name that is unknown was evicted by the index itself.
	_, _ = x.inner.Apply(x.goneSlot, &x.gone, index.Set)
	x.gone.Removed = x.gone.Removed[:0]
}

// clear forgets the blocks and the leases of a slot.
func (x *Approx) clear(slot worker.Slot) {
	for l := x.oldest; l != nil; {
		next := l.next
		if l.slot == slot {
			x.end(l)
		}
		l = next
	}
	k := &x.ranks[slot]
	// The index looks at all of its paths to drop a slot, so few blocks are rather removed by name.
	few := x.inner.Evicted(slot) == 0 && k.blocks*4 < int64(x.tree.live)
	for o := x.orders(slot); k.order.first != none; {
		if id := k.order.first; few {
			x.shorten(id, runBlocks)
		} else {
			x.tree.shorten(o, id, runBlocks)
		}
	}
	x.flush()
	if !few {
		x.inner.Drop(slot)
	}
	k.blocks, k.evicted, k.lost = 0, 0, 0
}
