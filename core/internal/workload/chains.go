package workload

import (
	"iter"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const (
	chainEvent   = 32 // blocks of an event
	forkEvery    = 16 // blocks between the branches of a forked chain
	chainID      = 500_000
	sideID       = 600_000
	chainWorkers = 64 // over which chains with fewer holders are spread
)

// ChainLengths are the lengths of chains in blocks, with the number of chains of each length.
var ChainLengths = []struct{ Blocks, Count int }{{16, 64}, {64, 64}, {256, 64}, {1024, 16}, {8192, 4}}

// Kind is a kind of chains.
type Kind uint8

// The kinds of chains.
const (
	PlainChain  Kind = iota
	ForkedChain      // one holder of each chain also holds a branch of one block every 16 blocks
	TextChain        // the blocks are those of token ids, see Texts
)

// Chains are prompts that Share workers hold: 1 or 8 of 64 workers, in turns, or workers 0 to Share-1 if it is 64 or more.
type Chains struct {
	Share int
	Kind  Kind
}

func (c Chains) hashes(length, number int) []block.Hash {
	object := chainObject(length, number)
	switch c.Kind {
	case ForkedChain:
		return Hashes(Forked, object, length)
	case TextChain:
		return block.Hashes(nil, Tokens(nil, object, length*BlockSize), BlockSize, nil)
	}
	return Hashes(Plain, object, length)
}

func chainObject(length, number int) uint64 { return uint64(length)<<32 | uint64(number) }

// Stores are the events of all chains, in events of 32 blocks that the holders of a chain send in turns.
func (c Chains) Stores(name Naming) iter.Seq[Op] {
	return func(yield func(Op) bool) {
		for _, l := range ChainLengths {
			for number := range l.Count {
				if !c.chain(name, l.Blocks, number, yield) {
					return
				}
			}
		}
	}
}

func (c Chains) chain(name Naming, length, number int, yield func(Op) bool) bool {
	hashes := c.hashes(length, number)
	seqs := block.Sequences(nil, hashes)
	for from := 0; from < length; from += chainEvent {
		to := min(from+chainEvent, length)
		ev := name.store(chainID, before(nil, seqs, from), hashes[from:to], seqs[from:to])
		for k := range c.Share {
			if !yield(Op{c.holder(number, k), ev}) {
				return false
			}
		}
	}
	if c.Kind != ForkedChain {
		return true
	}
	for k := (length - 1) / forkEvery * forkEvery; k > 0; k -= forkEvery {
		h := Hash(Side, chainObject(length, number), uint64(k))
		ev := name.store(sideID, &seqs[k-1], []block.Hash{h}, []block.SequenceHash{block.Extend(seqs[k-1], h)})
		if !yield(Op{c.holder(number, 0), ev}) {
			return false
		}
	}
	return true
}

// holder is the k-th holder of a chain.
func (c Chains) holder(number, k int) worker.Slot {
	if c.Share >= chainWorkers {
		return worker.Slot(k)
	}
	return worker.Slot((c.Share*number + k) % chainWorkers)
}

// Queries ask for each chain of a length: its first hit blocks, then blocks that nobody stored.
func (c Chains) Queries(length, hit int) [][]block.Hash {
	var all [][]block.Hash
	for _, l := range ChainLengths {
		if l.Blocks != length {
			continue
		}
		for number := range l.Count {
			q := Hashes(Missing, chainObject(length, number), length)
			copy(q[:hit], c.hashes(length, number))
			all = append(all, q)
		}
	}
	return all
}

// Texts are the token ids of the text chains of a length in blocks.
func Texts(length int) [][]block.Token {
	var all [][]block.Token
	for _, l := range ChainLengths {
		for number := range l.Count {
			if l.Blocks == length {
				all = append(all, Tokens(nil, chainObject(length, number), length*BlockSize))
			}
		}
	}
	return all
}

// LongChain is a prompt of a million blocks and its stores by worker 0.
func LongChain(name Naming) ([]block.Hash, []Op) {
	const blocks = 1_000_000
	hashes := Hashes(Plain, 1<<40, blocks)
	seqs := block.Sequences(nil, hashes)
	var ops []Op
	for from := 0; from < blocks; from += chainEvent {
		to := min(from+chainEvent, blocks)
		ops = append(ops, Op{0, name.store(chainID, before(nil, seqs, from), hashes[from:to], seqs[from:to])})
	}
	return hashes, ops
}

// Misses are n prompts of 256 blocks of which nobody stored any.
func Misses(n int) [][]block.Hash {
	all := make([][]block.Hash, n)
	for k := range all {
		all[k] = Hashes(Missing, uint64(k), 256)
	}
	return all
}
