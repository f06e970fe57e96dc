package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// policy has a class that takes two waiting requests per worker, and one for important ones.
const policy = `
default_policy_family: standard
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: ordinary, policy_family: standard, cache_bucket: all, quantum: 1000, prefill_busy_threshold: 0, request_queue_limit_per_worker: 1}
  - {name: vip, quantum: 1000, prefill_busy_threshold_frac: 0}
`

// waiting submits requests and notes in which order they are decided.
type waiting struct {
	*kit
	tickets map[string]*router.Ticket
	order   []string     // appended to under the router's lock
	elapsed atomic.Int64 // the router's timer reads the clock too
	reads   atomic.Int64 // of the clock
}

func newWaiting(t *testing.T, config string, args ...any) *waiting {
	w := &waiting{tickets: map[string]*router.Ticket{}}
	seed := uint64(1)
	r, err := router.New(16, with(t, config, args...), router.Options{Seed: &seed, Clock: func() time.Time {
		w.reads.Add(1)
		return time.Unix(0, w.elapsed.Load())
	}})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	w.kit = &kit{Router: r, t: t, size: 16}
	return w
}

func (w *waiting) submit(q *router.Request) error {
	_, tk, err := w.Submit(q, func() { w.order = append(w.order, q.ID) })
	if err == nil && tk == nil {
		w.order = append(w.order, q.ID)
	}
	w.tickets[q.ID] = tk
	return err
}

func (w *waiting) decided(ids ...string) {
	w.t.Helper()
	require.Equal(w.t, ids, w.order)
	for _, id := range ids {
		if tk := w.tickets[id]; tk != nil {
			<-tk.Done()
			_, err := tk.Result()
			require.NoError(w.t, err)
		}
	}
}

// https://github.com/ai-dynamo/dynamo/pull/8163 https://github.com/ai-dynamo/dynamo/pull/10887
// https://github.com/ai-dynamo/dynamo/pull/11599 https://github.com/ai-dynamo/dynamo/pull/8144
func TestEachReleaseLetsExactlyOneGo(t *testing.T) {
	for policy, want := range map[string][]string{"fcfs": {"3", "4", "5", "6"}, "lcfs": {"6", "5", "4", "3"}, "wspt": {"5", "6", "3", "4"}} {
		w := newWaiting(t, `{"router_queue_threshold": 0, "router_queue_policy": %q}`, policy)
		w.workers(1, 2)
		for i, n := range []int{64, 64, 64, 128, 16, 32} {
			require.NoError(t, w.submit(book(fmt.Sprint(i+1), tokens(i, n))))
			w.elapsed.Add(int64(time.Second))
		}
		w.decided("1", "2")
		done := []string{"1", "2"}
		for i, next := range want {
			if i%2 == 0 || policy == "wspt" { // there prompts differ, and what is decoded weighs too
				require.NoError(t, w.Free(done[i]))
			} else {
				require.NoError(t, w.MarkPrefillComplete(done[i]))
			}
			done = append(done, next)
			w.decided(done...)
		}
	}
}

// Requests whose blocks a busy rank holds: each goes to a rank with room, whoever holds its blocks.
func TestReleaseLetsOneGoWhereverItsBlocksAre(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1, 2)
	prefix := tokens(1, 1600)
	w.store(2, 0, prefix)
	require.NoError(t, w.submit(pinned(book("h2", tokens(22, 64)), 2, 0)))
	e, err := w.Explain(ask(prefix))
	require.NoError(t, err)
	require.Equal(t, []router.RankName{{WorkerID: 1}}, e.Picks)
	require.Equal(t, string(schedule.Busy), e.Workers[1].Excluded)
	for i := range 7 { // the first finds worker 1 with room
		require.NoError(t, w.submit(book(fmt.Sprint(i), append(slices.Clone(prefix), tokens(30+i, 64)...))))
	}
	w.decided("h2", "0")
	choice, err := w.BestWorker(pinned(book("p", nil), 2, 0))
	kindOf(t, err, router.ErrTimeout)
	require.Zero(t, choice)
	e, err = w.Explain(ask(prefix))
	require.NoError(t, err)
	require.True(t, e.MustWait)
	require.Empty(t, e.Workers[1].Excluded)

	require.NoError(t, w.Free("0"))
	w.decided("h2", "0", "1")
	choice, _ = w.tickets["1"].Result()
	require.Equal(t, router.Choice{WorkerID: 1}, choice)
	require.NoError(t, w.Free("h2"))
	w.decided("h2", "0", "1", "2")
	choice, _ = w.tickets["2"].Result()
	require.Equal(t, router.Choice{WorkerID: 2, OverlapBlocks: 100}, choice)
}

