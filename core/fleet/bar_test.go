package fleet_test

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/mocker"
)

// TestStreamsWhileEnginesDieAndJoin: many streams at a time, of prompts that share prefixes; again and again one engine is killed, and one added. No
// request fails that had no token yet, one that is cut off in the middle says so, and afterwards the load is spread and prefixes are found as before.
// With DGO_SOAK_STREAMS_SECONDS, 500 streams for so long, a death each 10 s; else a short run.
func TestStreamsWhileEnginesDieAndJoin(t *testing.T) {
	streams, kills, between := 60, 3, time.Duration(0)
	if s, err := strconv.Atoi(os.Getenv("DGO_SOAK_STREAMS_SECONDS")); err == nil && s > 0 {
		streams, kills, between = 500, max(s/10, 1), 10*time.Second
	}
	f := newFleet(t, func(o *fleet.Options) { o.Health = engine.Health{} })
	start := func() *mocker.Mocker {
		m := mock(t, func(c *mocker.Config) { c.Speedup, c.InterTokenMS, c.CoalesceMS, c.PrefillRate = 1, 40, 80, 200_000 })
		_, err := f.Add(spec(m))
		require.NoError(t, err)
		return m
	}
	var live []*mocker.Mocker
	for range 4 {
		live = append(live, start())
	}
	require.NoError(t, f.WaitReady(within(t), 4))

	var served, failed, cut, untyped atomic.Int64
	var known, asked atomic.Int64 // tokens of prompts
	var mu sync.Mutex
	placed := map[uint64]int{} // since it was emptied
	ctx, stop := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	for c := range streams {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 1))
			for ctx.Err() == nil {
				p := append(prompt(rng.IntN(48), 480), prompt(1000+rng.IntN(1<<20), 32)...)
				s, err := f.Complete(context.Background(), ask(p), maxTokens(20+rng.IntN(40)))
				if err != nil {
					failed.Add(1)
					t.Log("no token yet:", err)
					continue
				}
				mu.Lock()
				placed[s.Choice().WorkerID]++
				mu.Unlock()
				asked.Add(int64(len(p)))
				known.Add(int64(s.Choice().OverlapBlocks) * 16)
				for err == nil {
					_, err = s.Recv()
				}
				s.Close()
				switch {
				case err == io.EOF:
					served.Add(1)
				case engine.Elsewhere(err):
					cut.Add(1)
				default:
					untyped.Add(1)
					t.Log("in mid-stream:", err)
				}
			}
		})
	}
	// rate is that of hits from now on, over as many requests as there are streams, of which each engine of so many gets some, and over the time between
	// two deaths.
	rate := func(engines int) float64 {
		t.Helper()
		mu.Lock()
		clear(placed)
		mu.Unlock()
		known.Store(0)
		asked.Store(0)
		began := time.Now()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for _, of := range placed {
				n += of
			}
			return n >= streams && len(placed) >= engines && time.Since(began) >= between
		}, between+time.Minute, time.Millisecond)
		return float64(known.Load()) / float64(asked.Load())
	}
	rate(4) // they get warm
	before := rate(4)
	for deaths := range kills {
		dead := live[0]
		live = append(slices.Clone(live[1:]), start())
		require.NoError(t, dead.Close())
		t.Logf("after death %d: hits %.2f, served %d, cut off %d", deaths+1, rate(0), served.Load(), cut.Load())
	}
	require.NoError(t, f.WaitReady(within(t), 4))
	rate(4) // the last one gets warm
	after := rate(4)
	mu.Lock()
	spread := slices.Sorted(maps.Values(placed))
	mu.Unlock()
	stop()
	clients.Wait()
	t.Logf("%d streams, %d deaths: served %d, cut off in mid-stream %d, failed before a token %d; hits %.2f before, %.2f after; spread %v",
		streams, kills, served.Load(), cut.Load(), failed.Load(), before, after, spread)
	require.Zero(t, failed.Load())
	require.Zero(t, untyped.Load())
	require.Greater(t, served.Load(), int64(streams))
	require.Greater(t, after, before*0.8)
	require.Len(t, spread, 4)
	require.Less(t, spread[3], spread[0]*4+8)
	idle(t, f)
}
