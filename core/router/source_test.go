package router_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// A worker's local indexer makes a late router exact, in all tiers, though it keeps only its last events; a router that has
// only the replay socket stays partial. Both notice when the worker starts anew.
func TestLateRouterIsExactByALocalIndexer(t *testing.T) {
	dir := t.TempDir()
	cfg := publish.SourceConfig{Rank: worker.Rank{ID: 1}, BlockSize: 16, BufferSteps: 4,
		Endpoint: "ipc://" + dir + "/live", Replay: "ipc://" + dir + "/replay", Query: "ipc://" + dir + "/query"}
	source, err := publish.NewSource(cfg)
	require.NoError(t, err)
	say := func(events ...publish.Event) {
		_, err := source.Publish(events...)
		require.NoError(t, err)
	}
	names := func(prompt int) []block.EngineHash {
		return []block.EngineHash{block.EngineHash(prompt), block.EngineHash(prompt + 1)}
	}
	store := func(prompt int) publish.Event { return publish.Stored(nil, names(prompt), tokens(prompt, 32), 16) }
	for i := range 20 {
		say(store(10 * (i + 1)))
	}
	salted := store(1000)
	salted.CacheSalt = "tenant"
	say(salted, publish.Removed(names(10)))
	host := store(20)
	host.Medium = "CPU"
	say(host)

	w := router.Worker{ID: 1, KVEvents: router.Endpoints{Base: source.Addr()}}
	with := func(set func(*router.Worker)) *kit {
		k, w := newKit(t, 16, router.DefaultConfig()), w
		set(&w)
		require.NoError(t, k.AddWorker(w))
		return k
	}
	indexed := with(func(w *router.Worker) { w.Query.Base = source.QueryAddr() })
	both := with(func(w *router.Worker) { w.Query.Base, w.Replay.Base = source.QueryAddr(), source.ReplayAddr() })
	replayed := with(func(w *router.Worker) { w.Replay.Base = source.ReplayAddr() })
	indexed.exact(1)
	both.exact(1)
	replayed.eventually("partial", func() bool { return replayed.states()[1] == feed.Partial })
	require.EqualValues(t, 2, indexed.depth(tokens(200, 32))["1/0"])
	require.Zero(t, indexed.depth(tokens(10, 32))["1/0"])
	require.Zero(t, indexed.depth(tokens(1000, 32))["1/0"], "the prompt has no salt")
	require.Equal(t, blocksOf(t, indexed), blocksOf(t, both))
	require.Len(t, blocksOf(t, indexed), 2*(20+1-1+1))
	require.Less(t, len(blocksOf(t, replayed)), 12)

	// The child of a salted block, which only the dump told of.
	child := publish.Stored(&names(1000)[1], names(2000), tokens(2000, 32), 16)
	child.CacheSalt = "tenant"
	say(child, store(5000))
	for _, k := range []*kit{indexed, both, replayed} {
		k.eventually("live", func() bool { return k.depth(tokens(5000, 32))["1/0"] == 2 })
	}
	require.Equal(t, blocksOf(t, indexed), blocksOf(t, both))
	late := with(func(w *router.Worker) { w.Query.Base = source.QueryAddr() })
	late.exact(1)
	require.Equal(t, blocksOf(t, late), blocksOf(t, indexed))

	require.NoError(t, source.Close())
	source, err = publish.NewSource(cfg)
	require.NoError(t, err)
	defer source.Close()
	say(store(7000))
	for _, k := range []*kit{indexed, both, replayed, late} {
		k.eventually("the new process", func() bool { return k.states()[1] == feed.Exact && k.depth(tokens(7000, 32))["1/0"] == 2 })
		require.Len(t, blocksOf(t, k), 2)
	}
}