// Sessions that are tied to no rank, or to the same one, wait in one line: what a call looks at does not grow with them.
func TestSessionsWaitTogether(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0, "session_affinity_ttl_secs": 60}`)
	w.workers(1)
	w.best(book("busy", tokens(1, 64)))
	read := func(call func() error) int64 {
		before := w.reads.Load()
		require.NoError(t, call())
		return w.reads.Load() - before
	}
	for i := range 1000 {
		q := book(fmt.Sprint(i), tokens(1, 64))
		q.SessionID = q.ID
		require.Less(t, read(func() error { return w.submit(q) }), int64(30), "readings of the clock: each look at a session is one")
	}
	require.Less(t, read(func() error { return w.Free("busy") }), int64(50))
	w.decided("0")
}

// A session is tied while a request of it waits: that request waits for its rank then, and the others go on.
func TestSessionTiedMeanwhileHoldsUpNobody(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0, "session_affinity_ttl_secs": 60}`)
	w.workers(1, 2)
	require.NoError(t, w.submit(pinned(book("h1", tokens(1, 64)), 1, 0)))
	require.NoError(t, w.submit(pinned(book("h2", tokens(1, 64)), 2, 0)))
	for _, id := range []string{"a", "b", "c"} {
		q := book(id, tokens(1, 64))
		if id != "c" {
			q.SessionID = "s"
		}
		require.NoError(t, w.submit(q))
	}
	require.NoError(t, w.Free("h1"))
	w.decided("h1", "h2", "a")
	require.NoError(t, w.Free("h2"))
	w.decided("h1", "h2", "a", "c")
	require.NoError(t, w.Free("c"))
	w.decided("h1", "h2", "a", "c")
	require.NoError(t, w.Free("a"))
	w.decided("h1", "h2", "a", "c", "b")
	choice, _ := w.tickets["b"].Result()
	require.EqualValues(t, 1, choice.WorkerID)
}

func TestCancelledHeadBlocksNobody(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	for _, id := range []string{"1", "2", "3"} {
		require.NoError(t, w.submit(book(id, tokens(1, 64))))
	}
	w.tickets["2"].Cancel()
	<-w.tickets["2"].Done()
	_, err := w.tickets["2"].Result()
	require.ErrorIs(t, err, router.ErrCancelled)
	require.NoError(t, w.Free("1"))
	require.Equal(t, []string{"1", "2", "3"}, w.order)
	require.ErrorIs(t, w.Free("2"), router.ErrRequestNotFound)

	// One that was decided before it was cancelled is not booked any more; so the next goes.
	require.NoError(t, w.submit(book("4", tokens(1, 64))))
	require.NoError(t, w.submit(book("5", tokens(1, 64))))
	require.NoError(t, w.Free("3"))
	<-w.tickets["4"].Done()
	w.tickets["4"].Cancel()
	w.tickets["4"].Cancel()
	<-w.tickets["5"].Done()
	require.ErrorIs(t, w.Free("4"), router.ErrRequestNotFound)
	require.NoError(t, w.Free("5"))
	w.idle()
}

