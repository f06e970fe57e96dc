package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// engine is a publisher that stores prompts under hashes of its own.
type engine struct {
	*publish.Publisher
	t    *testing.T
	size int
	next uint64
	sent uint64 // batches
}

func newEngine(t *testing.T, rank uint32) *engine {
	p, err := publish.New(publish.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Rank: rank, BufferSteps: 1000})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return &engine{Publisher: p, t: t, size: 16, next: uint64(rank+1) << 32}
}

func (e *engine) send(events ...publish.Event) {
	_, err := e.Publish(events...)
	require.NoError(e.t, err)
	e.sent++
}

func (e *engine) store(prompt []uint32) []block.EngineHash {
	n := len(prompt) / e.size
	hashes := make([]block.EngineHash, n)
	for i := range hashes {
		e.next++
		hashes[i] = block.EngineHash(e.next)
	}
	e.send(publish.Stored(nil, hashes, prompt[:n*e.size], e.size))
	return hashes
}

func (k *kit) eventually(what string, ok func() bool) {
	k.t.Helper()
	require.Eventually(k.t, ok, time.Minute, 5*time.Millisecond, what)
}

func (k *kit) states() map[uint64]feed.State {
	rows, err := k.Health()
	require.NoError(k.t, err)
	out := map[uint64]feed.State{}
	for _, row := range rows {
		out[row.WorkerID] = row.State
	}
	return out
}

// The whole job: engines publish over ZeroMQ, the router follows, prompts go to the holder.
// https://github.com/ai-dynamo/dynamo/pull/5924: a worker whose events came before it was added is recovered when it is.
func TestRoutesOnRealEngineEvents(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	engines := map[uint64]*engine{1: newEngine(t, 0), 2: newEngine(t, 0)}
	early := engines[2].store(tokens(1, 64))
	for id, e := range engines {
		require.NoError(t, k.AddWorker(router.Worker{ID: id, KVEvents: router.Endpoints{Base: e.Addr()}, Replay: router.Endpoints{Base: e.ReplayAddr()}}))
	}
	k.eventually("both views are exact", func() bool {
		s := k.states()
		return s[1] == feed.Exact && s[2] == feed.Exact
	})
	k.eventually("what was published before the join", func() bool { return k.depth(tokens(1, 64))["2/0"] == 4 })
	require.EqualValues(t, 2, k.best(ask(tokens(1, 64))).WorkerID)

	engines[1].store(tokens(2, 48))
	k.eventually("live stores", func() bool { return k.depth(tokens(2, 64))["1/0"] == 3 })
	require.Equal(t, router.Choice{WorkerID: 1, OverlapBlocks: 3}, k.best(ask(tokens(2, 64))))

	engines[2].send(publish.Removed(early[1:2]))
	k.eventually("live removal", func() bool { return k.depth(tokens(1, 64))["2/0"] == 1 })
	engines[1].send(publish.Cleared())
	k.eventually("live clear", func() bool { return k.depth(tokens(2, 64))["1/0"] == 0 })
}

// https://github.com/ai-dynamo/dynamo/pull/7863 https://github.com/ai-dynamo/dynamo/pull/12635
func TestWorkerAddedAgainStartsFromZero(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	e := newEngine(t, 0)
	w := router.Worker{ID: 5, KVEvents: router.Endpoints{Base: e.Addr()}, Replay: router.Endpoints{Base: e.ReplayAddr()}}
	for range 3 {
		require.NoError(t, k.AddWorker(w))
		for i := range 10 {
			e.store(tokens(100+i, 16))
		}
		k.eventually("all batches", func() bool { return k.depth(tokens(109, 16))["5/0"] == 1 })
		require.NoError(t, k.RemoveWorker(5))
		require.Empty(t, k.depth(tokens(109, 16)))
	}
	require.NoError(t, e.Close())

	fresh := newEngine(t, 0) // the engine was restarted elsewhere: batch 0 is accepted
	w.KVEvents.Base, w.Replay.Base = fresh.Addr(), fresh.ReplayAddr()
	require.NoError(t, k.AddWorker(w))
	fresh.store(tokens(1, 16))
	k.eventually("batch 0", func() bool { return k.depth(tokens(1, 16))["5/0"] == 1 && k.states()[5] == feed.Exact })
	require.Zero(t, k.depth(tokens(109, 16))["5/0"])
}

