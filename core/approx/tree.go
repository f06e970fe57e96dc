package approx

import (
	"slices"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// runID is the index of a run in tree.runs; none is no run.
type runID uint32

const none runID = 0

// A run is an edge of a rank's tree: consecutive blocks that came and were used together.
type run struct {
	hashes   []block.SequenceHash // never empty
	deadline int64                // TTL: when the run ends; LRU: 0
	parent   runID                // the run that this one continues; none: it begins a prompt
	children uint32
	refs     uint32 // LRU: requests that hold the run
	slot     worker.Slot
	prev     runID // in the order, as long as listed; next also links the unused
	next     runID
	listed   bool
}

// edge finds the run that continues another with a block, or begins a prompt of a slot with it.
type edge struct {
	from  uint64
	first block.SequenceHash
}

func edgeOf(slot worker.Slot, parent runID, first block.SequenceHash) edge {
	if parent == none {
		return edge{1<<32 | uint64(slot), first}
	}
	return edge{uint64(parent), first}
}

// tree has the prompts of all ranks, each rank's its own.
//
// Invariants (check verifies each by number):
//
//	T1  heads maps the edge of each live run to it, and nothing else; live counts them.
//	T2  children counts the runs that name this one as parent, all of the same slot.
//	T3  a run is used as late as those that continue it: its deadline, its refs are not less than theirs.
//	T4  room is the sum of what the live runs' arrays could hold; none is under a quarter full, but for minRoom.
//
// A run whose only continuation is short, and was used with it last, is joined with it when a prompt comes by, so that a
// long-lived prompt does not stay cut wherever another once left it.
type tree struct {
	runs   []run // runs[0] is not one
	unused runID // the first of those that are not live
	live   int
	heads  map[edge]runID
	peak   int // the most heads since the map was made
	room   int
}

const (
	mergeMax = 32 // blocks of a continuation that is joined: what a merge copies
	minRoom  = 8  // blocks
	// A map or an arena that once had this many entries is worth giving back.
	shrinkAbove = 1024
)

func newTree() tree { return tree{runs: make([]run, 1), heads: map[edge]runID{}} }

// place is how far a prompt is held: depth blocks of it, the last of which is the within-th of a run.
type place struct {
	run    runID
	within int
	depth  int
}

// find follows a prompt from the end of a run, or from its begin if the run is none.
func (t *tree) find(slot worker.Slot, from runID, seqs []block.SequenceHash) place {
	at := place{run: from, within: len(t.runs[from].hashes)}
	for at.depth < len(seqs) {
		id, ok := t.heads[edgeOf(slot, at.run, seqs[at.depth])]
		if !ok {
			break
		}
		hashes := t.runs[id].hashes
		n := commonPrefix(hashes, seqs[at.depth:])
		at = place{id, n, at.depth + n}
		if n < len(hashes) {
			break
		}
	}
	return at
}

// living counts the leading blocks of a prompt whose deadline is after now.
func (t *tree) living(slot worker.Slot, seqs []block.SequenceHash, now int64) int {
	depth, at := 0, none
	for depth < len(seqs) {
		id, ok := t.heads[edgeOf(slot, at, seqs[depth])]
		if !ok || t.runs[id].deadline <= now {
			break
		}
		n := commonPrefix(t.runs[id].hashes, seqs[depth:])
		depth += n
		if n < len(t.runs[id].hashes) {
			break
		}
		at = id
	}
	return depth
}

// commonPrefix counts the leading hashes that are equal. Whole chunks are compared at memory speed.
func commonPrefix(a, b []block.SequenceHash) int {
	const chunk = 64
	n := min(len(a), len(b))
	i := 0
	for ; i+chunk <= n && slices.Equal(a[i:i+chunk], b[i:i+chunk]); i += chunk {
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// add continues a run, or begins a prompt. The new run is in no list.
func (t *tree) add(slot worker.Slot, parent runID, seqs []block.SequenceHash) runID {
	id := t.newRun(run{hashes: slices.Clone(seqs), parent: parent, slot: slot})
	if parent != none {
		t.runs[parent].children++
	}
	t.head(id)
	return id
}

// newRun gives a run a place.
func (t *tree) newRun(r run) runID {
	id := t.unused
	if id == none {
		t.runs = append(t.runs, run{})
		id = runID(len(t.runs) - 1)
	} else {
		t.unused = t.runs[id].next
	}
	t.runs[id] = r
	t.live++
	t.room += cap(r.hashes)
	return id
}

func (t *tree) head(id runID) {
	r := &t.runs[id]
	t.heads[edgeOf(r.slot, r.parent, r.hashes[0])] = id
	t.peak = max(t.peak, len(t.heads))
}

func (t *tree) unhead(id runID) {
	r := &t.runs[id]
	delete(t.heads, edgeOf(r.slot, r.parent, r.hashes[0]))
}

// split cuts a run after n blocks and gives the run of the first n, in no list, for it is about to be used. The rest keeps
// its id, so that whatever continues it or ends with it is left alone.
func (t *tree) split(id runID, n int) runID {
	r := &t.runs[id]
	up := t.newRun(run{
		hashes: slices.Clone(r.hashes[:n]), deadline: r.deadline, parent: r.parent, children: 1, refs: r.refs, slot: r.slot,
	})
	t.head(up) // in place of id
	lower := &t.runs[id]
	lower.parent = up
	t.keep(id, slices.Clone(lower.hashes[n:]))
	t.head(id)
	return up
}

// keep makes an array the hashes of a run.
func (t *tree) keep(id runID, hashes []block.SequenceHash) {
	r := &t.runs[id]
	t.room += cap(hashes) - cap(r.hashes)
	r.hashes = hashes
}

// tidy joins runs on the way up from one, whose id stays. They were just used together: those of them in the list are
// neighbours there, and have one deadline.
func (t *tree) tidy(o *order, id runID) {
	for id != none {
		parent := t.runs[id].parent
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
	p, c := &t.runs[parent], &t.runs[id]
	return parent != none && p.children == 1 && p.refs == c.refs && len(c.hashes) <= mergeMax
}

// join puts the blocks of parent before those of a run, its only continuation.
func (t *tree) join(o *order, parent, id runID) {
	t.unhead(id)
	p, c := &t.runs[parent], &t.runs[id]
	hashes := append(p.hashes, c.hashes...)
	t.keep(parent, nil)
	t.keep(id, hashes)
	c.parent = p.parent
	t.head(id) // in place of parent
	t.take(o, parent)
	t.free(parent)
}

// shorten takes the last n blocks of a run that nothing continues, and the run with the last of them.
func (t *tree) shorten(o *order, id runID, n int) {
	r := &t.runs[id]
	left := len(r.hashes) - n
	switch {
	case left == 0:
		t.take(o, id)
		t.remove(id)
	case left*4 < cap(r.hashes) && cap(r.hashes) > minRoom:
		t.keep(id, slices.Clone(r.hashes[:left]))
	default:
		r.hashes = r.hashes[:left]
	}
}

// remove ends a run that nothing continues and that is in no list.
func (t *tree) remove(id runID) {
	if parent := t.runs[id].parent; parent != none {
		t.runs[parent].children--
	}
	t.discard(id)
	t.shrink()
}

// discard is remove for a run whose parent goes too.
func (t *tree) discard(id runID) {
	t.unhead(id)
	t.keep(id, nil)
	t.free(id)
}

// free gives the place of a run back.
func (t *tree) free(id runID) {
	t.runs[id] = run{next: t.unused}
	t.unused = id
	t.live--
}

// shrink gives memory back: a map never does.
func (t *tree) shrink() {
	if t.peak > shrinkAbove && len(t.heads) < t.peak/8 {
		heads := make(map[edge]runID, len(t.heads))
		for e, id := range t.heads {
			heads[e] = id
		}
		t.heads, t.peak = heads, len(heads)
	}
	if t.live == 0 && cap(t.runs) > shrinkAbove {
		t.runs, t.unused = make([]run, 1), none
	}
}

// bytes counts what the tree holds; a map entry is taken for the worst that a map after growth needs.
func (t *tree) bytes() int {
	const headBytes = 56 // 24 of key and value, one of control, at 7/16 full
	return cap(t.runs)*int(unsafe.Sizeof(run{})) + t.room*8 + t.peak*headBytes
}
