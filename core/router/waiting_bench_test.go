package router_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
)

// A request ends while 100,000 others wait, each of a session that is tied to one of 512 workers: what Free takes, with the decision of
// the one that goes.
func BenchmarkFreeWhileSessionsWait(b *testing.B) {
	config, err := router.ParseConfig([]byte(`{"router_queue_threshold": 0, "session_affinity_ttl_secs": 3600}`))
	require.NoError(b, err)
	r, err := router.New(16, config, router.Options{})
	require.NoError(b, err)
	defer r.Close()
	const workers = 512
	for w := range uint64(workers) {
		require.NoError(b, r.AddWorker(router.Worker{ID: w}))
	}
	k := &kit{t: &testing.T{}, Router: r, size: 16}
	prompt := tokens(1, 256)
	var running []string
	for i := range workers {
		q := pinned(book(fmt.Sprint("first ", i), prompt), uint64(i), 0)
		q.SessionID = fmt.Sprint(i)
		k.best(q)
		running = append(running, q.ID)
	}
	ended := make(chan string, 1024)
	push := func(i int) {
		q := book(fmt.Sprint(i), prompt)
		q.SessionID = fmt.Sprint(i % workers)
		_, ticket, err := r.Submit(q, func() {
			select {
			case ended <- q.ID:
			default: // the router is closed
			}
		})
		require.NoError(b, err)
		require.NotNil(b, ticket)
	}
	const waiting = 100_000
	for i := range waiting {
		push(i)
	}
	times := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for i := range b.N {
		start := time.Now()
		_ = r.Free(running[i%workers])
		times = append(times, time.Since(start))
		running[i%workers] = <-ended
		push(waiting + i)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "ns/free-p50")
	b.ReportMetric(float64(times[0].Nanoseconds()), "ns/free-min")
	b.ReportMetric(float64(times[len(times)-1].Nanoseconds()), "ns/free-max")
}

// 100,000 requests of 2,048 tokens wait for 64 workers that take one each: what it takes to submit one, to free one and with that decide the next, and
// what each takes in memory.
func BenchmarkHundredThousandWait(b *testing.B) {
	config, err := router.ParseConfig([]byte(`{"router_queue_threshold": 0}`))
	require.NoError(b, err)
	const workers, waiting = 64, 100_000
	for b.Loop() {
		r, err := router.New(16, config, router.Options{})
		require.NoError(b, err)
		for w := range uint64(workers) {
			require.NoError(b, r.AddWorker(router.Worker{ID: w}))
		}
		prompt := tokens(1, 2048)
		decided := make(chan string, waiting)
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		start := time.Now()
		for i := range waiting + workers {
			prompt[0] = uint32(i) // no two share a block
			q := book(fmt.Sprint(i), prompt)
			_, ticket, err := r.Submit(q, func() { decided <- q.ID })
			require.NoError(b, err)
			if ticket == nil {
				decided <- q.ID
			}
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/(waiting+workers), "ns/submit")
		b.ReportMetric(float64(heap()-before)/waiting, "B/waiting")
		start = time.Now()
		for range waiting + workers {
			_ = r.Free(<-decided)
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/(waiting+workers), "ns/release")
		r.Close()
	}
}
