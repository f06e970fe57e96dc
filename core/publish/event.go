package publish

import (
	"fmt"
	"math"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Event is one event of a batch: made by Stored, Removed or Cleared, and refined by setting fields such as LoRAName or
// CacheSalt.
type Event = wire.Event

// gpu is the engines' name for the medium of their own cache.
const gpu = "GPU"

// Stored tells of blocks added as a chain: the first below parent (nil: the first of a prompt), each other below the one before. tokens are those of
// all the blocks.
func Stored(parent *block.EngineHash, hashes []block.EngineHash, tokens []block.Token, blockSize int) Event {
	e := Event{Kind: event.Stored, BlockHashes: hashes, TokenIDs: tokens, Medium: gpu}
	if blockSize > 0 && blockSize <= math.MaxUint32 { // otherwise it stays 0, which Publish refuses
		e.BlockSize = uint32(blockSize)
	}
	if parent != nil {
		e.HasParent, e.Parent = true, *parent
	}
	return e
}

// Removed tells of blocks that are gone.
func Removed(hashes []block.EngineHash) Event {
	return Event{Kind: event.Removed, BlockHashes: hashes, Medium: gpu}
}

// Cleared tells that the whole cache of the rank is empty.
func Cleared() Event { return Event{Kind: event.Cleared} }

// check refuses what no engine reports and every reader would have to drop.
func check(e *Event) error {
	if err := shape(e); err != nil {
		return err
	}
	if e.Kind == event.Stored && e.HasParent && slices.Contains(e.BlockHashes, e.Parent) {
		return fmt.Errorf("%w: block %d is its own ancestor", ErrEvent, e.Parent)
	}
	return nil
}

// shape refuses what is no event at all.
func shape(e *Event) error {
	switch {
	case e.Kind == event.Cleared:
		return nil
	case e.Kind != event.Stored && e.Kind != event.Removed:
		return fmt.Errorf("%w: kind %d, must be stored, removed or cleared", ErrEvent, e.Kind)
	case len(e.BlockHashes) == 0:
		return fmt.Errorf("%w: %s without block hashes, must have at least one", ErrEvent, e.Kind)
	case e.Kind == event.Removed:
		return nil
	case e.BlockSize == 0:
		return fmt.Errorf("%w: block size 0, must be in 1..%d", ErrEvent, uint32(math.MaxUint32))
	case uint64(len(e.TokenIDs)) != tokens(e):
		return fmt.Errorf("%w: %d tokens for %d blocks of %d, must be %d", ErrEvent, len(e.TokenIDs), len(e.BlockHashes), e.BlockSize, tokens(e))
	case e.MM != nil && len(e.MM) != len(e.BlockHashes):
		return fmt.Errorf("%w: multimodal hashes for %d blocks of %d", ErrEvent, len(e.MM), len(e.BlockHashes))
	}
	return nil
}

// tokens is how many a stored event must have: with pairs, one more than positions.
func tokens(e *Event) uint64 {
	n := uint64(len(e.BlockHashes)) * uint64(e.BlockSize)
	if e.Bigram {
		n++
	}
	return n
}
