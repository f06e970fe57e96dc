package index

import (
	"sync"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A key is what identifies a block: its sequence hash. The other fields follow from it unless hashes collide; comparing
// them too costs nothing, since they share a cache line, and a block crafted to collide is then another block.
type key struct {
	seq, parent block.SequenceHash // parent is 0 for the first block of a prompt
	hash        block.Hash
	depth       uint32 // blocks before it
}

// root gives the key of the first block of a prompt.
func root(h block.Hash) key { return key{seq: block.SequenceHash(h), hash: h} }

// child gives the key of the block with that content below k.
func (k key) child(h block.Hash) key {
	return key{seq: block.Extend(k.seq, h), parent: k.seq, hash: h, depth: k.depth + 1}
}

// A node is a block that some slot holds: 32 bytes, so that it never straddles cache lines.
type node struct {
	seq, parent block.SequenceHash // of a free node, seq is the next one on the free list
	hash        block.Hash
	depth       uint32 // freeDepth marks a free node
	set         setID  // who holds it
}

func (n *node) is(k *key) bool {
	return n.seq == k.seq && n.hash == k.hash && n.parent == k.parent && n.depth == k.depth
}

func (n *node) key() key { return key{n.seq, n.parent, n.hash, n.depth} }

const (
	freeDepth  = ^uint32(0)
	noNode     = ^uint32(0)
	chunkNodes = 512 // 16 KB: growth allocates without copying, and an almost empty shard stays small
)

// A shard holds the blocks of all prompts whose first block falls to it.
//
// Invariants (check verifies each by number):
//
//	B1  nodes [0,used) are either live, with a set that is not empty and a depth below freeDepth, or free and on the
//	    list that starts at free; live counts the former. Later nodes of the last chunk were never used.
//	B2  the table finds exactly the live nodes by their sequence hash, and no two live nodes have equal keys.
//	B3  depth 0: seq is the block hash and parent 0, and the block belongs to this shard; otherwise seq extends parent.
//	B4  pairs is the sum of the sizes of the live nodes' sets.
//
// Guard: mu. Writers: hold and leave, in sections of at most sectionBlocks blocks. Readers: match, dump.
// Memory: no pointers but the chunks; the collector scans nothing else.
type shard struct {
	mu     sync.RWMutex
	chunks []*[chunkNodes]node
	used   uint32
	free   uint32 // noNode if none
	live   int
	pairs  int
	table  table
	sets   sets
	_      [64]byte // keeps neighbours' locks off this cache line
}

func (s *shard) at(n uint32) *node { return &s.chunks[n/chunkNodes][n%chunkNodes] }

// find gives the node of a key. The blocks of an event get neighbouring nodes when they are stored, so the node after
// the parent's is tried before the table is.
func (s *shard) find(k *key, parent uint32) (uint32, bool) {
	if n := parent + 1; n < s.used && s.at(n).is(k) {
		return n, true
	}
	tag := tagOf(uint64(k.seq))
	for n, pos, ok := s.table.scan(tag, s.table.home(tag)); ok; n, pos, ok = s.table.scan(tag, pos) {
		if s.at(n).is(k) {
			return n, true
		}
	}
	return noNode, false
}

// hold makes the slot a holder of a block, and tells whether it was one before.
func (s *shard) hold(k *key, parent uint32, slot worker.Slot) (n uint32, held bool) {
	n, ok := s.find(k, parent)
	if !ok {
		n = s.create(k)
	}
	at := s.at(n)
	if s.sets.has(at.set, slot) {
		return n, true
	}
	at.set = s.sets.add(at.set, slot)
	s.pairs++
	return n, false
}

func (s *shard) create(k *key) uint32 {
	n := s.free
	if n != noNode {
		s.free = uint32(s.at(n).seq)
	} else {
		n = s.used
		if int(n) == len(s.chunks)*chunkNodes {
			s.chunks = append(s.chunks, new([chunkNodes]node))
		}
		s.used++
	}
	*s.at(n) = node{k.seq, k.parent, k.hash, k.depth, 0}
	s.table.insert(tagOf(uint64(k.seq)), n)
	s.live++
	return n
}

// leave takes a slot from a block's holders; the last one takes the block with it.
func (s *shard) leave(n uint32, slot worker.Slot) {
	at := s.at(n)
	at.set = s.sets.sub(at.set, slot)
	s.pairs--
	if at.set != 0 {
		return
	}
	s.table.remove(tagOf(uint64(at.seq)), n)
	*at = node{seq: block.SequenceHash(s.free), depth: freeDepth}
	s.free = n
	if s.live--; s.live == 0 {
		s.chunks, s.used, s.free = nil, 0, noNode
	}
}

func (s *shard) bytes() int {
	return len(s.chunks)*chunkNodes*32 + cap(s.chunks)*8 + s.table.bytes() + s.sets.bytes()
}
