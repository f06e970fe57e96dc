// Package index answers how many leading blocks of a prompt every worker rank holds, exactly.
//
// Semantics (every implementation has them; package indextest checks, package model is the literal truth):
//
//   - A block is identified by its sequence hash, computed from the content hashes of the event and the parent chain.
//     An engine hash only names a block inside one slot: it links parents and keys removals.
//   - Match gives, for every slot, the number of leading blocks it holds without a hole; never more than it holds.
//     Removing a middle block hides the deeper ones, storing it again brings them back.
//   - A store under a parent the slot does not name, or one that contains its own parent or a block twice, is refused
//     whole and counted per block; it is never hung under the root. The chain is looked at before the parent. Storing an
//     empty run checks the parent only.
//   - Apply counts references: with Count, every store of a name adds one and every removal takes one; with Set, a
//     name has one reference however often it is stored. The last reference of a slot's last name for a block removes
//     that block from the slot. Removing an unknown name is counted, and the rest of the event goes on.
//   - A name stored again for another block (an engine reused it) first leaves the old block.
//   - Drop forgets everything of a slot, and of that slot only.
//
// New gives the implementation: a radix tree stored by paths. A path is a run of blocks that grows at its tail; who holds them is a
// short list of intervals, so that blocks that come and go split and relink nothing. A path keeps block hashes, which a
// match compares at the speed of memory; sequence hashes only of every 8th block; and the engine hashes, so that a table of
// names needs 8 bytes an entry. A query takes one read lock, of one of 16 shards. All of it lies outside the Go heap, where the system
// allows it: the collector has nothing to scan, and what is freed is free.
//
// With a byte bound the ends of the paths least recently used go when there is no room; see Options.
//
// Its limits: a block that nobody holds keeps its 17 bytes while a later one of its path is held, of 1,024 at most; what
// a slot names in its own way, or counts more than once, costs some hundred bytes a block and is stored one by one; clearing a slot
// looks at every path, and leaves its names to the events that follow, 32 each, unless they are more than a quarter of all; a shard
// has 16 million paths.
package index

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Counting says what storing a name twice means; see the package comment.
type Counting uint8

// Count counts every store, as an engine's own stream needs; Set gives each name one reference, as a dump needs.
const (
	Count Counting = iota
	Set
)

// Overlap is one row of a match: the slot holds the first Depth blocks of the query, Depth >= 1.
type Overlap struct {
	Slot  worker.Slot
	Depth uint32
}

// Query is a prompt: the content hash of each full block and, if the caller has them, the sequence hashes they chain to.
// A Sequences of another length than Hashes is not looked at; a match is then slower, and the same.
type Query struct {
	Hashes    []block.Hash
	Sequences []block.SequenceHash // what block.Sequences gives for Hashes, or nil
}

// Applied says what an event did, in blocks.
type Applied struct {
	Stored    int // newly held by the slot
	Duplicate int // stored, but the slot held them already
	Removed   int // no longer held
	Unknown   int // removals of names the slot does not have
	Refused   int // stores refused
}

// Errors of Apply: the event changed nothing.
var (
	ErrUnknownParent = errors.New("parent block is not held by this worker rank")
	ErrBadChain      = errors.New("stored blocks do not form a chain: a block repeats, or is its own parent")
	ErrClosed        = errors.New("index is closed")
)

// Stats counts what the index holds.
type Stats struct {
	Blocks int // distinct blocks (sequence hashes)
	Pairs  int // (block, slot) pairs
	Paths  int // internal runs of blocks; an implementation without runs reports Blocks
	Bytes  int // memory held by the structure, its free space included: the sum of Memory
	Memory Memory
}

// Memory is where the bytes are.
type Memory struct {
	Blocks int // the blocks' hashes and names
	Paths  int // what is known of a run of blocks as a whole
	Names  int // tables that find a block by its engine hash
	Heads  int // tables that find a block by its sequence hash
	Sets   int // sets of holders
	Rest   int // everything else, free space included
}

// A Run is a stretch of consecutive blocks that the same slots hold under the same names, with the same number of
// references to each of these names.
type Run struct {
	Slots      []worker.Slot
	HasParent  bool             // Parent names the block before Blocks[0], for every slot; otherwise Blocks[0] begins a prompt
	Parent     block.EngineHash // one of its names, if it has several
	Blocks     []event.Block
	References uint32 // 1 or more
}

// Index is safe for concurrent use; events of one slot must come from one caller at a time, in order.
type Index interface {
	// Apply applies one device-tier event to a slot. On an error nothing changed, and Applied.Refused counts its blocks. Only where a
	// byte bound took blocks of the slot may some be stored, and are others forgotten that were known by names of refused ones.
	Apply(slot worker.Slot, ev *event.Event, counting Counting) (Applied, error)
	// Match appends a row per slot that holds the first block, in no particular order, and returns the extended slice.
	// It allocates only if dst is too short.
	Match(dst []Overlap, q Query) []Overlap
	// Drop forgets everything a slot holds.
	Drop(slot worker.Slot)
	// Blocks counts the blocks a slot holds, hidden ones included.
	Blocks(slot worker.Slot) int
	// Dump gives a slot's reachable blocks as Stored events, parents first, consecutive blocks of a chain in one event,
	// numbered from firstID. Applied with Set to an empty index they give the same matches. Blocks hidden behind a hole
	// are left out: no store can express them.
	Dump(slot worker.Slot, firstID uint64) []event.Event
	// Runs calls f for every name of every reachable block of every slot, as runs: a block is in as many runs of a slot as
	// it has names, and a run comes after the one its parent is in. Applied in that order to each of its slots, References
	// times with Count, the runs make an index with the same answers, names and references. As with Dump, hidden blocks
	// are left out. What the Run refers to is valid until f returns, and f must not call the index. The first error of f ends it and is
	// returned. What is applied meanwhile may be in the runs or not; every run's parent is.
	Runs(f func(*Run) error) error
	// Name gives the engine hash under which a slot names the block at depth depth of a query (1 is its first block), one
	// of them if it has several. It is false if the slot does not hold all of the first depth blocks. The caller, who got
	// depth from Match, uses the name as the parent of blocks in other tiers.
	Name(slot worker.Slot, q Query, depth int) (block.EngineHash, bool)
	// SetEvicts tells whether a store of a slot that finds no room under a byte bound takes blocks of others, as it does unless told
	// otherwise, and after the slot was dropped. If not it is refused with ErrFull: Applied.Refused of its last blocks were not stored.
	SetEvicts(slot worker.Slot, may bool)
	// Evicted counts the blocks that a byte bound took from a slot since the slot was last dropped.
	Evicted(slot worker.Slot) uint64
	// Stats counts. It may be out of date by what is applied meanwhile.
	Stats() Stats
	// Close gives memory back that the collector does not know of. Afterwards the index is empty and stays empty: stores
	// are refused. Nothing else may be called at the same time.
	Close()
}
