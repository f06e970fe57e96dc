package publish

import (
	"testing"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// BenchmarkSource is per event of 16 blocks of 16 tokens: stored, stored again, and removed.
func BenchmarkSource(b *testing.B) {
	s, err := NewSource(SourceConfig{BlockSize: 16, Endpoint: free, BufferSteps: 10_000})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	hashes, tokens := make([]block.EngineHash, 16), make([]block.Token, 256)
	for i := range tokens {
		tokens[i] = block.Token(i * 509)
	}
	stored, removed := Stored(nil, hashes, tokens, 16), Removed(hashes)
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		for i := range hashes {
			n++
			hashes[i] = block.EngineHash(n * 0x9e3779b97f4a7c15)
		}
		tokens[0] = block.Token(n)
		for _, e := range []Event{stored, stored, removed, removed} {
			if _, err := s.Publish(e); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(4*b.N), "ns/event")
}
