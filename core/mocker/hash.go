package mocker

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// A chain hashes the blocks of one sequence, each with everything before it. Like vLLM's sha256 mode it keeps the whole
// digest as the parent of the next block and tells the world the last 8 bytes. These names mean nothing outside one
// engine: engines with different seeds name the same block differently.
type chain struct {
	parent [sha256.Size]byte
	buf    []byte
}

func newChain(seed string) *chain {
	return &chain{parent: sha256.Sum256([]byte(seed))}
}

// next names the block that follows.
func (c *chain) next(tokens []block.Token) block.EngineHash {
	c.buf = append(c.buf[:0], c.parent[:]...)
	for _, t := range tokens {
		c.buf = binary.LittleEndian.AppendUint32(c.buf, t)
	}
	c.parent = sha256.Sum256(c.buf)
	return block.EngineHash(binary.BigEndian.Uint64(c.parent[sha256.Size-8:]))
}
