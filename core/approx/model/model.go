// Package model is package approx as maps and loops, to be checked by eye and compared with. It has no index: a block is
// the sequence hashes up to it.
package model

import (
	"encoding/binary"

	"github.com/dynamo-go/dynamo-go/core/approx"
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const bucketNanos = 100_000_000

// A prefix is one block: all sequence hashes up to it, as bytes.
type prefix = string

type held struct {
	depth    int
	deadline int64 // TTL
	refs     int   // LRU
	released int   // LRU: the number of the release that made it idle
}

type rank struct {
	capacity    uint64
	incarnation uint64
	blocks      map[prefix]*held
}

type lease struct {
	slot    worker.Slot
	seqs    []block.SequenceHash
	private int
}

// Approx has the methods and the semantics of approx.Approx.
type Approx struct {
	ttl      int64
	releases int
	ranks    map[worker.Slot]*rank
	leases   map[string]*lease
}

// New returns an empty model.
func New(ttl int64) *Approx {
	return &Approx{ttl: ttl, ranks: map[worker.Slot]*rank{}, leases: map[string]*lease{}}
}

func (m *Approx) rank(slot worker.Slot) *rank {
	if m.ranks[slot] == nil {
		m.ranks[slot] = &rank{blocks: map[prefix]*held{}}
	}
	return m.ranks[slot]
}

// prefixes gives the blocks of a prompt.
func prefixes(seqs []block.SequenceHash) []prefix {
	var all []byte
	out := make([]prefix, 0, len(seqs))
	for _, h := range seqs {
		all = binary.LittleEndian.AppendUint64(all, uint64(h))
		out = append(out, prefix(all))
	}
	return out
}

// Route presumes the blocks held.
func (m *Approx) Route(slot worker.Slot, seqs []block.SequenceHash, now int64) {
	r := m.rank(slot)
	if r.capacity > 0 {
		m.hold(r, seqs)
		m.unhold(slot, seqs)
		return
	}
	if m.ttl <= 0 {
		return
	}
	m.Expire(now)
	end := now + m.ttl
	end += (bucketNanos - end%bucketNanos) % bucketNanos
	for i, p := range prefixes(seqs) {
		r.blocks[p] = &held{depth: i + 1, deadline: end}
	}
}

// Expire ends what is due.
func (m *Approx) Expire(now int64) {
	for _, r := range m.ranks {
		for p, h := range r.blocks {
			if r.capacity == 0 && h.deadline <= now {
				delete(r.blocks, p)
			}
		}
	}
}

// Acquire holds the blocks for a request.
func (m *Approx) Acquire(slot worker.Slot, id string, seqs []block.SequenceHash, private int, now int64) error {
	if private < 0 {
		return approx.ErrInvalid
	}
	if m.leases[id] != nil {
		return approx.ErrDuplicateLease
	}
	r := m.rank(slot)
	if r.capacity == 0 {
		m.Route(slot, seqs, now)
		return nil
	}
	m.hold(r, seqs)
	m.leases[id] = &lease{slot, append([]block.SequenceHash(nil), seqs...), private}
	m.evict(slot)
	return nil
}

// Materialise adds blocks behind those that a request holds.
func (m *Approx) Materialise(id string, seqs []block.SequenceHash) error {
	l := m.leases[id]
	if l == nil {
		return approx.ErrLeaseNotFound
	}
	r := m.rank(l.slot)
	all := append(append([]block.SequenceHash(nil), l.seqs...), seqs...)
	for i, p := range prefixes(all) {
		switch h := r.blocks[p]; {
		case i < len(l.seqs):
		case h == nil:
			r.blocks[p] = &held{depth: i + 1, refs: 1}
		default: // a copy of its own, until it is released
			h.refs++
			l.private++
		}
	}
	l.seqs = all
	m.evict(l.slot)
	return nil
}

// Release ends what a request holds.
func (m *Approx) Release(id string) error {
	l := m.leases[id]
	if l == nil {
		return approx.ErrLeaseNotFound
	}
	delete(m.leases, id)
	m.unhold(l.slot, l.seqs)
	return nil
}

// SetCapacity makes the slot an LRU rank, or a TTL rank for 0.
func (m *Approx) SetCapacity(slot worker.Slot, blocks, incarnation uint64) {
	r := m.rank(slot)
	if (r.capacity > 0) != (blocks > 0) || r.incarnation != incarnation {
		m.Drop(slot)
		r = m.rank(slot)
	}
	r.capacity, r.incarnation = blocks, incarnation
	m.evict(slot)
}

// Drop forgets everything of a slot.
func (m *Approx) Drop(slot worker.Slot) {
	delete(m.ranks, slot)
	for id, l := range m.leases {
		if l.slot == slot {
			delete(m.leases, id)
		}
	}
}

// Depth counts the leading blocks held.
func (m *Approx) Depth(slot worker.Slot, seqs []block.SequenceHash, now int64) int {
	m.Expire(now)
	depth := 0
	for _, p := range prefixes(seqs) {
		if m.rank(slot).blocks[p] == nil {
			break
		}
		depth++
	}
	return depth
}

// Blocks counts the blocks held.
func (m *Approx) Blocks(slot worker.Slot, now int64) int {
	m.Expire(now)
	return len(m.rank(slot).blocks)
}

// Capacity gives what SetCapacity set.
func (m *Approx) Capacity(slot worker.Slot) uint64 { return m.rank(slot).capacity }

// Leases counts the requests that hold blocks.
func (m *Approx) Leases() int { return len(m.leases) }

func (m *Approx) hold(r *rank, seqs []block.SequenceHash) {
	for i, p := range prefixes(seqs) {
		if r.blocks[p] == nil {
			r.blocks[p] = &held{depth: i + 1}
		}
		r.blocks[p].refs++
	}
}

func (m *Approx) unhold(slot worker.Slot, seqs []block.SequenceHash) {
	m.releases++
	for _, p := range prefixes(seqs) {
		h := m.rank(slot).blocks[p]
		h.refs--
		h.released = m.releases
	}
	m.evict(slot)
}

// evict takes idle blocks while there are more than fit: of the oldest release, the deepest.
func (m *Approx) evict(slot worker.Slot) {
	r := m.rank(slot)
	for r.capacity > 0 {
		used := len(r.blocks)
		for _, l := range m.leases {
			if l.slot == slot {
				used += l.private
			}
		}
		var victim prefix
		for p, h := range r.blocks {
			v := r.blocks[victim]
			if h.refs == 0 && (v == nil || h.released < v.released || h.released == v.released && h.depth > v.depth) {
				victim = p
			}
		}
		if used <= int(r.capacity) || r.blocks[victim] == nil {
			return
		}
		delete(r.blocks, victim)
	}
}
