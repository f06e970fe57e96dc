package router_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// storm is a router that everybody uses as badly as they can.
type storm struct {
	*router.Router
	t     *testing.T
	mesh  *told
	clock atomic.Int64
}

// odd gives numbers that should be refused, or make no difference.
func odd(rng *rand.Rand) *float64 {
	return ptr([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, math.MaxFloat64, math.SmallestNonzeroFloat64, 0, 1}[rng.IntN(8)])
}

func (s *storm) request(rng *rand.Rand, id string) *router.Request {
	q := book(id, tokens(rng.IntN(8), rng.IntN(200)))
	if rng.IntN(50) == 0 {
		q.ID = strings.Repeat(id, 10_000_000/len(id))
	}
	switch rng.IntN(8) {
	case 0:
		q.Overrides = schedule.Overrides{OverlapScoreCredit: odd(rng), PrefillLoadScale: odd(rng), RouterTemperature: odd(rng), SharedCacheMultiplier: odd(rng)}
	case 1:
		q.SessionID = fmt.Sprint(rng.IntN(1000))
	case 2:
		q.Constraints = schedule.Constraints{HasWorker: true, Worker: rng.Uint64N(6), HasDPRank: rng.IntN(2) == 0, DPRank: uint32(rng.IntN(3))}
	case 3:
		q.Constraints.Allowed = map[uint64]struct{}{rng.Uint64N(6): {}, rng.Uint64(): {}}
	case 4:
		q.Constraints.PreferredTaints = []schedule.Preference{{Taint: "x", Weight: *odd(rng)}}
		q.PriorityJump, q.StrictPriority = *odd(rng), rng.Uint32()
	case 5:
		q.Shared = [][2]uint32{{rng.Uint32N(20), rng.Uint32N(20)}, {30, math.MaxUint32}}
	case 6:
		q.LoRAName = []string{"a", "b"}[rng.IntN(2)]
	}
	if rng.IntN(2) == 0 {
		q.Timeout = ptr([]time.Duration{0, -1, time.Nanosecond, time.Millisecond, time.Second, math.MaxInt64}[rng.IntN(6)])
	}
	return q
}

// use asks, waits, cancels at any point, and ends what it got, or forgets to.
func (s *storm) use(seed, n int) {
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	for i := range n {
		q := s.request(rng, fmt.Sprintf("%d-%d", seed, i))
		var err error
		switch rng.IntN(4) {
		case 0:
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(2000))*time.Microsecond)
			_, err = s.Wait(ctx, q)
			cancel()
		case 1:
			_, err = s.BestWorker(q)
		case 2:
			_, err = s.Explain(q)
			q.Book = false
		default:
			var tk *router.Ticket
			if _, tk, err = s.Submit(q, func() {}); tk != nil {
				if rng.IntN(2) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(500))*time.Microsecond, tk.Cancel)
				} else {
					tk.Cancel()
				}
				<-tk.Done()
				_, err = tk.Result()
				q.Book = false
			}
		}
		if err != nil {
			s.known(err)
			assert.Less(s.t, len(err.Error()), 5000)
			continue
		}
		if rng.IntN(4) == 0 {
			s.known(s.AddOutputBlock(q.ID, rng.IntN(3)-1, odd(rng)))
			s.known(s.MarkPrefillComplete(q.ID))
		}
		switch rng.IntN(10) {
		case 0: // forgotten
		case 1:
			s.known(s.Free(q.ID))
			s.known(s.Free(q.ID))
		default:
			s.known(s.Free(q.ID))
		}
	}
}

// known checks that an error is one that the documentation names.
func (s *storm) known(err error) {
	if err == nil {
		return
	}
	for _, kind := range []error{
		router.ErrInvalidArgument, router.ErrRequestNotFound, router.ErrDuplicateRequest, router.ErrWorkerNotFound, router.ErrNoWorkers, router.ErrOverloaded,
		router.ErrSessionMoved, router.ErrQueueLimitExceeded, router.ErrTimeout, router.ErrCancelled, router.ErrClosed, context.DeadlineExceeded,
	} {
		if errors.Is(err, kind) {
			return
		}
	}
	assert.Fail(s.t, "an error of no kind", "%v", err)
}

