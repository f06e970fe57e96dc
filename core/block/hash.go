package block

import (
	"encoding/binary"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/internal/xxh3"
)

// Identity is what names a block besides its tokens. The zero Identity, like a nil one, adds nothing.
type Identity struct {
	LoRAName  string     // "" is the base model
	CacheSalt string     // the cache namespace; "" is the common one
	MM        [][]uint64 // by block, the hashes of the multimodal objects that overlap it, in any order
	Eagle     bool       // blocks are windows that take one token more than a block, as EAGLE draft models cache them
}

// plain is the seed of blocks without LoRA name and cache salt.
const plain = xxh3.ChainSeed

// Seed is the seed that all blocks of a prompt are hashed with. LoRA name and salt enter with seeds of their own, so the
// same text in the other role is another identity.
func Seed(loraName, cacheSalt string) uint64 {
	seed := uint64(plain)
	if loraName != "" {
		seed += xxh3.SumString(loraName, 0)
	}
	if cacheSalt != "" {
		seed += xxh3.SumString(cacheSalt, 1)
	}
	return seed
}

// Count is the number of blocks that tokens fill: a partial block at the end is none, and an EAGLE window needs one
// token more than its block. A block size below 1 fills no block.
func Count(tokens, blockSize int, eagle bool) int {
	if eagle {
		tokens--
	}
	if blockSize < 1 || tokens < 0 {
		return 0
	}
	return tokens / blockSize
}

// Hashes appends the hash of every full block. It allocates only if dst is too short, or for a block with multimodal
// objects that, with them, is longer than 1 KiB.
func Hashes(dst []Hash, tokens []Token, blockSize int, id *Identity) []Hash {
	seed := id.seed()
	if id.fused(blockSize) {
		dst, added := extend(dst, len(tokens)/blockSize)
		xxh3.Blocks(added, tokens, seed)
		return dst
	}
	width := blockSize
	if id.eagle() {
		width++
	}
	dst, added := extend(dst, Count(len(tokens), blockSize, id.eagle()))
	for i := range added {
		added[i] = one(tokens[i*blockSize:i*blockSize+width], id.objects(i), seed)
	}
	return dst
}

// Sequences appends the sequence hashes that the hashes of a prompt's blocks, from its first one on, chain to.
func Sequences(dst []SequenceHash, hashes []Hash) []SequenceHash {
	dst, added := extend(dst, len(hashes))
	for i, h := range hashes {
		if i == 0 {
			added[0] = SequenceHash(h)
			continue
		}
		added[i] = Extend(added[i-1], h)
	}
	return dst
}

// Extend is one step of the chain: the sequence hash of a block below its parent. The first block of a prompt has no
// parent, and its sequence hash is its hash.
func Extend(parent SequenceHash, h Hash) SequenceHash {
	return SequenceHash(xxh3.Chain(uint64(parent), uint64(h)))
}

// Both appends Hashes and Sequences of a prompt. Blocks of 16 tokens are hashed in one fused pass.
func Both(hashes []Hash, seqs []SequenceHash, tokens []Token, blockSize int, id *Identity) ([]Hash, []SequenceHash) {
	if !id.fused(blockSize) {
		first := len(hashes)
		hashes = Hashes(hashes, tokens, blockSize, id)
		return hashes, Sequences(seqs, hashes[first:])
	}
	n := len(tokens) / blockSize
	hashes, newHashes := extend(hashes, n)
	seqs, newSeqs := extend(seqs, n)
	xxh3.Both(newHashes, newSeqs, tokens, id.seed())
	return hashes, seqs
}

// one hashes one block: its tokens as little-endian bytes, then the multimodal hashes in ascending order.
func one(tokens []Token, objects []uint64, seed uint64) Hash {
	if len(objects) == 0 {
		return Hash(sumTokens(tokens, seed))
	}
	var sortedRoom [32]uint64
	sorted := append(sortedRoom[:0], objects...)
	slices.Sort(sorted)
	var room [1024]byte
	buf := appendTokens(room[:0], tokens)
	for _, h := range sorted {
		buf = binary.LittleEndian.AppendUint64(buf, h)
	}
	return Hash(xxh3.Sum(buf, seed))
}

// extend lengthens a slice by n elements that the caller overwrites, and gives them as a slice of their own too.
func extend[T any](dst []T, n int) (all, added []T) {
	all = slices.Grow(dst, n)[:len(dst)+n]
	return all, all[len(dst):]
}

func (id *Identity) seed() uint64 {
	if id == nil {
		return plain
	}
	return Seed(id.LoRAName, id.CacheSalt)
}

func (id *Identity) eagle() bool { return id != nil && id.Eagle }

func (id *Identity) objects(i int) []uint64 {
	if id == nil || i >= len(id.MM) {
		return nil
	}
	return id.MM[i]
}

// fused tells whether the kernel for 16 plain tokens hashes these blocks.
func (id *Identity) fused(blockSize int) bool {
	return blockSize == xxh3.Tokens && (id == nil || !id.Eagle && len(id.MM) == 0)
}
