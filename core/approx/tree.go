package approx

import (
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/idtable"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// runID is the number of a run in a tree; none is no run.
type runID uint32

const none runID = 0

const (
	runBlocks = 32  // blocks of a run at most: what a split or a join copies
	pageRuns  = 256 // runs in a page
)

// A run is an edge of a rank's tree: consecutive blocks that came and were used together. It has no pointers, so that the
// collector does not look at it.
type run struct {
	deadline int64 // TTL: when the run ends; LRU: 0
	parent   runID // the run that this one continues; none: it begins a prompt
	children uint32
	refs     uint32 // LRU: requests that hold the run
	slot     worker.Slot
	links    [2]link // of the orders, as long as listed; the first also links the unused
	n        uint8   // blocks; 0: not live
	listed   bool
	hashes   [runBlocks]block.SequenceHash // the first n count
}

func (r *run) blocks() []block.SequenceHash { return r.hashes[:r.n] }

// tree has the prompts of all ranks, each rank's its own.
//
// Invariants (check verifies each by number):
//
//	T1  heads finds each live run by what it continues and its first block, and nothing else; live counts them.
//	T2  children counts the runs that name this one as parent, all of the same slot.
//	T3  a run is used as late as those that continue it: its deadline, its refs are not less than theirs.
//
// A run whose only continuation was used with it last, and fits into it, is joined with it when a prompt comes by, so that
// a long-lived prompt does not stay cut wherever another once left it.
type tree struct {
	pages  []*[pageRuns]run // the first run is not one
	used   runID            // places given out, the first included
	unused runID            // the first of those that are not live
	live   int
	heads  idtable.Tables
}

func newTree() tree { return tree{pages: []*[pageRuns]run{{}}, used: 1} }

func (t *tree) at(id runID) *run { return &t.pages[id/pageRuns][id%pageRuns] }

// Sequence hashes are public: positions in a table depend on numbers that differ from process to process.
var fromMix, firstMix = rand.Uint64(), rand.Uint64()

// headHash places the run that continues another with a block, or begins a prompt of a slot with it.
func headHash(slot worker.Slot, parent runID, first block.SequenceHash) uint64 {
	high, low := bits.Mul64(uint64(slot)<<32|uint64(parent)^fromMix, uint64(first)^firstMix)
	return high ^ low
}

// next finds that run.
func (t *tree) next(slot worker.Slot, parent runID, first block.SequenceHash) runID {
	for p := t.heads.Probe(headHash(slot, parent, first)); ; {
		id, ok := p.Next()
		if !ok {
			return none
		}
		if r := t.at(runID(id)); r.parent == parent && r.hashes[0] == first && r.slot == slot {
			return runID(id)
		}
	}
}

// place is how far a prompt is held: depth blocks of it, the last of which is the within-th of a run.
type place struct {
	run    runID
	within int
	depth  int
}

// find follows a prompt from the end of a run, or from its begin if the run is none.
func (t *tree) find(slot worker.Slot, from runID, seqs []block.SequenceHash) place {
	at := place{run: from, within: int(t.at(from).n)}
	for at.depth < len(seqs) {
		id := t.next(slot, at.run, seqs[at.depth])
		if id == none {
			break
		}
		held := t.at(id).blocks()
		n := block.Common(held, seqs[at.depth:])
		at = place{id, n, at.depth + n}
		if n < len(held) {
			break
		}
	}
	return at
}

// living counts the leading blocks of a prompt whose deadline is after now.
func (t *tree) living(slot worker.Slot, seqs []block.SequenceHash, now int64) int {
	depth, at := 0, none
	for depth < len(seqs) {
		at = t.next(slot, at, seqs[depth])
		if at == none || t.at(at).deadline <= now {
			break
		}
		held := t.at(at).blocks()
		n := block.Common(held, seqs[depth:])
		depth += n
		if n < len(held) {
			break
		}
	}
	return depth
}

// runsOf tells how many runs so many new blocks take.
func runsOf(blocks int) int { return (blocks + runBlocks - 1) / runBlocks }

// add continues a run, or begins a prompt, and gives the last of the new runs, which are in no list.
func (t *tree) add(slot worker.Slot, parent runID, seqs []block.SequenceHash) runID {
	for len(seqs) > 0 {
		id := t.newRun()
		r := t.at(id)
		r.parent, r.slot, r.n = parent, slot, uint8(copy(r.hashes[:], seqs))
		if parent != none {
			t.at(parent).children++
		}
		t.head(id)
		parent, seqs = id, seqs[r.n:]
	}
	return parent
}

// newRun gives a run a place.
func (t *tree) newRun() runID {
	id := t.unused
	if id == none {
		if t.used%pageRuns == 0 {
			t.pages = append(t.pages, new([pageRuns]run))
		}
		id = t.used
		t.used++
	} else {
		t.unused = t.at(id).links[0].next
		*t.at(id) = run{}
	}
	t.live++
	return id
}

func (t *tree) head(id runID) {
	r := t.at(id)
	t.heads.Insert(headHash(r.slot, r.parent, r.hashes[0]), uint32(id))
}

func (t *tree) unhead(id runID) {
	r := t.at(id)
	t.heads.Remove(headHash(r.slot, r.parent, r.hashes[0]), uint32(id))
}

// split cuts a run after n blocks and gives the run of the first n, in no list, for it is about to be used. The rest keeps
// its id, so that whatever continues it or ends with it is left alone.
func (t *tree) split(id runID, n int) runID {
	t.unhead(id)
	up := t.newRun()
	r, u := t.at(id), t.at(up)
	u.deadline, u.parent, u.children, u.refs, u.slot, u.n = r.deadline, r.parent, 1, r.refs, r.slot, uint8(n)
	copy(u.hashes[:], r.hashes[:n])
	copy(r.hashes[:], r.hashes[n:r.n])
	r.parent, r.n = up, r.n-uint8(n)
	t.head(up)
	t.head(id)
	return up
}

// tidy joins runs on the way up from one, whose id stays. They were just used together: those of them in the lists are
// neighbours there, and have one deadline.
func (t *tree) tidy(o orders, id runID) {
	for id != none {
		parent := t.at(id).parent
		if t.mayJoin(parent, id) {
			t.join(o, parent, id)
		} else {
			id = parent
		}
	}
}

// mayJoin tells whether a run and one that continues it have a future together. As many references mean that no request
// ends between them.
func (t *tree) mayJoin(parent, id runID) bool {
	p, c := t.at(parent), t.at(id)
	return parent != none && p.children == 1 && p.refs == c.refs && p.n+c.n <= runBlocks
}

// join puts the blocks of parent before those of a run, its only continuation.
func (t *tree) join(o orders, parent, id runID) {
	t.unhead(parent)
	t.unhead(id)
	p, c := t.at(parent), t.at(id)
	copy(c.hashes[p.n:], c.blocks())
	copy(c.hashes[:], p.blocks())
	c.parent, c.n = p.parent, c.n+p.n
	t.head(id) // in place of parent
	t.take(o, parent)
	t.free(parent)
}

// shorten takes the last n blocks of a run that nothing continues, and the run with the last of them.
func (t *tree) shorten(o orders, id runID, n int) {
	r := t.at(id)
	if n < int(r.n) {
		r.n -= uint8(n)
		return
	}
	if r.parent != none {
		t.at(r.parent).children--
	}
	t.unhead(id)
	t.take(o, id)
	t.free(id)
}

// free gives the place of a run back, and all memory with the last one.
func (t *tree) free(id runID) {
	*t.at(id) = run{links: [2]link{{next: t.unused}}}
	t.unused = id
	if t.live--; t.live == 0 {
		*t = newTree()
	}
}

// What a tree takes besides, at most, and for each run: tables are at least half full, but for eight entries each.
const (
	treeBytes    = pageRuns*int(unsafe.Sizeof(run{})) + int(unsafe.Sizeof(tree{})) + 256*8*8
	bytesPerRun  = int(unsafe.Sizeof(run{})) + 2*8 + 1
	pointerBytes = 16 // of a page's pointer, with room to grow
)

// bytes counts what the tree holds.
func (t *tree) bytes() int {
	return int(unsafe.Sizeof(*t)) + len(t.pages)*int(unsafe.Sizeof([pageRuns]run{})) + 8*cap(t.pages) + t.heads.Bytes()
}
