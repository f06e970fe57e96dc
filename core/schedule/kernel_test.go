package schedule

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// without are the kernels that a processor may lack: each call has the next best one used, until the test ends.
var without = map[string]func(t *testing.T){}

// eachKernel runs a test with what this processor has, and without.
func eachKernel(t *testing.T, test func(t *testing.T)) {
	t.Run("all", test)
	for name, drop := range without {
		t.Run("no "+name, func(t *testing.T) {
			drop(t)
			test(t)
		})
	}
}

// TestLowest compares with a plain search, over lengths around those of whole groups and costs that are often equal, infinite or no number.
func TestLowest(t *testing.T) { eachKernel(t, testLowest) }

func testLowest(t *testing.T) {
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
		if got.least == want.least && got.first == want.first && got.ties == want.ties {
			continue
		}
		require.Fail(t, "lowest", "%v: %+v, want %+v", costs, got, want)
	}
}

// TestCostsOfNeighbours compares whole passes with the cost of each candidate alone: neighbours in runs of any length, candidates in any
// order, and numbers up to beyond those that doubles hold.
func TestCostsOfNeighbours(t *testing.T) { eachKernel(t, testCostsOfNeighbours) }

func testCostsOfNeighbours(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const slots = 100
	v := View{Slots: slots, Loads: make([]load.Load, slots), Device: make([]uint32, slots), Active: make([]uint32, slots)}
	for range 5_000 {
		wide := []int64{10, 1 << 20, 1 << 51, 1 << 62}[rng.IntN(4)]
		req := Request{ISLTokens: rng.IntN(5000), Blocks: rng.IntN(300), BlockSize: 1 << rng.IntN(8), TrackPrefill: true}
		w := Weights{OverlapCredit: rng.Float64() * 2, PrefillLoadScale: rng.Float64() * 3}
		for i := range slots {
			v.Loads[i] = load.Load{ActivePrefillTokens: rng.Int64N(wide), ActiveBlocks: rng.Int64N(min(wide, 1<<53)), ActiveRequests: -1}
			v.Device[i], v.Active[i] = uint32(rng.IntN(400)), uint32(rng.IntN(req.Blocks+1))
			if wide > 1<<52 && rng.IntN(8) > 0 {
				v.Loads[i].ActivePrefillTokens %= 1000
			}
		}
		var candidates []worker.Slot
		for len(candidates) < slots/2 {
			from := rng.IntN(slots)
			for i := range rng.IntN(40) {
				if from+i < slots {
					candidates = append(candidates, worker.Slot(from+i))
				}
			}
			if rng.IntN(4) == 0 {
				rng.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
			}
		}
		var s Scores
		s.Compute(&v, candidates, &req, &w)
		p := plain{int64(req.ISLTokens), int64(req.BlockSize), int64(req.Blocks), 1 / float64(req.BlockSize), w.OverlapCredit, w.PrefillLoadScale}
		for i, slot := range candidates {
			if want := p.cost(&v.Loads[slot], v.Device[slot], v.Active[slot]); want != s.Costs[i] {
				require.Equal(t, want, s.Costs[i], "candidate %d of %d, slot %d", i, len(candidates), slot)
			}
		}
	}
}

func TestCandidatesBeyondTheSlotsAreNotRead(t *testing.T) {
	v := View{Slots: 12, Loads: make([]load.Load, 40), Device: make([]uint32, 40), Active: make([]uint32, 40)}
	candidates := []worker.Slot{8, 9, 10, 11, 12, 13, 14, 15}
	var s Scores
	require.Panics(t, func() {
		s.Compute(&v, candidates, &Request{BlockSize: 16, TrackPrefill: true}, &Weights{OverlapCredit: 1})
	})
}
