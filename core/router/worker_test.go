package router_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/router"
)

func (k *kit) depth(prompt []uint32) map[string]uint32 {
	scores, err := k.OverlapScores(&router.Prompt{Tokens: prompt})
	require.NoError(k.t, err)
	out := map[string]uint32{}
	for _, w := range scores.Workers {
		out[fmt.Sprintf("%d/%d", w.WorkerID, w.DPRank)] = w.DeviceBlocks
	}
	return out
}

// https://github.com/kubernetes-sigs/gateway-api-inference-extension/issues/1289 https://github.com/ai-dynamo/dynamo/pull/6569
func TestRemovedWorkerAndRankLeaveNothing(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig()).workers(1, 3)
	require.NoError(t, k.AddWorker(router.Worker{ID: 2, DPSize: 2}))
	prompt := tokens(1, 40)
	for id, dp := range map[uint64]uint32{1: 0, 2: 0, 3: 0} {
		k.store(id, dp, prompt)
	}
	k.store(2, 1, prompt)
	require.NoError(t, k.AddWorker(router.Worker{ID: 2, DPSize: 1}), "the same worker with one rank less")
	require.Equal(t, map[string]uint32{"1/0": 10, "2/0": 10, "3/0": 10}, k.depth(prompt))

	k.best(book("on any", prompt))
	require.NoError(t, k.RemoveWorker(2))
	require.ErrorIs(t, k.RemoveWorker(2), router.ErrWorkerNotFound)
	require.Equal(t, map[string]uint32{"1/0": 10, "3/0": 10}, k.depth(prompt))
	dump, err := k.DumpEvents()
	require.NoError(t, err)
	require.NotContains(t, string(dump), `"worker_id":2`)
	require.NoError(t, k.Free("on any"), "also if its worker is gone")

	k.workers(2)
	require.Equal(t, map[string]uint32{"1/0": 10, "2/0": 0, "3/0": 10}, k.depth(prompt))
	k.idle()
}

// https://github.com/vllm-project/aibrix/pull/2385
func TestClearEmptiesOneRankAndItStaysACandidate(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig()).workers(1)
	require.NoError(t, k.AddWorker(router.Worker{ID: 2, DPSize: 2}))
	prompt := tokens(1, 40)
	k.store(1, 0, prompt)
	k.store(2, 0, prompt)
	k.store(2, 1, prompt)
	require.NoError(t, k.ApplyEvent(2, &event.Event{Kind: event.Cleared}, index.Count))
	require.Equal(t, map[string]uint32{"1/0": 10, "2/0": 0, "2/1": 10}, k.depth(prompt))
	require.EqualValues(t, 2, k.best(pinned(ask(prompt), 2, 0)).WorkerID)
	k.store(2, 0, prompt)
	require.EqualValues(t, 10, k.depth(prompt)["2/0"])
	require.EqualValues(t, 10, k.best(pinned(ask(prompt), 2, 0)).OverlapBlocks)
}

func TestEventsThatChangeNothing(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig()).workers(1)
	ev := event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 1, Hash: 1}}}
	require.ErrorIs(t, k.ApplyEvent(2, &ev, index.Count), router.ErrWorkerNotFound)
	ev.DPRank = 1
	require.ErrorIs(t, k.ApplyEvent(1, &ev, index.Count), router.ErrWorkerNotFound)
	ev = event.Event{Kind: event.Stored, HasParent: true, Parent: 9, Blocks: []event.Block{{Engine: 1, Hash: 1}}}
	require.ErrorIs(t, k.ApplyEvent(1, &ev, index.Count), router.ErrEventRefused)
	ev = event.Event{Kind: event.Stored, Tier: event.Disk, Blocks: []event.Block{{Engine: 1, Hash: 1}, {Engine: 1, Hash: 2}}}
	require.ErrorIs(t, k.ApplyEvent(1, &ev, index.Count), router.ErrEventRefused)
	stats, err := k.Stats()
	require.NoError(t, err)
	require.Zero(t, stats.Blocks+stats.DiskBlocks)
}

