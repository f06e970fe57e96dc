package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// A request that waits is decided by its own copy of the shared ranges: blocks that all ranks can load outweigh those that one holds.
func TestSharedBlocksCountForThoseWhoWait(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1, 2)
	prompt := tokens(1, 16*40)
	w.store(1, 0, prompt[:16*4])
	w.best(pinned(book("h1", tokens(2, 64)), 1, 0))
	w.best(pinned(book("h2", tokens(3, 64)), 2, 0))
	q := book("q", prompt)
	q.Shared = [][2]uint32{{0, 10}}
	q.Overrides.OverlapScoreCredit, q.Overrides.SharedCacheMultiplier = ptr(0.5), ptr(1.0)
	require.NoError(t, w.submit(q))
	q.Shared[0] = [2]uint32{30, 31} // it is the caller's again
	w.elapsed.Add(int64(router.DefaultRequestExpiry) + 1)
	require.ErrorIs(t, w.Free("nobody"), router.ErrRequestNotFound) // h1 and h2 expire together
	<-w.tickets["q"].Done()
	choice, err := w.tickets["q"].Result()
	require.NoError(t, err)
	require.EqualValues(t, 2, choice.WorkerID)
}

// What ranks hold of a prompt when it comes is known to the queue.
func TestWaitingPromptsAreCountedWithWhatIsCached(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0, "router_queue_policy": "wspt"}`)
	w.workers(1)
	w.store(1, 0, tokens(1, 64))
	w.best(book("h", tokens(2, 64)))
	require.NoError(t, w.submit(book("cold", tokens(3, 48))))
	require.NoError(t, w.submit(book("warm", tokens(1, 80))))
	stats, err := w.QueueStats()
	require.NoError(t, err)
	require.EqualValues(t, 64, stats["default"].CachedTokens)
	require.EqualValues(t, 128, stats["default"].ISLTokens)
	require.NoError(t, w.Free("h"))
	require.Equal(t, []string{"warm"}, w.order, "it has fewer tokens to compute")
}

// Requests for an adapter wait for the ranks that have it, and hold up nobody else.
func TestAdaptersWaitInTheirOwnLine(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	require.NoError(t, w.AddWorker(router.Worker{ID: 1, Adapters: []string{"a"}}))
	w.workers(2)
	w.best(pinned(book("h1", tokens(1, 64)), 1, 0))
	w.best(pinned(book("h2", tokens(1, 64)), 2, 0))
	q := book("adapter", tokens(1, 64))
	q.LoRAName = "a"
	require.NoError(t, w.submit(q))
	require.NoError(t, w.submit(book("base", tokens(1, 64))))
	require.NoError(t, w.Free("h2"))
	w.decided("base")
	require.NoError(t, w.Free("h1"))
	w.decided("base", "adapter")
}

// The model of prefills is asked about what is to be computed and what is held.
func TestPrefillModelHearsWhatIsCached(t *testing.T) {
	var asked [][2]int
	r, err := router.New(16, router.DefaultConfig(), router.Options{PrefillModel: schedule.PrefillFunc(func(fresh, cached int) time.Duration {
		asked = append(asked, [2]int{fresh, cached})
		return time.Hour
	})})
	require.NoError(t, err)
	defer r.Close()
	k := (&kit{Router: r, t: t, size: 16}).workers(1)
	k.store(1, 0, tokens(1, 64))
	k.best(book("a", tokens(1, 100)))
	require.Equal(t, [][2]int{{36, 64}}, asked)
}

// An explanation is of the request with its overrides, and its terms add up to its cost also where every rank is busy.
func TestExplanationIsOfTheRequest(t *testing.T) {
	k := newKit(t, 16, with(t, `{"overlap_score_credit_decay": 1}`)).workers(1, 2)
	prompt := tokens(1, 160)
	k.store(1, 0, prompt)
	k.best(pinned(book("1", tokens(2, 640)), 1, 0))
	k.best(pinned(book("2", tokens(3, 320)), 2, 0))
	q := ask(prompt)
	e, err := k.Explain(q)
	require.NoError(t, err)
	require.Nil(t, e.Error)
	require.EqualValues(t, 1/(1+20.0/10), e.Workers[0].CreditDecay, "20 blocks behind the other, of 10")
	require.EqualValues(t, 1, e.Workers[1].CreditDecay)
	for _, row := range e.Workers {
		require.InDelta(t, float64((row.PrefillCost+row.DecodeCost+row.RequestsCost)*row.TaintFactor), float64(*row.Cost), 1e-9)
	}
	require.EqualValues(t, 1, e.Workers[1].Probability)
	q.Overrides.RouterTemperature = ptr(1.0)
	e, err = k.Explain(q)
	require.NoError(t, err)
	require.EqualValues(t, 1, e.Weights.RouterTemperature)
	require.Positive(t, e.Workers[0].Probability)
	require.Less(t, e.Workers[1].Probability, 1.0)
	q = pinned(q, 9, 0)
	e, err = k.Explain(q)
	require.NoError(t, err)
	require.Contains(t, *e.Error, "worker 9")
}
