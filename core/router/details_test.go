package router_test

import (
	"bytes"
	"fmt"
	"math"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// What is presumed of a rank never hides that it holds more.
func TestPresumedLessThanHeld(t *testing.T) {
	config := router.DefaultConfig()
	config.RouterPredictedTTLSecs = ptr(5.0)
	k := newKit(t, 4, config).workers(1)
	k.best(updating(ask(tokens(1, 8))))
	k.store(1, 0, tokens(1, 40))
	require.EqualValues(t, 10, k.depth(tokens(1, 40))["1/0"])
	require.EqualValues(t, 10, k.best(ask(tokens(1, 40))).OverlapBlocks)
}

// A suspended worker has nothing to do with why another request finds no place, whatever its id.
func TestErrorsOfOthersWhileAWorkerIsSuspended(t *testing.T) {
	k := newKit(t, 16, with(t, `{"active_prefill_tokens_threshold": 10}`)).workers(0, 1)
	require.NoError(t, k.Suspend(0, true))
	k.best(book("a", tokens(1, 64)))
	_, err := k.BestWorker(ask(nil))
	kindOf(t, err, router.ErrOverloaded)
	_, err = k.BestWorker(pinned(ask(nil), 0, 0))
	kindOf(t, err, router.ErrNoWorkers)
	require.ErrorContains(t, err, "worker 0 is suspended")
}

// Who is pinned goes there, liked or not.
func TestPreferredTaintsOfAPinnedRequest(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, Taints: []string{"x"}}))
	liked := func(q *router.Request) router.RankShown {
		q.Constraints.PreferredTaints = []schedule.Preference{{Taint: "x", Weight: -3}}
		e, err := k.Explain(q)
		require.NoError(t, err)
		return e.Workers[0]
	}
	free, bound := liked(ask(tokens(1, 64))), liked(pinned(ask(tokens(1, 64)), 1, 0))
	require.EqualValues(t, 8, *bound.Cost)
	require.EqualValues(t, 1, bound.TaintFactor)
	require.Greater(t, float64(*free.Cost), 8.0)
	require.InDelta(t, float64(*free.Cost), 8*float64(free.TaintFactor), 1e-9)
}

// A model that expects nothing leaves the load as it is, and is not asked about nothing.
func TestPrefillModelThatExpectsNothing(t *testing.T) {
	for _, expected := range []time.Duration{0, -time.Second} {
		asked, at := 0, time.Unix(1, 0)
		r, err := router.New(16, router.DefaultConfig(), router.Options{
			Clock: func() time.Time { return at },
			PrefillModel: schedule.PrefillFunc(func(fresh, _ int) time.Duration {
				require.Positive(t, fresh)
				asked++
				return expected
			}),
		})
		require.NoError(t, err)
		defer r.Close()
		k := (&kit{Router: r, t: t, size: 16}).workers(1)
		m := listen(t, k)
		k.best(book("a", tokens(1, 100)))
		at = at.Add(time.Minute)
		require.EqualValues(t, 100, k.loads(nil)[1].PotentialPrefillTokens)
		require.False(t, m.events[0].HasDuration)
		k.store(1, 0, tokens(2, 64))
		k.best(book("b", tokens(2, 64)))
		require.Equal(t, 1, asked, "all of the second prompt is held")
	}
}

// Cancel concerns its own request, once: not another one that has the same id by now.
func TestCancelEndsNothingElse(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1, 2)
	w.best(pinned(book("h1", tokens(1, 64)), 1, 0))
	w.best(pinned(book("h2", tokens(1, 64)), 2, 0))
	require.NoError(t, w.submit(pinned(book("x", tokens(2, 64)), 1, 0)))
	require.NoError(t, w.Free("h2"))
	tk := w.tickets["x"]
	_, other, err := w.Submit(pinned(book("x", tokens(3, 64)), 2, 0), nil) // while the first waits
	require.NoError(t, err)
	<-other.Done()
	require.NoError(t, w.Free("h1"))
	<-tk.Done()
	_, err = tk.Result()
	require.ErrorIs(t, err, router.ErrDuplicateRequest)
	tk.Cancel()
	require.EqualValues(t, 1, w.loads(nil)[2].ActiveRequests, "the other x is booked")

	require.NoError(t, w.submit(pinned(book("y", tokens(2, 64)), 2, 0)))
	require.NoError(t, w.Free("x"))
	<-w.tickets["y"].Done()
	w.tickets["y"].Cancel()
	require.Zero(t, w.loads(nil)[2].ActiveRequests)
	w.best(pinned(book("y", tokens(2, 64)), 2, 0))
	w.tickets["y"].Cancel()
	require.EqualValues(t, 1, w.loads(nil)[2].ActiveRequests, "a second time ends nothing")
}

