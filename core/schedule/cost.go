package schedule

import (
	"math"
	"slices"
)

// Role is what the workers of a pool do.
type Role uint8

// Roles. Only RolePrefill changes the cost: branch D is not for it.
const (
	RoleAggregated Role = iota
	RolePrefill
	RoleDecode
	RoleEncode
)

// Request is what the cost needs to know of a request.
type Request struct {
	ISLTokens    int  // prompt length
	BlockSize    int  // >= 1
	TrackPrefill bool // prompt tokens count as load
	Role         Role
	Pinned       bool // to one worker: preferred taints do not matter
}

// Costs gives the cost of each candidate, in dst if it is long enough. Weights are valid, see Weights.Validate.
func Costs(dst []float64, candidates []Candidate, req *Request, w *Weights) []float64 {
	dst = slices.Grow(dst[:0], len(candidates))[:len(candidates)]
	f := newFormula(candidates, req, w)
	for i := range candidates {
		dst[i] = f.cost(&candidates[i])
	}
	return dst
}

// formula is the cost function of one request, with what all candidates share worked out. It copies the weights, so that
// the loop over candidates keeps them at hand; a credit is 0 where overlap does not count.
type formula struct {
	deviceCredit, hostCredit, diskCredit, sharedCredit float64

	prefillScale  float64
	requestWeight float64
	decay         float64 // 0 where it has no effect
	blockSize     float64
	requestBlocks float64
	leastPrefill  int64 // active prefill tokens of the least loaded candidate
	isl           int64
	tracked       bool // prompt tokens count
	credited      bool // overlap counts
	branchD       bool // overlap lowers the decode cost
	pinned        bool
}

func newFormula(candidates []Candidate, req *Request, w *Weights) formula {
	f := formula{
		prefillScale: w.PrefillLoadScale, requestWeight: w.DecodeActiveRequestWeight,
		blockSize: float64(max(req.BlockSize, 1)), isl: int64(req.ISLTokens),
		tracked: req.TrackPrefill, credited: w.OverlapCredit > 0, pinned: req.Pinned,
	}
	if !f.credited {
		return f
	}
	f.branchD = !req.TrackPrefill && req.Role != RolePrefill
	f.deviceCredit, f.hostCredit, f.diskCredit, f.sharedCredit = w.OverlapCredit, w.HostWeight, w.DiskWeight, w.SharedMultiplier
	if req.TrackPrefill && w.CreditDecay > 0 && len(candidates) > 0 {
		f.decay = w.CreditDecay
		f.requestBlocks = max(math.Ceil(float64(req.ISLTokens)/f.blockSize), 1)
		f.leastPrefill = candidates[0].ActivePrefillTokens
		for i := range candidates {
			f.leastPrefill = min(f.leastPrefill, candidates[i].ActivePrefillTokens)
		}
	}
	return f
}

func (f *formula) cost(c *Candidate) float64 {
	overlap := f.overlapCredit(c)
	cost := float64(c.PotentialDecodeBlocks())
	switch {
	case f.branchD:
		cost = positive(cost - overlap)
	case f.tracked:
		cost += f.prefillScale * positive(f.prefillBlocks(c)-overlap)
	}
	cost += f.requestWeight * float64(c.ActiveRequests)
	if c.TaintWeight != 0 && !f.pinned {
		cost *= math.Exp(-math.Tanh(c.TaintWeight))
	}
	return cost
}

// overlapCredit counts the blocks that the rank need not compute, by what each tier is worth. Factors are multiplied in
// an order in which none meets an infinity: a product that overflows is infinite, not NaN.
func (f *formula) overlapCredit(c *Candidate) float64 {
	credit := f.deviceCredit
	if f.decay > 0 {
		credit *= 1 / (1 + f.decay*(float64(c.ActivePrefillTokens-f.leastPrefill)/f.blockSize/f.requestBlocks))
	}
	credit *= float64(c.DeviceBlocks)
	if c.HostBlocks|c.DiskBlocks|c.SharedBeyond != 0 {
		credit += f.hostCredit*float64(c.HostBlocks) + f.diskCredit*float64(c.DiskBlocks) + f.sharedCredit*float64(c.SharedBeyond)
	}
	return credit
}

// prefillBlocks is the rank's prompt load with this request, cached tokens included: the credit takes them off again.
func (f *formula) prefillBlocks(c *Candidate) float64 {
	cached := c.CachedTokens
	if !f.credited {
		cached = 0
	}
	tokens := potentialPrefill(c.ActivePrefillTokens, f.isl, cached) + cached
	return float64(tokens) / f.blockSize
}

// positive is max(0, x) without the builtin's care for NaN and negative zero, which costs more than the rest of the cost.
func positive(x float64) float64 {
	if x > 0 {
		return x
	}
	return 0
}
