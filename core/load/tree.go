package load

import (
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// nodeID indexes tree.nodes; root is the empty prefix.
type nodeID uint32

const root nodeID = 0

// node is the edge from parent, a run of at least one block, and the point where it ends. 64 bytes: what a request leaves behind when it ends is,
// mostly, an edge of its own, and then a cache line is all that it takes to find.
type node struct {
	hashes   []block.Hash
	lone     [1]holder // if there is one only, else the zero holder
	crowd    uint32    // the holders, in tree.crowds, if there are several; else 0
	head     uint32    // hash of parent and first hash, in heads
	parent   nodeID
	children uint32
	xor      nodeID // of the children's ids: with one child, that child
	ends     uint32 // requests whose prompt ends here
}

const _ = -(unsafe.Sizeof(node{}) % 64)

// holder counts the requests of a slot that pass through an edge.
type holder struct {
	slot   worker.Slot
	refs   uint32 // >= 1
	weight uint32 // of each block of the edge for this slot, in units
}

// tree is the radix tree of all prompts booked, for all slots.
//
// Invariants (checkTree in the tests verifies each by number):
//
//	I1  every node but the root has at least one hash and one holder; holders are sorted by slot, with refs >= 1.
//	I2  heads has exactly the nodes but the root, by parent and first hash: hashes need not be chained for that to be exact. head is the hash of both.
//	I3  children and xor describe the nodes that name this one as parent.
//	I4  the refs of a node are its ends plus the refs of its children; per slot, refs do not grow with depth.
//	I5  an array of hashes is at least a quarter full, or of the smallest class.
//	I6  a crowd is either of one node or idle, and then empty.
//
// Depth: a node with one child, no ends and the same weights takes a child of at most mergeMax blocks into itself, so a
// long-lived prefix does not stay cut at every point where a request once left it: of edges that follow each other so,
// all but the first are longer than mergeMax.
type tree struct {
	nodes  []node
	unused []nodeID
	heads  table
	crowds [][]holder // by number, sorted by slot; the first is nobody's
	idle   []uint32   // crowds of no node
	secret [2]uint64  // of hash
	pool   hashPool

	edits uint64 // grows whenever a node comes, goes, or changes its run
	trail trail  // of the latest query
}

// trail is the way of a query down the tree: the nodes whose runs it has, of the last one perhaps only the beginning.
type trail struct {
	nodes []nodeID
	depth int // blocks of the query that were found
	asked int // blocks of the query
	edits uint64
}

// mergeMax bounds what a merge copies: a child longer than this stays an edge of its own, and costs a query one look-up
// per 32 blocks at most.
const mergeMax = 32

func newTree() tree {
	return tree{nodes: make([]node, 1), crowds: make([][]holder, 1), heads: newTable(), secret: [2]uint64{rand.Uint64(), rand.Uint64()}}
}

// hash mixes parent and first hash. Nobody who chooses hashes knows the secret.
func (t *tree) hash(parent nodeID, first block.Hash) uint32 {
	hi, lo := bits.Mul64(uint64(first)^t.secret[0], (uint64(parent)+1)*0x9e3779b97f4a7c15^t.secret[1])
	return uint32((hi ^ lo) >> 16)
}

// acquire adds a request of slot with the prompt seq. It returns the node where the prompt ends and the number of blocks
// that the slot did not hold before. walked tells that the trail may be that of seq; it is if nothing changed since.
func (t *tree) acquire(slot worker.Slot, seq []block.Hash, walked bool) (leaf nodeID, added int) {
	if !walked || t.trail.edits != t.edits || t.trail.asked != len(seq) {
		t.walk(seq)
	}
	leaf, left := root, t.trail.depth
	for _, at := range t.trail.nodes {
		n := min(left, len(t.nodes[at].hashes))
		if n < len(t.nodes[at].hashes) {
			at = t.split(at, n)
		}
		if t.hold(at, slot) {
			added += n
		}
		left -= n
		leaf = at
	}
	if rest := seq[t.trail.depth:]; len(rest) > 0 {
		leaf = t.insert(leaf, rest)
		t.hold(leaf, slot)
		added += len(rest)
	}
	t.nodes[leaf].ends++
	return leaf, added
}

// walk makes the trail that of a query.
func (t *tree) walk(seq []block.Hash) {
	w := &t.trail
	w.nodes, w.depth, w.asked, w.edits = w.nodes[:0], 0, len(seq), t.edits
	for at := root; w.depth < len(seq); {
		child, ok := t.child(at, seq[w.depth])
		if !ok {
			return
		}
		run := t.nodes[child].hashes
		n := block.Common(run, seq[w.depth:])
		w.nodes = append(w.nodes, child)
		w.depth += n
		if n < len(run) {
			return
		}
		at = child
	}
}

// release takes a request of slot away whose prompt ends at leaf. It returns what the slot no longer holds.
func (t *tree) release(slot worker.Slot, leaf nodeID) (blocks int, weight int64) {
	t.nodes[leaf].ends--
	kept := root
	for at := leaf; at != root; {
		n := &t.nodes[at]
		holders := t.holders(n)
		i, _ := findHolder(holders, slot)
		h := &holders[i]
		none := false
		if h.refs--; h.refs == 0 {
			blocks += len(n.hashes)
			weight += int64(len(n.hashes)) * int64(h.weight)
			none = t.leave(n, i)
		}
		parent := n.parent
		if none {
			t.remove(at)
		} else if kept == root {
			kept = at
		}
		at = parent
	}
	t.merge(t.nodes[t.merge(kept)].parent)
	return blocks, weight
}

// weigh sets the weight of the blocks that slot holds for one request only, the one whose prompt ends at leaf, and
// returns by how much the slot's weight grows.
func (t *tree) weigh(slot worker.Slot, leaf nodeID, weight uint32) (delta int64) {
	for at := leaf; at != root; at = t.nodes[at].parent {
		n := &t.nodes[at]
		holders := t.holders(n)
		i, _ := findHolder(holders, slot)
		h := &holders[i]
		if h.refs != 1 {
			break
		}
		delta += int64(len(n.hashes)) * (int64(weight) - int64(h.weight))
		h.weight = weight
	}
	return delta
}

// matched writes, for every slot that holds a prefix of seq, how long it is; other entries of dst are left alone.
func (t *tree) matched(dst []uint32, seq []block.Hash) {
	t.walk(seq)
	depth := 0
	for _, at := range t.trail.nodes {
		n := &t.nodes[at]
		depth = min(depth+len(n.hashes), t.trail.depth)
		for _, h := range t.holders(n) {
			if int64(h.slot) >= int64(len(dst)) {
				break
			}
			dst[h.slot] = uint32(depth)
		}
	}
}

func (t *tree) child(parent nodeID, first block.Hash) (nodeID, bool) {
	hash := t.hash(parent, first)
	for i := t.heads.home(hash); t.heads.cells[i].value != 0; i = t.heads.next(i) {
		c := t.heads.cells[i]
		if n := &t.nodes[c.value]; c.hash == hash && n.parent == parent && n.hashes[0] == first {
			return nodeID(c.value), true
		}
	}
	return root, false
}

// hold counts a request at a node, and tells whether it is the slot's first there.
func (t *tree) hold(at nodeID, slot worker.Slot) bool {
	n := &t.nodes[at]
	holders := t.holders(n)
	i, ok := findHolder(holders, slot)
	if ok {
		holders[i].refs++
		return false
	}
	t.enter(n, i, holder{slot: slot, refs: 1, weight: unit})
	return true
}

// findHolder gives the position of slot, or where to insert it.
func findHolder(holders []holder, slot worker.Slot) (int, bool) {
	lo, hi := 0, len(holders)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if holders[mid].slot < slot {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(holders) && holders[lo].slot == slot
}
