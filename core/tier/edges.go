package tier

import (
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/internal/idtable"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// An edge leads from a parent by a content to a child: 32 bytes, no pointers. An edge at the root belongs to one slot,
// whose number is the parent: a prompt that all slots hold, each under names of its own, would crowd one place of a table
// otherwise. For the same reason an edge whose place is crowded already is one slot's own.
type edge struct {
	parent uint64 // engine hash; at the root the owner's slot; of a free edge the next free one
	hash   block.Hash
	child  block.EngineHash
	owners setID
	kind   kind
	own    bool // the tables have it by its only owner, too
}

type kind uint16

const (
	free kind = iota
	inner
	root
)

// A key is where an edge is: below what, by which content.
type key struct {
	parent uint64
	kind   kind // inner or root
	hash   block.Hash
}

func rootKey(slot worker.Slot, h block.Hash) key { return key{uint64(slot), root, h} }

func below(parent block.EngineHash, h block.Hash) key { return key{uint64(parent), inner, h} }

func (k key) tableHash() uint64 { return keyHash(k.parent, k.kind == root, k.hash) }

// place is where the tables have an edge: byKey and byName. A slot's own edges are found by the slot, too.
func (k key) place(child block.EngineHash, slot worker.Slot, own bool) (byKey, byName uint64) {
	switch {
	case own:
		return k.ownHash(slot), ownNameHash(child, slot)
	case k.kind == root:
		return k.tableHash(), ownNameHash(child, slot)
	}
	return k.tableHash(), nameHash(child)
}

func (k key) ownHash(slot worker.Slot) uint64 { return k.tableHash() ^ slotHash(uint32(slot)) }

func (e *edge) key() key { return key{e.parent, e.kind, e.hash} }

const (
	pageEdges = 256
	noEdge    = ^uint32(0)
	maxEdges  = noEdge - pageEdges

	// crowd is how many edges that slots share are found under one key, or one child; more are own. So what engines call
	// their blocks makes no table slow.
	crowd = 4

	extraBytes = 32 // of a map entry: key, value, control byte and free room
)

// A holding is one slot's share of an edge.
type holding struct {
	edge uint32
	slot worker.Slot
}

// edges is one tier. Edges stay where they are until they are freed; those of one event are next to each other if
// nothing was free, and freed edges are used again last in, first out, so that chains evicted from their tail are replaced
// by chains in order. A walk looks at the neighbour first.
//
// Invariants (check verifies each by number):
//
//	E1  live edges have an owner; the others below used are on the free list; live and pairs count edges and owners.
//	E2  byKey and byName find exactly the live edges.
//	E3  of one slot no two edges have the same key, and no two the same child.
//	E4  an edge at the root has one owner, and its slot is the parent.
//	E5  extra has the references above one of holdings that exist, none of them zero.
//	E6  an own edge has one owner and is not at the root; owned counts them. Of the other inner edges at most crowd have one
//	    key, and at most crowd one child.
//
// Guard: Tiers.mu.
type edges struct {
	pages  []*[pageEdges]edge
	used   uint32
	free   uint32 // noEdge ends the list
	live   int
	pairs  int
	owned  int
	byKey  idtable.Tables
	byName idtable.Tables
	sets   sets
	extra  map[holding]uint32
}

func newEdges() *edges { return &edges{free: noEdge} }

func (e *edges) at(id uint32) *edge { return &e.pages[id/pageEdges][id%pageEdges] }

// named finds the edge by which a slot knows a name.
func (e *edges) named(slot worker.Slot, name block.EngineHash) (id uint32, ok bool) {
	for _, hash := range [...]uint64{nameHash(name), ownNameHash(name, slot)} {
		for p := e.byName.Probe(hash); ; {
			if id, ok = p.Next(); !ok {
				break
			}
			if at := e.at(id); at.child == name && e.sets.has(at.owners, slot) {
				return id, true
			}
		}
	}
	return noEdge, false
}

// find gives the edge with a key and a child, and tells whether the slot has one with that key, whatever the child.
func (e *edges) find(k key, child block.EngineHash, slot worker.Slot) (id uint32, taken bool) {
	id = noEdge
	for p := e.byKey.Probe(k.tableHash()); ; {
		next, ok := p.Next()
		if !ok {
			break
		}
		at := e.at(next)
		if at.key() != k {
			continue
		}
		if e.sets.has(at.owners, slot) {
			return next, true
		}
		if at.child == child {
			id = next
		}
	}
	if own := e.findOwn(k, slot); own != noEdge {
		return own, true
	}
	return id, false
}

// findOwn gives the own edge of a slot with a key.
func (e *edges) findOwn(k key, slot worker.Slot) uint32 {
	if e.owned == 0 || k.kind == root {
		return noEdge
	}
	for p := e.byKey.Probe(k.ownHash(slot)); ; {
		id, ok := p.Next()
		if !ok {
			return noEdge
		}
		if at := e.at(id); at.own && at.key() == k && at.owners == lone(slot) {
			return id
		}
	}
}

// crowded tells whether a new edge must be own.
func (e *edges) crowded(k key, child block.EngineHash) bool {
	if k.kind == root {
		return false
	}
	n := 0
	for p := e.byKey.Probe(k.tableHash()); n < crowd; {
		id, ok := p.Next()
		if !ok {
			break
		}
		if at := e.at(id); at.key() == k && !at.own {
			n++
		}
	}
	if n == crowd {
		return true
	}
	n = 0
	for p := e.byName.Probe(nameHash(child)); n < crowd; {
		id, ok := p.Next()
		if !ok {
			break
		}
		if at := e.at(id); at.child == child && !at.own && at.kind == inner {
			n++
		}
	}
	return n == crowd
}

// growth gives the bytes that hold takes at most.
func (e *edges) growth(id uint32, k key, child block.EngineHash, slot worker.Slot, own bool) int {
	if id != noEdge {
		return e.sets.growth(e.at(id).owners, slot)
	}
	byKey, byName := k.place(child, slot, own)
	n := e.byKey.Growth(byKey) + e.byName.Growth(byName)
	if e.free == noEdge && e.used%pageEdges == 0 {
		n += pageEdges*32 + 8
		if len(e.pages) == cap(e.pages) {
			n += 8 * idtable.Grown(cap(e.pages), len(e.pages)+1)
		}
	}
	return n
}

// hold makes a slot an owner of an edge, a new one if id is noEdge, which is own or not.
func (e *edges) hold(id uint32, k key, child block.EngineHash, slot worker.Slot, own bool) {
	if id == noEdge {
		id = e.take()
		*e.at(id) = edge{parent: k.parent, hash: k.hash, child: child, kind: k.kind, own: own}
		byKey, byName := k.place(child, slot, own)
		e.byKey.Insert(byKey, id)
		e.byName.Insert(byName, id)
		e.live++
		if own {
			e.owned++
		}
	}
	at := e.at(id)
	at.owners = e.sets.add(at.owners, slot)
	e.pairs++
}

// take gives a free edge.
func (e *edges) take() uint32 {
	if id := e.free; id != noEdge {
		e.free = uint32(e.at(id).parent)
		return id
	}
	if e.used%pageEdges == 0 {
		if len(e.pages) == cap(e.pages) {
			e.pages = append(make([]*[pageEdges]edge, 0, idtable.Grown(cap(e.pages), len(e.pages)+1)), e.pages...)
		}
		e.pages = append(e.pages, new([pageEdges]edge))
	}
	e.used++
	return e.used - 1
}

// leave takes a slot and its references from an edge, and the edge with its last owner.
func (e *edges) leave(id uint32, slot worker.Slot) {
	at := e.at(id)
	at.owners = e.sets.sub(at.owners, slot)
	if len(e.extra) > 0 {
		delete(e.extra, holding{id, slot})
	}
	e.pairs--
	if at.owners == 0 {
		e.unlink(id, slot)
	}
}

// unlink frees an edge without owners; slot was its last.
func (e *edges) unlink(id uint32, slot worker.Slot) {
	at := e.at(id)
	byKey, byName := at.key().place(at.child, slot, at.own)
	e.byKey.Remove(byKey, id)
	e.byName.Remove(byName, id)
	if at.own {
		e.owned--
	}
	*at = edge{parent: uint64(e.free)}
	e.free = id
	if e.live--; e.live == 0 {
		*e = edges{free: noEdge}
	}
}

// drop frees an edge with all its owners, which are several.
func (e *edges) drop(id uint32) {
	at := e.at(id)
	members := e.sets.appendMembers(nil, at.owners)
	for _, slot := range members {
		delete(e.extra, holding{id, slot})
		e.pairs--
	}
	e.sets.release(at.owners)
	at.owners = 0
	e.unlink(id, members[0])
}

// references gives how many a slot has to an edge of its own.
func (e *edges) references(id uint32, slot worker.Slot) uint32 {
	if len(e.extra) == 0 {
		return 1
	}
	return 1 + e.extra[holding{id, slot}]
}

// refer sets that number, at least 1.
func (e *edges) refer(id uint32, slot worker.Slot, n uint32) {
	at := holding{id, slot}
	switch {
	case n > 1:
		if e.extra == nil {
			e.extra = make(map[holding]uint32)
		}
		e.extra[at] = n - 1
	case len(e.extra) > 0:
		if delete(e.extra, at); len(e.extra) == 0 {
			e.extra = nil
		}
	}
}

func (e *edges) bytes() int {
	return int(unsafe.Sizeof(*e)) + len(e.pages)*pageEdges*32 + 8*cap(e.pages) + e.byKey.Bytes() + e.byName.Bytes() + e.sets.bytes() +
		extraBytes*len(e.extra)
}

func (e *edges) block(id uint32) event.Block {
	at := e.at(id)
	return event.Block{Engine: at.child, Hash: at.hash}
}
