package router_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// A decision from tokens to booking, 2,048 tokens of which a quarter of the workers hold half, with 16 requests active on
// each worker, as the peer's is measured; ns/decision leaves out the end of the prefill and of the oldest request.
func BenchmarkDecision(b *testing.B) {
	for _, workers := range []int{8, 64, 512, 4096} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			r, err := router.New(16, router.DefaultConfig(), router.Options{})
			require.NoError(b, err)
			defer r.Close()
			k, d := &kit{t: &testing.T{}, Router: r, size: 16}, workload.NewDecision()
			for w := range workers {
				require.NoError(b, r.AddWorker(router.Worker{ID: uint64(w)}))
				for p, prefix := range d.Prefixes() {
					if d.Holds(w, p) {
						k.store(uint64(w), 0, prefix)
					}
				}
			}
			var live []string
			var spent time.Duration
			step := func(i int) {
				q := book(fmt.Sprint(i), d.Prompt(nil))
				start := time.Now()
				_, err := r.BestWorker(q)
				spent = time.Since(start)
				require.NoError(b, err)
				require.NoError(b, r.MarkPrefillComplete(q.ID))
				live = append(live, q.ID)
			}
			for i := range 16 * workers {
				step(i)
			}
			b.ResetTimer()
			times := make([]time.Duration, 0, b.N)
			for i := range b.N {
				step(-1 - i)
				times = append(times, spent)
				require.NoError(b, r.Free(live[0]))
				live = live[1:]
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "ns/decision-p50")
			b.ReportMetric(float64(times[0].Nanoseconds()), "ns/decision-min")
		})
	}
}

// Ten thousand workers join; the time is that of all.
func BenchmarkAddWorkers(b *testing.B) {
	for range b.N {
		r, err := router.New(16, router.DefaultConfig(), router.Options{})
		require.NoError(b, err)
		for i := range uint64(10_000) {
			require.NoError(b, r.AddWorker(router.Worker{ID: i * 7919 % 100_003}))
		}
		r.Close()
	}
}
