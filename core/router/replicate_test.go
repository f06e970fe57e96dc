package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
)

// replicas gives routers that share load, each connected with those before it, with two workers each; and their addresses.
func replicas(t *testing.T, n int, config router.Config) (kits []*kit, addresses []string) {
	for i := range n {
		k := newKit(t, 4, config).workers(1, 2)
		kits = append(kits, k)
		at, err := k.Replicate(router.Replicas{Bind: "tcp://127.0.0.1:0", Connect: addresses, ID: uint64(i) + 1, PeerTimeoutSecs: 0.3})
		require.NoError(t, err)
		require.EqualValues(t, i+1, at.ID)
		addresses = append(addresses, at.Bind)
	}
	return kits, addresses
}

// listeners waits until each router is heard by so many others.
func listeners(want int, kits ...*kit) {
	for _, k := range kits {
		k.eventually("it is heard", func() bool {
			stats, err := k.Stats()
			require.NoError(k.t, err)
			return stats.Replicas.Listeners == want
		})
	}
}

// busyWith waits until a router counts so much on a worker: prefill tokens, decode blocks, requests.
func (k *kit) busyWith(id uint64, want [3]int64) {
	k.t.Helper()
	k.eventually("what others placed", func() bool {
		l := k.loads(nil)[id]
		return [3]int64{l.PotentialPrefillTokens, l.PotentialDecodeBlocks, l.ActiveRequests} == want
	})
}

func TestReplicasCountWhatTheOthersPlaced(t *testing.T) {
	kits, _ := replicas(t, 3, router.DefaultConfig()) // the second hears the first, the third both
	first, second, third := kits[0], kits[1], kits[2]
	listeners(2, first)
	listeners(1, second)
	third.store(1, 0, tokens(1, 8))

	first.best(pinned(book("a", tokens(1, 40)), 1, 0))
	second.busyWith(1, [3]int64{40, 10, 1})
	third.busyWith(1, [3]int64{40, 10, 1})
	require.EqualValues(t, 2, third.best(ask(tokens(1, 40))).WorkerID, "though the other holds two blocks")
	require.Zero(t, third.loads(tokens(1, 40))[1].PotentialDecodeBlocks-10, "its blocks would be shared")

	require.NoError(t, first.MarkPrefillComplete("a"))
	second.busyWith(1, [3]int64{0, 10, 1})
	require.ErrorIs(t, second.Free("a"), router.ErrRequestNotFound, "it ends where it was placed")
	require.NoError(t, first.Free("a"))
	second.busyWith(1, [3]int64{})
	third.busyWith(1, [3]int64{})

	second.best(pinned(book("b", tokens(2, 20)), 2, 0))
	third.busyWith(2, [3]int64{20, 5, 1})
	_, err := third.BestWorker(book("b", tokens(2, 20)))
	require.ErrorIs(t, err, router.ErrDuplicateRequest)
	second.at = second.at.Add(router.DefaultRequestExpiry + time.Second)
	second.loads(nil)
	third.busyWith(2, [3]int64{})

	second.best(pinned(book("c", tokens(2, 20)), 2, 0))
	third.busyWith(2, [3]int64{20, 5, 1})
	second.Close()
	third.busyWith(2, [3]int64{})
	stats, err := third.Stats()
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Replicas.Gone)
	require.Zero(t, stats.Replicas.Published, "what others told is not told again")
	require.Zero(t, stats.Replicas.Malformed+stats.Replicas.Panics)
}

func TestReplicasOfOtherWorkersAndSettings(t *testing.T) {
	config := router.DefaultConfig()
	config.RouterTrackActiveBlocks, config.RouterTrackPrefillTokens = false, false
	kits, addresses := replicas(t, 2, router.DefaultConfig())
	plain := newKit(t, 4, config).workers(1)
	_, err := plain.Replicate(router.Replicas{Connect: addresses[:1]})
	require.NoError(t, err)
	listeners(2, kits[0])
	kits[0].best(pinned(book("a", tokens(1, 40)), 2, 0))
	kits[0].best(pinned(book("b", tokens(1, 40)), 1, 0))
	plain.busyWith(1, [3]int64{0, 0, 1})
	require.Len(t, plain.loads(nil), 1, "a worker it does not have is not its concern")
	require.NoError(t, kits[1].RemoveWorker(1))
	require.NoError(t, kits[0].Free("b"))
	plain.busyWith(1, [3]int64{})
}

