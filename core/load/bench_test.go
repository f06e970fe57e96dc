package load_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// active gives a ledger in the steady state of the peers' workload `active`: 16 requests per worker, each of 128 blocks, of
// which 64 are a shared prefix; and more requests of that kind.
func active(workers, more int, modeled bool) (*load.Ledger, [][]block.Hash) {
	l := load.New(load.Options{})
	source := workload.NewActive()
	n := workers * workload.ActivePerWorker
	for k := range n {
		b := load.Booking{
			ID: fmt.Sprintf("req-%d", k), Slot: worker.Slot(k % workers), Blocks: source.Request(k), PrefillTokens: 1024,
			PrefillModeled: modeled, PrefillNanos: 1e15,
		}
		if err := l.Book(&b, 0); err != nil {
			panic(err)
		}
	}
	prompts := make([][]block.Hash, more)
	for k := range prompts {
		prompts[k] = source.Request(9_000_000 + k)
	}
	return l, prompts
}

// BenchmarkLife books a request, ends its prefill, adds an output block and frees it; the steps are those peers report.
func BenchmarkLife(b *testing.B) {
	const batch = 4096
	half := 0.5
	for _, workers := range []int{8, 64, 512, 4096} {
		l, prompts := active(workers, batch, false)
		ids := make([]string, batch)
		for i := range ids {
			ids[i] = fmt.Sprintf("more-%d", i)
		}
		steps := []struct {
			name string
			do   func(i int)
		}{
			{"add", func(i int) {
				_ = l.Book(&load.Booking{ID: ids[i], Slot: worker.Slot(i * 7919 % workers), Blocks: prompts[i], PrefillTokens: 1024}, 1)
			}},
			{"prefill_complete", func(i int) { _ = l.PrefillComplete(ids[i], 1) }},
			{"output_block", func(i int) { _ = l.AddOutputBlocks(ids[i], 1, &half, 1) }},
			{"free", func(i int) { _ = l.Free(ids[i], 1) }},
		}
		for only := range steps {
			b.Run(fmt.Sprintf("step=%s/workers=%d", steps[only].name, workers), func(b *testing.B) {
				b.ReportAllocs()
				b.StopTimer()
				for done := 0; done < b.N; done += batch {
					for at, step := range steps {
						if at == only {
							b.StartTimer()
						}
						for i := range batch {
							step.do(i)
						}
						b.StopTimer()
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64((b.N+batch-1)/batch*batch), "ns/request")
			})
		}
	}
}

// BenchmarkPotentialLoads works out what every rank would be busy with if it took a prompt of 128 blocks and 2,048 tokens.
func BenchmarkPotentialLoads(b *testing.B) {
	for _, modeled := range []bool{false, true} {
		for _, workers := range []int{8, 64, 512, 4096} {
			l, prompts := active(workers, 64, modeled)
			depth, tokens, blocks := make([]uint32, workers), make([]int64, workers), make([]int64, workers)
			b.Run("modeled="+strconv.FormatBool(modeled)+"/workers="+strconv.Itoa(workers), func(b *testing.B) {
				b.ReportAllocs()
				for i := range b.N {
					prompt := prompts[i%len(prompts)]
					l.Expire(int64(i))
					l.Matched(depth, prompt)
					for slot, busy := range l.Loads() {
						tokens[slot] = busy.ActivePrefillTokens + 2048
						blocks[slot] = busy.ActiveBlocks + int64(len(prompt)) - int64(depth[slot])
					}
				}
			})
		}
	}
}