// What a request lent is the caller's again once it waits.
func TestARequestThatWaitsKeepsItsOwn(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	require.NoError(t, w.AddWorker(router.Worker{ID: 1, Taints: []string{"a", "x"}}))
	require.NoError(t, w.AddWorker(router.Worker{ID: 2, Taints: []string{"a", "y"}}))
	require.NoError(t, w.AddWorker(router.Worker{ID: 3, Taints: []string{"b", "y"}}))
	for id, name := range map[uint64]string{1: "h1", 2: "h2", 3: "h3"} {
		w.best(pinned(book(name, tokens(1, 64)), id, 0))
	}
	required, preferred, allowed := book("required", tokens(2, 64)), book("preferred", tokens(2, 64)), book("allowed", tokens(2, 64))
	required.Constraints.RequiredTaints = []string{"b"}
	preferred.Constraints.PreferredTaints = []schedule.Preference{{Taint: "y", Weight: 5}}
	preferred.Constraints.RequiredTaints = []string{"a"}
	allowed.Constraints.Allowed = map[uint64]struct{}{3: {}}
	for _, q := range []*router.Request{required, preferred, allowed} {
		require.NoError(t, w.submit(q))
	}
	required.Constraints.RequiredTaints[0] = "a"
	preferred.Constraints.PreferredTaints[0].Weight = -5
	allowed.Constraints.Allowed[1] = struct{}{}
	delete(allowed.Constraints.Allowed, 3)

	w.elapsed.Add(int64(router.DefaultRequestExpiry) + 1)
	require.ErrorIs(t, w.Free("nobody"), router.ErrRequestNotFound) // all three holders expire together
	for id, want := range map[string]uint64{"required": 3, "preferred": 2} {
		<-w.tickets[id].Done()
		choice, err := w.tickets[id].Result()
		require.NoError(t, err)
		require.Equal(t, want, choice.WorkerID, id)
	}
	require.NoError(t, w.Free("required"))
	<-w.tickets["allowed"].Done()
	choice, err := w.tickets["allowed"].Result()
	require.NoError(t, err)
	require.EqualValues(t, 3, choice.WorkerID)
}

// A request that began to wait before load was shared is told to the others with its blocks like any other.
func TestLoadIsSharedWhileARequestWaits(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	w.best(book("first", tokens(1, 64)))
	require.NoError(t, w.submit(book("waits", tokens(2, 64))))
	m := listen(t, w.kit)
	require.NoError(t, w.Free("first"))
	w.decided("waits")
	require.Equal(t, wire.SequenceAdded, m.events[len(m.events)-1].Kind)
	require.Len(t, m.events[len(m.events)-1].Sequences, 4)
	require.EqualValues(t, 4, w.loads(tokens(2, 64))[1].PotentialDecodeBlocks, "it is found by its blocks")
}

// Deadlines are right at both ends of the clock, which may have gone back behind the router's start.
func TestDeadlinesAtTheEndsOfTheClock(t *testing.T) {
	for _, now := range []time.Duration{-time.Hour, 0, time.Hour} {
		w := newWaiting(t, `{"router_queue_threshold": 0}`)
		w.workers(1)
		w.elapsed.Store(int64(now))
		w.best(book("first", tokens(1, 64)))
		for id, timeout := range map[string]time.Duration{"short": time.Second, "long": math.MaxInt64} {
			q := book(id, tokens(2, 64))
			q.Timeout = &timeout
			require.NoError(t, w.submit(q))
			require.NotNil(t, w.tickets[id])
		}
		w.elapsed.Store(max(int64(now), 0) + 2*int64(time.Second))
		require.ErrorIs(t, w.Free("nobody"), router.ErrRequestNotFound)
		<-w.tickets["short"].Done()
		_, err := w.tickets["short"].Result()
		require.ErrorIs(t, err, router.ErrTimeout)
		require.NoError(t, w.Free("first"))
		<-w.tickets["long"].Done()
		_, err = w.tickets["long"].Result()
		require.NoError(t, err)
	}
}

