package index

import "github.com/dynamo-go/dynamo-go/core/block"

// A place is where a block lives: a shard and a node of it.
type place struct {
	shard uint32
	node  uint32
}

const (
	refBits = 28 // the rest of a name's meta is the shard
	maxRefs = 1<<refBits - 1
)

// A name is one engine hash of a holder: 16 bytes. The zero name is an empty place of the table.
type name struct {
	engine block.EngineHash
	node   uint32
	meta   uint32 // shard<<refBits | references, at least 1
}

func newName(engine block.EngineHash, at place) name {
	return name{engine: engine, node: at.node, meta: at.shard<<refBits | 1}
}

func (n *name) place() place { return place{n.meta >> refBits, n.node} }
func (n *name) refs() uint32 { return n.meta & maxRefs }
func (n *name) live() bool   { return n.meta != 0 }

// again counts another store of the same name. At a quarter of a billion it stops counting: the block may then be
// removed too early, never too late.
func (n *name) again(counting Counting) {
	switch {
	case counting == Set:
		n.meta = n.meta&^maxRefs | 1
	case n.refs() < maxRefs:
		n.meta++
	}
}

// names maps the engine hashes of one holder to places: open addressing with linear probing.
//
// Invariant N: slots holds n live names, each reachable from its home without an empty place between, no engine hash
// twice.
type names struct {
	slots []name
	n     int
}

func (t *names) home(e block.EngineHash) int { return homeOf(tagOf(uint64(e)), len(t.slots)) }

func (t *names) next(pos int) int {
	if pos++; pos < len(t.slots) {
		return pos
	}
	return 0
}

// find gives a name, valid until the table is next changed, or nil.
func (t *names) find(e block.EngineHash) *name {
	if len(t.slots) == 0 {
		return nil
	}
	for pos := t.home(e); t.slots[pos].live(); pos = t.next(pos) {
		if t.slots[pos].engine == e {
			return &t.slots[pos]
		}
	}
	return nil
}

// reserve makes room for more names, so that inserting them does not grow the table.
func (t *names) reserve(more int) {
	if size := grownSize(len(t.slots), t.n+more); size != len(t.slots) {
		t.resize(size)
	}
}

// insert adds a name that is not there; its room has been reserved.
func (t *names) insert(n name) {
	t.put(n)
	t.n++
}

func (t *names) put(n name) {
	pos := t.home(n.engine)
	for t.slots[pos].live() {
		pos = t.next(pos)
	}
	t.slots[pos] = n
}

func (t *names) resize(size int) {
	old := t.slots
	t.slots = make([]name, size)
	for i := range old {
		if old[i].live() {
			t.put(old[i])
		}
	}
}

// remove takes out a name that is there.
func (t *names) remove(e block.EngineHash) {
	hole := t.home(e)
	for t.slots[hole].engine != e || !t.slots[hole].live() {
		hole = t.next(hole)
	}
	for pos := t.next(hole); t.slots[pos].live(); pos = t.next(pos) {
		if mayFill(hole, t.home(t.slots[pos].engine), pos) {
			t.slots[hole] = t.slots[pos]
			hole = pos
		}
	}
	t.slots[hole] = name{}
	t.n--
}

// trim gives memory back after removals.
func (t *names) trim() {
	if size := trimmedSize(len(t.slots), t.n); size == 0 {
		t.slots = nil
	} else if size != len(t.slots) {
		t.resize(size)
	}
}

func (t *names) bytes() int { return cap(t.slots) * 16 }
