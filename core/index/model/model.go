// Package model is the literal truth about an index: maps and loops, to be checked by eye. A block is its parent and its
// content, so no hash of a prefix is ever looked at. Nothing is fast, and blocks once seen are never forgotten.
package model

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A prefix is a block with all blocks before it: equal prefixes are one pointer.
type prefix struct {
	parent *prefix
	hash   block.Hash
	next   map[block.Hash]*prefix
	depth  int // of the root, which is no block, 0
}

type name struct {
	block *prefix
	refs  int
}

// A holder is one slot: what its engine hashes name, and how many of them name each block it holds.
type holder struct {
	names  map[block.EngineHash]name
	blocks map[*prefix]int
}

type model struct {
	mu      sync.Mutex
	root    *prefix
	holders map[worker.Slot]*holder
	closed  bool
}

// New returns an empty model.
func New() index.Index {
	return &model{root: &prefix{}, holders: make(map[worker.Slot]*holder)}
}

func (p *prefix) child(h block.Hash) *prefix {
	if p.next == nil {
		p.next = make(map[block.Hash]*prefix)
	}
	if p.next[h] == nil {
		p.next[h] = &prefix{parent: p, hash: h, depth: p.depth + 1}
	}
	return p.next[h]
}

// forget removes a name, and tells how many blocks went with it: 1 if it was the last of its block.
func (h *holder) forget(engine block.EngineHash) int {
	p := h.names[engine].block
	delete(h.names, engine)
	if h.blocks[p]--; h.blocks[p] > 0 {
		return 0
	}
	delete(h.blocks, p)
	return 1
}

func (m *model) Apply(slot worker.Slot, ev *event.Event, counting index.Counting) (index.Applied, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return index.Applied{Refused: len(ev.Blocks)}, index.ErrClosed
	}
	if m.holders[slot] == nil {
		m.holders[slot] = &holder{make(map[block.EngineHash]name), make(map[*prefix]int)}
	}
	h := m.holders[slot]
	var done index.Applied
	switch ev.Kind {
	case event.Stored:
		at := m.root
		seen := make(map[block.EngineHash]bool)
		if ev.HasParent {
			at, seen[ev.Parent] = h.names[ev.Parent].block, true
		}
		for _, b := range ev.Blocks {
			if seen[b.Engine] {
				return index.Applied{Refused: len(ev.Blocks)}, index.ErrBadChain
			}
			seen[b.Engine] = true
		}
		if at == nil {
			return index.Applied{Refused: len(ev.Blocks)}, index.ErrUnknownParent
		}
		for _, b := range ev.Blocks {
			at = at.child(b.Hash)
			if n, ok := h.names[b.Engine]; ok && n.block != at {
				done.Removed += h.forget(b.Engine)
			}
			if h.blocks[at] > 0 {
				done.Duplicate++
			} else {
				done.Stored++
			}
			n, ok := h.names[b.Engine]
			switch {
			case !ok:
				h.blocks[at]++
				n = name{at, 1}
			case counting == index.Count:
				n.refs++
			default:
				n.refs = 1
			}
			h.names[b.Engine] = n
		}
	case event.Removed:
		for _, engine := range ev.Removed {
			n, ok := h.names[engine]
			switch {
			case !ok:
				done.Unknown++
			case n.refs > 1:
				h.names[engine] = name{n.block, n.refs - 1}
			default:
				done.Removed += h.forget(engine)
			}
		}
	case event.Cleared:
		for engine := range h.names {
			done.Removed += h.forget(engine)
		}
	}
	return done, nil
}

func (m *model) Match(dst []index.Overlap, q index.Query) []index.Overlap {
	m.mu.Lock()
	defer m.mu.Unlock()
	for slot, h := range m.holders {
		at, depth := m.root, uint32(0)
		for _, hash := range q.Hashes {
			if at = at.next[hash]; h.blocks[at] == 0 {
				break
			}
			depth++
		}
		if depth > 0 {
			dst = append(dst, index.Overlap{Slot: slot, Depth: depth})
		}
	}
	return dst
}

