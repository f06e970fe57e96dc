package schedule_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func weights(edit func(w *schedule.Weights)) *schedule.Weights {
	w := schedule.DefaultWeights()
	if edit != nil {
		edit(&w)
	}
	return &w
}

// compute scores candidates that lie in a view in another order than they are listed in.
func compute(s *schedule.Scores, cands []schedule.Candidate, req *schedule.Request, w *schedule.Weights) []float64 {
	v, slots, r := viewOf(cands, req)
	s.Compute(v, slots, r, w)
	return s.Costs
}

func costs(cands []schedule.Candidate, req *schedule.Request, w *schedule.Weights) []float64 {
	return compute(new(schedule.Scores), cands, req, w)
}

// viewOf lays candidates out by slot, the last one first. CachedTokens follow from the tiers.
func viewOf(cands []schedule.Candidate, req *schedule.Request) (*schedule.View, []worker.Slot, *schedule.Request) {
	r, n := *req, len(cands)
	for i := range cands {
		r.Blocks = max(r.Blocks, int(cands[i].NewBlocks))
	}
	v := &schedule.View{Slots: n, Loads: make([]load.Load, n)}
	slots := make([]worker.Slot, n)
	for i := range cands {
		c, slot := &cands[i], n-1-i
		slots[i] = worker.Slot(slot)
		v.Loads[slot] = load.Load{ActivePrefillTokens: c.ActivePrefillTokens, ActiveBlocks: c.ActiveBlocks, ActiveRequests: int32(c.ActiveRequests)}
		put(&v.Active, n, slot, uint32(int64(r.Blocks)-c.NewBlocks))
		put(&v.Device, n, slot, c.DeviceBlocks)
		put(&v.Host, n, slot, c.HostBlocks)
		put(&v.Disk, n, slot, c.DiskBlocks)
		put(&v.Shared, n, slot, c.SharedBeyond)
		put(&v.Taints, n, slot, c.TaintWeight)
	}
	return v, slots, &r
}

// put makes an array only for what is not zero.
func put[T comparable](array *[]T, n, slot int, value T) {
	var zero T
	if value == zero {
		return
	}
	if *array == nil {
		*array = make([]T, n)
	}
	(*array)[slot] = value
}

func tracked(isl, blockSize int) schedule.Request {
	return schedule.Request{ISLTokens: isl, BlockSize: blockSize, TrackPrefill: true}
}

// holds is a candidate that holds device blocks and has new ones to add.
func holds(device uint32, blockSize int, added int64) schedule.Candidate {
	return schedule.Candidate{DeviceBlocks: device, CachedTokens: int64(device) * int64(blockSize), NewBlocks: added}
}