// Requests that ask for different ranks hold up each other in no way of asking.
func TestEachWayOfAskingWaitsInItsOwnLine(t *testing.T) {
	allowed := map[uint64]struct{}{1: {}, 2: {}}
	for name, ask := range map[string][2]func(q *router.Request){
		"required taints": {
			func(q *router.Request) { q.Constraints.RequiredTaints = []string{"one"} },
			func(q *router.Request) { q.Constraints.RequiredTaints = []string{"two"} },
		},
		"allowed workers": {
			func(q *router.Request) { q.Constraints.Allowed = map[uint64]struct{}{1: {}, 7: {}} },
			func(q *router.Request) { q.Constraints.Allowed = map[uint64]struct{}{2: {}, 8: {}} },
		},
		"a session among allowed workers": {
			func(q *router.Request) { q.Constraints.Allowed, q.SessionID = allowed, "s" },
			func(q *router.Request) { q.Constraints.Allowed = allowed },
		},
		"a pinned worker with a taint": {
			func(q *router.Request) {
				q.Constraints.HasWorker, q.Constraints.Worker, q.Constraints.RequiredTaints = true, 1, []string{"one"}
			},
			func(q *router.Request) {
				q.Constraints.HasWorker, q.Constraints.Worker, q.Constraints.RequiredTaints = true, 2, []string{"two"}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWaiting(t, `{"router_queue_threshold": 0, "session_affinity_ttl_secs": 60}`)
			require.NoError(t, w.AddWorker(router.Worker{ID: 1, Taints: []string{"one"}}))
			require.NoError(t, w.AddWorker(router.Worker{ID: 2, Taints: []string{"two"}}))
			first := pinned(book("h1", tokens(1, 64)), 1, 0)
			first.SessionID = "s"
			w.best(first)
			w.best(pinned(book("h2", tokens(1, 64)), 2, 0))
			for i, id := range []string{"blocked", "goes"} {
				q := book(id, tokens(2, 64))
				ask[i](q)
				require.NoError(t, w.submit(q))
			}
			require.NoError(t, w.Free("h2"))
			w.decided("goes")
			require.NoError(t, w.Free("h1"))
			w.decided("goes", "blocked")
		})
	}
}

// Those who wait for one rank hear of it though another rank had more room made than there are ranks.
func TestManyEndOnOneRankAndOneOnAnother(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1, 2)
	m := listen(t, w.kit)
	place := func(id string, at uint64) {
		m.sink.Apply([]wire.SequenceEvent{{
			Kind: wire.SequenceAdded, RequestID: id, Worker: worker.Rank{ID: at}, RouterID: 9, PrefillTokens: 3, HasSequences: true,
		}})
	}
	for i := range 10 {
		place(fmt.Sprint(i), 1)
	}
	place("last", 2)
	require.NoError(t, w.submit(pinned(book("waits", tokens(1, 64)), 2, 0)))
	require.Empty(t, w.order)
	m.sink.Gone(9)
	w.decided("waits")
}

// More deadlines pass at one moment than one call tells of: the timer goes on with the rest.
func TestDeadlinesOfThousandsHoldUpNobody(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	w.best(book("first", tokens(1, 64)))
	const n = 2000
	byFree := 0 // told by who freed; guarded by the router's lock
	var last *router.Ticket
	for i := range n {
		q := book(fmt.Sprint(i), tokens(2, 64))
		q.Timeout = ptr(time.Minute + time.Duration(i))
		_, tk, err := w.Submit(q, func() {
			if bytes.Contains(debug.Stack(), []byte("router.(*Router).Free(")) {
				byFree++
			}
		})
		require.NoError(t, err)
		last = tk
	}
	w.elapsed.Add(int64(time.Hour))
	require.NoError(t, w.Free("first"), "late")
	<-last.Done()
	w.loads(nil) // takes the lock
	require.LessOrEqual(t, byFree, 512)
	_, err := last.Result()
	require.ErrorIs(t, err, router.ErrTimeout)
}
