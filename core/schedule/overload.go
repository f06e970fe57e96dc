package schedule

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/load"
)

// Limits say from when on a rank is overloaded and takes no request; nil fields do not limit. They are Dynamo's load
// thresholds, but for each rank of a worker by itself (there a worker is out when all of its ranks are).
type Limits struct {
	DecodeBlocksFraction  *float64 // active_decode_blocks_threshold: active blocks, of Target.TotalBlocks
	PrefillTokens         *uint64  // active_prefill_tokens_threshold: active prefill tokens
	PrefillTokensFraction *float64 // active_prefill_tokens_threshold_frac: active prefill tokens, of Target.MaxBatchedTokens
}

// Validate names every limit that is out of range. Errors: ErrInvalid.
func (l *Limits) Validate() error {
	var faults []error
	if f := l.DecodeBlocksFraction; f != nil {
		faults = append(faults, checkFraction("active_decode_blocks_threshold", *f))
	}
	if f := l.PrefillTokensFraction; f != nil {
		faults = append(faults, checkNonNegative("active_prefill_tokens_threshold_frac", *f))
	}
	return errors.Join(faults...)
}

// Off tells that nothing is limited.
func (l *Limits) Off() bool { return *l == Limits{} }

// Exceeded tells whether a rank is overloaded: any limit is passed, strictly. What is not known of a rank does not limit it.
func (l *Limits) Exceeded(t *Target, busy load.Load) bool {
	prefill := float64(busy.ActivePrefillTokens)
	switch {
	case l.DecodeBlocksFraction != nil && t.TotalBlocks > 0 && float64(busy.ActiveBlocks) > *l.DecodeBlocksFraction*float64(t.TotalBlocks):
		return true
	case l.PrefillTokens != nil && prefill > float64(*l.PrefillTokens):
		return true
	case l.PrefillTokensFraction != nil && t.MaxBatchedTokens > 0 && prefill > *l.PrefillTokensFraction*float64(t.MaxBatchedTokens):
		return true
	}
	return false
}
