package wire_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// stored64 is one store of 64 blocks of 16 tokens; small20 ten of one block, each followed by a removal.
func workloads(t testing.TB) map[string][]byte {
	stored := func(blocks int) wire.Event {
		e := wire.Event{Kind: event.Stored, BlockSize: 16, Medium: "GPU"}
		for i := range 16 * blocks {
			e.TokenIDs = append(e.TokenIDs, uint32(i*37)%150000)
			if i%16 == 0 {
				e.BlockHashes = append(e.BlockHashes, math.MaxUint64/block.EngineHash(i+2))
			}
		}
		return e
	}
	large := &wire.Batch{Events: []wire.Event{stored(64)}}
	small := &wire.Batch{}
	for range 10 {
		small.Events = append(small.Events, stored(1), wire.Event{Kind: event.Removed, BlockHashes: []block.EngineHash{1 << 60}, Medium: "GPU"})
	}
	out := map[string][]byte{}
	for name, b := range map[string]*wire.Batch{"stored64": large, "small20": small} {
		payload, err := wire.EncodeBatch(b)
		require.NoError(t, err)
		out[name] = payload
	}
	return out
}

func BenchmarkDecode(b *testing.B) {
	for name, payload := range workloads(b) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.DecodeBatch(payload, wire.Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNormalize(b *testing.B) {
	for name, payload := range workloads(b) {
		b.Run(name, func(b *testing.B) {
			batch := decode(b, payload)
			n := wire.NewNormalizer(16)
			b.ReportAllocs()
			for b.Loop() {
				for i := range batch.Events {
					if _, v := n.Normalize(&batch.Events[i], 1, 0); v != wire.Keep {
						b.Fatal(v)
					}
				}
			}
		})
	}
}

// TestDecodeAllocatesByBatch checks that events of a batch share what they are stored in.
func TestDecodeAllocatesByBatch(t *testing.T) {
	for name, payload := range workloads(t) {
		got := testing.AllocsPerRun(100, func() { _, _ = wire.DecodeBatch(payload, wire.Limits{}) })
		require.LessOrEqual(t, got, 8.0, name) // 4, and under -race a decoder now and then, which the pool drops at random
	}
}

func TestDecoderAllocatesNothing(t *testing.T) {
	for name, payload := range workloads(t) {
		var d wire.Decoder
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = d.Decode(payload, wire.Limits{}) }), name)
	}
}
