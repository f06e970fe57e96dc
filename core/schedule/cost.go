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

// formula is the cost function of one request, with what all candidates share worked out.
type formula struct {
	weights       *Weights
	req           *Request
	credited      bool // overlap counts
	branchD       bool // overlap lowers the decode cost
	decays        bool // CreditDecay has an effect
	blockSize     float64
	requestBlocks float64
	leastPrefill  int64 // active prefill tokens of the least loaded candidate
}

func newFormula(candidates []Candidate, req *Request, w *Weights) formula {
	credited := w.OverlapCredit > 0
	f := formula{
		weights: w, req: req, credited: credited,
		branchD:   credited && !req.TrackPrefill && req.Role != RolePrefill,
		decays:    credited && req.TrackPrefill && w.CreditDecay > 0,
		blockSize: float64(max(req.BlockSize, 1)),
	}
	if f.decays && len(candidates) > 0 {
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
	decode := float64(c.PotentialDecodeBlocks())
	requests := f.weights.DecodeActiveRequestWeight * float64(c.ActiveRequests)
	var cost float64
	if f.branchD {
		cost = max(0, decode-overlap) + requests
	} else {
		cost = f.weights.PrefillLoadScale*max(0, f.prefillBlocks(c)-overlap) + decode + requests
	}
	if c.TaintWeight != 0 && !f.req.Pinned {
		cost *= math.Exp(-math.Tanh(c.TaintWeight))
	}
	return cost
}

// overlapCredit counts the blocks that the rank need not compute, by what each tier is worth. Factors are multiplied in
// an order in which none meets an infinity: a product that overflows is infinite, not NaN.
func (f *formula) overlapCredit(c *Candidate) float64 {
	if !f.credited {
		return 0
	}
	w := f.weights
	credit := w.OverlapCredit
	if f.decays {
		excess := float64(c.ActivePrefillTokens-f.leastPrefill) / f.blockSize / f.requestBlocks
		credit *= 1 / (1 + w.CreditDecay*excess)
	}
	return credit*float64(c.DeviceBlocks) + w.HostWeight*float64(c.HostBlocks) + w.DiskWeight*float64(c.DiskBlocks) +
		w.SharedMultiplier*float64(c.SharedBeyond)
}

// prefillBlocks is the rank's prompt load with this request, cached tokens included: the credit takes them off again.
func (f *formula) prefillBlocks(c *Candidate) float64 {
	if !f.req.TrackPrefill {
		return 0
	}
	if !f.credited {
		return float64(c.ActivePrefillTokens+int64(f.req.ISLTokens)) / f.blockSize
	}
	return float64(c.PotentialPrefillTokens(f.req)+c.CachedTokens) / f.blockSize
}
