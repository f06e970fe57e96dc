package index

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
)

const (
	unitBlocks = 8                 // blocks of a unit: as many as lie between two sequence hashes that are kept
	unitBytes  = unitBlocks*16 + 8 // block hashes, engine hashes, a sequence hash
	maxUnits   = 128               // of a path

	minArenaPages = 5  // of a chunk: 150 units
	maxArenaPages = 16 // of a chunk: 481 units
)

// An arena holds the arrays of all paths. It is one for all shards, so that what one gives back serves the others.
//
// Guard: mu, for runs; a run's contents by the lock of the shard whose path has it. A reader finds a run through dir,
// which only ever grows, without mu.
type arena struct {
	mu   sync.Mutex
	runs space
	heap *heap
	dir  [1 << (32 - unitBits - dirBits)]atomic.Pointer[[1 << dirBits]unsafe.Pointer]
}

const dirBits = 11

// arrays are those of a path, each as long as its run can hold: where they begin, and for how many blocks they are.
type arrays struct {
	base   unsafe.Pointer
	blocks uint32
}

func (a *arena) base(r run) unsafe.Pointer {
	c := r.chunk()
	return unsafe.Add(a.dir[c>>dirBits].Load()[c&(1<<dirBits-1)], uintptr(r.unit())*unitBytes)
}

func (a *arena) arrays(r run, units uint32) arrays { return arrays{a.base(r), units * unitBlocks} }

// hashes are those of the path's blocks.
func (a arrays) hashes() []block.Hash { return unsafe.Slice((*block.Hash)(a.base), a.blocks) }

// names are the engine hashes of the path's blocks: the first holder's.
func (a arrays) names() []block.EngineHash {
	return unsafe.Slice((*block.EngineHash)(unsafe.Add(a.base, uintptr(a.blocks)*8)), a.blocks)
}

// marks are the sequence hashes of every 8th block; the first one is of the block before the path, 0 if there is none.
func (a arrays) marks() []block.SequenceHash {
	return unsafe.Slice((*block.SequenceHash)(unsafe.Add(a.base, uintptr(a.blocks)*16)), a.blocks/unitBlocks)
}

// take gives a run, false if the bound forbids it.
func (a *arena) take(units uint32) (run, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.runs.take(units)
	if !ok {
		if !a.grow(units) {
			return noRun, false
		}
		r, _ = a.runs.take(units)
	}
	return r, true
}

// grow adds a chunk in which a run of that many units fits: a large one if the arena is large and the bound allows it.
func (a *arena) grow(units uint32) bool {
	least := pagesOf(uintptr(sure(units)) * unitBytes)
	many := min(max(uint32(a.runs.live*unitBytes/pageBytes/16), minArenaPages), maxArenaPages)
	for _, pages := range [...]uint32{max(many, least), max(minArenaPages, least), least} {
		if from, base, ok := a.heap.take(pages, false); ok {
			a.add(from, base, pages)
			return true
		}
	}
	return false
}

func (a *arena) add(from run, base unsafe.Pointer, pages uint32) {
	before := a.runs.own()
	k := a.runs.add(base, pages*pageBytes/unitBytes, from)
	part := a.dir[k>>dirBits].Load()
	if part == nil {
		part = new([1 << dirBits]unsafe.Pointer)
		a.heap.note(int(unsafe.Sizeof(*part)))
		a.dir[k>>dirBits].Store(part)
	}
	part[k&(1<<dirBits-1)] = base
	a.heap.note(a.runs.own() - before)
}

// extend makes a run longer in its place, if it can.
func (a *arena) extend(r run, units, more uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs.extend(r, units, more)
}

func (a *arena) put(r run, units uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs.put(r, units)
	before := a.runs.own()
	for c, ok := a.runs.surplus(); ok; c, ok = a.runs.surplus() {
		a.heap.put(c.from, pagesOf(uintptr(c.units)*unitBytes))
	}
	a.heap.note(a.runs.own() - before)
}

func pagesOf(bytes uintptr) uint32 { return uint32((bytes + pageBytes - 1) / pageBytes) }
