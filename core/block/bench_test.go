package block_test

import (
	"fmt"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// BenchmarkBoth hashes prompts whose blocks the fused kernel takes, blocks of another size, and blocks with a LoRA name.
func BenchmarkBoth(b *testing.B) {
	for _, c := range []struct {
		name         string
		tokens, size int
		id           *block.Identity
	}{
		{"plain", 512, 16, nil},
		{"plain", 4096, 16, nil},
		{"plain", 131_072, 16, nil},
		{"lora", 4096, 16, &block.Identity{LoRAName: "adapter"}},
		{"plain", 4096, 64, nil},
	} {
		b.Run(fmt.Sprintf("%s/tokens=%d/block=%d", c.name, c.tokens, c.size), func(b *testing.B) {
			tokens := ascending(c.tokens)
			hashes, seqs := make([]block.Hash, 0, c.tokens/c.size), make([]block.SequenceHash, 0, c.tokens/c.size)
			b.ReportAllocs()
			b.SetBytes(int64(4 * c.tokens))
			for b.Loop() {
				block.Both(hashes, seqs, tokens, c.size, c.id)
			}
		})
	}
}

// BenchmarkSequences chains hashes that are given.
func BenchmarkSequences(b *testing.B) {
	hashes := block.Hashes(nil, ascending(131_072), 16, nil)
	seqs := make([]block.SequenceHash, 0, len(hashes))
	for b.Loop() {
		block.Sequences(seqs, hashes)
	}
}