func TestNewWorkerServesThoseWhoWait(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	require.NoError(t, w.submit(book("1", tokens(1, 64))))
	require.NoError(t, w.submit(book("2", tokens(1, 64))))
	w.workers(2)
	w.decided("1", "2")
	choice, _ := w.tickets["2"].Result()
	require.EqualValues(t, 2, choice.WorkerID)

	require.NoError(t, w.submit(book("3", tokens(1, 64))))
	require.NoError(t, w.RemoveWorker(1))
	require.Equal(t, []string{"1", "2"}, w.order, "worker 2 is still busy")
	require.NoError(t, w.RemoveWorker(2))
	_, err := w.tickets["3"].Result()
	require.ErrorIs(t, err, router.ErrNoWorkers)
}

func TestWithoutThresholdNothingWaits(t *testing.T) {
	w := newWaiting(t, `{}`)
	w.workers(1)
	for i := range 100 {
		require.NoError(t, w.submit(book(fmt.Sprint(i), tokens(1, 640))))
		require.Nil(t, w.tickets[fmt.Sprint(i)])
	}
	stats, err := w.QueueStats()
	require.NoError(t, err)
	require.Empty(t, stats)
}

func TestPinnedRequestsWaitForTheirWorker(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1, 2)
	require.NoError(t, w.submit(pinned(book("1", tokens(1, 64)), 1, 0)))
	require.NoError(t, w.submit(pinned(book("2", tokens(1, 64)), 1, 0)))
	require.NoError(t, w.submit(book("3", tokens(1, 64)))) // worker 2 is free: nobody is in its way
	w.decided("1", "3")
	require.NoError(t, w.Free("3"))
	w.decided("1", "3")
	require.NoError(t, w.Free("1"))
	w.decided("1", "3", "2")
	_, err := w.BestWorker(ask(nil)) // worker 2 again
	require.NoError(t, err)
	_, err = w.BestWorker(pinned(ask(nil), 1, 0))
	kindOf(t, err, router.ErrTimeout)
}

func TestPrioritiesAndClasses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(policy), 0o600))
	w := newWaiting(t, `{"router_policy_config": %q}`, path)
	w.workers(1)
	require.NoError(t, w.submit(book("1", tokens(1, 64))))
	require.NoError(t, w.submit(book("2", tokens(1, 64))))
	err := w.submit(book("3", tokens(1, 64)))
	kindOf(t, err, router.ErrQueueLimitExceeded)
	var limit *queue.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, queue.LimitError{Class: "ordinary", Kind: queue.LimitRequests, Current: 1, Limit: 1}, *limit)
	vip := func(id string, strict uint32, jump float64) *router.Request {
		q := book(id, tokens(1, 64))
		q.PolicyClass, q.StrictPriority, q.PriorityJump = "vip", strict, jump
		return q
	}
	require.NoError(t, w.submit(vip("v1", 0, 0)))
	require.NoError(t, w.submit(vip("v2", 0, 5)))
	require.NoError(t, w.submit(vip("v3", 1, 0)))
	stats, err := w.QueueStats()
	require.NoError(t, err)
	require.EqualValues(t, 3, stats["vip"].Requests)
	require.EqualValues(t, 1, stats["ordinary"].LimitRefused)
	var vips []string
	for len(w.order) < 5 {
		require.NoError(t, w.Free(w.order[len(w.order)-1]))
	}
	for _, id := range w.order {
		if id[0] == 'v' {
			vips = append(vips, id)
		}
	}
	require.Equal(t, []string{"v3", "v2", "v1"}, vips)
}

// TestPhasesOfAWaitAreNotMeasured: neither what it waited, nor what the decision took that came before on the same scratch.
func TestPhasesOfAWaitAreNotMeasured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(policy), 0o600))
	w := newWaiting(t, `{"router_policy_config": %q}`, path)
	w.workers(1, 2)
	measured := func() uint64 {
		snapshot, err := w.Tally()
		require.NoError(t, err)
		return snapshot.Decisions.Total.Total()
	}
	require.NoError(t, w.submit(pinned(book("1", tokens(1, 64)), 1, 0)))
	require.NoError(t, w.submit(pinned(book("2", tokens(2, 64)), 1, 0)))
	before := measured()
	for n := 0; measured() == before; n++ { // the latest decision is one that was measured
		require.Less(t, n, 10_000)
		q := ask(tokens(3, 64))
		q.PolicyClass = "vip" // of which nobody waits
		choice, err := w.BestWorker(q)
		require.NoError(t, err)
		require.EqualValues(t, 2, choice.WorkerID)
	}
	before = measured()
	require.NoError(t, w.Free("1"))
	w.decided("1", "2")
	require.Equal(t, before, measured())
}

