package schedule

import (
	"errors"
	"fmt"
	"math"
)

// Weights of the cost; see the package comment. Names in messages are those of Dynamo's configuration.
type Weights struct {
	OverlapCredit             float64 // overlap_score_credit: prompt blocks saved per block held on the device
	CreditDecay               float64 // overlap_score_credit_decay: how fast a busy rank's credit falls
	PrefillLoadScale          float64 // prefill_load_scale: prompt blocks to compute against blocks held
	DecodeActiveRequestWeight float64 // decode_active_request_weight: blocks per active request
	HostWeight                float64 // host_cache_hit_weight: credit of a block in host memory
	DiskWeight                float64 // disk_cache_hit_weight: credit of a block on disk
	SharedMultiplier          float64 // shared_cache_multiplier: credit of a block in a shared cache
	Temperature               float64 // router_temperature: 0 takes the cheapest

	// MinOverlapBlocks (overlap_score_min_blocks) is the overlap, over device, host and disk, from which on a rank is
	// credited for it; 0 and 1 credit all. Dynamo has no such setting. Set above the length of a common system prompt,
	// it keeps that prompt from drawing everyone to the rank that happened to see it first; see docs/tuning.md.
	MinOverlapBlocks uint32
}

// DefaultWeights are Dynamo's.
func DefaultWeights() Weights {
	return Weights{OverlapCredit: 1, PrefillLoadScale: 1, HostWeight: 0.75, DiskWeight: 0.25}
}

// Validate names every weight that is out of range. Errors: ErrInvalid.
func (w *Weights) Validate() error {
	return errors.Join(
		checkNonNegative("overlap_score_credit", w.OverlapCredit),
		checkNonNegative("overlap_score_credit_decay", w.CreditDecay),
		checkNonNegative("prefill_load_scale", w.PrefillLoadScale),
		checkNonNegative("decode_active_request_weight", w.DecodeActiveRequestWeight),
		checkFraction("host_cache_hit_weight", w.HostWeight),
		checkFraction("disk_cache_hit_weight", w.DiskWeight),
		checkFraction("shared_cache_multiplier", w.SharedMultiplier),
		checkNonNegative("router_temperature", w.Temperature),
	)
}

// Overrides are what one request changes; nil leaves the configured value.
type Overrides struct {
	OverlapScoreCredit    *float64 `json:"overlap_score_credit,omitempty"`
	OverlapScoreWeight    *float64 `json:"overlap_score_weight,omitempty"` // deprecated; see Apply
	PrefillLoadScale      *float64 `json:"prefill_load_scale,omitempty"`
	RouterTemperature     *float64 `json:"router_temperature,omitempty"`
	SharedCacheMultiplier *float64 `json:"shared_cache_multiplier,omitempty"`
	AssumeKVReuse         *bool    `json:"assume_kv_reuse,omitempty"`
	TrackPrefillTokens    *bool    `json:"track_prefill_tokens,omitempty"`
}

// Validate names every override that is out of range. Errors: ErrInvalid.
func (o *Overrides) Validate() error {
	if *o == (Overrides{}) { // as most are
		return nil
	}
	check := func(name string, v *float64, in func(string, float64) error) error {
		if v == nil {
			return nil
		}
		return in(name, *v)
	}
	return errors.Join(
		check("overlap_score_credit", o.OverlapScoreCredit, checkNonNegative),
		check("overlap_score_weight", o.OverlapScoreWeight, checkNonNegative),
		check("prefill_load_scale", o.PrefillLoadScale, checkNonNegative),
		check("router_temperature", o.RouterTemperature, checkNonNegative),
		check("shared_cache_multiplier", o.SharedCacheMultiplier, checkFraction),
	)
}

// Apply returns the weights as the overrides change them. The deprecated overlap_score_weight is the prefill load scale,
// wins over it, and switches the overlap credit off when it is 0.
func (w Weights) Apply(o *Overrides) Weights {
	if *o == (Overrides{}) {
		return w
	}
	set := func(dst *float64, v *float64) {
		if v != nil {
			*dst = *v
		}
	}
	set(&w.OverlapCredit, o.OverlapScoreCredit)
	set(&w.PrefillLoadScale, o.PrefillLoadScale)
	set(&w.Temperature, o.RouterTemperature)
	set(&w.SharedMultiplier, o.SharedCacheMultiplier)
	if o.OverlapScoreWeight != nil {
		w.SetOverlapScoreWeight(*o.OverlapScoreWeight)
	}
	return w
}

// SetOverlapScoreWeight applies the deprecated overlap_score_weight; see Apply.
func (w *Weights) SetOverlapScoreWeight(v float64) {
	w.PrefillLoadScale = v
	if v == 0 {
		w.OverlapCredit = 0
	}
}

func checkNonNegative(name string, v float64) error {
	if v >= 0 && !math.IsInf(v, 0) {
		return nil
	}
	return fmt.Errorf("%w: %s = %v must be finite and >= 0", ErrInvalid, name, v)
}

func checkFraction(name string, v float64) error {
	if v >= 0 && v <= 1 {
		return nil
	}
	return fmt.Errorf("%w: %s = %v must be in [0, 1]", ErrInvalid, name, v)
}
