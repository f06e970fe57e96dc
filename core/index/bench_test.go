package index_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

const benchWorkers, benchPairs = 64, 1_000_000

func applyAll(x index.Index, ops []workload.Op) {
	for _, op := range ops {
		_, _ = x.Apply(op.Slot, op.Event, index.Count) // nothing of the workload is refused: the pairs are checked
	}
}

func blocksOf(ops []workload.Op) int {
	n := 0
	for _, op := range ops {
		n += len(op.Event.Blocks) + len(op.Event.Removed)
	}
	return n
}

func perBlock(b *testing.B, blocks int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*blocks), "ns/block")
	b.ReportMetric(0, "ns/op")
}

// ownNames makes every worker name the blocks in its own way, as engines do that hash with random seeds.
func ownNames(ops []workload.Op) []workload.Op {
	out := make([]workload.Op, len(ops))
	for i, op := range ops {
		name := func(n block.EngineHash) block.EngineHash {
			return block.EngineHash(workload.Mix(uint64(n) ^ workload.Mix(uint64(op.Slot)+1)))
		}
		ev := *op.Event
		ev.Parent, ev.Blocks = name(ev.Parent), slices.Clone(ev.Blocks)
		for k := range ev.Blocks {
			ev.Blocks[k].Engine = name(ev.Blocks[k].Engine)
		}
		out[i] = workload.Op{Slot: op.Slot, Event: &ev}
	}
	return out
}

// BenchmarkStore is per block: into an empty index, of names that all workers share and of names of each one's own; and of blocks
// that are there.
func BenchmarkStore(b *testing.B) {
	base := workload.NewBase(benchWorkers, benchPairs)
	ops := slices.Collect(base.Stores(workload.Engine))
	cold := func(ops []workload.Op) func(b *testing.B) {
		return func(b *testing.B) {
			for b.Loop() {
				x := sharded()
				applyAll(x, ops)
				b.StopTimer()
				st := x.Stats()
				b.ReportMetric(float64(st.Bytes)/float64(st.Pairs), "B/pair")
				x.Close()
				b.StartTimer()
			}
			perBlock(b, base.Pairs)
		}
	}
	b.Run("cold", cold(ops))
	b.Run("own_names", cold(ownNames(ops)))
	chains := slices.Collect(workload.Chains{Share: 64}.Stores(workload.Engine))
	b.Run("known", func(b *testing.B) {
		for b.Loop() {
			x := sharded()
			b.StopTimer()
			for _, op := range chains {
				if op.Slot < 2 {
					_, _ = x.Apply(op.Slot, op.Event, index.Count)
				}
			}
			known := chains
			b.StartTimer()
			for _, op := range known {
				if op.Slot >= 2 {
					_, _ = x.Apply(op.Slot, op.Event, index.Count)
				}
			}
		}
		perBlock(b, blocksOf(chains)*62/64)
	})
}

// BenchmarkRemove is per block: of half of the conversations, from their ends; and of everything a worker has.
func BenchmarkRemove(b *testing.B) {
	base := workload.NewBase(benchWorkers, benchPairs)
	stores, removes := slices.Collect(base.Stores(workload.Engine)), slices.Collect(base.Removes(workload.Engine))
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			x := sharded()
			applyAll(x, stores)
			b.StartTimer()
			applyAll(x, removes)
		}
		perBlock(b, blocksOf(removes))
	})
	b.Run("clear", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			x := sharded()
			applyAll(x, stores)
			b.StartTimer()
			for slot := range worker.Slot(benchWorkers) {
				_, _ = x.Apply(slot, &event.Event{Kind: event.Cleared}, index.Count)
			}
		}
		perBlock(b, base.Pairs)
	})
}

func BenchmarkDump(b *testing.B) {
	x := sharded()
	base := workload.NewBase(benchWorkers, benchPairs)
	applyAll(x, slices.Collect(base.Stores(workload.Engine)))
	for b.Loop() {
		for slot := range worker.Slot(benchWorkers) {
			x.Dump(slot, 0)
		}
	}
	perBlock(b, base.Pairs)
}

// BenchmarkMatch asks among a million pairs for chains that a number of workers share.
func BenchmarkMatch(b *testing.B) {
	base := workload.NewBase(benchWorkers, benchPairs)
	ops := slices.Collect(base.Stores(workload.Engine))
	for _, share := range []int{1, 64, 512} {
		x := sharded()
		applyAll(x, ops)
		plain, forked := workload.Chains{Share: share}, workload.Chains{Share: share, Kind: workload.ForkedChain}
		applyAll(x, slices.Collect(plain.Stores(workload.Engine)))
		applyAll(x, slices.Collect(forked.Stores(workload.Engine)))
		for _, n := range []int{16, 256, 1024, 8192} {
			ask(b, x, fmt.Sprintf("share=%d/n=%d/hit=100", share, n), plain.Queries(n, n))
			ask(b, x, fmt.Sprintf("share=%d/n=%d/hit=10", share, n), plain.Queries(n, n/10+1))
		}
		ask(b, x, fmt.Sprintf("share=%d/forked/n=8192", share), forked.Queries(8192, 8192))
		if share == 64 {
			ask(b, x, "sessions", base.Sessions(2000))
			ask(b, x, "miss", workload.Misses(2000))
		}
		x.Close()
	}
}

func ask(b *testing.B, x index.Index, name string, prompts [][]block.Hash) {
	queries := make([]index.Query, len(prompts))
	for _, with := range []bool{false, true} {
		for i, p := range prompts {
			queries[i] = index.Query{Hashes: p}
			if with {
				queries[i].Sequences = block.Sequences(nil, p)
			}
		}
		b.Run(fmt.Sprintf("%s/sequences=%t", name, with), func(b *testing.B) {
			dst := make([]index.Overlap, 0, index.MaxSlots)
			b.ReportAllocs()
			rng := workload.RNG(7)
			for b.Loop() {
				dst = x.Match(dst[:0], queries[rng.Below(uint64(len(queries)))])
			}
		})
	}
}
