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
	streams, length, between := 60, 3*time.Second, 800*time.Millisecond
	if s, err := strconv.Atoi(os.Getenv("DGO_SOAK_STREAMS_SECONDS")); err == nil && s > 0 {
		streams, length, between = 500, time.Duration(s)*time.Second, 10*time.Second
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
	rate := func() float64 { // of hits since it was asked last
		n, d := known.Swap(0), asked.Swap(0)
		return float64(n) / float64(max(d, 1))
	}
	time.Sleep(between) // they get warm
	rate()
	time.Sleep(between)
	before := rate() // what is to be reached again
	ended := time.After(length)
	deaths := 0
	for over := false; !over; {
		dead := live[0]
		live = append(slices.Clone(live[1:]), start())
		require.NoError(t, dead.Close())
		deaths++
		select {
		case <-time.After(between):
		case <-ended:
			over = true
		}
		t.Logf("after death %d: hits %.2f, served %d, cut off %d", deaths, rate(), served.Load(), cut.Load())
	}
	mu.Lock()
	clear(placed)
	mu.Unlock()
	rate()
	time.Sleep(between)
	after := rate()
	mu.Lock()
	spread := slices.Sorted(maps.Values(placed))
	mu.Unlock()
	stop()
	clients.Wait()
	t.Logf("%d streams, %v, %d deaths: served %d, cut off in mid-stream %d, failed before a token %d; hits %.2f before, %.2f after; spread %v",
		streams, length, deaths, served.Load(), cut.Load(), failed.Load(), before, after, spread)
	require.Zero(t, failed.Load())
	require.Zero(t, untyped.Load())
	require.Greater(t, served.Load(), int64(streams))
	require.Greater(t, after, before*0.8)
	require.Len(t, spread, 4)
	require.Less(t, spread[3], spread[0]*4+8)
	idle(t, f)
}