func TestDeadlineEndsAWait(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	w.best(book("1", tokens(1, 64)))
	q := book("2", tokens(1, 64))
	q.Timeout = ptr(time.Duration(0))
	kindOf(t, w.submit(q), router.ErrTimeout)
	_, err := w.BestWorker(book("2", tokens(1, 64)))
	kindOf(t, err, router.ErrTimeout)
	q.Timeout = ptr(time.Second)
	require.NoError(t, w.submit(q))
	w.elapsed.Add(int64(time.Second))
	<-w.tickets["2"].Done() // nobody calls: the router's timer sees to it
	_, err = w.tickets["2"].Result()
	kindOf(t, err, router.ErrTimeout)
	tally, err := w.Tally()
	require.NoError(t, err)
	timeouts := uint64(0)
	for _, o := range tally.Decisions.Outcomes {
		if o.Name == "timeout" {
			timeouts = o.Count
		}
	}
	require.EqualValues(t, 3, timeouts, "refused at once twice, and waited in vain")
	require.NoError(t, w.Free("1"))
	w.idle()
}

// https://github.com/ai-dynamo/dynamo/pull/11303 https://github.com/ai-dynamo/dynamo/pull/12078
// https://github.com/ai-dynamo/dynamo/pull/7340 https://github.com/ai-dynamo/dynamo/pull/2840
func TestExpiryNeedsNoTraffic(t *testing.T) {
	var elapsed atomic.Int64
	r, err := router.New(16, with(t, `{"router_queue_threshold": 0}`), router.Options{
		RequestExpiry: 50 * time.Millisecond, Clock: func() time.Time { return time.Unix(0, elapsed.Load()) },
	})
	require.NoError(t, err)
	defer r.Close()
	pass := func(ms int64) { elapsed.Add(ms * int64(time.Millisecond)) }
	k := (&kit{Router: r, t: t, size: 16}).workers(1, 2)
	// goes has a request wait, and passes the time after which somebody's expires: nobody calls then.
	goes := func(q *router.Request, ms int64) router.Choice {
		_, waits, err := r.Submit(q, func() {})
		require.NoError(t, err)
		require.NotNil(t, waits)
		pass(ms)
		select {
		case <-waits.Done():
		case <-time.After(30 * time.Second): // the queue is looked at every minute in any case
			require.Fail(t, "it still waits")
		}
		choice, err := waits.Result()
		require.NoError(t, err)
		return choice
	}
	k.best(pinned(book("orphan", tokens(1, 64)), 1, 0))
	k.best(pinned(book("busy", tokens(1, 64)), 2, 0))
	pass(40)
	require.NoError(t, r.AddOutputBlock("busy", 1, nil))
	require.EqualValues(t, 1, goes(book("next", tokens(2, 64)), 20).WorkerID)
	require.NoError(t, r.Free("busy"), "it made progress, so it is booked")
	require.NoError(t, r.Free("orphan"), "a late free is heard once")
	require.ErrorIs(t, r.Free("orphan"), router.ErrRequestNotFound)

	k.best(pinned(book("alone", tokens(3, 64)), 2, 0))
	require.EqualValues(t, 2, goes(pinned(book("last", tokens(2, 64)), 2, 0), 60).WorkerID)
}

func TestWaitEndsWithItsContext(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	w.best(book("1", tokens(1, 64)))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := w.Wait(ctx, book("2", tokens(1, 64)))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, w.Free("1"))
	w.idle()
}