func TestDumpLoadsIntoAnEmptyRouter(t *testing.T) {
	a, b := newKit(t, 4, router.DefaultConfig()), newKit(t, 4, router.DefaultConfig())
	big := uint64(0xF123456789ABCDEF)
	for _, k := range []*kit{a, b} {
		require.NoError(t, k.AddWorker(router.Worker{ID: big, DPStart: 3, DPSize: 2}))
		k.workers(1)
	}
	a.store(big, 4, tokens(1, 40))
	a.store(1, 0, tokens(1, 20))
	a.store(1, 0, tokens(2, 8))
	dump, err := a.DumpEvents()
	require.NoError(t, err)
	var rows []map[string]any
	require.NoError(t, json.Unmarshal(dump, &rows))
	require.NotEmpty(t, rows)
	for i, row := range rows {
		require.EqualValues(t, i, row["event"].(map[string]any)["event_id"])
		require.Equal(t, "device", row["storage_tier"])
	}
	require.NoError(t, b.LoadEvents(dump))
	require.Equal(t, a.depth(tokens(1, 40)), b.depth(tokens(1, 40)))
	require.Equal(t, a.depth(tokens(2, 8)), b.depth(tokens(2, 8)))
	again, err := b.DumpEvents()
	require.NoError(t, err)
	require.JSONEq(t, string(dump), string(again))

	require.NoError(t, b.LoadEvents(dump), "loading twice gives no second reference")
	for _, h := range block.Hashes(nil, tokens(2, 8), 4, nil) {
		b.remove(1, h)
	}
	require.Zero(t, b.depth(tokens(2, 8))["1/0"])

	require.ErrorIs(t, newKit(t, 4, router.DefaultConfig()).LoadEvents(dump), router.ErrWorkerNotFound)
	require.ErrorIs(t, b.LoadEvents([]byte(`[{"worker_id":1}]`)), router.ErrInvalidArgument)
}

func TestWorkerDescriptionsAreChecked(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	at := func(base string) router.Endpoints { return router.Endpoints{Base: base} }
	for name, w := range map[string]router.Worker{
		"block size":          {BlockSize: 64},
		"too many ranks":      {DPSize: router.MaxRanks + 1},
		"rank overflow":       {DPStart: 1<<32 - 1, DPSize: 2},
		"no scheme":           {KVEvents: at("localhost:5557")},
		"port 0":              {KVEvents: at("tcp://h:0")},
		"port overflow":       {KVEvents: at("tcp://h:65534"), DPSize: 3},
		"inproc":              {KVEvents: at("inproc://x")},
		"wildcard, no host":   {KVEvents: at("tcp://*:5557")},
		"overlapping ranges":  {KVEvents: at("tcp://h:5557"), Replay: at("tcp://h:5558"), DPSize: 2},
		"replay alone":        {Replay: at("tcp://h:5558")},
		"query alone":         {Query: at("tcp://h:5558")},
		"a query port twice":  {KVEvents: at("tcp://h:5557"), Query: at("tcp://h:5558"), DPSize: 2},
		"rank of nobody":      {KVEvents: router.Endpoints{ByRank: map[uint32]string{1: "tcp://h:5557"}}},
		"a rank without":      {KVEvents: router.Endpoints{ByRank: map[uint32]string{0: "tcp://h:5557"}}, DPSize: 2},
		"one for two ranks":   {KVEvents: router.Endpoints{ByRank: map[uint32]string{0: "tcp://h:5557", 1: "tcp://h:5557"}}, DPSize: 2},
		"one for two sockets": {KVEvents: at("tcp://h:5557"), Replay: router.Endpoints{ByRank: map[uint32]string{0: "tcp://h:5557"}}},
		"both ways to say it": {KVEvents: router.Endpoints{Base: "tcp://h:5557", ByRank: map[uint32]string{0: "tcp://h:5557"}}},
	} {
		require.ErrorIs(t, k.AddWorker(w), router.ErrInvalidArgument, name)
	}
	infos, err := k.Workers()
	require.NoError(t, err)
	require.Empty(t, infos, "a refused worker is not registered")

	loaded := newKit(t, 16, router.DefaultConfig()).workers(1 << 50)
	loaded.store(1<<50, 0, tokens(1, 16))
	n, err := k.Load(loaded.saved())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	for id := range uint64(index.MaxSlots / router.MaxRanks) {
		require.NoError(t, k.AddWorker(router.Worker{ID: id, DPSize: router.MaxRanks}))
	}
	require.Zero(t, k.waiting(), "what was loaded gives way")
	require.ErrorIs(t, k.AddWorker(router.Worker{ID: 1 << 40}), router.ErrInvalidArgument, "one rank too many")
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, DPSize: router.MaxRanks, Taints: []string{"a"}}), "an update needs no room")
	require.NoError(t, k.RemoveWorker(0))
	require.NoError(t, k.AddWorker(router.Worker{ID: 1 << 40}))
}

