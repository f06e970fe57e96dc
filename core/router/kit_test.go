package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// kit is a router with a seed, a clock that stands still, and short names for what tests do.
type kit struct {
	*router.Router
	t    *testing.T
	size int
	at   time.Time

	asked func() // called by who asks for the time; nil: nothing is
}

func newKit(t *testing.T, size int, config router.Config) *kit {
	k := &kit{t: t, size: size, at: time.Unix(1_800_000_000, 0)}
	seed := uint64(1)
	r, err := router.New(size, config, router.Options{Seed: &seed, Clock: func() time.Time {
		if k.asked != nil {
			k.asked()
		}
		return k.at
	}})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	k.Router = r
	return k
}

func (k *kit) workers(ids ...uint64) *kit {
	for _, id := range ids {
		require.NoError(k.t, k.AddWorker(router.Worker{ID: id}))
	}
	return k
}

// tokens gives n token ids that share no block with another first id.
func tokens(first, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(first*1_000_000 + i)
	}
	return out
}

// store makes a worker hold the full blocks of a prompt.
func (k *kit) store(id uint64, dp uint32, prompt []uint32) {
	ev := event.Event{Kind: event.Stored, DPRank: dp}
	for _, h := range block.Hashes(nil, prompt, k.size, nil) {
		ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(h), Hash: h})
	}
	require.NoError(k.t, k.ApplyEvent(id, &ev, index.Count))
}

// remove takes a block that store stored from rank 0 of a worker.
func (k *kit) remove(id uint64, h block.Hash) {
	require.NoError(k.t, k.ApplyEvent(id, &event.Event{Kind: event.Removed, Removed: []block.EngineHash{block.EngineHash(h)}}, index.Count))
}

func pinned(q *router.Request, id uint64, dp uint32) *router.Request {
	q.Constraints = schedule.Constraints{HasWorker: true, Worker: id, HasDPRank: true, DPRank: dp}
	return q
}

func ask(prompt []uint32) *router.Request {
	return &router.Request{Prompt: router.Prompt{Tokens: prompt}}
}

func book(id string, prompt []uint32) *router.Request {
	return &router.Request{Prompt: router.Prompt{Tokens: prompt}, ID: id, Book: true}
}

func (k *kit) best(q *router.Request) router.Choice {
	c, err := k.BestWorker(q)
	require.NoError(k.t, err)
	return c
}

// loads gives the potential loads of a prompt by worker id, for workers with one rank.
func (k *kit) loads(prompt []uint32) map[uint64]router.PotentialLoad {
	rows, err := k.PotentialLoads(nil, &router.Prompt{Tokens: prompt})
	require.NoError(k.t, err)
	out := map[uint64]router.PotentialLoad{}
	for _, row := range rows {
		out[row.WorkerID] = row
	}
	return out
}

func (k *kit) idle() {
	for _, row := range k.loads(nil) {
		require.Zero(k.t, row.PotentialPrefillTokens)
		require.Zero(k.t, row.PotentialDecodeBlocks)
		require.Zero(k.t, row.ActiveRequests)
	}
}

func ptr[T any](v T) *T { return &v }