func TestCloseEndsEveryWait(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	require.NoError(t, w.submit(book("1", tokens(1, 64))))
	require.NoError(t, w.submit(book("2", tokens(1, 64))))
	w.Close()
	<-w.tickets["2"].Done()
	_, err := w.tickets["2"].Result()
	require.ErrorIs(t, err, router.ErrClosed)
	w.tickets["2"].Cancel()
	kindOf(t, w.submit(book("3", nil)), router.ErrClosed)
}

func TestQueryWaitsToo(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	require.NoError(t, w.submit(book("1", tokens(1, 64))))
	q := ask(tokens(1, 64))
	q.ID = "query"
	require.NoError(t, w.submit(q))
	require.NoError(t, w.submit(book("2", tokens(1, 64))))
	require.NoError(t, w.Free("1"))
	w.decided("1", "query", "2") // a query makes nobody busy
}

// What a request is told when it goes is what the ranks hold then, not when it came.
func TestPromptIsMatchedWhenItsTurnComes(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	require.NoError(t, w.submit(book("1", tokens(1, 64))))
	require.NoError(t, w.submit(book("2", tokens(1, 64))))
	w.store(1, 0, tokens(1, 64))
	require.NoError(t, w.Free("1"))
	choice, err := w.tickets["2"].Result()
	require.NoError(t, err)
	require.EqualValues(t, 4, choice.OverlapBlocks)
}

// Many goroutines through few workers: at no time is more booked than fits, and in the end nothing is.
func TestNoMoreGoThanFit(t *testing.T) {
	r, err := router.New(16, with(t, `{"router_queue_threshold": 0}`), router.Options{})
	require.NoError(t, err)
	defer r.Close()
	k := (&kit{Router: r, t: t, size: 16}).workers(1, 2, 3)
	var running [4]atomic.Int32
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 30 {
				id := fmt.Sprint(g, " ", i)
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+g%4*1000)*time.Millisecond)
				choice, err := r.Wait(ctx, book(id, tokens(g, 64)))
				cancel()
				if err != nil {
					continue
				}
				if n := running[choice.WorkerID].Add(1); n > 1 {
					t.Errorf("%d requests on worker %d", n, choice.WorkerID)
				}
				running[choice.WorkerID].Add(-1)
				if err := r.Free(id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	k.idle()
}

// Who waits for one rank hears of room there, whoever makes it and however, also when nobody has looked at all who wait for long.
func TestWhoWaitsForOneRankHearsOfIt(t *testing.T) {
	for name, room := range map[string]func(w *waiting) error{
		"freed":            func(w *waiting) error { return w.Free("h1") },
		"prefill complete": func(w *waiting) error { return w.MarkPrefillComplete("h1") },
		"worker left":      func(w *waiting) error { return w.RemoveWorker(1) },
	} {
		for rank, dp := range map[string]uint32{"its rank": 1, "any of its ranks": 0} {
			t.Run(name+" "+rank, func(t *testing.T) {
				w := newWaiting(t, `{"router_queue_threshold": 0}`)
				require.NoError(t, w.AddWorker(router.Worker{ID: 1, DPSize: 2}))
				w.workers(2)
				w.best(pinned(book("h0", tokens(1, 64)), 1, 0))
				w.best(pinned(book("h1", tokens(1, 64)), 1, 1))
				w.best(pinned(book("h2", tokens(1, 64)), 2, 0))
				q := pinned(book("q", tokens(1, 64)), 1, dp)
				q.Constraints.HasDPRank = dp == 1
				require.NoError(t, w.submit(q))
				require.NoError(t, w.submit(pinned(book("other", tokens(1, 64)), 2, 0)))
				require.NoError(t, w.Free("h2")) // all were looked at
				w.decided("other")
				require.NoError(t, room(w))
				require.Equal(t, []string{"other", "q"}, w.order)
			})
		}
	}
}

