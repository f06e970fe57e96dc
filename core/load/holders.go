package load

import "slices"

// keptHolders bounds the room that a crowd keeps for its next node: a large one is rare and would only waste memory.
const keptHolders = 16

// holders gives those of a node, good until the next of them comes or goes.
func (t *tree) holders(n *node) []holder {
	if n.crowd != 0 {
		return t.crowds[n.crowd]
	}
	if n.lone[0].refs == 0 {
		return nil
	}
	return n.lone[:]
}

// enter adds a holder at its position.
func (t *tree) enter(n *node, i int, h holder) {
	switch {
	case n.crowd != 0:
		t.crowds[n.crowd] = slices.Insert(t.crowds[n.crowd], i, h)
	case n.lone[0].refs == 0:
		n.lone[0] = h
	case i == 0:
		t.gather(n, h, n.lone[0])
	default:
		t.gather(n, n.lone[0], h)
	}
}

// gather gives a node a crowd of its own.
func (t *tree) gather(n *node, holders ...holder) {
	n.lone[0] = holder{}
	if k := len(t.idle); k > 0 {
		n.crowd = t.idle[k-1]
		t.idle = t.idle[:k-1]
	} else {
		n.crowd = uint32(len(t.crowds))
		t.crowds = append(t.crowds, nil)
	}
	t.crowds[n.crowd] = append(t.crowds[n.crowd], holders...)
}

// leave takes the holder at a position away, and tells whether it was the last.
func (t *tree) leave(n *node, i int) bool {
	if n.crowd == 0 {
		n.lone[0] = holder{}
		return true
	}
	rest := slices.Delete(t.crowds[n.crowd], i, i+1)
	t.crowds[n.crowd] = rest
	if len(rest) == 1 {
		lone := rest[0]
		t.disperse(n)
		n.lone[0] = lone
	}
	return false
}

// disperse takes all holders from a node.
func (t *tree) disperse(n *node) {
	n.lone[0] = holder{}
	if n.crowd == 0 {
		return
	}
	room := t.crowds[n.crowd][:0]
	if cap(room) > keptHolders {
		room = nil
	}
	t.crowds[n.crowd] = room
	t.idle = append(t.idle, n.crowd)
	n.crowd = 0
}
