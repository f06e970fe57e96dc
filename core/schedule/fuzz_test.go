package schedule_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/schedule/model"
)

// source hands out numbers from fuzz bytes; zeros when they run out.
type source struct{ data []byte }

func (s *source) u16() uint64 {
	if len(s.data) < 2 {
		s.data = nil
		return 0
	}
	v := binary.LittleEndian.Uint16(s.data)
	s.data = s.data[2:]
	return uint64(v)
}

// nonNegative gives small numbers, fractions, and now and then a huge one.
func (s *source) nonNegative() float64 {
	v := s.u16()
	switch v % 8 {
	case 0:
		return 0
	case 1:
		return math.Pow(10, float64(v>>3)/8192*308)
	default:
		return float64(v>>3) / 512
	}
}

func (s *source) fraction() float64 { return float64(s.u16()) / math.MaxUint16 }

func (s *source) situation() ([]schedule.Candidate, schedule.Request, schedule.Weights) {
	w := schedule.Weights{OverlapCredit: s.nonNegative(), CreditDecay: s.nonNegative(), PrefillLoadScale: s.nonNegative(),
		DecodeActiveRequestWeight: s.nonNegative(), HostWeight: s.fraction(), DiskWeight: s.fraction(), SharedMultiplier: s.fraction(), Temperature: s.nonNegative(), MinOverlapBlocks: uint32(s.u16() % 600)}
	if w.MinOverlapBlocks > 300 {
		w.MinOverlapBlocks = 0
	}
	flags := s.u16()
	req := schedule.Request{ISLTokens: int(s.u16()), BlockSize: int(s.u16()%100) + 1, TrackPrefill: flags&1 != 0, Pinned: flags&2 != 0,
		Role: schedule.Role(flags >> 2 & 3)}
	cands := make([]schedule.Candidate, flags>>4%24+1)
	for i := range cands {
		c := schedule.Candidate{DeviceBlocks: uint32(s.u16() % 512),
			ActivePrefillTokens: int64(s.u16()), ActiveBlocks: int64(s.u16()), ActiveRequests: int64(s.u16() % 64), NewBlocks: int64(s.u16() % 512)}
		if flags&4096 != 0 {
			c.DeviceBlocks = 0
		}
		if flags&8192 != 0 {
			c.NewBlocks = 7
		}
		if flags&1024 != 0 {
			c.HostBlocks, c.DiskBlocks, c.SharedBeyond = uint32(s.u16()%64), uint32(s.u16()%64), uint32(s.u16()%64)
		}
		c.CachedTokens = schedule.EffectiveCachedTokens(c.DeviceBlocks, c.HostBlocks, c.DiskBlocks, &w, req.BlockSize)
		if v := s.u16(); flags&2048 != 0 && v%4 == 0 {
			c.TaintWeight = float64(v)/4096 - 8
		}
		cands[i] = c
	}
	return cands, req, w
}

func FuzzCostAgainstModel(f *testing.F) {
	r := rng(11)
	for range 16 {
		data := make([]byte, 200+r.IntN(1500))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := source{data}
		cands, req, w := s.situation()
		compareWithModel(t, cands, req, w)
	})
}

// 10,000 situations for each role, with and without prefill tracking.
func TestCostAgainstModel(t *testing.T) {
	r := rng(12)
	data := make([]byte, 800)
	for _, role := range []schedule.Role{schedule.RoleAggregated, schedule.RolePrefill, schedule.RoleDecode, schedule.RoleEncode} {
		for _, tracked := range []bool{true, false} {
			for range 10_000 {
				for i := 0; i < len(data); i += 8 {
					binary.LittleEndian.PutUint64(data[i:], r.Uint64())
				}
				s := source{data}
				cands, req, w := s.situation()
				req.Role, req.TrackPrefill = role, tracked
				compareWithModel(t, cands, req, w)
			}
		}
	}
}

func compareWithModel(t *testing.T, cands []schedule.Candidate, req schedule.Request, w schedule.Weights) {
	require.NoError(t, w.Validate())
	view, slots, r := viewOf(cands, &req)
	var scores schedule.Scores
	scores.Compute(view, slots, r, &w)
	costs, finite := scores.Costs, true
	for i, got := range costs {
		want := model.Cost(cands, i, &req, &w)
		if math.IsNaN(got) || got < 0 || got != want && !math.IsNaN(want) {
			require.Equal(t, want, got, "candidate %d %+v of %+v %+v", i, cands[i], req, w)
		}
		if c := view.Candidate(slots[i], r, &w); c != cands[i] {
			require.Equal(t, cands[i], c)
		}
		finite = finite && !math.IsInf(got, 0)
	}
	potentials := view.Potentials(nil, r, &w)
	for i := range cands {
		got, want := potentials[slots[i]], schedule.Potential{PrefillTokens: cands[i].PotentialPrefillTokens(r), DecodeBlocks: cands[i].PotentialDecodeBlocks()}
		if got != want {
			require.Equal(t, want, got)
		}
	}
	seed := uint64(req.ISLTokens)
	pick := scores.Pick(w.Temperature, rng(seed))
	require.Equal(t, schedule.Pick(costs, w.Temperature, rng(seed)), pick, "the lowest cost is known from the pass that wrote the costs")
	chances := schedule.Probabilities(nil, costs, w.Temperature)
	require.Positive(t, chances[pick], "picked what has no chance")
	if finite {
		for i, want := range model.Probabilities(costs, w.Temperature) {
			require.False(t, math.Abs(chances[i]-want) > 1e-7, "chance %v, model %v", chances[i], want)
		}
	}
	for i, p := range schedule.Probabilities(nil, costs, 0) {
		require.False(t, p > 0 && costs[i] > costs[pick], "picked below the lowest")
	}
}
