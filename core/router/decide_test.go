package router_test

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

func TestPromptGoesToTheHolderOfItsPrefix(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1, 2, 3)
	prompt := tokens(1, 70) // 4 full blocks and 6 tokens
	k.store(2, 0, prompt)
	require.Equal(t, router.Choice{WorkerID: 2, OverlapBlocks: 4}, k.best(ask(prompt)))

	scores, err := k.OverlapScores(&router.Prompt{Tokens: prompt})
	require.NoError(t, err)
	require.Equal(t, 4, scores.NumBlocks)
	require.Len(t, scores.Workers, 3)
	require.EqualValues(t, 4, scores.Workers[1].DeviceBlocks)

	for _, p := range []router.Prompt{
		{Tokens: prompt, LoRAName: "adapter"},
		{Tokens: prompt, CacheNamespace: "tenant"},
		{Tokens: prompt, MM: [][]uint64{{7}}},
	} {
		scores, err := k.OverlapScores(&p)
		require.NoError(t, err)
		require.Zero(t, scores.Workers[1].DeviceBlocks, "another identity must not match: %+v", p)
	}
}

// Costs observed on Dynamo 1.6.1: block 16, one worker, 2 blocks cached.
func TestCostsAreDynamos(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1)
	cost := func(prompt []uint32, o schedule.Overrides) float64 {
		q := ask(prompt)
		q.Overrides = o
		e, err := k.Explain(q)
		require.NoError(t, err)
		row := e.Workers[0]
		require.InDelta(t, float64(*row.Cost), float64(row.PrefillCost+row.DecodeCost+row.RequestsCost)*float64(row.TaintFactor), 1e-9)
		require.Equal(t, []router.RankName{{WorkerID: 1}}, e.Picks)
		return float64(*row.Cost)
	}
	for n, want := range map[int]float64{0: 0, 1: 0.0625, 8: 0.5, 16: 2, 20: 2.25, 64: 8, 70: 8.375} {
		require.InDelta(t, want, cost(tokens(1, n), schedule.Overrides{}), 1e-9, "%d tokens, nothing cached", n)
	}
	k.store(1, 0, tokens(1, 32))
	for n, want := range map[int]float64{20: 1.25, 32: 2, 40: 2.5, 64: 6, 70: 6.375} {
		require.InDelta(t, want, cost(tokens(1, n), schedule.Overrides{}), 1e-9, "%d tokens, 2 blocks cached", n)
	}
	require.InDelta(t, 7, cost(tokens(1, 64), schedule.Overrides{OverlapScoreCredit: ptr(0.5)}), 1e-9)
	require.InDelta(t, 4, cost(tokens(1, 64), schedule.Overrides{OverlapScoreCredit: ptr(5.0)}), 1e-9)
	require.InDelta(t, 8, cost(tokens(1, 64), schedule.Overrides{PrefillLoadScale: ptr(2.0)}), 1e-9)
	require.InDelta(t, 4, cost(tokens(1, 64), schedule.Overrides{OverlapScoreWeight: ptr(0.0)}), 1e-9)
	require.InDelta(t, 2, cost(tokens(1, 64), schedule.Overrides{TrackPrefillTokens: ptr(false)}), 1e-9, "branch D: 4 blocks less 2 cached")

	k.best(book("active", tokens(9, 64)))
	require.InDelta(t, 14, cost(tokens(1, 64), schedule.Overrides{}), 1e-9, "a prompt that shares nothing with the active one")
	require.NoError(t, k.MarkPrefillComplete("active"))
	require.InDelta(t, 10, cost(tokens(1, 64), schedule.Overrides{}), 1e-9)
	require.NoError(t, k.Free("active"))
	k.best(book("same", tokens(1, 64)))
	require.InDelta(t, 2+4-2+4, cost(tokens(1, 64), schedule.Overrides{}), 1e-9, "32 tokens to prefill there, blocks shared")
	require.InDelta(t, 2+4-2+8, cost(tokens(1, 64), schedule.Overrides{AssumeKVReuse: ptr(false)}), 1e-9, "blocks not shared")
}

