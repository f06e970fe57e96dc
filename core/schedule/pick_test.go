package schedule_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/schedule"
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func counts(costs []float64, temperature float64, draws int, r *rand.Rand) []int {
	out := make([]int, len(costs))
	for range draws {
		out[schedule.Pick(costs, temperature, r)]++
	}
	return out
}

// chiSquare measures how far counts are from the chances; its mean is the number of positive chances less one.
func chiSquare(t *testing.T, got []int, chances []float64) (x float64) {
	draws := 0
	for _, n := range got {
		draws += n
	}
	for i, n := range got {
		want := chances[i] * float64(draws)
		if want == 0 {
			require.Zero(t, n, "position %d has no chance", i)
			continue
		}
		x += (float64(n) - want) * (float64(n) - want) / want
	}
	return x
}

// https://github.com/ai-dynamo/dynamo/pull/6253 https://github.com/ai-dynamo/dynamo/pull/9516
func TestTiesAreUniform(t *testing.T) {
	for seed := range uint64(5) {
		for _, n := range counts(make([]float64, 5), 0, 1000, rng(seed)) {
			require.True(t, n >= 140 && n <= 260, "%d of 1,000", n)
		}
	}
	// 19 degrees of freedom: 43.8 is passed once in 1,000 runs; the seed is fixed.
	costs := []float64{9, 1, 1, 5, 1, 1, 1, math.Inf(1), 1, 1, 1, math.NaN(), 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1}
	chances := schedule.Probabilities(nil, costs, 0)
	require.Less(t, chiSquare(t, counts(costs, 0, 40_000, rng(3)), chances), 43.8)
}

func TestSeededPicksRepeat(t *testing.T) {
	for _, temperature := range []float64{0, 1} {
		a, b, other := rng(42), rng(42), rng(43)
		costs := []float64{1, 1, 2, 1, 1, 3, 1, 1}
		var same, different int
		for range 200 {
			pick := schedule.Pick(costs, temperature, a)
			require.Equal(t, pick, schedule.Pick(costs, temperature, b))
			if pick == schedule.Pick(costs, temperature, other) {
				same++
			} else {
				different++
			}
		}
		require.Positive(t, same)
		require.Greater(t, different, 100)
	}
}

// Shares seen on Dynamo: with two candidates the gap does not matter.
func TestTemperatureSharesOfDynamo(t *testing.T) {
	for _, tc := range []struct {
		costs       []float64
		temperature float64
		want        []float64
	}{
		{[]float64{14, 8}, 1, []float64{0.269, 0.731}},
		{[]float64{14, 8}, 10, []float64{0.475, 0.525}},
		{[]float64{4, 4e9}, 0.5, []float64{0.881, 0.119}},
		{[]float64{4, 5}, 2, []float64{0.622, 0.378}},
		{[]float64{4, 7, 8}, 1, []float64{0.543, 0.257, 0.200}},
		{[]float64{3, 3, 3, 3}, 1, []float64{0.25, 0.25, 0.25, 0.25}},
		{[]float64{3, 5, 3}, 0, []float64{0.5, 0, 0.5}},
	} {
		got := schedule.Probabilities(nil, tc.costs, tc.temperature)
		require.InDeltaSlice(t, tc.want, got, 6e-4)
		// 13.8: passed once in 1,000 runs with two degrees of freedom.
		require.Less(t, chiSquare(t, counts(tc.costs, tc.temperature, 20_000, rng(5)), got), 13.8)
	}
}

// More candidates than the draw sums chunks, so that some chunks hold several.
func TestDrawFollowsProbabilitiesForManyCandidates(t *testing.T) {
	for _, n := range []int{2, 63, 64, 65, 129, 1000} {
		costs := make([]float64, n)
		for i := range costs {
			costs[i] = float64((i * 7) % 11)
		}
		chances := schedule.Probabilities(nil, costs, 0.3)
		x := chiSquare(t, counts(costs, 0.3, 200*n, rng(uint64(n))), chances)
		freedom := float64(n - 1)
		require.Less(t, x, freedom+4*math.Sqrt(2*freedom)+4, "%d candidates", n)
	}
}

func TestPickSurvivesExtremes(t *testing.T) {
	inf, nan, huge, tiny := math.Inf(1), math.NaN(), math.MaxFloat64, math.SmallestNonzeroFloat64
	temperatures := []float64{0, tiny, 1e-300, 1, 1e300, huge, inf, nan, -1}
	for _, tc := range []struct {
		costs []float64
		may   []int // positions that may be picked at any temperature
		cold  []int // positions that are picked at temperature 0 and close to it
	}{
		{[]float64{}, []int{-1}, []int{-1}},
		{[]float64{5}, []int{0}, []int{0}},
		{[]float64{1e300, 2e300}, []int{0, 1}, []int{0}},
		{[]float64{huge, -huge}, []int{0, 1}, []int{1}},
		{[]float64{0, tiny}, []int{0, 1}, []int{0}},
		{[]float64{inf, 1, 2}, []int{1, 2}, []int{1}},
		{[]float64{inf, 1}, []int{1}, []int{1}},
		{[]float64{inf, inf}, []int{0, 1}, []int{0, 1}},
		{[]float64{-inf, 1, -inf}, []int{0, 2}, []int{0, 2}},
		{[]float64{nan, 1, 2}, []int{1, 2}, []int{1}},
		{[]float64{2, nan, inf}, []int{0}, []int{0}},
		{[]float64{nan, inf}, []int{1}, []int{1}},
		{[]float64{nan, nan}, []int{0, 1}, []int{0, 1}},
	} {
		for _, temperature := range temperatures {
			r := rng(9)
			may := tc.may
			if !(temperature > 1e-200) {
				may = tc.cold
			}
			seen := map[int]bool{}
			for range 200 {
				pick := schedule.Pick(tc.costs, temperature, r)
				require.Contains(t, may, pick, "costs %v temperature %v", tc.costs, temperature)
				seen[pick] = true
			}
			require.Len(t, seen, len(may), "costs %v temperature %v", tc.costs, temperature)
			var total float64
			for i, p := range schedule.Probabilities(nil, tc.costs, temperature) {
				require.Equal(t, seen[i], p > 0, "costs %v temperature %v position %d", tc.costs, temperature, i)
				total += p
			}
			if len(tc.costs) > 0 {
				require.InDelta(t, 1, total, 1e-12)
			}
		}
	}
}
