// Package event says what an engine reported about one worker rank's KV cache, in a form that is already valid:
// engine formats are decoded by package wire, and nothing here trusts bytes from a socket.
package event

import "github.com/dynamo-go/dynamo-go/core/block"

// Kind tells what happened.
type Kind uint8

// The kinds of event. The zero Kind is not an event.
const (
	Stored  Kind = iota + 1 // blocks were added to the cache, as a chain below Parent or at the root
	Removed                 // blocks left the cache
	Cleared                 // the whole cache of the emitting rank is empty
)

// String gives the name used in JSON.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return "none"
}

// Tier is the storage a block lives in.
type Tier uint8

// The storage tiers, nearest first.
const (
	Device Tier = iota
	HostPinned
	Disk
	External
)

// String gives the name used in JSON.
func (t Tier) String() string {
	return [...]string{"device", "host_pinned", "disk", "external"}[t&3]
}

// Block is one stored block: the engine's name for it, and the hash of its content.
type Block struct {
	Engine block.EngineHash
	Hash   block.Hash
}

// Event is one change of one rank's cache. Which fields mean something depends on Kind.
type Event struct {
	ID     uint64 // the emitter's number for it; the sequence number of its batch in an engine's stream
	DPRank uint32
	Kind   Kind
	Tier   Tier

	HasParent bool // Stored: Parent names the block before Blocks[0]; otherwise Blocks[0] is the first of a prompt
	Parent    block.EngineHash
	Blocks    []Block // Stored: each the child of the one before

	Removed []block.EngineHash // Removed
}