// A session ends because it is idle, while a request of it waits for its rank: it goes where there is room, before long.
func TestSessionEndsWhileItsRequestWaits(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0, "session_affinity_ttl_secs": 5}`)
	w.workers(1, 2)
	q := pinned(book("h1", tokens(1, 64)), 1, 0)
	q.SessionID = "s"
	w.best(q)
	w.best(pinned(book("h2", tokens(1, 64)), 2, 0))
	require.NoError(t, w.Free("h1"))
	w.best(pinned(book("h1", tokens(1, 64)), 1, 0))
	q = book("q", tokens(1, 64))
	q.SessionID = "s"
	require.NoError(t, w.submit(q))
	w.elapsed.Add(int64(6 * time.Second))
	require.NoError(t, w.Free("h2"))
	w.decided("q")
	choice, _ := w.tickets["q"].Result()
	require.EqualValues(t, 2, choice.WorkerID)
}

// A request waits for the rank of its session while another is free. When the session ends it goes there, though nobody calls.
func TestSessionThatEndsNeedsNoTraffic(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0, "session_affinity_ttl_secs": 5}`)
	w.workers(1, 2)
	q := pinned(book("h1", tokens(1, 64)), 1, 0)
	q.SessionID = "s"
	w.best(q)
	require.NoError(t, w.Free("h1"))
	w.best(pinned(book("other", tokens(1, 64)), 1, 0))
	q = book("q", tokens(1, 64))
	q.SessionID = "s"
	require.NoError(t, w.submit(q))
	w.decided()
	w.elapsed.Add(int64(6 * time.Second))
	select {
	case <-w.tickets["q"].Done():
	case <-time.After(20 * time.Second): // the queue is looked at every minute in any case
		require.Fail(t, "it still waits")
	}
	choice, err := w.tickets["q"].Result()
	require.NoError(t, err)
	require.EqualValues(t, 2, choice.WorkerID)
}

// A booking expires as a request comes that has to wait behind others: who was first goes, at once.
func TestRequestThatComesLetsOthersGo(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	w.best(book("h", tokens(1, 64)))
	require.NoError(t, w.submit(book("a", tokens(1, 64))))
	w.elapsed.Add(int64(router.DefaultRequestExpiry) + 1)
	require.NoError(t, w.submit(book("b", tokens(1, 64))))
	w.decided("a")
}

// Whatever happens, a wait ends once, in one of the ways there are, and what was decided is booked until it is freed.
func TestEveryWaitEndsOnce(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(3) {
		r, err := router.New(16, with(t, `{"router_queue_threshold": 0, "session_affinity_ttl_secs": 1}`), router.Options{})
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(seed, 5))
		var ended [400]atomic.Int32
		var tickets [len(ended)]*router.Ticket
		cancelled, timed := map[int]bool{}, map[int]bool{}
		for w := range uint64(3) {
			require.NoError(t, r.AddWorker(router.Worker{ID: w}))
		}
		for i := range ended {
			q := book(fmt.Sprint(i), tokens(i, 64))
			switch rng.IntN(4) {
			case 0:
				q = pinned(q, rng.Uint64N(3), 0)
			case 1:
				q.SessionID = fmt.Sprint(rng.IntN(5))
			case 2:
				q.Timeout = ptr(time.Duration(rng.IntN(3)) * time.Millisecond)
				timed[i] = true
			}
			_, tickets[i], err = r.Submit(q, func() { ended[i].Add(1) })
			if err != nil {
				require.Nil(t, tickets[i])
				require.True(t, errors.Is(err, router.ErrTimeout) || errors.Is(err, router.ErrWorkerNotFound) || errors.Is(err, router.ErrNoWorkers), "%v", err)
			}
			switch other := rng.IntN(i + 1); rng.IntN(8) {
			case 0, 1, 2:
				_ = r.Free(fmt.Sprint(other))
			case 3:
				_ = r.MarkPrefillComplete(fmt.Sprint(other))
			case 4:
				if tickets[other] != nil {
					tickets[other].Cancel()
					cancelled[other] = true
				}
			case 5:
				if i%8 == 0 {
					_ = r.RemoveWorker(rng.Uint64N(3))
				}
			case 6, 7:
				_ = r.AddWorker(router.Worker{ID: rng.Uint64N(3)})
			}
		}
		for i, tk := range tickets {
			if tk == nil {
				continue
			}
			if timed[i] {
				<-tk.Done() // by itself
			} else if i%2 == 0 && !cancelled[i] {
				tk.Cancel() // or it was decided, and is freed by that
				cancelled[i] = true
			}
		}
		r.Close()
		for i, tk := range tickets {
			if tk == nil {
				require.Zero(t, ended[i].Load())
				continue
			}
			<-tk.Done()
			require.EqualValues(t, 1, ended[i].Load(), "request %d", i)
			_, err := tk.Result()
			known := false
			for name, kind := range map[string]error{
				"timeout": router.ErrTimeout, "cancelled": router.ErrCancelled, "closed": router.ErrClosed, "worker left": router.ErrWorkerNotFound,
				"no workers": router.ErrNoWorkers, "session moved": router.ErrSessionMoved, "decided": nil,
			} {
				if err == nil && kind == nil || kind != nil && errors.Is(err, kind) {
					kinds[name]++
					known = true
				}
			}
			require.True(t, known, "%v", err)
		}
	}
	for _, kind := range []string{"timeout", "cancelled", "closed", "decided", "worker left"} {
		require.Positive(t, kinds[kind], "%s: %v", kind, kinds)
	}
}

