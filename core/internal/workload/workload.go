// Package workload makes the events, queries and requests that this project and its peers are measured with.
//
// Everything follows from seeds by integer arithmetic, so that a peer's benchmark in another language makes the very same
// ones; Digest tells whether it does. Nothing here is random otherwise, and nothing is kept: a caller holds what it needs.
//
//   - Base is what a router sees: conversations with shared system prompts, each served by one worker or a few, stored in
//     events of 1 to 32 blocks that take turns between the workers; Removes takes half of the conversations back.
//   - Chains are single prompts of 16 to 8,192 blocks that a chosen number of workers hold, plain or with a branch every
//     16 blocks.
//   - Active, Decision and Selection are the requests and the state of a router's decision.
//
// In the peers' own benchmarks a block's engine hash is its sequence hash, which they may rely on. Engines name blocks by
// hashes of their own, so the events here do: see Naming.
package workload

import (
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const golden = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio, the increment of SplitMix64

// Mix is SplitMix64's output function after one increment: a bijection that looks random.
func Mix(z uint64) uint64 {
	z += golden
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// RNG is SplitMix64; its value is its seed.
type RNG uint64

// Next gives the next number.
func (r *RNG) Next() uint64 {
	n := Mix(uint64(*r))
	*r += golden
	return n
}

// Below gives a number below n, n >= 1. The bias of the remainder is part of the definition.
func (r *RNG) Below(n uint64) uint64 { return r.Next() % n }

// Tag keeps the hashes of different kinds of blocks apart.
type Tag uint64

// The kinds of blocks.
const (
	Prefix  Tag = iota + 1 // of a shared system prompt
	User                   // of a conversation after it
	Plain                  // of a plain chain
	Missing                // of no stored prompt
	Side                   // below a forked chain
	Forked                 // of a forked chain
	token                  // no block but a token id
)

// Hash is the content hash of block i of object a.
func Hash(t Tag, a, i uint64) block.Hash { return block.Hash(Mix(Mix(Mix(uint64(t))^a) ^ i)) }

// Hashes are the content hashes of the first n blocks of object a.
func Hashes(t Tag, a uint64, n int) []block.Hash {
	hashes := make([]block.Hash, n)
	for i := range hashes {
		hashes[i] = Hash(t, a, uint64(i))
	}
	return hashes
}

// Tokens appends the first n token ids of stream a, below 128,000.
func Tokens(dst []block.Token, a uint64, n int) []block.Token {
	for i := range n {
		dst = append(dst, block.Token(Hash(token, a, uint64(i))%128_000))
	}
	return dst
}

// Op is an event of the worker rank with that slot. Events share memory: they are only read.
type Op struct {
	Slot  worker.Slot
	Event *event.Event
}

// Naming says what an engine calls a block.
type Naming func(block.SequenceHash) block.EngineHash

// Engine names blocks as engines do: by a hash that tells nothing of the sequence hash.
func Engine(s block.SequenceHash) block.EngineHash { return block.EngineHash(Mix(uint64(s))) }

// Peer names blocks as the peers' benchmarks do: by the sequence hash. Digests are of these names.
func Peer(s block.SequenceHash) block.EngineHash { return block.EngineHash(s) }

// store makes a Stored event of the blocks with these hashes below the block before them, if there is one.
func (name Naming) store(id uint64, parent *block.SequenceHash, hashes []block.Hash, seqs []block.SequenceHash) *event.Event {
	ev := &event.Event{ID: id, Kind: event.Stored, Blocks: make([]event.Block, len(hashes))}
	for i, h := range hashes {
		ev.Blocks[i] = event.Block{Engine: name(seqs[i]), Hash: h}
	}
	if parent != nil {
		ev.HasParent, ev.Parent = true, name(*parent)
	}
	return ev
}
