package router_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
)

// Workers join, change and leave in any order: the candidates are those there are, sorted, with what each was last said to be.
func TestCandidatesAreTheWorkersThereAre(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	k := newKit(t, 16, router.DefaultConfig())
	specs := map[uint64]router.Worker{}
	for range 400 {
		id := rng.Uint64N(20)
		if _, known := specs[id]; known && rng.IntN(3) == 0 {
			require.NoError(t, k.RemoveWorker(id))
			delete(specs, id)
		} else {
			spec := router.Worker{ID: id, DPStart: uint32(rng.IntN(3)), DPSize: uint32(1 + rng.IntN(3))}
			if rng.IntN(2) == 0 {
				spec.Adapters = []string{"a"}
			}
			specs[id] = spec
			require.NoError(t, k.AddWorker(spec))
		}
		var ids []uint64
		named := false
		for id, spec := range specs {
			ids = append(ids, id)
			named = named || spec.Adapters != nil
		}
		slices.Sort(ids)
		var want, got []router.RankName
		for _, id := range ids {
			for dp := range specs[id].DPSize {
				want = append(want, router.RankName{WorkerID: id, DPRank: specs[id].DPStart + dp})
			}
		}
		q := ask(tokens(1, 64))
		q.LoRAName = "a"
		e, err := k.Explain(q)
		require.NoError(t, err)
		for _, row := range e.Workers {
			got = append(got, router.RankName{WorkerID: row.WorkerID, DPRank: row.DPRank})
			require.Equal(t, named && specs[row.WorkerID].Adapters == nil, row.Excluded != "", "worker %d", row.WorkerID)
		}
		require.Equal(t, want, got)
		if len(specs) > 0 {
			_, known := specs[k.best(q).WorkerID]
			require.True(t, known)
		}
	}
}