// Observed on Dynamo 1.6.1 with its slot tracker: block 4, two requests that share two of their three blocks.
func TestBlocksOfActiveRequestsCountOnceByPrefix(t *testing.T) {
	for _, reuse := range []bool{true, false} {
		config := router.DefaultConfig()
		config.RouterAssumeKVReuse = reuse
		k := newKit(t, 4, config).workers(0)
		prompt := func(last int) []uint32 { return append(tokens(1, 8), tokens(last, 4)...) }
		k.best(book("r1", prompt(3)))
		k.store(0, 0, tokens(1, 8)) // what r1 has computed when r2 comes
		k.best(book("r2", prompt(9)))
		k.workers(1)
		now, next := k.loads(nil), k.loads(prompt(5))
		require.EqualValues(t, 16, now[0].PotentialPrefillTokens)
		require.EqualValues(t, 20, next[0].PotentialPrefillTokens)
		require.EqualValues(t, 12, next[1].PotentialPrefillTokens)
		require.EqualValues(t, 3, next[1].PotentialDecodeBlocks)
		require.EqualValues(t, 2, now[0].ActiveRequests)
		if reuse {
			require.EqualValues(t, 4, now[0].PotentialDecodeBlocks)
			require.EqualValues(t, 5, next[0].PotentialDecodeBlocks)
		} else {
			require.EqualValues(t, 6, now[0].PotentialDecodeBlocks)
			require.EqualValues(t, 9, next[0].PotentialDecodeBlocks)
		}
		require.NoError(t, k.MarkPrefillComplete("r1"))
		require.EqualValues(t, 4, k.loads(nil)[0].PotentialPrefillTokens)
		require.NoError(t, k.Free("r1"))
		require.EqualValues(t, 3, k.loads(nil)[0].PotentialDecodeBlocks)
	}
}

// https://github.com/ai-dynamo/dynamo/pull/2798
func TestAskingBooksNothing(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1, 2)
	dump, err := k.DumpEvents()
	require.NoError(t, err)
	for range 100 {
		k.best(ask(tokens(1, 160)))
		k.loads(tokens(1, 160))
		_, err := k.Explain(book("not booked by explaining", tokens(1, 160)))
		require.NoError(t, err)
	}
	k.idle()
	after, err := k.DumpEvents()
	require.NoError(t, err)
	require.Equal(t, dump, after)

	k.store(1, 0, tokens(1, 64))
	q := book("r", tokens(1, 160))
	q.Constraints = schedule.Constraints{HasWorker: true, Worker: 1}
	require.EqualValues(t, 4, k.best(q).OverlapBlocks)
	loads := k.loads(tokens(2, 32))
	require.EqualValues(t, 96+32, loads[1].PotentialPrefillTokens)
	require.EqualValues(t, 32, loads[2].PotentialPrefillTokens)
}

// https://github.com/ai-dynamo/dynamo/pull/5105 https://github.com/ai-dynamo/dynamo/issues/5095
func TestUnknownRepeatedAndOutOfOrderLifecycleCalls(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1)
	require.ErrorIs(t, k.Free("nope"), router.ErrRequestNotFound)
	require.ErrorIs(t, k.MarkPrefillComplete("nope"), router.ErrRequestNotFound)
	require.ErrorIs(t, k.AddOutputBlock("nope", 1, nil), router.ErrRequestNotFound)

	k.best(book("a", tokens(1, 100)))
	require.NoError(t, k.MarkPrefillComplete("a"))
	require.NoError(t, k.MarkPrefillComplete("a"))
	require.NoError(t, k.Free("a"))
	require.ErrorIs(t, k.Free("a"), router.ErrRequestNotFound)
	require.ErrorIs(t, k.MarkPrefillComplete("a"), router.ErrRequestNotFound)
	k.best(book("", tokens(1, 100)))
	require.NoError(t, k.Free(""), "free before prefill completion; the empty id is an id")
	k.idle()

	k.best(book("twice", tokens(1, 100)))
	_, err := k.BestWorker(book("twice", tokens(2, 100)))
	require.ErrorIs(t, err, router.ErrDuplicateRequest)
	require.EqualValues(t, 100, k.loads(nil)[1].PotentialPrefillTokens, "the refused booking left nothing")
	require.NoError(t, k.Free("twice"))
	k.idle()
}