func TestSameWorkerAgainUpdatesOtherEndpointsAreRefused(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	w := router.Worker{ID: 7, DPSize: 2, Host: "127.0.0.1", KVEvents: router.Endpoints{Base: "tcp://*:9"}, Taints: []string{"a"}}
	require.NoError(t, k.AddWorker(w), "a port nobody listens on is no reason to refuse")
	w.MaxNumBatchedTokens, w.Taints = 8192, nil
	require.NoError(t, k.AddWorker(w))
	infos, err := k.Workers()
	require.NoError(t, err)
	require.EqualValues(t, 8192, *infos[0].MaxNumBatchedTokens)
	require.Nil(t, infos[0].TotalKVBlocks, "unknown")
	require.Empty(t, infos[0].Taints)
	w.KVEvents.Base = "tcp://*:19"
	require.ErrorIs(t, k.AddWorker(w), router.ErrDuplicateWorker)
	health, err := k.Health()
	require.NoError(t, err)
	require.Len(t, health, 2)
	for _, row := range health {
		require.Equal(t, feed.Disconnected, row.State)
	}
	require.NoError(t, k.RemoveWorker(7))
}

func TestClosedRouterRefusesEverything(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1)
	other := newKit(t, 16, router.DefaultConfig()).workers(1)
	k.Close()
	k.Close()
	_, err := k.BestWorker(ask(nil))
	require.ErrorIs(t, err, router.ErrClosed)
	_, err = k.PotentialLoads(nil, &router.Prompt{})
	require.ErrorIs(t, err, router.ErrClosed)
	_, err = k.DumpEvents()
	require.ErrorIs(t, err, router.ErrClosed)
	_, err = k.Health()
	require.ErrorIs(t, err, router.ErrClosed)
	require.ErrorIs(t, k.AddWorker(router.Worker{ID: 2}), router.ErrClosed)
	require.ErrorIs(t, k.RemoveWorker(1), router.ErrClosed)
	require.ErrorIs(t, k.Free("x"), router.ErrClosed)
	require.ErrorIs(t, k.ApplyEvent(1, &event.Event{Kind: event.Cleared}, index.Count), router.ErrClosed)
	other.best(ask(nil))
}

func TestBookingsExpireWithoutProgress(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1)
	k.best(book("orphan", tokens(1, 64)))
	k.best(book("live", tokens(2, 64)))
	for range 4 {
		k.at = k.at.Add(router.DefaultRequestExpiry / 2)
		require.NoError(t, k.MarkPrefillComplete("live"))
	}
	require.EqualValues(t, 1, k.loads(nil)[1].ActiveRequests)
	require.NoError(t, k.Free("live"))
	k.idle()
}

