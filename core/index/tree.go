package index

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const (
	// MaxSlots bounds the slots an index knows; the match of a query keeps a bit for each on its stack.
	MaxSlots = 1 << 16

	// sectionBlocks bounds what a writer does under a shard's lock, to a few microseconds: a reader waits no longer.
	sectionBlocks = 32

	laneCount = 2   // one lane takes several million blocks a second; what slots of two lanes hold is named twice
	nameParts = 128 // of a lane's table
	headParts = 16  // of a shard's table
	rootBits  = 13  // of the number of a counter of prompts' first blocks; the upper ones are the shard's
)

// Errors of an index that New gives.
var (
	// ErrSlotRange is Apply's answer to a slot of MaxSlots or more. The caller has too many worker ranks for one index.
	ErrSlotRange = errors.New("slot is beyond the largest an index holds")
)

// Options of New. The zero value is what a router wants.
type Options struct {
	OneShard bool // everything under one lock: for an owner with one goroutine, and for tests

	// MaxBytes bounds all memory of the index; 0 is no bound, less than 1 MiB is taken as that. A store that finds no room makes
	// some: the ends of paths that were neither stored nor asked for, for longest, go from every slot that holds them, and
	// Evicted counts them. A store for which that is not enough is refused with ErrFull.
	MaxBytes int64
}

// tree is the exact index: a radix tree stored by paths.
//
// A shard is chosen by the first block of a prompt, so all blocks of a prompt are in one, and a query takes one lock. A
// path knows the block before it by its sequence hash: nothing is relinked when blocks come and go; a path whose parent was
// removed stays where it is, and is reached again when the parent is stored again.
//
// Engine hashes are found in tables of lanes. A lane serves a group of slots, one event at a time.
//
// Locks, in this order: grow; the evictor's mu; a lane's mu, or all of them in order; one shard's mu; then that of the arena or of the
// lines, and the heap's. What a slot holds cannot go away under its lane's lock.
//
// Invariants across shards and lanes (check verifies each by number; B, S, T, U, P and N are beside their types):
//
//	H1  a holder's held counts the blocks it is in the set of.
//	H2  roots counts, by hash, the paths that begin a prompt, and begun has the hashes of those.
type tree struct {
	shards  [shardCount]shard
	lanes   [8]lane
	used    int // lanes in use: a power of two
	one     bool
	maxPath int // blocks of a path
	sweep   int // dead names that go with each event

	heap  *heap // an object of its own, since it is released when the tree is collected
	arena arena
	lines lines
	begun [1 << rootBits / 64]atomic.Uint64 // a bit for each of roots that is not zero
	roots [1 << rootBits]uint32             // guarded by the lock of the shard

	clock   atomic.Uint32 // stores so far
	evictor evictor

	closed  atomic.Bool
	grow    sync.Mutex
	holders atomic.Pointer[[]*holder] // by slot; copied to grow, guarded by grow; nil: nothing ever stored
}

// New returns an empty index. Its memory is outside the Go heap where the system allows it, and goes back when the index
// is closed or collected.
func New(o Options) Index { return newTree(o, laneCount, maxPath) }

func newTree(o Options, lanes, longest int) *tree {
	h := &heap{pages: newSpace(pageBytes)}
	h.pages.small = minRegion
	h.bound(o.MaxBytes)
	x := &tree{used: lanes, one: o.OneShard, maxPath: longest, sweep: sectionBlocks, heap: h}
	runtime.AddCleanup(x, (*heap).release, h)
	h.note(int(unsafe.Sizeof(*x) + unsafe.Sizeof(*h)))
	x.arena.runs, x.arena.heap = newSpace(unitBytes), h
	x.lines.runs, x.lines.heap = newSpace(lineBytes), h
	for i := range x.shards {
		x.shards[i].init(x, uint32(i))
	}
	for i := range lanes {
		x.lanes[i].init(x, i)
	}
	x.holders.Store(new([]*holder))
	return x
}

// rootOf gives the number of the counter for prompts that begin with a block. A shard's counters are its own, or all are
// those of the only one.
func rootOf(seq block.SequenceHash) uint32 { return uint32(mixedRoot(uint64(seq)) >> (64 - rootBits)) }

