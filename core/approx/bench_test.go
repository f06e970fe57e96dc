package approx_test

import (
	"fmt"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/approx"
	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// benchPrompts gives prompts of 256 blocks, the first 64 of which each shares with 15 others.
func benchPrompts(n int) []index.Query {
	out := make([]index.Query, n)
	for i := range out {
		q := unlike(1+i/16, 256)
		for j := 64; j < 256; j++ {
			q.Hashes[j] += block.Hash(i%16+1) << 50
		}
		out[i] = index.Query{Hashes: q.Hashes, Sequences: block.Sequences(nil, q.Hashes)}
	}
	return out
}

// Routing a prompt of 256 blocks: new (with the expiry of one as long, 120 s later), and known.
func BenchmarkRoute(b *testing.B) {
	prompts := benchPrompts(4096)
	for _, use := range []string{"new", "known"} {
		b.Run(fmt.Sprintf("prompt=%s/blocks=256", use), func(b *testing.B) {
			x, now := fresh(approx.DefaultTTLNanos), int64(0)
			step := int64(approx.DefaultTTLNanos) / 2048 // 2048 prompts live
			if use == "known" {
				step = 100
			}
			for i := range prompts {
				_ = x.Route(worker.Slot(i/16%64), prompts[i], now)
				now += step
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p := i % len(prompts)
				_ = x.Route(worker.Slot(p/16%64), prompts[p], now)
				now += step
			}
		})
	}
}

// The LRU turn of a request over a prompt of 256 known blocks, with 64 live ones beside it.
func BenchmarkAcquireRelease(b *testing.B) {
	x, prompts := fresh(second), benchPrompts(128)
	_ = x.SetCapacity(0, 1<<20, 1)
	for i := range prompts {
		_ = x.Route(0, prompts[i], 0)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_ = x.Acquire(0, "request", prompts[i%128], 1, 0)
		_ = x.Release("request")
	}
}

// Matching a prompt of 256 blocks that 64 ranks hold: nothing is due, or always more than a match ends.
func BenchmarkMatch(b *testing.B) {
	for _, due := range []bool{false, true} {
		b.Run(fmt.Sprintf("blocks=256/workers=64/due=%v", due), func(b *testing.B) {
			x, q := fresh(second), benchPrompts(1)[0]
			now := int64(0)
			fill := func() {
				for i := range 64 * 40 {
					_ = x.Route(worker.Slot(i%64), unlike(1000+i/64, 256), now)
				}
				for slot := range worker.Slot(64) {
					_ = x.Route(slot, q, now+second/2)
				}
			}
			fill()
			dst := make([]index.Overlap, 0, 64)
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				if due && i%20_000 == 0 {
					b.StopTimer()
					now += second
					x.Expire(now)
					fill()
					b.StartTimer()
				}
				at := now
				if due {
					at += second
				}
				dst = x.Match(dst[:0], q, at)
			}
			if len(dst) != 64 {
				b.Fatal(len(dst))
			}
		})
	}
}

// Ending a block whose time is over, a million of them in one bucket.
func BenchmarkExpire(b *testing.B) {
	prompts, blocks := benchPrompts(4096), 0
	for b.Loop() {
		b.StopTimer()
		x := fresh(second)
		for i := range prompts {
			_ = x.Route(worker.Slot(i/16%64), prompts[i], 0)
		}
		blocks = x.Stats(0).Index.Pairs
		b.StartTimer()
		x.Expire(second)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*blocks), "ns/block")
}