// fleet has workers join and leave, ranks come and go, and the clock jump.
func (s *storm) fleet(stop <-chan struct{}) {
	rng := rand.New(rand.NewPCG(1, 4))
	for {
		select {
		case <-stop:
			return
		default:
		}
		id := rng.Uint64N(5)
		switch rng.IntN(6) {
		case 0, 1:
			s.known(s.RemoveWorker(id))
		case 2:
			s.known(s.Suspend(id, rng.IntN(2) == 0))
		default:
			s.known(s.AddWorker(router.Worker{ID: id, DPStart: uint32(rng.IntN(2)), DPSize: uint32(1 + rng.IntN(2)), Taints: []string{"x"}, Adapters: []string{"a"}[:rng.IntN(2)], MaxNumBatchedTokens: 100}))
		}
		s.clock.Add(rng.Int64N(int64(100*time.Millisecond)) - int64(30*time.Millisecond))
		if rng.IntN(200) == 0 {
			s.clock.Add(int64(router.DefaultRequestExpiry))
		}
		if rng.IntN(200) == 0 {
			s.clock.Add(-int64(time.Hour))
		}
	}
}

// others are routers that place, mark and free whatever, and die.
func (s *storm) others(stop <-chan struct{}) {
	rng := rand.New(rand.NewPCG(2, 4))
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		e := wire.SequenceEvent{
			Kind: []wire.SequenceKind{wire.SequenceAdded, wire.SequenceAdded, wire.SequencePrefilled, wire.SequenceFreed, 77}[rng.IntN(5)], RequestID: fmt.Sprint("theirs", rng.IntN(i/8+1)),
			Worker: worker.Rank{ID: rng.Uint64N(6), DPRank: uint32(rng.IntN(3))}, RouterID: rng.Uint64N(4), HasSequences: true, Sequences: make([]block.SequenceHash, rng.IntN(9)),
			PrefillTokens: rng.Uint64() >> rng.IntN(64), HasDuration: rng.IntN(2) == 0, PrefillDuration: time.Duration(rng.Int64() >> rng.IntN(64) * int64(rng.IntN(3)-1)),
		}
		for j := range e.Sequences {
			e.Sequences[j] = block.SequenceHash(rng.Uint64N(4))
		}
		s.mesh.sink.Apply([]wire.SequenceEvent{e})
		if rng.IntN(50) == 0 {
			s.mesh.sink.Gone(rng.Uint64N(4))
		}
	}
}

// Whatever everybody does at the same time, with whatever clock: every call ends, with an error that has a name, and nothing is left when all is over.
func TestStorm(t *testing.T) {
	for name, config := range map[string]string{
		"queue and sessions": `{"router_queue_threshold": 0.5, "session_affinity_ttl_secs": 1, "record_decisions": 10,
			"router_prefill_load_model": {"new_tokens": [0, 1000], "cached_tokens": [0], "seconds": [[0, 10]]}}`,
		"soft, limits, without events": `{"session_affinity_ttl_secs": 1, "session_affinity_mode": "soft", "active_prefill_tokens_threshold": 150, "use_kv_events": false,
			"router_approximate_cache_policy": "lru", "router_queue_threshold": 1, "router_queue_policy": "wspt"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &storm{t: t, mesh: &told{}}
			r, err := router.New(16, with(t, "%s", config), router.Options{Clock: func() time.Time { return time.Unix(1_000_000, s.clock.Load()) }})
			require.NoError(t, err)
			defer r.Close()
			s.Router = r
			require.NoError(t, r.Share(func(sink replica.Sink) (router.Mesh, error) { s.mesh.sink = sink; return silent{}, nil }))
			stop := make(chan struct{})
			var users, weather sync.WaitGroup
			weather.Go(func() { s.fleet(stop) })
			weather.Go(func() { s.others(stop) })
			for seed := range 4 {
				users.Go(func() { s.use(seed, 150) })
			}
			users.Wait()
			close(stop)
			weather.Wait()

			s.clock.Store(int64(10_000 * time.Hour)) // later than it ever was
			st, err := r.Stats()
			require.NoError(t, err)
			require.Zero(t, st.ActiveRequests)
			for id := range uint64(5) {
				_ = r.RemoveWorker(id)
				require.NoError(t, r.AddWorker(router.Worker{ID: id}))
			}
			rows, err := r.PotentialLoads(nil, &router.Prompt{})
			require.NoError(t, err)
			for _, row := range rows {
				require.Equal(t, router.PotentialLoad{WorkerID: row.WorkerID}, row)
			}
			stats, err := r.QueueStats()
			require.NoError(t, err)
			require.Zero(t, stats["default"].Requests)
			require.Zero(t, stats["default"].ISLTokens)
			_, err = r.BestWorker(book("at last", tokens(1, 64)))
			require.NoError(t, err)
		})
	}
}

// silent is a mesh that tells nobody.
type silent struct{}

func (silent) Publish(*wire.SequenceEvent) {}
func (silent) Stats() replica.Stats        { return replica.Stats{} }
func (silent) Close()                      {}
