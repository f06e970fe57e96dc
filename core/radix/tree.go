// Package radix is an index by itself, for those who score on their own: KV events of worker ranks in, how many leading
// blocks of a prompt each rank holds out. A rank comes with its first store.
//
// A block that is stored twice has one reference (index.Set). Only device blocks are kept.
package radix

import (
	"errors"
	"fmt"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// MaxRanks bounds the ranks of a tree.
const MaxRanks = 1 << 16

// Errors of Apply. Of the first two nothing changed; with ErrUnknownBlock the blocks that were known are removed. A store may
// also give index.ErrUnknownParent and index.ErrBadChain.
var (
	ErrTier         = errors.New("only device blocks are kept")
	ErrRanks        = errors.New("too many ranks")
	ErrUnknownBlock = errors.New("block to remove is not held by this worker rank")
)

// Match is one row of an answer: the rank holds the first Blocks blocks, at least 1.
type Match struct {
	Rank   worker.Rank
	Blocks uint32
}

// Tree is safe for concurrent use: matches run beside each other and beside events, which take turns.
type Tree struct {
	index index.Index
	limit int // of ranks

	mu    sync.RWMutex // guards what follows; held for reading while matches are named, for writing while ranks come and go
	slots *worker.Table
	ranks []worker.Rank // by slot, those of slots
	known map[worker.Rank]worker.Slot

	events sync.Mutex // taken before mu: events, one at a time
	free   sync.Pool  // of *[]index.Overlap
}

// New gives an empty tree.
func New() *Tree {
	t := &Tree{index: index.New(index.Options{}), limit: MaxRanks, slots: worker.NewTable(), known: make(map[worker.Rank]worker.Slot)}
	t.free.New = func() any { return new([]index.Overlap) }
	return t
}

// Close gives the memory back. Afterwards the tree is empty.
func (t *Tree) Close() { t.index.Close() }

// Apply applies one event of a worker.
func (t *Tree) Apply(workerID uint64, ev *event.Event) error {
	if ev.Tier != event.Device {
		return fmt.Errorf("%w: storage_tier is %s", ErrTier, ev.Tier)
	}
	rank := worker.Rank{ID: workerID, DPRank: ev.DPRank}
	t.events.Lock()
	defer t.events.Unlock()
	slot, ok := t.known[rank] // only written with events held
	if !ok {
		if ev.Kind != event.Stored {
			return unknown(rank, ev, len(ev.Removed))
		}
		if len(t.known) == t.limit {
			return fmt.Errorf("%w: %d", ErrRanks, t.limit)
		}
		slot = t.add(rank)
	}
	applied, err := t.index.Apply(slot, ev, index.Set)
	if err != nil {
		if !ok {
			t.remove(rank)
		}
		return fmt.Errorf("rank %s: %w", rank, err)
	}
	return unknown(rank, ev, applied.Unknown)
}

func unknown(rank worker.Rank, ev *event.Event, n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("rank %s: %w: %d of %d", rank, ErrUnknownBlock, n, len(ev.Removed))
}

func (t *Tree) add(rank worker.Rank) worker.Slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := t.slots.Add(rank)
	t.known[rank] = slot
	if int(slot) == len(t.ranks) {
		t.ranks = append(t.ranks, rank)
	}
	t.ranks[slot] = rank
	return slot
}

// remove forgets a rank. The slot is empty before another can have it.
func (t *Tree) remove(rank worker.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.index.Drop(t.known[rank])
	t.slots.Remove(rank)
	delete(t.known, rank)
}

// Remove forgets the ranks of a worker, if there are any.
func (t *Tree) Remove(workerID uint64) {
	t.events.Lock()
	defer t.events.Unlock()
	for rank := range t.known {
		if rank.ID == workerID {
			t.remove(rank)
		}
	}
}

// Find appends a row for each rank that holds the first of the blocks, in no particular order.
func (t *Tree) Find(dst []Match, blocks []block.Hash) []Match {
	rows := t.free.Get().(*[]index.Overlap)
	t.mu.RLock()
	*rows = t.index.Match((*rows)[:0], index.Query{Hashes: blocks})
	for _, r := range *rows {
		dst = append(dst, Match{t.ranks[r.Slot], r.Depth})
	}
	t.mu.RUnlock()
	t.free.Put(rows)
	return dst
}

// Dump gives all that can be matched as events that store it, numbered from 0, parents first. Blocks behind a hole are left out.
func (t *Tree) Dump() []event.RouterEvent {
	t.events.Lock()
	defer t.events.Unlock()
	var all []event.RouterEvent
	for slot, rank := range t.ranks {
		if s, ok := t.known[rank]; !ok || int(s) != slot {
			continue
		}
		for _, ev := range t.index.Dump(worker.Slot(slot), uint64(len(all))) {
			ev.DPRank = rank.DPRank
			all = append(all, event.RouterEvent{WorkerID: rank.ID, Event: ev})
		}
	}
	return all
}