// Costs that Dynamo 1.6.1 gives: from the tests of its selector, its log lines ("Selected worker ... logit="), and what
// its selection service chose.
func TestCostsOfDynamo(t *testing.T) {
	type C = schedule.Candidate
	untracked := func(isl, b int, role schedule.Role) schedule.Request {
		return schedule.Request{ISLTokens: isl, BlockSize: b, Role: role}
	}
	scale2 := weights(func(w *schedule.Weights) { w.PrefillLoadScale = 2 })
	full := C{CachedTokens: 96, DeviceBlocks: 6, ActivePrefillTokens: 16, ActiveBlocks: 2, NewBlocks: 3}
	for name, tc := range map[string]struct {
		req        schedule.Request
		weights    *schedule.Weights
		candidates []C
		want       []float64
	}{
		"selector: overlap against load": {tracked(64, 16), scale2,
			[]C{{DeviceBlocks: 2, CachedTokens: 32, ActiveBlocks: 3}, {}}, []float64{7, 8}},
		"selector: cached beyond the prompt":   {tracked(64, 16), scale2, []C{full}, []float64{7}},
		"selector: prefill pool, not tracked":  {untracked(64, 16, schedule.RolePrefill), scale2, []C{full}, []float64{5}},
		"selector: decode pool, not tracked":   {untracked(64, 16, schedule.RoleDecode), nil, []C{{DeviceBlocks: 3, ActiveBlocks: 10}}, []float64{7}},
		"selector: active requests":            {untracked(0, 16, schedule.RoleDecode), weights(func(w *schedule.Weights) { w.DecodeActiveRequestWeight = 32 }), []C{{ActiveRequests: 4, ActiveBlocks: 100}}, []float64{228}},
		"selector: shared cache":               {tracked(4, 1), weights(func(w *schedule.Weights) { w.SharedMultiplier = 0.5 }), []C{{DeviceBlocks: 2, CachedTokens: 2, SharedBeyond: 2}, {SharedBeyond: 4}}, []float64{1, 2}},
		"log: nothing":                         {tracked(0, 16), nil, []C{{}}, []float64{0}},
		"log: 1 token":                         {tracked(1, 16), nil, []C{{}}, []float64{0.0625}},
		"log: 8 tokens":                        {tracked(8, 16), nil, []C{{}}, []float64{0.5}},
		"log: 16 tokens":                       {tracked(16, 16), nil, []C{holds(0, 16, 1)}, []float64{2}},
		"log: 20 tokens":                       {tracked(20, 16), nil, []C{holds(0, 16, 1)}, []float64{2.25}},
		"log: 64 tokens":                       {tracked(64, 16), nil, []C{holds(0, 16, 4)}, []float64{8}},
		"log: 70 tokens":                       {tracked(70, 16), nil, []C{holds(0, 16, 4)}, []float64{8.375}},
		"log: 20 tokens, 1 block cached":       {tracked(20, 16), nil, []C{holds(1, 16, 1)}, []float64{1.25}},
		"log: 32 tokens, 2 blocks cached":      {tracked(32, 16), nil, []C{holds(2, 16, 2)}, []float64{2}},
		"log: 40 tokens, 2 blocks cached":      {tracked(40, 16), nil, []C{holds(2, 16, 2)}, []float64{2.5}},
		"log: 64 tokens, 2 blocks cached":      {tracked(64, 16), nil, []C{holds(2, 16, 4)}, []float64{6}},
		"log: 70 tokens, 2 blocks cached":      {tracked(70, 16), nil, []C{holds(2, 16, 4)}, []float64{6.375}},
		"log: another 64 tokens active":        {tracked(64, 16), nil, []C{{DeviceBlocks: 2, CachedTokens: 32, ActivePrefillTokens: 64, ActiveBlocks: 4, NewBlocks: 4}}, []float64{14}},
		"log: the other completed its prefill": {tracked(64, 16), nil, []C{{DeviceBlocks: 2, CachedTokens: 32, ActiveBlocks: 4, NewBlocks: 4}}, []float64{10}},
		"log: credit 0.5":                      {tracked(64, 16), weights(func(w *schedule.Weights) { w.OverlapCredit = 0.5 }), []C{holds(2, 16, 4)}, []float64{7}},
		"log: credit 3, never below the load":  {tracked(64, 16), weights(func(w *schedule.Weights) { w.OverlapCredit = 3 }), []C{holds(2, 16, 4)}, []float64{4}},
		"log: scale 2":                         {tracked(64, 16), scale2, []C{holds(2, 16, 4)}, []float64{8}},
		"log: not tracked, aggregated":         {untracked(64, 16, schedule.RoleAggregated), nil, []C{holds(2, 16, 4), holds(0, 16, 4)}, []float64{2, 4}},
		"service: the same prompt is a tie": {tracked(16, 4), nil,
			[]C{{DeviceBlocks: 2, CachedTokens: 8, ActivePrefillTokens: 8, ActiveBlocks: 4}, {NewBlocks: 4}}, []float64{8, 8}},
		"service: a fresh prompt": {tracked(16, 4), nil,
			[]C{{ActivePrefillTokens: 8, ActiveBlocks: 4, NewBlocks: 4}, {NewBlocks: 4}}, []float64{14, 8}},
		"service: after prefill": {tracked(16, 4), nil,
			[]C{{DeviceBlocks: 2, CachedTokens: 8, ActiveBlocks: 4}, {NewBlocks: 4}}, []float64{6, 8}},
		"service: not tracked": {untracked(16, 4, schedule.RoleAggregated), nil,
			[]C{{DeviceBlocks: 2, CachedTokens: 8, ActiveBlocks: 4}, {NewBlocks: 4}}, []float64{2, 4}},
		"service: credit 0": {tracked(16, 4), weights(func(w *schedule.Weights) { w.OverlapCredit = 0 }),
			[]C{{DeviceBlocks: 2, CachedTokens: 8, ActivePrefillTokens: 8, ActiveBlocks: 4}, {NewBlocks: 4}}, []float64{10, 8}},
		"service: credit 5": {tracked(16, 4), weights(func(w *schedule.Weights) { w.OverlapCredit = 5 }),
			[]C{{DeviceBlocks: 2, CachedTokens: 8, ActivePrefillTokens: 8, ActiveBlocks: 4}, {NewBlocks: 4}}, []float64{4, 8}},
		"tiers": {tracked(160, 16), nil,
			[]C{{DeviceBlocks: 2, HostBlocks: 4, DiskBlocks: 4, CachedTokens: 96, NewBlocks: 10}}, []float64{14}},
		"credit 0 credits no tier": {tracked(160, 16), weights(func(w *schedule.Weights) { w.OverlapCredit, w.SharedMultiplier = 0, 1 }),
			[]C{{DeviceBlocks: 2, HostBlocks: 4, DiskBlocks: 4, SharedBeyond: 3, CachedTokens: 960, NewBlocks: 10}}, []float64{20}},
		"overlap below the minimum": {tracked(64, 16), weights(func(w *schedule.Weights) { w.MinOverlapBlocks = 3 }),
			[]C{holds(2, 16, 4), holds(3, 16, 4), {}}, []float64{8, 5, 4}},
		"the least minimum": {tracked(64, 16), weights(func(w *schedule.Weights) { w.MinOverlapBlocks = 2 }),
			[]C{holds(1, 16, 4), holds(2, 16, 4), {}}, []float64{8, 6, 4}},
		"overlap of all tiers reaches the minimum": {tracked(64, 16), weights(func(w *schedule.Weights) { w.MinOverlapBlocks = 3 }),
			[]C{{DeviceBlocks: 1, HostBlocks: 1, DiskBlocks: 1}, {DeviceBlocks: 1, DiskBlocks: 1}}, []float64{2, 4}},
		"decay: one prompt ahead halves the credit": {tracked(64, 16), weights(func(w *schedule.Weights) { w.CreditDecay = 1 }),
			[]C{{DeviceBlocks: 4, CachedTokens: 64, ActivePrefillTokens: 80}, {ActivePrefillTokens: 16}}, []float64{7, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			w := tc.weights
			if w == nil {
				w = weights(nil)
			}
			require.Equal(t, tc.want, costs(tc.candidates, &tc.req, w))
		})
	}
}