// https://github.com/ai-dynamo/dynamo/pull/1895 https://github.com/ai-dynamo/dynamo/issues/3694
func TestPrefillTokensAndDecodeBlocksOfABooking(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1)
	k.store(1, 0, tokens(1, 64))
	k.best(book("a", tokens(1, 160)))
	require.EqualValues(t, 96, k.loads(nil)[1].PotentialPrefillTokens)
	require.EqualValues(t, 10, k.loads(nil)[1].PotentialDecodeBlocks)
	require.NoError(t, k.MarkPrefillComplete("a"))
	require.Zero(t, k.loads(nil)[1].PotentialPrefillTokens)
	require.EqualValues(t, 10, k.loads(nil)[1].PotentialDecodeBlocks)
	require.NoError(t, k.Free("a"))
	k.idle()

	k.store(1, 0, tokens(2, 112)) // 7 blocks
	k.best(book("whole", tokens(2, 112)))
	require.Zero(t, k.loads(nil)[1].PotentialPrefillTokens, "all cached: nothing to prefill, and nothing wrapped")
	require.NoError(t, k.Free("whole"))
}

// https://github.com/ai-dynamo/dynamo/pull/7795
func TestWorkerIsRoutableAndCountedAtOnce(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	_, err := k.BestWorker(ask(nil))
	require.ErrorIs(t, err, router.ErrNoWorkers)
	for i := range uint64(50) {
		k.workers(i)
		q := book(fmt.Sprint(i), tokens(1, 40))
		q.Constraints = schedule.Constraints{HasWorker: true, Worker: i}
		require.Equal(t, i, k.best(q).WorkerID)
		require.EqualValues(t, 1, k.loads(nil)[i].ActiveRequests)
		require.NoError(t, k.MarkPrefillComplete(q.ID))
		require.NoError(t, k.Free(q.ID))
	}
	k.idle()
}

// https://github.com/ai-dynamo/dynamo/pull/6253
func TestTiesAreUniform(t *testing.T) {
	for name, ids := range map[string][]uint64{"ascending": {1, 2, 3, 4, 5}, "descending": {5, 4, 3, 2, 1}} {
		t.Run(name, func(t *testing.T) {
			k, again := newKit(t, 16, router.DefaultConfig()).workers(ids...), newKit(t, 16, router.DefaultConfig()).workers(ids...)
			got := map[uint64]int{}
			for range 1000 {
				c := k.best(ask(tokens(1, 40)))
				require.Equal(t, c, again.best(ask(tokens(1, 40))), "a seed makes choices repeatable")
				got[c.WorkerID]++
			}
			for _, id := range ids {
				require.True(t, got[id] >= 140 && got[id] <= 260, "%v", got)
			}
		})
	}
	k := newKit(t, 16, router.DefaultConfig())
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, DPStart: 2, DPSize: 5}))
	got := map[uint32]int{}
	for range 1000 {
		got[k.best(ask(nil)).DPRank]++
	}
	for rank := range uint32(5) {
		require.True(t, got[rank+2] >= 140 && got[rank+2] <= 260, "%v", got)
	}
}

// https://github.com/ai-dynamo/dynamo/pull/7919 https://github.com/sgl-project/sglang/pull/14532
func TestUnusedWorkerBeatsABusyOneAndAMissFollowsLoad(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1, 2)
	q := book("busy", tokens(1, 1600))
	q.Constraints = schedule.Constraints{HasWorker: true, Worker: 1}
	k.best(q)
	for range 50 {
		require.EqualValues(t, 2, k.best(ask(tokens(2, 100))).WorkerID)
	}
	k.store(2, 0, tokens(3, 16*1000)) // a large tree is not load
	for range 50 {
		require.EqualValues(t, 2, k.best(ask(tokens(2, 100))).WorkerID)
	}
}

