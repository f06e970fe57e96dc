package schedule

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLowest compares with a plain search, over lengths around those of whole groups and costs that are often equal, infinite or no number.
func TestLowest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	odd := []float64{math.Inf(1), math.Inf(-1), math.NaN(), -math.NaN(), math.Copysign(0, -1), 0, math.MaxFloat64}
	for range 20_000 {
		costs := make([]float64, rng.IntN(40))
		kinds := rng.IntN(4)
		for i := range costs {
			switch {
			case rng.IntN(4) < kinds:
				costs[i] = odd[rng.IntN(1+rng.IntN(len(odd)))]
			default:
				costs[i] = float64(rng.IntN(1+rng.IntN(9))) - 2
			}
		}
		want := Scores{Costs: costs, least: math.Inf(1)}
		for _, c := range costs {
			if c < want.least {
				want.least = c
			}
		}
		for i := len(costs) - 1; i >= 0; i-- {
			if costs[i] == want.least {
				want.first, want.ties = i, want.ties+1
			}
		}
		got := Scores{Costs: costs}
		got.lowest()
		require.True(t, got.least == want.least && got.first == want.first && got.ties == want.ties, "%v: %+v, want %+v", costs, got, want)
	}
}
