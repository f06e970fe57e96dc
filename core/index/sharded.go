package index

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const (
	shardCount = 16 // as many as the shard bits of a name
	shardBits  = 4

	// MaxSlots bounds the slots an index knows; the match of a query keeps a bit for each on its stack.
	MaxSlots = 1 << 16

	// sectionBlocks bounds what a writer does under a shard's lock, to a few microseconds: a reader waits no longer.
	sectionBlocks = 32
)

// ErrSlotRange is Apply's answer to a slot of MaxSlots or more. The caller has too many worker ranks for one index.
var ErrSlotRange = errors.New("slot is beyond the largest an index holds")

// Options of New. The zero value is what a router wants.
type Options struct {
	OneShard bool // everything under one lock: for an owner with one goroutine, and for tests
}

// sharded is the exact index: a table of blocks per shard, a table of names per slot.
//
// A shard is chosen by the first block of a prompt, so all blocks of a prompt are in one, and a query takes one lock.
// A block knows its parent only by hash: nothing is relinked when blocks come and go, a block whose parent was removed
// stays where it is, and is reachable again when the parent is stored again.
//
// Locks, in this order: grow, or one holder's mu; then one shard's mu. No goroutine holds two of a kind, and none takes
// a holder's mu under a shard's. Events of one slot are serialised by its holder's mu; a holder's blocks
// cannot go away under it, since only its own events take them.
//
// Invariants across shards and holders (check verifies each by number; B, S, T and N are beside their types):
//
//	H1  every name has a reference or more, and its place is a live node that the slot holds.
//	H2  every node that a slot holds is the place of one name of that slot or more; extra counts those above one.
//	H3  held is the number of nodes the slot holds.
type sharded struct {
	shards  []shard
	shift   uint // the bits of a mixed root hash below the shard's number
	grow    sync.Mutex
	closed  atomic.Bool
	holders atomic.Pointer[[]*holder] // by slot; copied to grow, guarded by grow; nil: nothing ever stored
}

// A holder is what the index knows of one slot.
type holder struct {
	mu    sync.Mutex
	names names
	extra map[place]uint32 // rare: blocks with several names, and how many above one; nil when empty
	work  []block.EngineHash

	held  atomic.Int64 // written under mu
	bytes atomic.Int64 // written under mu, at the end of an event
}

// New returns an empty index.
func New(o Options) Index {
	x := &sharded{shards: make([]shard, shardCount), shift: 64 - shardBits}
	if o.OneShard {
		x.shards, x.shift = x.shards[:1], 64
	}
	for i := range x.shards {
		x.shards[i].free = noNode
	}
	x.holders.Store(new([]*holder))
	return x
}

// shardOf gives the number of the shard for prompts that begin with a block.
func (x *sharded) shardOf(root block.SequenceHash) uint32 {
	return uint32(bits.RotateLeft64(uint64(root), 32) * shardMix >> x.shift)
}

// lookup gives the holder of a slot, nil if it never stored anything.
func (x *sharded) lookup(slot worker.Slot) *holder {
	if all := *x.holders.Load(); int(slot) < len(all) {
		return all[slot]
	}
	return nil
}

// holder gives the holder of a slot, a new one if there is none.
func (x *sharded) holder(slot worker.Slot) (*holder, error) {
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
	}
	x.holders.Store(&all)
	return all[slot], nil
}

// Blocks implements Index.
func (x *sharded) Blocks(slot worker.Slot) int {
	if h := x.lookup(slot); h != nil {
		return int(h.held.Load())
	}
	return 0
}

// Stats implements Index.
func (x *sharded) Stats() Stats {
	var st Stats
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.RLock()
		st.Blocks += s.live
		st.Pairs += s.pairs
		st.Bytes += s.bytes()
		s.mu.RUnlock()
	}
	for _, h := range *x.holders.Load() {
		st.Bytes += 8
		if h != nil {
			st.Bytes += int(h.bytes.Load())
		}
	}
	st.Paths = st.Blocks
	st.Memory.Rest = st.Bytes
	return st
}

// Close implements Index.
func (x *sharded) Close() {
	x.closed.Store(true)
	for slot := range len(*x.holders.Load()) {
		x.Drop(worker.Slot(slot))
	}
}

// Evicted implements Index.
func (x *sharded) Evicted(worker.Slot) uint64 { return 0 }

// Name implements Index.
func (x *sharded) Name(slot worker.Slot, q Query, depth int) (block.EngineHash, bool) {
	h := x.lookup(slot)
	if h == nil || depth < 1 || depth > len(q.Hashes) {
		return 0, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	q = Query{Hashes: q.Hashes[:depth]}
	held := false
	for _, row := range x.Match(nil, q) {
		held = held || row.Slot == slot && int(row.Depth) == depth
	}
	seqs := block.Sequences(nil, q.Hashes)
	for i := range h.names.slots {
		n := &h.names.slots[i]
		if held && n.live() {
			s := &x.shards[n.place().shard]
			s.mu.RLock()
			k := s.at(n.node).key()
			s.mu.RUnlock()
			if k.seq == seqs[depth-1] && int(k.depth) == depth-1 {
				return n.engine, true
			}
		}
	}
	return 0, false
}

// Runs implements Index.
func (x *sharded) Runs(f func(*Run) error) error {
	for slot, h := range *x.holders.Load() {
		if h == nil {
			continue
		}
		for _, ev := range x.Dump(worker.Slot(slot), 0) {
			run := Run{Slots: []worker.Slot{worker.Slot(slot)}, HasParent: ev.HasParent, Parent: ev.Parent}
			for _, b := range ev.Blocks {
				n := h.names.find(b.Engine)
				run.Blocks, run.References = []event.Block{b}, n.refs()
				if err := f(&run); err != nil {
					return err
				}
				run.HasParent, run.Parent = true, b.Engine
			}
		}
	}
	return nil
}
