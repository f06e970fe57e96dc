package load

import (
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// insert adds a leaf without holders under parent. The caller adds the first holder at once (I1).
func (t *tree) insert(parent nodeID, run []block.Hash) nodeID {
	t.edits++
	id := t.newNode()
	n := &t.nodes[id]
	n.hashes = append(t.pool.get(len(run)), run...)
	n.parent, n.head = parent, t.hash(parent, run[0])
	t.heads.add(n.head, uint32(id))
	p := &t.nodes[parent]
	p.children++
	p.xor ^= id
	return id
}

// split cuts an edge after k of its blocks. The lower part keeps the id, because requests end there; the upper part is a
// new node, which is returned.
func (t *tree) split(lower nodeID, k int) nodeID {
	t.edits++
	upper := t.newNode()
	n, u := &t.nodes[lower], &t.nodes[upper]
	if n.crowd != 0 {
		t.gather(u, t.crowds[n.crowd]...)
	}
	u.lone = n.lone
	u.parent, u.children, u.xor, u.head = n.parent, 1, lower, n.head
	t.nodes[u.parent].xor ^= lower ^ upper
	t.heads.replace(u.head, uint32(lower), uint32(upper))
	n.parent, n.head = upper, t.hash(upper, n.hashes[k])
	t.heads.add(n.head, uint32(lower))
	if whole := n.hashes; k*4 < cap(whole) {
		u.hashes = append(t.pool.get(k), whole[:k]...)
		rest := whole[:copy(whole, whole[k:])]
		n.hashes = t.pool.fit(rest)
	} else {
		n.hashes = append(t.pool.get(len(whole)-k), whole[k:]...)
		u.hashes = whole[:k]
	}
	return upper
}

// merge joins a node with its only child where nothing tells them apart any more and the child is short. The child keeps
// its id. It returns the node that ends where the joined run ends, or upper.
func (t *tree) merge(upper nodeID) nodeID {
	u := &t.nodes[upper]
	if upper == root || u.children != 1 || u.ends != 0 {
		return upper
	}
	lower := u.xor
	n := &t.nodes[lower]
	if len(n.hashes) > mergeMax || !slices.Equal(t.holders(u), t.holders(n)) {
		return upper
	}
	t.edits++
	t.heads.remove(n.head, uint32(lower))
	t.heads.replace(u.head, uint32(upper), uint32(lower))
	t.nodes[u.parent].xor ^= upper ^ lower
	n.parent, n.head = u.parent, u.head
	tail := n.hashes
	n.hashes = append(t.pool.grow(u.hashes, len(tail)), tail...)
	t.pool.put(tail)
	t.recycle(upper)
	return lower
}

// remove takes out a node without holders; I4 says that it has no children.
func (t *tree) remove(id nodeID) {
	t.edits++
	n := &t.nodes[id]
	t.heads.remove(n.head, uint32(id))
	p := &t.nodes[n.parent]
	p.children--
	p.xor ^= id
	t.pool.put(n.hashes)
	t.recycle(id)
}

func (t *tree) newNode() nodeID {
	if k := len(t.unused); k > 0 {
		id := t.unused[k-1]
		t.unused = t.unused[:k-1]
		return id
	}
	t.nodes = append(t.nodes, node{})
	return nodeID(len(t.nodes) - 1)
}

// recycle keeps a node for its next life.
func (t *tree) recycle(id nodeID) {
	n := &t.nodes[id]
	t.disperse(n)
	*n = node{}
	t.unused = append(t.unused, id)
}

// chain turns the block hashes of all nodes into the sequence hashes that they chain to, parents first.
func (t *tree) chain() {
	t.edits++
	t.heads = newTable()
	done := make([]bool, len(t.nodes))
	done[root] = true
	for _, id := range t.unused {
		done[id] = true
	}
	var way []nodeID
	for i := range t.nodes {
		for at := nodeID(i); !done[at]; at = t.nodes[at].parent {
			way = append(way, at)
		}
		for ; len(way) > 0; way = way[:len(way)-1] {
			at := way[len(way)-1]
			n := &t.nodes[at]
			above := t.nodes[n.parent].hashes
			for k, h := range n.hashes {
				if len(above) > 0 { // else the prompt begins
					n.hashes[k] = block.Hash(block.Extend(block.SequenceHash(above[len(above)-1]), h))
				}
				above = n.hashes[:k+1]
			}
			n.head = t.hash(n.parent, n.hashes[0])
			t.heads.add(n.head, uint32(at))
			done[at] = true
		}
	}
}
