// Package model is the literal truth about lower tiers: maps and loops, to be checked by eye. Nothing is shared between
// slots, bounded, or fast.
package model

import (
	"maps"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/tier"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A Place is where a block is: below what, and its content.
type Place struct {
	HasParent bool
	Parent    block.EngineHash
	Hash      block.Hash
}

// A Name is what an engine hash stands for in one tier of one slot.
type Name struct {
	Place      Place
	References int
}

type where struct {
	slot worker.Slot
	tier event.Tier
}

// A Model holds the lower tiers of all slots.
type Model struct {
	names map[where]map[block.EngineHash]Name
}

// New returns an empty model.
func New() *Model { return &Model{make(map[where]map[block.EngineHash]Name)} }

// Names gives what a slot holds in a tier. It must not be changed.
func (m *Model) Names(slot worker.Slot, t event.Tier) map[block.EngineHash]Name {
	return m.names[where{slot, t}]
}

// Apply does what Tiers.Apply does.
func (m *Model) Apply(slot worker.Slot, ev *event.Event, counting index.Counting) (index.Applied, error) {
	var done index.Applied
	if ev.Kind == event.Cleared {
		done.Removed = m.held(slot)
		m.Drop(slot)
		return done, nil
	}
	if ev.Tier == event.Device {
		return index.Applied{Refused: len(ev.Blocks)}, tier.ErrTier
	}
	at := where{slot, ev.Tier}
	if m.names[at] == nil {
		m.names[at] = make(map[block.EngineHash]Name)
	}
	names := m.names[at]
	switch ev.Kind {
	case event.Stored:
		seen := make(map[block.EngineHash]bool)
		if ev.HasParent {
			seen[ev.Parent] = true
		}
		for _, b := range ev.Blocks {
			if seen[b.Engine] {
				return index.Applied{Refused: len(ev.Blocks)}, index.ErrBadChain
			}
			seen[b.Engine] = true
		}
		p := Place{HasParent: ev.HasParent}
		if ev.HasParent {
			p.Parent = ev.Parent
		}
		for _, b := range ev.Blocks {
			p.Hash = b.Hash
			store(names, p, b.Engine, counting, &done)
			p.HasParent, p.Parent = true, b.Engine
		}
	case event.Removed:
		for _, engine := range ev.Removed {
			n, ok := names[engine]
			switch {
			case !ok:
				done.Unknown++
			case n.References > 1:
				names[engine] = Name{n.Place, n.References - 1}
			default:
				delete(names, engine)
				done.Removed++
			}
		}
	}
	return done, nil
}

func store(names map[block.EngineHash]Name, p Place, engine block.EngineHash, counting index.Counting, done *index.Applied) {
	if n, ok := names[engine]; ok {
		if n.Place == p {
			if n.References++; counting == index.Set {
				n.References = 1
			}
			names[engine] = n
			done.Duplicate++
			return
		}
		delete(names, engine)
		done.Removed++
	}
	if _, ok := child(names, p); ok {
		done.Refused++
		return
	}
	names[engine] = Name{p, 1}
	done.Stored++
}

// child gives the name of the block at a place.
func child(names map[block.EngineHash]Name, p Place) (block.EngineHash, bool) {
	for engine, n := range names {
		if n.Place == p {
			return engine, true
		}
	}
	return 0, false
}

func (m *Model) held(slot worker.Slot) int {
	n := 0
	for t := event.HostPinned; t <= event.External; t++ {
		n += len(m.names[where{slot, t}])
	}
	return n
}

// Drop forgets everything of a slot.
func (m *Model) Drop(slot worker.Slot) {
	maps.DeleteFunc(m.names, func(at where, _ map[block.EngineHash]Name) bool { return at.slot == slot })
}

// Extend gives how one slot goes on, all counts zero if it does not.
func (m *Model) Extend(hashes []block.Hash, s tier.Start) tier.Extension {
	x := tier.Extension{Slot: s.Slot}
	p := Place{HasParent: s.Depth > 0, Parent: s.Parent}
	if s.Depth == 0 {
		p.Parent = 0
	}
	depth := int(s.Depth)
	for t, count := range []*uint32{&x.Host, &x.Disk, &x.External} {
		names := m.names[where{s.Slot, event.HostPinned + event.Tier(t)}]
		for ; depth < len(hashes); depth++ {
			p.Hash = hashes[depth]
			engine, ok := child(names, p)
			if !ok {
				break
			}
			p.HasParent, p.Parent = true, engine
			*count++
		}
	}
	return x
}
