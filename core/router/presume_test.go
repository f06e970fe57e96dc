package router_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// withoutEvents gives a router that presumes, by the policy.
func withoutEvents(t *testing.T, policy string) *kit {
	config := router.DefaultConfig()
	config.UseKVEvents, config.RouterApproximateCachePolicy = false, policy
	return newKit(t, 4, config)
}

func updating(q *router.Request) *router.Request {
	q.UpdateIndexer = true
	return q
}

func TestRoutingWithoutEvents(t *testing.T) {
	k := withoutEvents(t, "ttl").workers(1, 2, 3)
	prompt := tokens(1, 40)
	k.best(ask(prompt))
	k.best(book("not recorded", prompt))
	require.Equal(t, map[string]uint32{"1/0": 0, "2/0": 0, "3/0": 0}, k.depth(prompt))
	first := k.best(updating(ask(prompt)))
	require.Zero(t, first.OverlapBlocks)
	require.NoError(t, k.Free("not recorded"))
	for range 20 {
		again := k.best(ask(append(tokens(1, 40), 7, 7, 7, 7)))
		require.Equal(t, router.Choice{WorkerID: first.WorkerID, OverlapBlocks: 10}, again)
	}
	dump, err := k.DumpEvents()
	require.NoError(t, err)
	require.Contains(t, string(dump), fmt.Sprintf(`"worker_id":%d`, first.WorkerID))
	stats, err := k.Stats()
	require.NoError(t, err)
	require.Equal(t, []int{10, 10, 10}, []int{stats.Blocks, stats.Pairs, stats.PresumedBlocks})
	require.Positive(t, stats.Memory.Presumed)
	for _, row := range health(k) {
		require.Equal(t, router.Presumed, row.State)
	}

	k.at = k.at.Add(119 * time.Second)
	require.EqualValues(t, 10, k.depth(prompt)[fmt.Sprintf("%d/0", first.WorkerID)])
	k.at = k.at.Add(2 * time.Second)
	require.Equal(t, map[string]uint32{"1/0": 0, "2/0": 0, "3/0": 0}, k.depth(prompt), "two minutes without a request")
}

func health(k *kit) []router.RankHealth {
	rows, err := k.Health()
	require.NoError(k.t, err)
	return rows
}

// Events that come all the same change nothing, and no connection is made.
func TestWithoutEventsNoneAreTaken(t *testing.T) {
	k := withoutEvents(t, "ttl")
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, KVEvents: router.Endpoints{Base: "tcp://127.0.0.1:1"}}))
	ev := event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 1, Hash: 1}}}
	require.NoError(t, k.ApplyEvent(1, &ev, index.Count))
	stats, err := k.Stats()
	require.NoError(t, err)
	require.Zero(t, stats.Blocks)
	require.EqualValues(t, 1, stats.IgnoredEvents)
	require.Equal(t, router.Presumed, health(k)[0].State)

	a := newKit(t, 4, router.DefaultConfig()).workers(1)
	a.store(1, 0, tokens(1, 40))
	n, err := k.Load(a.saved())
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestPresumedBlocksGoWithTheirWorker(t *testing.T) {
	for _, policy := range []string{"ttl", "lru"} {
		k := withoutEvents(t, policy)
		w := router.Worker{ID: 1, TotalKVBlocks: 100}
		require.NoError(t, k.AddWorker(w))
		k.best(updating(book("r", tokens(1, 40))))
		require.EqualValues(t, 10, k.depth(tokens(1, 40))["1/0"])
		require.NoError(t, k.AddWorker(w), "an update keeps them")
		require.EqualValues(t, 10, k.depth(tokens(1, 40))["1/0"])
		require.NoError(t, k.RemoveWorker(1))
		require.NoError(t, k.Free("r"), "late")
		require.NoError(t, k.AddWorker(w))
		require.Zero(t, k.depth(tokens(1, 40))["1/0"])
		require.Zero(t, presumed(k))
	}
}

func presumed(k *kit) int {
	stats, err := k.Stats()
	require.NoError(k.t, err)
	return stats.PresumedBlocks
}

// With "lru" blocks stay as long as the rank has room for them, and those of active requests always.
func TestLeastRecentlyUsedWithoutEvents(t *testing.T) {
	k := withoutEvents(t, "lru")
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, TotalKVBlocks: 25}))
	held := func(first int) uint32 { return k.depth(tokens(first, 40))["1/0"] }
	k.best(updating(book("a", tokens(1, 40))))
	k.best(updating(book("b", tokens(2, 40))))
	k.at = k.at.Add(time.Hour - time.Minute) // time alone takes nothing; but bookings expire
	require.Equal(t, []uint32{10, 10}, []uint32{held(1), held(2)})
	k.best(updating(book("c", tokens(3, 40))))
	require.Equal(t, []uint32{5, 10, 10}, []uint32{held(1), held(2), held(3)}, "a has ended long ago: its deepest blocks went")
	k.best(updating(book("d", tokens(4, 40))))
	require.Equal(t, []uint32{0, 5, 10, 10}, []uint32{held(1), held(2), held(3), held(4)})
	k.best(updating(book("e", tokens(5, 40))))
	require.Equal(t, []uint32{0, 0, 10, 10, 10}, []uint32{held(1), held(2), held(3), held(4), held(5)}, "in use, beyond the room there is")
	require.NoError(t, k.Free("d"))
	require.Equal(t, []uint32{10, 5, 10}, []uint32{held(3), held(4), held(5)}, "the overflow goes as soon as it may")
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, TotalKVBlocks: 22}))
	require.EqualValues(t, 2, held(4), "less room")
	require.NoError(t, k.AddWorker(router.Worker{ID: 2}))
	k.best(pinned(updating(ask(tokens(6, 40))), 2, 0))
	k.at = k.at.Add(3 * time.Minute)
	require.Zero(t, k.depth(tokens(6, 40))["2/0"], "a rank of unknown size forgets by time")
}

