package load

import "math"

// unit is the weight of a whole block. A decimal unit keeps the fractions people write (0.05, 0.15) exact.
const unit = 1_000_000_000

// Limits per slot: maxSlotBlocks*unit stays below 2^62, and token sums stay exact as float64.
const (
	maxSlotBlocks = int64(1) << 32
	maxSlotTokens = int64(1) << 53
	maxSlotNanos  = int64(1) << 62
)

// tally is the sum of a slot's bookings; all fields are >= 0 and weight <= blocks*unit.
type tally struct {
	live     list
	prefill  backlog
	blocks   int64 // distinct, each as one
	weight   int64 // the same blocks, in units
	requests int32
	decaying uint32 // 1 + where the slot stands in Ledger.decaying, or 0
}

// weightOf turns a fraction in [0,1] into a weight.
func weightOf(fraction float64) uint32 { return uint32(math.Round(fraction * unit)) }

// wholeBlocks rounds half up.
func wholeBlocks(weight int64) int64 { return (weight + unit/2) / unit }