// couple gives two routers that hear each other, with two workers each.
func couple(t *testing.T, config router.Config) (a, b *kit) {
	dir := t.TempDir()
	ends := []string{"ipc://" + dir + "/a", "ipc://" + dir + "/b"}
	var kits []*kit
	for i := range ends {
		k := newKit(t, 4, config).workers(1, 2)
		_, err := k.Replicate(router.Replicas{Bind: ends[i], Connect: ends})
		require.NoError(t, err)
		kits = append(kits, k)
	}
	listeners(2, kits...)
	return kits[0], kits[1]
}

// said waits until one router has heard all that the other said so far.
func said(from, to *kit) {
	from.t.Helper()
	to.eventually("all is heard", func() bool {
		f, err := from.Stats()
		require.NoError(from.t, err)
		s, err := to.Stats()
		require.NoError(from.t, err)
		return s.Replicas.Applied == f.Replicas.Published
	})
}

// What a router placed lives as long as it lives there: what another does not know of, or knows no more, does not end it.
func TestARouterEndsOnlyWhatItPlaced(t *testing.T) {
	a, b := couple(t, router.DefaultConfig())
	a.best(pinned(book("a", tokens(1, 40)), 1, 0))
	b.busyWith(1, [3]int64{40, 10, 1})
	require.ErrorIs(t, b.MarkPrefillComplete("a"), router.ErrRequestNotFound)
	require.ErrorIs(t, b.AddOutputBlock("a", 1, nil), router.ErrRequestNotFound)
	require.ErrorIs(t, b.Free("a"), router.ErrRequestNotFound)

	for range 5 { // it makes progress, of which the other hears nothing
		for _, k := range []*kit{a, b} {
			k.at = k.at.Add(router.DefaultRequestExpiry - time.Second)
		}
		require.NoError(t, a.AddOutputBlock("a", 1, nil))
		require.EqualValues(t, 1, b.loads(nil)[1].ActiveRequests, "its router did not say that it ended")
	}
	b.at = b.at.Add(20 * router.DefaultRequestExpiry)
	require.Zero(t, b.loads(nil)[1].ActiveRequests, "lost, as far as is known here")

	a.best(pinned(book("b", tokens(2, 40)), 2, 0))
	b.busyWith(2, [3]int64{40, 10, 1})
	require.NoError(t, b.RemoveWorker(2))
	b.workers(2)
	b.best(pinned(book("last", tokens(3, 4)), 2, 0))
	a.busyWith(2, [3]int64{44, 11, 2})
	said(b, a)
	require.EqualValues(t, 1, a.loads(nil)[1].ActiveRequests)
	stats, err := b.Stats()
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Replicas.Published, "it told of its own request only")
	require.NoError(t, a.Free("a"))
	require.NoError(t, a.Free("b"))

	require.NoError(t, b.RemoveWorker(2))
	a.busyWith(2, [3]int64{})
}

// An end that is told is meant for the teller's own request, also when both placed one under the same name.
func TestRequestsOfOneNameAtTwoRouters(t *testing.T) {
	kits, _ := replicas(t, 2, router.DefaultConfig())
	teller, hearer := kits[0], kits[1]
	listeners(1, teller)
	for _, k := range kits {
		k.best(pinned(book("same", tokens(1, 40)), 1, 0))
		if k == teller {
			hearer.busyWith(1, [3]int64{40, 10, 1})
			require.NoError(t, hearer.RemoveWorker(1)) // so that it is not known there any more
			hearer.workers(1)
		}
	}
	require.NoError(t, teller.MarkPrefillComplete("same"))
	require.NoError(t, teller.Free("same"))
	said(teller, hearer)
	hearer.busyWith(1, [3]int64{40, 10, 1})
	require.NoError(t, hearer.Free("same"))
}

// Blocks are shared, or not, as the router that placed a request says.
func TestReplicasCountBlocksAlike(t *testing.T) {
	unshared := router.DefaultConfig()
	unshared.RouterAssumeKVReuse = false
	for name, configs := range map[string][2]router.Config{
		"shared":   {router.DefaultConfig(), unshared},
		"unshared": {unshared, router.DefaultConfig()},
	} {
		t.Run(name, func(t *testing.T) {
			a := newKit(t, 4, configs[0]).workers(1)
			at, err := a.Replicate(router.Replicas{Bind: "tcp://127.0.0.1:0"})
			require.NoError(t, err)
			b := newKit(t, 4, configs[1]).workers(1)
			_, err = b.Replicate(router.Replicas{Connect: []string{at.Bind}})
			require.NoError(t, err)
			listeners(1, a)
			for i, reuse := range []*bool{nil, nil, ptr(true), ptr(false), ptr(false)} {
				q := book(string(rune('a'+i)), tokens(1, 40))
				q.Overrides.AssumeKVReuse = reuse
				a.best(q)
				said(a, b)
				require.Equal(t, a.loads(nil), b.loads(nil))
			}
			require.EqualValues(t, map[string]int{"shared": 30, "unshared": 50}[name], b.loads(nil)[1].PotentialDecodeBlocks)
		})
	}
}