// begins tells whether a prompt may begin with a block.
func (x *tree) begins(seq block.SequenceHash) bool {
	at := rootOf(seq)
	return x.begun[at>>6].Load()>>(at&63)&1 != 0
}

// countRoot counts a path that begins a prompt, or that did. Its shard is locked.
func (x *tree) countRoot(seq block.SequenceHash, by int) {
	at := rootOf(seq)
	x.roots[at] += uint32(by)
	word, bit := &x.begun[at>>6], uint64(1)<<(at&63)
	if x.roots[at] > 0 {
		word.Store(word.Load() | bit)
	} else {
		word.Store(word.Load() &^ bit)
	}
}

// shardOf gives the number of the shard for prompts that begin with a block.
func (x *tree) shardOf(seq block.SequenceHash) uint32 {
	if x.one {
		return 0
	}
	return uint32(mixedRoot(uint64(seq)) >> (64 - shardBits))
}

func (x *tree) lane(slot worker.Slot) *lane { return &x.lanes[int(slot)&(x.used-1)] }

// lookup gives the holder of a slot, nil if it never stored anything.
func (x *tree) lookup(slot worker.Slot) *holder {
	if all := *x.holders.Load(); int(slot) < len(all) {
		return all[slot]
	}
	return nil
}

// holder gives the holder of a slot, a new one if there is none.
func (x *tree) holder(slot worker.Slot) (*holder, error) {
	if h := x.lookup(slot); h != nil {
		return h, nil
	}
	if slot >= MaxSlots {
		return nil, fmt.Errorf("%w: slot %d, at most %d", ErrSlotRange, slot, MaxSlots-1)
	}
	x.grow.Lock()
	defer x.grow.Unlock()
	old := *x.holders.Load()
	all := make([]*holder, max(len(old), int(slot)+1))
	copy(all, old)
	if all[slot] == nil {
		all[slot] = new(holder)
		x.heap.note(holderBytes)
	}
	x.heap.note(8 * (len(all) - len(old)))
	x.holders.Store(&all)
	return all[slot], nil
}

// Blocks implements Index.
func (x *tree) Blocks(slot worker.Slot) int {
	if h := x.lookup(slot); h != nil {
		return int(h.held.Load())
	}
	return 0
}

// Evicted implements Index.
func (x *tree) Evicted(slot worker.Slot) uint64 {
	if h := x.lookup(slot); h != nil {
		return h.evicted.Load()
	}
	return 0
}

// Stats implements Index.
func (x *tree) Stats() Stats {
	var st Stats
	m := &st.Memory
	for i := range x.shards {
		s := &x.shards[i]
		s.rlock()
		st.Blocks += s.blocks
		st.Pairs += s.pairs
		st.Paths += s.living
		m.Paths += s.paths.bytes()
		for k := range s.lists {
			m.Paths += s.lists[k].bytes()
		}
		m.Heads += s.heads.bytes()
		m.Sets += s.sets.bytes()
		s.mu.RUnlock()
	}
	for i := range x.used {
		l := &x.lanes[i]
		l.mu.Lock()
		m.Names += l.names.bytes() + l.sideBytes()
		l.mu.Unlock()
	}
	x.arena.mu.Lock()
	m.Blocks = x.arena.runs.live * unitBytes
	x.arena.mu.Unlock()
	st.Bytes = int(x.heap.bytes())
	m.Rest = st.Bytes - m.Blocks - m.Paths - m.Names - m.Heads - m.Sets
	runtime.KeepAlive(x)
	return st
}

// lockAll takes the locks of all lanes: nothing but matches goes on meanwhile.
func (x *tree) lockAll() {
	for i := range x.used {
		x.lanes[i].mu.Lock()
	}
}

func (x *tree) unlockAll() {
	for i := range x.used {
		x.lanes[i].mu.Unlock()
	}
}

// Close implements Index.
func (x *tree) Close() {
	x.closed.Store(true)
	for slot := range len(*x.holders.Load()) {
		x.Drop(worker.Slot(slot))
	}
	x.heap.release() // nothing is left in it
}