func TestConstraints(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	require.NoError(t, k.AddWorker(router.Worker{ID: 1, DPSize: 2, Taints: []string{"a100", "a100"}}))
	require.NoError(t, k.AddWorker(router.Worker{ID: 2, DPSize: 2, Taints: []string{"h100"}}))
	try := func(c schedule.Constraints) (router.Choice, error) {
		q := ask(tokens(1, 64))
		q.Constraints = c
		return k.BestWorker(q)
	}
	for range 20 {
		c, err := try(schedule.Constraints{HasDPRank: true, DPRank: 1})
		require.NoError(t, err)
		require.EqualValues(t, 1, c.DPRank, "dp_rank alone restricts to that rank")
		c, err = try(schedule.Constraints{Allowed: map[uint64]struct{}{2: {}}})
		require.NoError(t, err)
		require.EqualValues(t, 2, c.WorkerID)
		c, err = try(schedule.Constraints{RequiredTaints: []string{"a100"}})
		require.NoError(t, err)
		require.EqualValues(t, 1, c.WorkerID)
		c, err = try(schedule.Constraints{PreferredTaints: []schedule.Preference{{Taint: "h100", Weight: 1}}})
		require.NoError(t, err)
		require.EqualValues(t, 2, c.WorkerID)
	}
	for _, f := range []struct {
		c    schedule.Constraints
		want error
	}{
		{schedule.Constraints{HasWorker: true, Worker: 3}, router.ErrWorkerNotFound},
		{schedule.Constraints{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 9}, router.ErrWorkerNotFound},
		{schedule.Constraints{HasWorker: true, Worker: 1, Allowed: map[uint64]struct{}{2: {}}}, router.ErrInvalidArgument},
		{schedule.Constraints{HasDPRank: true, DPRank: 2}, router.ErrNoWorkers},
		{schedule.Constraints{Allowed: map[uint64]struct{}{}}, router.ErrNoWorkers},
		{schedule.Constraints{RequiredTaints: []string{"b200"}}, router.ErrNoWorkers},
		{schedule.Constraints{HasWorker: true, Worker: 1, RequiredTaints: []string{"h100"}}, router.ErrNoWorkers},
		{schedule.Constraints{PreferredTaints: []schedule.Preference{{Taint: "x", Weight: math.NaN()}}}, router.ErrInvalidArgument},
	} {
		_, err := try(f.c)
		require.ErrorIs(t, err, f.want, "%+v", f.c)
	}
}

func TestOverridesActInEveryPath(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1, 2)
	prompt := tokens(1, 160)
	k.store(1, 0, prompt)
	with := func(q *router.Request, o schedule.Overrides) *router.Request { q.Overrides = o; return q }
	warm := with(ask(prompt), schedule.Overrides{RouterTemperature: ptr(1e6)})
	got := map[uint64]int{}
	for i := range 400 {
		got[k.best(warm).WorkerID]++
		q := with(book(fmt.Sprint(i), prompt), schedule.Overrides{RouterTemperature: ptr(1e6)})
		k.best(q)
		require.NoError(t, k.Free(q.ID))
	}
	require.Greater(t, got[2], 120, "a high temperature forgets the cache: %v", got)

	k.best(with(book("untracked", prompt), schedule.Overrides{TrackPrefillTokens: ptr(false)}))
	require.Zero(t, k.loads(nil)[1].PotentialPrefillTokens+k.loads(nil)[2].PotentialPrefillTokens)
	for i := range 2 {
		q := with(book(fmt.Sprint("private", i), tokens(7, 64)), schedule.Overrides{AssumeKVReuse: ptr(false)})
		q.Constraints = schedule.Constraints{HasWorker: true, Worker: 2}
		k.best(q)
	}
	require.EqualValues(t, 8, k.loads(nil)[2].PotentialDecodeBlocks, "without reuse the same prompt counts twice")

	for _, bad := range []schedule.Overrides{
		{OverlapScoreCredit: ptr(-1.0)}, {PrefillLoadScale: ptr(math.NaN())}, {RouterTemperature: ptr(math.Inf(1))},
		{SharedCacheMultiplier: ptr(1.5)}, {OverlapScoreWeight: ptr(-0.5)},
	} {
		_, err := k.BestWorker(with(ask(prompt), bad))
		require.ErrorIs(t, err, router.ErrInvalidArgument)
		_, err = k.Explain(with(ask(prompt), bad))
		require.ErrorIs(t, err, router.ErrInvalidArgument)
	}
}