// https://github.com/ai-dynamo/dynamo/pull/1895 https://github.com/ai-dynamo/dynamo/issues/3694 https://github.com/ai-dynamo/dynamo/pull/11714
func TestPartialBlocksAndOverlapBeyondThePrompt(t *testing.T) {
	require.EqualValues(t, 96, schedule.EffectivePrefillTokens(160, 4*16))
	require.Zero(t, schedule.EffectivePrefillTokens(100, 7*16))
	req := tracked(100, 16)
	c := holds(7, 16, 6)
	require.Zero(t, c.PotentialPrefillTokens(&req))
	require.Equal(t, []float64{6}, costs([]schedule.Candidate{c}, &req, weights(nil)))
	req = tracked(9, 16)
	require.Equal(t, []float64{0.5625}, costs(make([]schedule.Candidate, 1), &req, weights(nil)))
}

// https://github.com/ai-dynamo/dynamo/pull/2798
func TestPotentialLoadsOfABookedWorker(t *testing.T) {
	req := tracked(32, 16)
	busy := schedule.Candidate{ActivePrefillTokens: 96, ActiveBlocks: 10, NewBlocks: 2}
	require.EqualValues(t, 96+32, busy.PotentialPrefillTokens(&req))
	require.EqualValues(t, 12, busy.PotentialDecodeBlocks())
	idle := schedule.Candidate{NewBlocks: 2}
	require.EqualValues(t, 32, idle.PotentialPrefillTokens(&req))
	req.TrackPrefill = false
	require.EqualValues(t, 96, busy.PotentialPrefillTokens(&req), "without tracking the request adds nothing")
}

// The worked example of Dynamo's active sequences: 4-token blocks, 12-token query of which worker 0 caches 8.
func TestPotentialLoadsOfTheWorkedExample(t *testing.T) {
	req := tracked(12, 4)
	w0 := schedule.Candidate{ActivePrefillTokens: 16, ActiveBlocks: 4, NewBlocks: 1, CachedTokens: 8}
	w1 := schedule.Candidate{NewBlocks: 3}
	require.EqualValues(t, []int64{20, 5, 12, 3}, []int64{
		w0.PotentialPrefillTokens(&req), w0.PotentialDecodeBlocks(), w1.PotentialPrefillTokens(&req), w1.PotentialDecodeBlocks(),
	})
}