// One release makes room for thousands: whoever frees lets some go, and the others follow at once without a further call, in order.
func TestReleaseForThousandsHoldsUpNobody(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	w.best(book("first", tokens(1, 64)))
	const n = 3000
	var byFree int // decided by who freed; guarded by the router's lock, like order
	var last *router.Ticket
	for i := range n {
		q := book(fmt.Sprint(i), nil) // nothing to compute: it makes no rank busy
		_, tk, err := w.Submit(q, func() {
			w.order = append(w.order, q.ID)
			if bytes.Contains(debug.Stack(), []byte("router.(*Router).Free(")) {
				byFree++
			}
		})
		require.NoError(t, err)
		require.NotNil(t, tk)
		last = tk
	}
	require.NoError(t, w.Free("first"))
	select {
	case <-last.Done():
	case <-time.After(20 * time.Second): // the queue is looked at every minute in any case
		require.Fail(t, "they still wait")
	}
	w.loads(nil) // takes the lock
	require.Positive(t, byFree)
	require.LessOrEqual(t, byFree, 100)
	require.Len(t, w.order, n)
	for i := range n {
		require.Equal(t, fmt.Sprint(i), w.order[i])
	}
}

// More lanes wait than one call asks, and more deadlines pass than one call tells: everybody is heard of.
func TestThousandsOfLanes(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1, 2)
	w.best(pinned(book("h1", tokens(1, 64)), 1, 0))
	w.best(pinned(book("h2", tokens(1, 64)), 2, 0))
	ids := map[string]bool{}
	for i := range 2500 { // of which the last may go to worker 2, and has nobody who wakes it by name
		q := book(fmt.Sprint(i), tokens(2, 64))
		q.Constraints.Allowed = map[uint64]struct{}{uint64(1 + i/2499): {}, uint64(10 + i): {}}
		q.Timeout = ptr(time.Hour)
		require.NoError(t, w.submit(q))
		ids[q.ID] = true
	}
	require.NoError(t, w.Free("h2"))
	select {
	case <-w.tickets["2499"].Done():
	case <-time.After(20 * time.Second):
		require.Fail(t, "it still waits")
	}
	choice, err := w.tickets["2499"].Result()
	require.NoError(t, err)
	require.EqualValues(t, 2, choice.WorkerID)
	w.elapsed.Add(int64(time.Hour) + 1)
	require.NoError(t, w.Free("2499"))
	for i := range 2499 {
		select {
		case <-w.tickets[fmt.Sprint(i)].Done():
		case <-time.After(20 * time.Second):
			require.Fail(t, "it still waits", i)
		}
	}
	_, err = w.tickets["7"].Result()
	require.ErrorIs(t, err, router.ErrTimeout)
}
