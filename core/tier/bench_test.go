package tier_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/tier"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A prompt is what one slot holds of it, by its own names.
type prompt struct {
	hashes []block.Hash
	names  [][]block.EngineHash // by slot; one for all if shared
}

const promptBlocks = 500

// load stores prompts of 500 blocks until every slot holds that many blocks in host memory: the first 100 of each are on
// the device and in host memory too. Names are the same in all slots, or each slot's own.
func load(x *tier.Tiers, slots, blocksEach int, shared bool) []prompt {
	var prompts []prompt
	for p := range (blocksEach + promptBlocks - 1) / promptBlocks {
		q := prompt{hashes: make([]block.Hash, promptBlocks)}
		for i := range q.hashes {
			q.hashes[i] = block.Hash(uint64(p*promptBlocks+i+1) * 0x9e3779b97f4a7c15)
		}
		prompts = append(prompts, q)
	}
	// Events of 32 blocks, all slots and prompts in turns, as they come from engines that run at the same time.
	for from := 0; from < promptBlocks; from += 32 {
		for p := range prompts {
			for slot := range slots {
				naming := slot
				if shared {
					naming = 0
				}
				q := &prompts[p]
				if naming == len(q.names) {
					names := make([]block.EngineHash, promptBlocks)
					for i := range names {
						names[i] = block.EngineHash(uint64(q.hashes[i]) ^ uint64(naming+1)*0xd1b54a32d192ed03)
					}
					q.names = append(q.names, names)
				}
				ev := &event.Event{Kind: event.Stored, Tier: event.HostPinned}
				if from > 0 {
					ev.HasParent, ev.Parent = true, q.names[naming][from-1]
				}
				for i := from; i < min(from+32, promptBlocks); i++ {
					ev.Blocks = append(ev.Blocks, event.Block{Engine: q.names[naming][i], Hash: q.hashes[i]})
				}
				if _, err := x.Apply(worker.Slot(slot), ev, index.Count); err != nil {
					panic(err)
				}
			}
		}
	}
	return prompts
}

// cpuTime is the time of this process on processors, for machines that do other things too.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func startsOf(slots int, depth uint32, p prompt) []tier.Start {
	starts := make([]tier.Start, slots)
	for slot := range starts {
		starts[slot] = tier.Start{Slot: worker.Slot(slot), Depth: depth, Parent: p.names[min(slot, len(p.names)-1)][depth-1]}
	}
	return starts
}

// BenchmarkExtend asks how 64 slots with 100,000 host blocks each go on by 256 blocks, another prompt each time.
func BenchmarkExtend(b *testing.B) {
	const slots, blocksEach, depth, further = 64, 100_000, 100, 256
	for _, shared := range []bool{true, false} {
		x := tier.New(0)
		prompts := load(x, slots, blocksEach, shared)
		for _, asked := range []int{1, slots} {
			b.Run(fmt.Sprintf("names=%s/slots=%d", map[bool]string{true: "shared", false: "own"}[shared], asked), func(b *testing.B) {
				starts := make([][]tier.Start, len(prompts))
				for i := range starts {
					starts[i] = startsOf(asked, depth, prompts[i])
				}
				var rows []tier.Extension
				i := 0
				b.ReportAllocs()
				start := cpuTime()
				for b.Loop() {
					rows = x.Extend(rows[:0], prompts[i].hashes[:depth+further], starts[i])
					i = (i + 1) % len(prompts)
				}
				b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
				if len(rows) != asked || rows[0].Host != further {
					b.Fatal(rows)
				}
				b.ReportMetric(float64(x.Bytes())/float64(x.Stats(event.HostPinned).Pairs), "bytes/pair")
			})
		}
		b.Run(fmt.Sprintf("names=%s/slots=0", map[bool]string{true: "shared", false: "own"}[shared]), func(b *testing.B) {
			starts := []tier.Start{{Slot: slots}} // holds nothing
			for b.Loop() {
				x.Extend(nil, prompts[0].hashes, starts)
			}
		})
	}
}

// BenchmarkApply stores and removes events of 32 blocks in tiers that hold a million.
func BenchmarkApply(b *testing.B) {
	x := tier.New(0)
	load(x, 10, 100_000, false)
	const slot = 11
	ev := &event.Event{Kind: event.Stored, Tier: event.HostPinned, HasParent: true}
	gone := &event.Event{Kind: event.Removed, Tier: event.HostPinned}
	ev.Blocks, gone.Removed = make([]event.Block, 32), make([]block.EngineHash, 32)
	n, start := uint64(0), cpuTime()
	for b.Loop() {
		for i := range ev.Blocks {
			n++
			ev.Blocks[i] = event.Block{Engine: block.EngineHash(n * 0x9e3779b97f4a7c15), Hash: block.Hash(n * 0xd1b54a32d192ed03)}
			gone.Removed[31-i] = ev.Blocks[i].Engine
		}
		_, _ = x.Apply(slot, ev, index.Count)
		_, _ = x.Apply(slot, gone, index.Count)
	}
	b.ReportMetric(float64(cpuTime()-start)/float64(b.N)/64, "cpu-ns/block")
}

// BenchmarkCrowd stores below one parent a child of each slot's own, and asks all slots how they go on.
func BenchmarkCrowd(b *testing.B) {
	for _, slots := range []int{500, 4000} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			starts := make([]tier.Start, slots)
			for b.Loop() {
				x := tier.New(0)
				for slot := range starts {
					ev := event.Event{Kind: event.Stored, Tier: event.HostPinned, HasParent: true, Parent: 1, Blocks: []event.Block{{Engine: block.EngineHash(slot + 2), Hash: 1}}}
					_, _ = x.Apply(worker.Slot(slot), &ev, index.Count)
					starts[slot] = tier.Start{Slot: worker.Slot(slot), Depth: 1, Parent: 1}
				}
				if n := len(x.Extend(nil, []block.Hash{0, 1}, starts)); n != slots {
					b.Fatal(n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*slots), "ns/slot")
		})
	}
}