// https://github.com/ai-dynamo/dynamo/pull/12635: the same for one rank of a worker.
func TestRankAddedAgainStartsFromZero(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	ranks := []*engine{newEngine(t, 0), newEngine(t, 1)}
	with := func(size uint32) router.Worker {
		w := router.Worker{ID: 5, DPSize: size}
		w.KVEvents.ByRank, w.Replay.ByRank = map[uint32]string{}, map[uint32]string{}
		for i, e := range ranks[:size] {
			w.KVEvents.ByRank[uint32(i)], w.Replay.ByRank[uint32(i)] = e.Addr(), e.ReplayAddr()
		}
		return w
	}
	for i := range 20 {
		ranks[1].store(tokens(100+i, 16))
	}
	require.NoError(t, k.AddWorker(with(2)))
	k.eventually("rank 1 is followed", func() bool { return k.depth(tokens(119, 16))["5/1"] == 1 })
	require.NoError(t, k.RemoveWorker(5))
	require.NoError(t, k.AddWorker(with(1)))
	require.NotContains(t, k.depth(tokens(119, 16)), "5/1")
	require.NoError(t, k.RemoveWorker(5))
	require.NoError(t, k.AddWorker(with(2)))
	k.eventually("rank 1 is followed from its first batch", func() bool {
		return k.depth(tokens(100, 16))["5/1"] == 1 && k.depth(tokens(119, 16))["5/1"] == 1
	})
}

// https://github.com/sgl-project/sglang/pull/29211: each rank has a stream of its own.
func TestRanksAreFollowedApart(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	a, b := newEngine(t, 3), newEngine(t, 4)
	require.NoError(t, k.AddWorker(router.Worker{
		ID: 9, DPStart: 3, DPSize: 2,
		KVEvents: router.Endpoints{ByRank: map[uint32]string{3: a.Addr(), 4: b.Addr()}},
		Replay:   router.Endpoints{ByRank: map[uint32]string{3: a.ReplayAddr(), 4: b.ReplayAddr()}},
	}))
	a.store(tokens(1, 64))
	b.store(tokens(1, 32))
	k.eventually("both ranks", func() bool {
		d := k.depth(tokens(1, 64))
		return d["9/3"] == 4 && d["9/4"] == 2
	})
	b.send(publish.Cleared())
	k.eventually("one rank cleared", func() bool { return k.depth(tokens(1, 64))["9/4"] == 0 })
	require.EqualValues(t, 4, k.depth(tokens(1, 64))["9/3"])
}

// An engine that offloads: blocks leave the device for the host, and are found there.
func TestOffloadedBlocksAreFollowed(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	e := newEngine(t, 0)
	require.NoError(t, k.AddWorker(follows(1, e)))
	names := e.store(tokens(1, 64))
	k.eventually("on the device", func() bool { return k.row(1, tokens(1, 64)) == [5]uint32{4, 4, 0, 4, 0} })
	offloaded := publish.Stored(&names[1], names[2:], tokens(1, 64)[32:], 16)
	offloaded.Medium = "CPU"
	e.send(offloaded, publish.Removed(names[2:]))
	k.eventually("two of them on the host", func() bool { return k.row(1, tokens(1, 64)) == [5]uint32{2, 4, 2, 4, 0} })
	k.exact(1)
	require.EqualValues(t, 6, k.health(1).Counters["stored_blocks"])
	e.send(publish.Cleared())
	k.eventually("cleared", func() bool { return k.row(1, tokens(1, 64)) == [5]uint32{} })
}