// https://github.com/vllm-project/aibrix/issues/1131: everything at once for ten seconds, under the race detector; then the log of what was
// applied, replayed by one thread, gives the same dump.
func TestConcurrentUse(t *testing.T) {
	over := time.Now() // without the race detector it shows little
	if raceEnabled {
		over = over.Add(10 * time.Second)
	}
	k := newKit(t, 4, router.DefaultConfig())
	const writers = 4
	for id := range uint64(writers) {
		k.workers(id)
	}
	stop := make(chan struct{})
	var busy, wg sync.WaitGroup
	logs := make([][]event.Event, writers)
	for id := range writers {
		busy.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(id), 9))
			for n := 0; n < 400 || n < 50_000 && time.Now().Before(over); n++ {
				ev := event.Event{Kind: event.Stored}
				for j := range 1 + rng.IntN(8) {
					h := block.Hash(rng.Uint64N(50) + 1)
					ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(uint64(h)<<8 | uint64(j)), Hash: h})
				}
				if rng.IntN(3) == 0 {
					ev = event.Event{Kind: event.Removed, Removed: []block.EngineHash{block.EngineHash((rng.Uint64N(50)+1)<<8 | rng.Uint64N(8))}}
				}
				if k.ApplyEvent(uint64(id), &ev, index.Count) == nil {
					logs[id] = append(logs[id], ev)
				}
			}
		})
	}
	for i := range 16 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprint(i, "/", n)
				if _, err := k.BestWorker(book(id, tokens(i, 16))); err == nil && n%2 == 0 {
					_ = k.MarkPrefillComplete(id)
				}
				_ = k.Free(id)
			}
		})
	}
	for i := range uint64(2) {
		wg.Go(func() {
			for id := (i + 1) << 32; ; id++ {
				select {
				case <-stop:
					return
				default:
				}
				_ = k.AddWorker(router.Worker{ID: id})
				_ = k.ApplyEvent(id, &event.Event{Kind: event.Stored, Blocks: []event.Block{{Engine: 1, Hash: 1}}}, index.Count)
				_ = k.RemoveWorker(id)
			}
		})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = k.DumpEvents()
				_, _ = k.Health()
				_, _ = k.PotentialLoads(nil, &router.Prompt{Tokens: tokens(1, 16)})
			}
		})
	}
	busy.Wait()
	close(stop)
	wg.Wait()

	replay := newKit(t, 4, router.DefaultConfig())
	for id, log := range logs {
		replay.workers(uint64(id))
		for i := range log {
			require.NoError(t, replay.ApplyEvent(uint64(id), &log[i], index.Count))
		}
	}
	require.Equal(t, blocksOf(t, replay), blocksOf(t, k))
	k.idle()
}

// blocksOf gives every block of a dump: who holds it in which tier, under which name below which one.
func blocksOf(t *testing.T, k *kit) []string {
	dump, err := k.DumpEvents()
	require.NoError(t, err)
	events, err := event.ParseRouterEvents(dump)
	require.NoError(t, err)
	var out []string
	for _, e := range events {
		parent := "root"
		if e.Event.HasParent {
			parent = fmt.Sprint(e.Event.Parent)
		}
		for _, b := range e.Event.Blocks {
			out = append(out, fmt.Sprintf("%d/%d %s: %d below %s holds %d", e.WorkerID, e.Event.DPRank, e.Event.Tier, b.Engine, parent, b.Hash))
			parent = fmt.Sprint(b.Engine)
		}
	}
	slices.Sort(out)
	return out
}

func TestASuspendedWorkerGetsNothingAndComesBackWithAllItHolds(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig()).workers(1, 2)
	prompt := tokens(1, 40)
	k.store(1, 0, prompt)
	k.best(book("before", prompt))
	require.NoError(t, k.Suspend(1, true))
	require.NoError(t, k.Suspend(1, true))
	for i := range 8 {
		choice, err := k.BestWorker(&router.Request{Prompt: router.Prompt{Tokens: prompt}})
		require.NoError(t, err)
		require.EqualValues(t, 2, choice.WorkerID, i)
	}
	pinned := router.Request{}
	pinned.Constraints.HasWorker, pinned.Constraints.Worker = true, 1
	_, err := k.BestWorker(&pinned)
	require.ErrorIs(t, err, router.ErrNoWorkers)
	more := tokens(2, 40)
	k.store(1, 0, more) // its events go on
	require.NoError(t, k.Free("before"))
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, TotalKVBlocks: 7}), "a description changes nothing of that")
	require.Equal(t, map[string]uint32{"2/0": 0}, k.depth(prompt))

	require.NoError(t, k.Suspend(1, false))
	require.Equal(t, map[string]uint32{"1/0": 10, "2/0": 0}, k.depth(prompt))
	require.Equal(t, map[string]uint32{"1/0": 10, "2/0": 0}, k.depth(more))
	k.idle()
	require.ErrorIs(t, k.Suspend(3, true), router.ErrWorkerNotFound)
	require.NoError(t, k.Suspend(2, true))
	require.NoError(t, k.RemoveWorker(2))
	k.workers(2)
	require.Equal(t, map[string]uint32{"1/0": 10, "2/0": 0}, k.depth(prompt), "another worker of that id is none that was suspended")
	k.Close()
	require.ErrorIs(t, k.Suspend(1, true), router.ErrClosed)
}