func (m *model) Drop(slot worker.Slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.holders, slot)
}

func (m *model) Blocks(slot worker.Slot) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.holders[slot]; h != nil {
		return len(h.blocks)
	}
	return 0
}

// Runs gives every slot's dump, cut where the number of references changes.
func (m *model) Runs(f func(*index.Run) error) error {
	m.mu.Lock()
	slots := slices.Sorted(maps.Keys(m.holders))
	m.mu.Unlock()
	for _, slot := range slots {
		for _, ev := range m.Dump(slot, 0) {
			names := m.holders[slot].names
			run := index.Run{Slots: []worker.Slot{slot}, HasParent: ev.HasParent, Parent: ev.Parent}
			for rest := ev.Blocks; len(rest) > 0; rest = rest[len(run.Blocks):] {
				refs := names[rest[0].Engine].refs
				n := 1
				for n < len(rest) && names[rest[n].Engine].refs == refs {
					n++
				}
				run.Blocks, run.References = rest[:n], uint32(refs)
				if err := f(&run); err != nil {
					return err
				}
				run.HasParent, run.Parent = true, rest[n-1].Engine
			}
		}
	}
	return nil
}

func (m *model) Name(slot worker.Slot, q index.Query, depth int) (block.EngineHash, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.holders[slot]
	if h == nil || depth < 1 || depth > len(q.Hashes) {
		return 0, false
	}
	at := m.root
	for _, hash := range q.Hashes[:depth] {
		if at = at.next[hash]; h.blocks[at] == 0 {
			return 0, false
		}
	}
	for engine, n := range h.names {
		if n.block == at {
			return engine, true
		}
	}
	return 0, false
}

// SetEvicts means nothing: the model is not bounded.
func (m *model) SetEvicts(worker.Slot, bool) {}

// Evicted is 0: the model is not bounded.
func (m *model) Evicted(worker.Slot) uint64 { return 0 }

func (m *model) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.holders)
	m.closed = true
}

func (m *model) Stats() index.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, pairs := make(map[*prefix]bool), 0
	for _, h := range m.holders {
		for p := range h.blocks {
			all[p] = true
		}
		pairs += len(h.blocks)
	}
	return index.Stats{Blocks: len(all), Pairs: pairs, Paths: len(all)}
}

// Dump emits every reachable name, by depth: as an event that goes on, block by block, through the first name of the
// first child, as long as that is not emitted yet.
func (m *model) Dump(slot worker.Slot, firstID uint64) []event.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.holders[slot]
	if h == nil {
		return nil
	}
	order := slices.SortedFunc(maps.Keys(h.names), func(a, b block.EngineHash) int {
		return cmp.Or(cmp.Compare(h.names[a].block.depth, h.names[b].block.depth), cmp.Compare(a, b))
	})
	first := map[*prefix]block.EngineHash{m.root: 0} // a reachable block's first name
	child := make(map[*prefix]*prefix)               // a reachable block's first reachable child
	order = slices.DeleteFunc(order, func(engine block.EngineHash) bool {
		p := h.names[engine].block
		if _, ok := first[p.parent]; !ok {
			return true
		}
		if _, ok := first[p]; !ok {
			first[p] = engine
		}
		if child[p.parent] == nil {
			child[p.parent] = p
		}
		return false
	})
	var out []event.Event
	emitted := make(map[block.EngineHash]bool)
	for _, engine := range order {
		if emitted[engine] {
			continue
		}
		p := h.names[engine].block
		ev := event.Event{ID: firstID + uint64(len(out)), Kind: event.Stored}
		if p.depth > 1 {
			ev.HasParent, ev.Parent = true, first[p.parent]
		}
		for {
			ev.Blocks = append(ev.Blocks, event.Block{Engine: engine, Hash: p.hash})
			emitted[engine] = true
			next := child[p]
			if first[p] != engine || next == nil || emitted[first[next]] {
				break
			}
			p, engine = next, first[next]
		}
		out = append(out, ev)
	}
	return out
}
