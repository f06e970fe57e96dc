package index_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// The workload: a million blocks in prompts of 1,024, each of which shares its first 64 blocks with 9 others, stored in
// events of 32 blocks that take turns; 64 slots, of which 8 hold a prompt's shared part and one the rest.
const (
	benchBlocks = 1 << 20
	benchPrompt = 1024
	benchShared = 64
	benchSlots  = 64
	benchEvent  = 32
)

type workload struct {
	prompts []index.Query
	stores  []logged // in turns, as engines under load send them
	removes []logged
}

func newWorkload() *workload {
	w := &workload{prompts: make([]index.Query, benchBlocks/benchPrompt)}
	for i := range w.prompts {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		shared := rand.New(rand.NewPCG(uint64(i/10), 2))
		for j := range benchPrompt {
			h := rng.Uint64()
			if j < benchShared {
				h = shared.Uint64()
			}
			w.prompts[i].Hashes = append(w.prompts[i].Hashes, block.Hash(h))
		}
		w.prompts[i].Sequences = block.Sequences(nil, w.prompts[i].Hashes)
	}
	for from := 0; from < benchPrompt; from += benchEvent {
		for i, q := range w.prompts {
			holders := 1
			if from < benchShared {
				holders = 8
			}
			for k := range holders {
				slot := worker.Slot((i*7 + k) % benchSlots)
				w.stores = append(w.stores, logged{slot, storeOf(q, from, from+benchEvent)})
			}
		}
	}
	for i := len(w.stores) - 1; i >= 0; i-- {
		ev := &event.Event{Kind: event.Removed}
		for _, b := range w.stores[i].ev.Blocks {
			ev.Removed = append(ev.Removed, b.Engine)
		}
		w.removes = append(w.removes, logged{w.stores[i].slot, ev})
	}
	return w
}

func (w *workload) apply(x index.Index, ops []logged) {
	for _, op := range ops {
		perform(x, op)
	}
}

func BenchmarkMatch(b *testing.B) {
	w := newWorkload()
	x := sharded()
	w.apply(x, w.stores)
	st := x.Stats()
	b.Logf("%d blocks, %d pairs, %.1f bytes per pair", st.Blocks, st.Pairs, float64(st.Bytes)/float64(st.Pairs))
	for _, n := range []int{16, 256, 1024} {
		for _, hit := range []int{100, 10} {
			b.Run(fmt.Sprintf("n=%d/hit=%d", n, hit), func(b *testing.B) {
				queries := make([]index.Query, len(w.prompts))
				for i, p := range w.prompts {
					hashes := append([]block.Hash(nil), p.Hashes[:n]...)
					for j := max(1, n*hit/100); j < n; j++ {
						hashes[j]++
					}
					queries[i] = index.Query{Hashes: hashes, Sequences: block.Sequences(nil, hashes)}
				}
				dst := make([]index.Overlap, 0, benchSlots)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					dst = x.Match(dst[:0], queries[i*617%len(queries)])
				}
				if len(dst) == 0 {
					b.Fatal("no match")
				}
			})
		}
	}
}

// Store and remove are per block of an event, duplicates of the shared parts included.
func BenchmarkStore(b *testing.B)  { benchmarkWrites(b, true) }
func BenchmarkRemove(b *testing.B) { benchmarkWrites(b, false) }

func benchmarkWrites(b *testing.B, store bool) {
	w := newWorkload()
	x := sharded()
	for b.Loop() {
		if store {
			w.apply(x, w.stores)
		} else {
			b.StopTimer()
			w.apply(x, w.stores)
			b.StartTimer()
			w.apply(x, w.removes)
		}
		if store {
			b.StopTimer()
			for slot := range worker.Slot(benchSlots) {
				x.Drop(slot)
			}
			b.StartTimer()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(w.stores)*benchEvent), "ns/block")
}