// What expires at a router that nobody asks any more is told when the others go on.
func TestTheOthersHearOfWhatExpiredAtAnIdleRouter(t *testing.T) {
	a, b := couple(t, router.DefaultConfig())
	a.best(pinned(book("orphan", tokens(1, 40)), 1, 0))
	b.busyWith(1, [3]int64{40, 10, 1})
	a.at = a.at.Add(router.DefaultRequestExpiry + time.Second)
	b.best(pinned(book("another", tokens(2, 40)), 2, 0))
	b.busyWith(1, [3]int64{})
	b.busyWith(2, [3]int64{40, 10, 1})
}

// A request that waits goes as soon as another router's work is done, also one that waits for one rank, of which nobody else tells.
func TestWaitingRequestsGoWhenAnotherRoutersEnd(t *testing.T) {
	for name, room := range map[string]func(k *kit) error{
		"prefill complete": func(k *kit) error { return k.MarkPrefillComplete("a") },
		"freed":            func(k *kit) error { return k.Free("a") },
	} {
		t.Run(name, func(t *testing.T) {
			config := router.DefaultConfig()
			config.RouterQueueThreshold = ptr(0.0)
			a, b := couple(t, config)
			a.best(pinned(book("a", tokens(1, 40)), 1, 0))
			b.busyWith(1, [3]int64{40, 10, 1})
			b.best(pinned(book("b", tokens(2, 40)), 2, 0))
			_, ticket, err := b.Submit(pinned(book("bound", tokens(3, 40)), 1, 0), nil)
			require.NoError(t, err)
			require.NotNil(t, ticket)
			require.NoError(t, b.Free("b")) // all who wait were looked at
			require.NoError(t, room(a))
			select {
			case <-ticket.Done():
				choice, err := ticket.Result()
				require.NoError(t, err)
				require.EqualValues(t, 1, choice.WorkerID)
			case <-time.After(20 * time.Second): // the queue is looked at every minute in any case
				require.Fail(t, "it still waits")
			}
		})
	}
}

func TestReplicasThatCannotBe(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig())
	for _, c := range []router.Replicas{
		{}, {Bind: "nowhere"}, {Connect: []string{"tcp://*:5600"}}, {Bind: "tcp://127.0.0.1:0", PeerTimeoutSecs: -1},
	} {
		_, err := k.Replicate(c)
		require.ErrorIs(t, err, router.ErrInvalidArgument, "%+v", c)
	}
	first, err := k.Replicate(router.Replicas{Bind: "tcp://127.0.0.1:0"})
	require.NoError(t, err)
	_, err = k.Replicate(router.Replicas{Bind: "tcp://127.0.0.1:0"})
	require.ErrorIs(t, err, router.ErrInvalidArgument)
	require.ErrorContains(t, err, "already")
	other := newKit(t, 4, router.DefaultConfig())
	_, err = other.Replicate(router.Replicas{Bind: first.Bind})
	require.ErrorIs(t, err, router.ErrCannotConnect)
	k.Close()
	_, err = k.Replicate(router.Replicas{Bind: "tcp://127.0.0.1:0"})
	require.ErrorIs(t, err, router.ErrClosed)
	_, err = router.ParseReplicas([]byte(`{"bind": "tcp://*:1", "peers": []}`))
	require.ErrorIs(t, err, router.ErrInvalidArgument)
}

func TestWhatWasPlacedBeforeReplicationIsSharedWithWhatComesAfter(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig()).workers(1, 2)
	k.best(pinned(book("before", tokens(1, 40)), 1, 0))
	k.best(pinned(book("shorter", tokens(1, 20)), 1, 0))
	_, err := k.Replicate(router.Replicas{Bind: "tcp://127.0.0.1:0", ID: 1})
	require.NoError(t, err)
	require.EqualValues(t, 10, k.loads(tokens(1, 40))[1].PotentialDecodeBlocks, "all of it is held")
	k.best(pinned(book("after", append(tokens(1, 24), tokens(2, 16)...)), 1, 0))
	require.EqualValues(t, 14, k.loads(nil)[1].PotentialDecodeBlocks, "six blocks are shared")
	for _, id := range []string{"before", "shorter", "after"} {
		require.NoError(t, k.Free(id))
	}
	k.idle()
}
