package schedule_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Scoring and picking, as the peer's select is measured: different candidates, all equal (ties), at a temperature, and in the modes that are not plain.
func BenchmarkSelect(b *testing.B) {
	for _, n := range []int{8, 64, 512, 4096} {
		cands, req := selection(n)
		tiers := slices.Clone(cands)
		for i := range tiers {
			tiers[i].HostBlocks = uint32(i % 7)
		}
		untracked := req
		untracked.TrackPrefill = false
		for _, bc := range []struct {
			name    string
			cands   []schedule.Candidate
			req     schedule.Request
			weights *schedule.Weights
		}{
			{"argmin", cands, req, weights(nil)},
			{"ties", make([]schedule.Candidate, n), req, weights(nil)},
			{"softmax", cands, req, weights(func(w *schedule.Weights) { w.Temperature = 0.7 })},
			{"cold", cands, req, weights(func(w *schedule.Weights) { w.Temperature = 0.01 })},
			{"decay", cands, req, weights(func(w *schedule.Weights) { w.CreditDecay = 1 })},
			{"tiers", tiers, req, weights(nil)},
			{"decode", cands, untracked, weights(nil)},
		} {
			v, slots, r := viewOf(bc.cands, &bc.req)
			s, rnd := schedule.Scores{}, rng(1)
			b.Run(fmt.Sprintf("%s/workers=%d", bc.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.Compute(v, slots, r, bc.weights)
					s.Pick(bc.weights.Temperature, rnd)
				}
			})
		}
	}
}

// selection is the situation that the peer's selection is measured in.
func selection(n int) ([]schedule.Candidate, schedule.Request) {
	cands := make([]schedule.Candidate, n)
	for i := range cands {
		s := workload.NewSelection(i)
		cands[i] = schedule.Candidate{DeviceBlocks: uint32(s.CachedTokens / 16), ActivePrefillTokens: int64(s.PrefillTokens), ActiveBlocks: int64(s.ActiveBlocks), ActiveRequests: int64(s.ActiveRequests)}
	}
	return cands, tracked(2048, 16)
}

// What constraints cost, from a pinned worker to none.
func BenchmarkEligible(b *testing.B) {
	for _, n := range []int{64, 4096} {
		targets := make([]schedule.Target, n)
		for i := range targets {
			targets[i] = schedule.Target{Rank: worker.Rank{ID: uint64(i)}, Slot: worker.Slot(i), Taints: []string{"zone=eu"}}
		}
		for name, c := range map[string]schedule.Constraints{
			"pinned": {HasWorker: true, Worker: uint64(n / 2)}, "rank": {HasDPRank: true}, "taint": {RequiredTaints: []string{"zone=eu"}},
		} {
			dst := make([]worker.Slot, 0, n)
			b.Run(fmt.Sprintf("%s/workers=%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					dst, _ = schedule.Eligible(dst[:0], targets, &c, nil, &schedule.Limits{})
				}
			})
		}
	}
}