func TestConcurrentBookingsSpread(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(0, 1, 2, 3, 4, 5, 6, 7)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			_, err := k.BestWorker(book(fmt.Sprint(i), tokens(i, 64)))
			require.NoError(t, err)
		})
	}
	wg.Wait()
	for id, row := range k.loads(nil) {
		require.EqualValues(t, 8, row.ActiveRequests, "worker %d", id)
	}
}

// raceEnabled: under the race detector sync.Pool drops at random what it is given.
var raceEnabled bool

func TestDecisionAllocatesNothing(t *testing.T) {
	if raceEnabled {
		return // checked by the run without the race detector
	}
	k := newKit(t, 16, router.DefaultConfig())
	for id := range uint64(64) {
		k.workers(id)
		k.store(id, 0, tokens(1, int(16*id)))
	}
	q := ask(tokens(1, 4096))
	for range 10 {
		k.best(q)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { k.best(q) }))

	// And so does a whole request, once its numbers of active requests have been there before.
	ids := []string{"a", "b", "c", "d"}
	requests := make([]*router.Request, len(ids))
	for i, id := range ids {
		requests[i] = book(id, tokens(i, 2000))
	}
	all := func() {
		for _, q := range requests {
			k.best(q)
			require.NoError(t, k.MarkPrefillComplete(q.ID))
		}
		for _, id := range ids {
			require.NoError(t, k.Free(id))
		}
	}
	for range 600 { // each rank is picked now and then, grows what it needs, and has the samples that health looks after
		all()
	}
	require.Zero(t, testing.AllocsPerRun(100, all))
}

func BenchmarkBestWorker(b *testing.B) {
	for _, workers := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("tokens=4096/workers=%d", workers), func(b *testing.B) {
			r, err := router.New(16, router.DefaultConfig(), router.Options{})
			require.NoError(b, err)
			defer r.Close()
			k := &kit{Router: r, size: 16}
			for id := range uint64(workers) {
				require.NoError(b, r.AddWorker(router.Worker{ID: id}))
			}
			k.t = &testing.T{}
			for id := range uint64(8) {
				k.store(id, 0, tokens(1, 4096))
			}
			q := ask(tokens(1, 4096))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.BestWorker(q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestOverlapBelowTheMinimumDrawsNobody(t *testing.T) {
	config := router.DefaultConfig()
	config.OverlapScoreMinBlocks = 3
	k := newKit(t, 16, config).workers(1, 2)
	prompt := tokens(1, 64)
	k.store(1, 0, prompt[:32])
	costs := func() []float64 {
		e, err := k.Explain(ask(prompt))
		require.NoError(t, err)
		require.EqualValues(t, 3, e.Weights.OverlapScoreMinBlocks)
		return []float64{float64(*e.Workers[0].Cost), float64(*e.Workers[1].Cost)}
	}
	require.Equal(t, []float64{8, 8}, costs())
	k.store(1, 0, prompt[:48])
	require.Equal(t, []float64{5, 8}, costs())
	require.EqualValues(t, 3, k.best(ask(prompt)).OverlapBlocks)
}