func TestEffectiveCachedTokens(t *testing.T) {
	w := weights(nil)
	require.EqualValues(t, 0, schedule.EffectiveCachedTokens(0, 0, 0, w, 16))
	require.EqualValues(t, 32+48+16, schedule.EffectiveCachedTokens(2, 4, 4, w, 16))
	require.EqualValues(t, 1, schedule.EffectiveCachedTokens(0, 0, 2, w, 1), "half a token rounds up")
	w.DiskWeight = 0
	require.EqualValues(t, 80, schedule.EffectiveCachedTokens(2, 4, 4, w, 16))
}

func TestPreferredTaintsScaleTheCost(t *testing.T) {
	req := tracked(64, 16)
	cost := func(weight float64) float64 {
		return costs([]schedule.Candidate{{NewBlocks: 4, TaintWeight: weight}}, &req, weights(nil))[0]
	}
	require.Equal(t, 8.0, cost(0))
	require.InDelta(t, 8*math.Exp(-math.Tanh(1)), cost(1), 1e-12)
	require.InDelta(t, 8*math.E, cost(math.Inf(-1)), 1e-12)
	require.InDelta(t, 8/math.E, cost(math.Inf(1)), 1e-12)
	req.Pinned = true
	require.Equal(t, 8.0, cost(1))
}

// Weights as large as validation lets through overflow to infinity at worst.
func TestExtremeWeightsGiveNoNaN(t *testing.T) {
	const huge = math.MaxFloat64
	w := &schedule.Weights{OverlapCredit: huge, CreditDecay: huge, PrefillLoadScale: huge, DecodeActiveRequestWeight: huge,
		HostWeight: 1, DiskWeight: 1, SharedMultiplier: 1, Temperature: huge}
	require.NoError(t, w.Validate())
	most := schedule.Candidate{DeviceBlocks: math.MaxUint32, HostBlocks: math.MaxUint32, DiskBlocks: math.MaxUint32, SharedBeyond: math.MaxUint32,
		ActivePrefillTokens: 1 << 53, ActiveBlocks: 1 << 53, ActiveRequests: math.MaxInt32, NewBlocks: math.MaxUint32, TaintWeight: math.Inf(1)}
	for _, req := range []schedule.Request{tracked(1<<40, 1), tracked(1, 1<<20), {ISLTokens: 5, BlockSize: 16}, {TrackPrefill: true}, {Role: schedule.RolePrefill}} {
		for i, c := range costs([]schedule.Candidate{most, {}, {DeviceBlocks: 1, TaintWeight: math.Inf(-1)}}, &req, w) {
			require.GreaterOrEqual(t, c, 0.0, "candidate %d of %+v", i, req) // NaN fails too
		}
	}
}

// https://github.com/ai-dynamo/dynamo/pull/7919 https://github.com/ai-dynamo/dynamo/issues/7836
func TestUnknownWorkerIsIdleNotBusy(t *testing.T) {
	req := tracked(1600, 16)
	got := costs([]schedule.Candidate{{ActiveBlocks: 100, ActiveRequests: 1, NewBlocks: 100}, {NewBlocks: 100}}, &req, weights(nil))
	require.Equal(t, 1, schedule.Pick(got, 0, rng(1)))
}

// https://github.com/sgl-project/sglang/pull/14532: what a worker holds of other prompts is no input of the cost at all,
// so a miss goes to the idle one.
func TestMissGoesByLoad(t *testing.T) {
	req := tracked(160, 16)
	loaded, idle := schedule.Candidate{ActivePrefillTokens: 1, NewBlocks: 10}, schedule.Candidate{NewBlocks: 10}
	got := costs([]schedule.Candidate{loaded, idle}, &req, weights(nil))
	require.Less(t, got[1], got[0])
}

func TestCostsAndPickAllocateNothing(t *testing.T) {
	cands, req := spread(64)
	v, slots, r := viewOf(cands, &req)
	s, rnd, w := schedule.Scores{}, rng(1), weights(nil)
	for _, temperature := range []float64{0, 0.7} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			s.Compute(v, slots, r, w)
			s.Pick(temperature, rnd)
		}))
	}
}

// spread gives candidates with different overlaps and loads.
func spread(n int) ([]schedule.Candidate, schedule.Request) {
	r := rng(7)
	cands := make([]schedule.Candidate, n)
	for i := range cands {
		device := uint32(r.IntN(200))
		cands[i] = holds(device, 16, int64(r.IntN(100)))
		cands[i].ActivePrefillTokens, cands[i].ActiveBlocks, cands[i].ActiveRequests = int64(r.IntN(8000)), int64(r.IntN(2000)), int64(r.IntN(20))
	}
	return cands, tracked(4096, 16)
}
