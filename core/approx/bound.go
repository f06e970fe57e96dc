package approx

import (
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// This file keeps Stats.Bytes within Options.MaxBytes: the number of runs is bounded to what they take at most, leases to a
// quarter. At the bound go the blocks whose time ends first, then those released first, then the leases acquired first.

// mostRuns is how many runs there may be.
func (x *Approx) mostRuns() int {
	return (x.maxBytes/4*3 - x.rankBytes() - treeBytes - bufferBytes) * pageRuns / (bytesPerRun*pageRuns + pointerBytes)
}

// free gives up runs until there is room for so many, and tells whether there is.
func (x *Approx) free(runs int) bool {
	if x.maxBytes <= 0 {
		return true
	}
	for most := x.mostRuns(); x.tree.live+runs > most; {
		switch {
		case x.expiring.first != none:
			x.lose(x.expiring.first)
		case x.idle.first != none:
			x.lose(x.idle.first)
		case x.oldest != nil:
			x.end(x.oldest)
		default:
			return false
		}
	}
	return true
}

func (x *Approx) lose(id runID) {
	slot := x.tree.at(id).slot
	x.leftOut(slot, x.shorten(id, runBlocks))
}

func (x *Approx) leftOut(slot worker.Slot, blocks int) {
	x.rank(slot).lost += uint64(blocks)
	x.stats.Evicted += uint64(blocks)
}

// fit makes room for a prompt, and gives as much of it as there is room for.
func (x *Approx) fit(slot worker.Slot, q index.Query) index.Query {
	if x.maxBytes <= 0 || slot >= index.MaxSlots { // which the index refuses
		return q
	}
	x.rank(slot) // its memory counts
	most := x.mostRuns()
	if depth := x.tree.find(slot, none, q.Sequences).depth; x.tree.live+runsOf(len(q.Sequences)-depth)+1 <= most {
		return q
	}
	// What the slot has of it may go before it is used: so there must be room for all.
	if !x.free(runsOf(len(q.Sequences)) + 1) {
		n := max(0, most-1) * runBlocks
		x.leftOut(slot, len(q.Sequences)-n)
		q.Hashes, q.Sequences = q.Hashes[:n], q.Sequences[:n]
	}
	x.flush()
	return q
}

// lend makes a lease of what a request holds, if there is room for one.
func (x *Approx) lend(l lease) bool {
	if x.maxBytes > 0 {
		for x.oldest != nil && x.leased+l.bytes() > x.maxBytes/4 {
			x.end(x.oldest)
		}
		if x.leased+l.bytes() > x.maxBytes/4 {
			return false
		}
	}
	n := &l
	if n.prev = x.newest; n.prev != nil {
		n.prev.next = n
	} else {
		x.oldest = n
	}
	x.newest, x.leases[l.id] = n, n
	x.ranks[l.slot].private += l.private
	x.leased += l.bytes()
	x.leaseMax = max(x.leaseMax, x.leased)
	return true
}

// end ends a lease, and releases what it holds.
func (x *Approx) end(l *lease) {
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		x.oldest = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		x.newest = l.prev
	}
	delete(x.leases, l.id)
	if x.leased -= l.bytes(); len(x.leases) == 0 && x.leaseMax > keepLeases {
		x.leases, x.leaseMax = map[string]*lease{}, 0
	}
	x.ranks[l.slot].private -= l.private
	x.unhold(l.slot, l.end)
}

// last gives the name of the last block of a run.
func (t *tree) last(id runID) block.EngineHash {
	r := t.at(id)
	return block.EngineHash(r.hashes[r.n-1])
}
