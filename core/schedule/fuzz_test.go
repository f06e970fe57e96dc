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
	cands := make([]schedule.Candidate, flags>>4%70+1)
	for i := range cands {
		c := schedule.Candidate{DeviceBlocks: uint32(s.u16() % 512),
			ActivePrefillTokens: int64(s.u16()), ActiveBlocks: int64(s.u16()), ActiveRequests: int64(s.u16() % 64), NewBlocks: int64(s.u16() % 512)}
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
	f.Fuzz(func(t *testing.T, data []byte) { compareWithModel(t, data) })
}

func TestCostAgainstModel(t *testing.T) {
	r := rng(12)
	data := make([]byte, 1200)
	for range 10_000 {
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		compareWithModel(t, data)
	}
}

func compareWithModel(t *testing.T, data []byte) {
	s := source{data}
	cands, req, w := s.situation()
	require.NoError(t, w.Validate())
	view, slots, r := viewOf(cands, &req)
	var scores schedule.Scores
	scores.Compute(view, slots, r, &w)
	costs, finite := scores.Costs, true
	for i, got := range costs {
		require.Equal(t, cands[i], view.Candidate(slots[i], r, &w))
		want := model.Cost(cands, i, &req, &w)
		require.False(t, math.IsNaN(got) || got < 0, "cost %v", got)
		if !math.IsNaN(want) && want != got {
			require.Equal(t, want, got, "candidate %d %+v of %+v %+v", i, cands[i], req, w)
		}
		finite = finite && !math.IsInf(got, 0)
	}
	pick := scores.Pick(w.Temperature, rng(uint64(len(data))))
	require.Equal(t, schedule.Pick(costs, w.Temperature, rng(uint64(len(data)))), pick, "what one pass found is what a second one finds")
	chances := schedule.Probabilities(nil, costs, w.Temperature)
	require.Positive(t, chances[pick], "picked what has no chance")
	if finite {
		require.InDeltaSlice(t, model.Probabilities(costs, w.Temperature), chances, 1e-7)
	}
	for i, p := range schedule.Probabilities(nil, costs, 0) {
		if p > 0 {
			require.LessOrEqual(t, costs[i], costs[pick])
		}
	}
}
