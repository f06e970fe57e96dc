package feed

import (
	"slices"

	"github.com/dynamo-go/dynamo-go/core/event"
)

// batch is one published message, not yet decoded; print is a fingerprint of its payload. Or it is what a local indexer
// says: the event of that number, or its whole state after it.
type batch struct {
	seq     uint64
	print   uint64
	payload []byte
	content uint64 // a fingerprint of the events as applied, 0 if it is not known: a live batch has it once it was applied

	queried bool          // an indexer's: events instead of payload, no print
	events  []event.Event //
	clears  bool          // it is queried, the first of an answer, and empties the rank: nothing before it matters
}

// size is about what the batch holds in memory, in bytes.
func (b *batch) size() int {
	const header, perBlock, perName = 128, 16, 8
	n := len(b.payload)
	for i := range b.events {
		n += header + perBlock*len(b.events[i].Blocks) + perName*len(b.events[i].Removed)
	}
	return n
}

// buffer keeps batches that wait behind a hole, ordered by number, each once, bounded in number and bytes. It is nearly
// always filled at its end.
type buffer struct {
	maxCount, maxBytes int

	waiting []batch
	bytes   int
}

// add keeps the batch unless the bounds forbid it; the first always fits. A number kept already is not kept twice.
func (b *buffer) add(x batch) bool {
	if n := len(b.waiting); n >= b.maxCount || n > 0 && b.bytes+x.size() > b.maxBytes {
		return false
	}
	i, found := b.find(x.seq)
	if !found {
		b.waiting = slices.Insert(b.waiting, i, x)
		b.bytes += x.size()
	}
	return true
}

func (b *buffer) find(seq uint64) (int, bool) {
	n := len(b.waiting)
	if n == 0 || b.waiting[n-1].seq < seq {
		return n, false
	}
	return slices.BinarySearchFunc(b.waiting, seq, func(x batch, seq uint64) int {
		switch {
		case x.seq < seq:
			return -1
		case x.seq > seq:
			return 1
		}
		return 0
	})
}

// has tells whether exactly this batch waits.
func (b *buffer) has(x batch) bool {
	i, found := b.find(x.seq)
	return found && b.waiting[i].print == x.print
}

func (b *buffer) empty() bool { return len(b.waiting) == 0 }

func (b *buffer) clear() { b.waiting, b.bytes = nil, 0 }

// shift takes the first batch.
func (b *buffer) shift() batch {
	x := b.waiting[0]
	b.waiting[0] = batch{}
	b.waiting = b.waiting[1:]
	b.bytes -= x.size()
	return x
}

// keepLastRun drops everything before the last run of consecutive numbers.
func (b *buffer) keepLastRun() {
	i := len(b.waiting) - 1
	for i > 0 && b.waiting[i-1].seq+1 == b.waiting[i].seq {
		i--
	}
	for ; i > 0; i-- {
		b.shift()
	}
}

// window is how many fingerprints are kept: as many equal batches in a row prove that it is the same engine process. One
// would do for real engines, whose batches carry the time.
const window = 64

// prints remembers the fingerprints of the last applied batches: of the numbers [from, to).
type prints struct {
	ring     [window]uint64
	contents [window]uint64
	from, to uint64
}

func (p *prints) clear() { p.from, p.to = 0, 0 }

func (p *prints) add(x batch) {
	if x.queried {
		p.clear()
		return
	}
	if p.to != x.seq || p.from == p.to {
		p.from, p.to = x.seq, x.seq
	}
	p.ring[x.seq%window], p.contents[x.seq%window] = x.print, 0
	p.to++
	if p.to-p.from > window {
		p.from++
	}
}

// has tells whether the fingerprint of a number is kept.
func (p *prints) has(seq uint64) bool { return seq >= p.from && seq < p.to }

// became keeps the fingerprint of what a batch was when it was applied.
func (p *prints) became(x batch) {
	if p.has(x.seq) {
		p.contents[x.seq%window] = x.content
	}
}

// like tells whether a batch with the same events was applied lately under its number.
func (p *prints) like(x batch) bool {
	return p.has(x.seq) && x.content != 0 && p.contents[x.seq%window] == x.content
}

func (p *prints) empty() bool { return p.from == p.to }

// same tells whether exactly this batch was applied lately.
func (p *prints) same(x batch) bool { return p.has(x.seq) && p.ring[x.seq%window] == x.print }
