package publish

import (
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
)

// counts says how often a rank's engine has stored each name, by tier. An engine that keeps two copies of a block stores
// its name twice and removes it twice; routers hear of the first store and the last removal.
//
// Invariant: refs of every entry is 1 or more.
type counts [event.External + 1]map[block.EngineHash]held

// held is what a name stands for, and how often it was stored. On the device at is the block's sequence hash; in lower
// tiers, where what is above a block may be elsewhere, it is made of its parent's name and its content.
type held struct {
	at   block.SequenceHash
	refs uint32
}

// add counts one store, and tells whether routers must hear of it: the name is new, or moved: it stands for another block now.
func (c *counts) add(tier event.Tier, name block.EngineHash, at block.SequenceHash) (first, moved bool) {
	h, known := c[tier][name]
	if known && h.at == at {
		if h.refs < math.MaxUint32 {
			h.refs++
		}
		c[tier][name] = h
		return false, false
	}
	if c[tier] == nil {
		c[tier] = make(map[block.EngineHash]held)
	}
	c[tier][name] = held{at, 1}
	return true, known
}

// take counts one removal. last tells whether routers must hear of it; known is false if there is no such name.
func (c *counts) take(tier event.Tier, name block.EngineHash) (last, known bool) {
	h, known := c[tier][name]
	switch {
	case !known:
		return false, false
	case h.refs == 1:
		delete(c[tier], name)
		return true, true
	}
	h.refs--
	c[tier][name] = h
	return false, true
}
