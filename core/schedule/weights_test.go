package schedule_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/schedule"
)

func TestDefaultWeightsAreValid(t *testing.T) {
	require.NoError(t, weights(nil).Validate())
}

func TestWeightsOutOfRangeAreNamed(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	const nonNegative, fraction = "must be finite and >= 0", "must be in [0, 1]"
	for _, tc := range []struct {
		field  string
		of     func(w *schedule.Weights) *float64
		accept []float64
		refuse []float64
		rule   string
	}{
		{"overlap_score_credit", func(w *schedule.Weights) *float64 { return &w.OverlapCredit }, []float64{0, 3, 1e300}, []float64{-1, inf, nan}, nonNegative},
		{"overlap_score_credit_decay", func(w *schedule.Weights) *float64 { return &w.CreditDecay }, []float64{0, 3}, []float64{-1e-300, inf, nan}, nonNegative},
		{"prefill_load_scale", func(w *schedule.Weights) *float64 { return &w.PrefillLoadScale }, []float64{0, 3}, []float64{-1, -inf, nan}, nonNegative},
		{"decode_active_request_weight", func(w *schedule.Weights) *float64 { return &w.DecodeActiveRequestWeight }, []float64{0, 3}, []float64{-1, inf, nan}, nonNegative},
		{"host_cache_hit_weight", func(w *schedule.Weights) *float64 { return &w.HostWeight }, []float64{0, 1}, []float64{-1, 1.5, inf, nan}, fraction},
		{"disk_cache_hit_weight", func(w *schedule.Weights) *float64 { return &w.DiskWeight }, []float64{0, 1}, []float64{-1, 1.5, inf, nan}, fraction},
		{"shared_cache_multiplier", func(w *schedule.Weights) *float64 { return &w.SharedMultiplier }, []float64{0, 1}, []float64{-1, 1.5, inf, nan}, fraction},
		{"router_temperature", func(w *schedule.Weights) *float64 { return &w.Temperature }, []float64{0, 1e300}, []float64{-0.5, inf, nan}, nonNegative},
	} {
		for _, v := range tc.accept {
			w := weights(nil)
			*tc.of(w) = v
			require.NoError(t, w.Validate(), "%s = %v", tc.field, v)
		}
		for _, v := range tc.refuse {
			w := weights(nil)
			*tc.of(w) = v
			err := w.Validate()
			require.ErrorIs(t, err, schedule.ErrInvalid, "%s = %v", tc.field, v)
			require.ErrorContains(t, err, tc.field+" = ")
			require.ErrorContains(t, err, tc.rule)
		}
	}
	both := weights(func(w *schedule.Weights) { w.OverlapCredit, w.DiskWeight = -7, 8 }).Validate()
	require.ErrorContains(t, both, "overlap_score_credit = -7")
	require.ErrorContains(t, both, "disk_cache_hit_weight = 8")
}

func TestOverridesOutOfRangeAreNamed(t *testing.T) {
	bad, half := math.NaN(), 0.5
	require.NoError(t, (&schedule.Overrides{}).Validate())
	require.NoError(t, (&schedule.Overrides{OverlapScoreCredit: &half, OverlapScoreWeight: &half, PrefillLoadScale: &half, RouterTemperature: &half, SharedCacheMultiplier: &half}).Validate())
	for field, o := range map[string]schedule.Overrides{
		"overlap_score_credit":    {OverlapScoreCredit: &bad},
		"overlap_score_weight":    {OverlapScoreWeight: &bad},
		"prefill_load_scale":      {PrefillLoadScale: &bad},
		"router_temperature":      {RouterTemperature: &bad},
		"shared_cache_multiplier": {SharedCacheMultiplier: &bad},
	} {
		err := o.Validate()
		require.ErrorIs(t, err, schedule.ErrInvalid)
		require.ErrorContains(t, err, field+" = NaN")
	}
}

func TestOverridesReplaceWhatTheySet(t *testing.T) {
	zero, two, half := 0.0, 2.0, 0.5
	base := schedule.DefaultWeights()
	require.Equal(t, base, base.Apply(&schedule.Overrides{}))
	got := base.Apply(&schedule.Overrides{OverlapScoreCredit: &half, PrefillLoadScale: &two, RouterTemperature: &half, SharedCacheMultiplier: &half})
	require.Equal(t, schedule.Weights{OverlapCredit: 0.5, PrefillLoadScale: 2, HostWeight: 0.75, DiskWeight: 0.25, SharedMultiplier: 0.5, Temperature: 0.5}, got)

	got = base.Apply(&schedule.Overrides{OverlapScoreWeight: &two, PrefillLoadScale: &half})
	require.Equal(t, 2.0, got.PrefillLoadScale, "the deprecated name wins")
	require.Equal(t, 1.0, got.OverlapCredit)
	got = base.Apply(&schedule.Overrides{OverlapScoreWeight: &zero, OverlapScoreCredit: &two})
	require.Zero(t, got.PrefillLoadScale)
	require.Zero(t, got.OverlapCredit, "weight 0 also switches the credit off")
}