// With events, what was routed is known before the engine says so; the greater depth counts.
func TestPredictedBlocksBesideEvents(t *testing.T) {
	config := router.DefaultConfig()
	config.RouterPredictedTTLSecs = ptr(5.0)
	k := newKit(t, 4, config).workers(1)
	k.store(1, 0, tokens(1, 20))
	k.best(updating(ask(tokens(1, 40))))
	k.best(updating(ask(tokens(2, 40))))
	require.EqualValues(t, 10, k.depth(tokens(1, 40))["1/0"])
	require.EqualValues(t, 10, k.depth(tokens(2, 40))["1/0"])
	require.Equal(t, 20, presumed(k))
	dump, err := k.DumpEvents()
	require.NoError(t, err)
	var rows []any
	require.NoError(t, json.Unmarshal(dump, &rows))
	require.Len(t, rows, 1, "what is presumed is not dumped")
	k.at = k.at.Add(6 * time.Second)
	require.EqualValues(t, 5, k.depth(tokens(1, 40))["1/0"])
	require.Zero(t, k.depth(tokens(2, 40))["1/0"])

	plain := newKit(t, 4, router.DefaultConfig()).workers(1)
	plain.best(updating(ask(tokens(1, 40))))
	require.Zero(t, plain.depth(tokens(1, 40))["1/0"], "without the setting, update_indexer does nothing")
}

func TestDecisionWithoutEventsAllocatesNothing(t *testing.T) {
	if raceEnabled {
		return // checked by the run without the race detector
	}
	k := withoutEvents(t, "ttl").workers(1, 2)
	q := ask(tokens(1, 400))
	k.best(updating(q))
	q.UpdateIndexer = false
	require.Zero(t, testing.AllocsPerRun(100, func() { k.best(q) }))
}

// A time beyond what fits is for ever, and so is a room beyond what a rank can have; neither wraps around.
func TestPresumptionsWithoutEnd(t *testing.T) {
	for _, seconds := range []float64{1e10, 1e300, math.MaxFloat64} {
		config := router.DefaultConfig()
		config.UseKVEvents, config.RouterTTLSecs = false, seconds
		k := newKit(t, 4, config).workers(1)
		k.best(updating(ask(tokens(1, 40))))
		k.at = k.at.Add(10_000 * time.Hour)
		require.EqualValues(t, 10, k.depth(tokens(1, 40))["1/0"], "%v seconds", seconds)
	}
	for _, room := range []uint64{1 << 40, 1<<40 + 1, math.MaxUint64} {
		k := withoutEvents(t, "lru")
		require.NoError(t, k.AddWorker(router.Worker{ID: 1, TotalKVBlocks: room}))
		k.best(updating(ask(tokens(1, 40))))
		k.at = k.at.Add(10_000 * time.Hour)
		require.EqualValues(t, 10, k.depth(tokens(1, 40))["1/0"], "%d blocks", room)
	}
}

// The byte bound holds whatever is presumed: long prompts or short ones, booked or not, in ranks with room for all of them.
func TestMemoryOfPresumedBlocksIsBounded(t *testing.T) {
	if raceEnabled {
		return // it is slow, and checked by the run without
	}
	for _, blocks := range []int{1, 512} {
		config := router.DefaultConfig()
		config.UseKVEvents, config.RouterApproximateCachePolicy, config.MaxBytes = false, "lru", router.MinMaxBytes
		k := newKit(t, 1, config)
		require.NoError(t, k.AddWorker(router.Worker{ID: 1, TotalKVBlocks: 1e9}))
		n := 60_000/blocks + 1000
		prompt := func(i int) *router.Request { return updating(book(fmt.Sprint(i), tokens(1000+i*blocks, blocks))) }
		for i := range n {
			k.best(prompt(i))
		}
		stats, err := k.Stats()
		require.NoError(t, err)
		require.LessOrEqual(t, int64(stats.Bytes), config.MaxBytes)
		require.Greater(t, int64(stats.Memory.Presumed), config.MaxBytes/8*3, "the bound is made use of")
		require.Positive(t, stats.EvictedBlocks)
		row := k.health(1)
		require.Equal(t, router.Presumed, row.State)
		require.Contains(t, row.Reason, fmt.Sprintf("max_bytes: %d blocks were evicted", stats.EvictedBlocks))
		require.Equal(t, stats.EvictedBlocks, row.Counters["evicted_blocks"])
		require.EqualValues(t, blocks, k.depth(tokens(1000+(n-1)*blocks, blocks))["1/0"])
		for i := range n {
			require.NoError(t, k.Free(fmt.Sprint(i)), "a request whose blocks went ends as all others")
		}
		require.NoError(t, k.RemoveWorker(1))
		stats, err = k.Stats()
		require.NoError(t, err)
		require.Zero(t, stats.PresumedBlocks)
	}
}
