package schedule_test

import (
	"fmt"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// Scoring and picking: different candidates, all equal (ties), and at a temperature.
func BenchmarkSelect(b *testing.B) {
	for _, n := range []int{8, 64, 512, 4096} {
		cands, req := spread(n)
		for _, bc := range []struct {
			name        string
			temperature float64
			cands       []schedule.Candidate
		}{{"argmin", 0, cands}, {"ties", 0, make([]schedule.Candidate, n)}, {"softmax", 0.7, cands}} {
			costs, r, w := make([]float64, n), rng(1), weights(nil)
			b.Run(fmt.Sprintf("pick=%s/workers=%d", bc.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					costs = schedule.Costs(costs, bc.cands, &req, w)
					schedule.Pick(costs, bc.temperature, r)
				}
			})
		}
	}
}

func BenchmarkCosts(b *testing.B) {
	cands, req := spread(64)
	costs, w := make([]float64, 64), weights(nil)
	for range b.N {
		costs = schedule.Costs(costs, cands, &req, w)
	}
}
