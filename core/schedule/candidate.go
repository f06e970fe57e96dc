package schedule

import (
	"math"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Candidate is a worker rank with what it holds of the prompt and what it is busy with. Numbers are not negative.
//
// A slice of candidates, not an array per field: the router fills a candidate in one go, Costs reads it in one go, and
// 64 of them stay in the first-level cache.
type Candidate struct {
	Slot worker.Slot
	Rank worker.Rank

	// Blocks of the prompt by tier. Host and disk continue the tier before; they are not cumulative.
	DeviceBlocks uint32
	HostBlocks   uint32
	DiskBlocks   uint32
	SharedBeyond uint32 // blocks of a shared cache from position DeviceBlocks on

	CachedTokens int64 // EffectiveCachedTokens of the tiers

	ActivePrefillTokens int64
	ActiveBlocks        int64
	ActiveRequests      int64
	NewBlocks           int64 // full blocks of the prompt that its active requests do not hold

	TaintWeight float64 // Constraints.TaintWeight; may be infinite, not NaN
}

// EffectiveCachedTokens tells how many prompt tokens a rank need not compute, lower tiers counted by their weight.
func EffectiveCachedTokens(device, host, disk uint32, w *Weights, blockSize int) int64 {
	blocks := float64(device) + w.HostWeight*float64(host) + w.DiskWeight*float64(disk)
	return int64(math.Round(blocks * float64(blockSize)))
}

// EffectivePrefillTokens tells how many tokens of a prompt are to be computed, and to be booked. It is never negative,
// also when more is cached than the prompt has.
func EffectivePrefillTokens(islTokens, cachedTokens int64) int64 {
	return max(islTokens-cachedTokens, 0)
}

// PotentialPrefillTokens tells how many prompt tokens the rank would have to compute if it took the request.
func (c *Candidate) PotentialPrefillTokens(req *Request) int64 {
	if !req.TrackPrefill {
		return c.ActivePrefillTokens
	}
	return potentialPrefill(c.ActivePrefillTokens, int64(req.ISLTokens), c.CachedTokens)
}

func potentialPrefill(activeTokens, islTokens, cachedTokens int64) int64 {
	return activeTokens + EffectivePrefillTokens(islTokens, cachedTokens)
}

// PotentialDecodeBlocks tells how many blocks the rank would hold if it took the request.
func (c *Candidate) PotentialDecodeBlocks() int64 { return c.ActiveBlocks + c.NewBlocks }
