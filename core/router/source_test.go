package router_test

import (
	"io"
	"net"
	"strings"
	"sync"
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

// wireTo is a connection to an address that can be cut.
type wireTo struct {
	net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
}

func newWireTo(t *testing.T, endpoint string) *wireTo {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wireTo{Listener: ln, to: strings.TrimPrefix(endpoint, "tcp://")}
	t.Cleanup(func() { ln.Close(); w.cut() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", w.to)
			if err != nil {
				c.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, c, far)
			w.mu.Unlock()
			for _, way := range [][2]net.Conn{{c, far}, {far, c}} {
				go func() {
					io.Copy(way[0], way[1])
					way[0].Close()
				}()
			}
		}
	}()
	return w
}

func (w *wireTo) endpoint() string { return "tcp://" + w.Addr().String() }

func (w *wireTo) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// After a broken connection a router asks for what it missed, not for everything: the answer names the process, and agrees with the last live
// events, whatever they are of. Of another process, or of one that keeps less, it takes everything.
func TestReconnectAsksForWhatWasMissed(t *testing.T) {
	cfg := publish.SourceConfig{Rank: worker.Rank{ID: 1}, BlockSize: 4, BufferSteps: 200, Endpoint: "tcp://127.0.0.1:0", Query: "tcp://127.0.0.1:0"}
	source, err := publish.NewSource(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, source.Close()) }()
	next := 0
	say := func(n int) {
		for range n {
			next++
			name := block.EngineHash(next * 10)
			ev := publish.Stored(nil, []block.EngineHash{name, name + 1}, tokens(next, 8), 4)
			switch next % 5 {
			case 0:
				ev.CacheSalt = "tenant"
			case 1:
				ev.LoRAName = "sql"
			case 2:
				ev.Medium = "CPU"
			case 3:
				ev = publish.Stored(nil, []block.EngineHash{name}, tokens(next, 4), 4)
				_, err := source.Publish(ev)
				require.NoError(t, err)
				ev = publish.Stored(&name, []block.EngineHash{name + 1}, tokens(next, 4), 4)
			case 4:
				ev = publish.Removed([]block.EngineHash{name - 10, name - 9, 1 << 50})
			}
			_, err := source.Publish(ev)
			require.NoError(t, err)
		}
	}
	live := newWireTo(t, source.Addr())
	k := newKit(t, 4, router.DefaultConfig())
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, KVEvents: router.Endpoints{Base: live.endpoint()}, Query: router.Endpoints{Base: source.QueryAddr()}}))
	agrees := func(what string) {
		k.eventually(what, func() bool {
			row := k.health(1)
			return row.State == feed.Exact && row.LastSeq != nil && *row.LastSeq+1 == source.Stats().Messages
		})
		st, err := k.Stats()
		require.NoError(t, err)
		require.Equal(t, source.Stats().Blocks, st.Pairs, what)
	}
	agrees("joined")
	count := func(name string) int { return int(k.health(1).Counters[name]) }
	for round := range 6 {
		dumps, replayed, connects := count("dumps"), count("replayed_batches"), count("connects")
		asked := func() int { return count("recoveries") + count("probes") }
		requests, published := asked(), int(source.Stats().Messages)
		say(7 * (1 + 3*(round%3))) // live, also more of them than are compared
		agrees("live")
		live.cut()
		say(20 * (round % 2)) // nobody hears of these but who asks
		k.eventually("connected again", func() bool { return count("connects") > connects })
		agrees("after the cut")
		require.Equal(t, dumps, count("dumps"), "round %d: %v", round, k.health(1).Counters)
		// A request more than one is due where the publisher learns of the subscription after it has published.
		const compared = 64
		published = int(source.Stats().Messages) - published
		require.LessOrEqual(t, count("replayed_batches"), replayed+(asked()-requests)*compared+published, "round %d: %v", round, k.health(1).Counters)
		require.Zero(t, count("resets"))
	}
	live.cut()
	say(300)
	agrees("after more than it keeps")
	require.Equal(t, 2, count("dumps"))

	require.NoError(t, source.Close())
	cfg.Endpoint, cfg.Query = source.Addr(), source.QueryAddr()
	source, err = publish.NewSource(cfg)
	require.NoError(t, err)
	say(500) // further than the one before
	agrees("another process")
}
