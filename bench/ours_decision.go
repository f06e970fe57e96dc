package main

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func init() {
	prepare["select"] = func() map[string]measurement {
		return map[string]measurement{"select_64": selection(64), "select_4096": selection(4096)}
	}
	prepare["active"] = func() map[string]measurement {
		return map[string]measurement{"active_add_free_64": addFree(64), "potential_loads_512": potentialLoads(512)}
	}
	prepare["decide"] = func() map[string]measurement {
		m := map[string]measurement{}
		for _, n := range []int{8, 64, 512, 4096} {
			var r *requests
			m["decide_"+strconv.Itoa(n)] = func() map[string][]float64 {
				if r == nil { // the rows are often asked for one by one
					r = newRequests(n)
				}
				return r.measure()
			}
		}
		return m
	}
}

// selection measures costs and pick over given loads and overlaps.
func selection(n int) measurement {
	view := schedule.View{Slots: n, Loads: make([]load.Load, n), Active: make([]uint32, n), Device: make([]uint32, n)}
	candidates := make([]worker.Slot, n)
	for i := range n {
		s := workload.NewSelection(i)
		candidates[i] = worker.Slot(i)
		view.Device[i] = uint32(s.CachedTokens / workload.BlockSize)
		view.Loads[i] = load.Load{
			ActivePrefillTokens: int64(s.PrefillTokens), ActiveBlocks: int64(s.ActiveBlocks), ActiveRequests: int32(s.ActiveRequests),
		}
	}
	request := schedule.Request{
		ISLTokens: workload.PromptTokens, Blocks: workload.PromptTokens / workload.BlockSize, BlockSize: workload.BlockSize, TrackPrefill: true,
	}
	weights := schedule.DefaultWeights()
	rng := rand.New(rand.NewPCG(1, 1))
	var scores schedule.Scores
	return func() map[string][]float64 {
		return one(batches(max(1, 100_000/n), func(int) {
			scores.Compute(&view, candidates, &request, &weights)
			scores.Pick(weights.Temperature, rng)
		})...)
	}
}

// busy gives a ledger with the steady state of n workers.
func busy(n int) (*load.Ledger, *workload.Active) {
	l, requests := load.New(load.Options{}), workload.NewActive()
	for k := range n * workload.ActivePerWorker {
		b := booking(k, k%n, requests)
		must(l.Book(&b, 0))
	}
	return l, requests
}

func booking(k, slot int, requests *workload.Active) load.Booking {
	return load.Booking{
		ID: "request-" + strconv.Itoa(k), Slot: worker.Slot(slot), Rank: worker.Rank{ID: uint64(slot)},
		Blocks: requests.Request(k), PrefillTokens: 1024,
	}
}

// addFree measures booking and freeing requests of 128 blocks.
func addFree(n int) measurement {
	return func() map[string][]float64 {
		l, requests := busy(n)
		var samples []float64
		const count = 4096
		for round := range 4 {
			bookings := make([]load.Booking, count)
			for k := range bookings {
				bookings[k] = booking(10_000_000+round*count+k, k*7919%n, requests)
			}
			samples = append(samples, steady(func() {
				for k := range bookings {
					must(l.Book(&bookings[k], 1))
				}
				for k := range bookings {
					must(l.Free(bookings[k].ID, 1))
				}
			})/count)
		}
		return one(samples...)
	}
}

// potentialLoads measures what each worker would be busy with if it took a request of 128 blocks.
func potentialLoads(n int) measurement {
	l, requests := busy(n)
	queries := make([][]block.Hash, 64)
	for k := range queries {
		queries[k] = requests.Request(9_000_000 + k)
	}
	view := schedule.View{Slots: n, Active: make([]uint32, n), Device: make([]uint32, n)}
	for i := range view.Device {
		view.Device[i] = uint32(workload.NewSelection(i).CachedTokens / workload.BlockSize)
	}
	request := schedule.Request{ISLTokens: workload.PromptTokens, Blocks: len(queries[0]), BlockSize: workload.BlockSize, TrackPrefill: true}
	weights := schedule.DefaultWeights()
	var answer []schedule.Potential
	return func() map[string][]float64 {
		return one(batches(100, func(k int) {
			l.Matched(view.Active, queries[k%len(queries)])
			view.Loads = l.Loads()
			answer = view.Potentials(answer, &request, &weights)
		})...)
	}
}

// requests is a router with the steady state of its workers.
type requests struct {
	router  *router.Router
	prompts *workload.Decision
	live    []string // a ring, as the peer's queue is one: the request that ends next is at next%len(live), if one is there
	count   int      // requests of a round, whose prompts are made before; a sample is a tenth of them
	next    int
	room    [][]block.Token // of the prompts of a round, the same ones each time: else most of the garbage that the collector sees to were the bench's
}

func newRequests(n int) *requests {
	r, err := router.New(workload.BlockSize, router.DefaultConfig(), router.Options{})
	must(err)
	q := &requests{
		router: r, prompts: workload.NewDecision(), live: make([]string, n*workload.ActivePerWorker), count: min(max(200_000/n, 300), 5000),
	}
	for w := range n {
		must(r.AddWorker(router.Worker{ID: uint64(w), TotalKVBlocks: 131_072, MaxNumBatchedTokens: 8192}))
	}
	for p, tokens := range q.prompts.Prefixes() {
		hashes, seqs := block.Both(nil, nil, tokens, workload.BlockSize, nil)
		ev := &event.Event{ID: 1, Kind: event.Stored}
		for i, h := range hashes {
			ev.Blocks = append(ev.Blocks, event.Block{Engine: workload.Engine(seqs[i]), Hash: h})
		}
		for w := range n {
			if q.prompts.Holds(w, p) {
				must(r.ApplyEvent(uint64(w), ev, index.Count))
			}
		}
	}
	q.serve(len(q.live), &samples{})
	return q
}

func (q *requests) measure() map[string][]float64 {
	var s samples
	for range 12 {
		q.serve(q.count, &s)
	}
	return one(s.best()...)
}

// serve runs the life of n requests in the router, and that of the oldest ends with each: a tenth of a round is a sample.
func (q *requests) serve(n int, s *samples) {
	q.room = append(q.room, make([][]block.Token, max(0, n-len(q.room)))...)
	prompts := q.room[:n]
	for i, room := range prompts {
		prompts[i] = q.prompts.Prompt(room[:0])
	}
	runtime.GC()
	request, id := router.Request{Book: true}, append(make([]byte, 0, 32), "request-"...)
	for some := range slices.Chunk(prompts, q.count/10) {
		s.take(len(some), func() {
			for _, prompt := range some {
				request.ID, request.Tokens = string(strconv.AppendInt(id, int64(q.next), 10)), prompt
				_, err := q.router.BestWorker(&request)
				must(err)
				must(q.router.MarkPrefillComplete(request.ID))
				oldest := &q.live[q.next%len(q.live)]
				if *oldest != "" {
					must(q.router.Free(*oldest))
				}
				*oldest = request.ID
				q.next++
			}
		})
	}
}
