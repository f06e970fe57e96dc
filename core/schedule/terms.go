package schedule

import "math"

// Terms are the parts of a cost, to be shown to people: (Prefill + Decode + Requests) * Taint, but for rounding.
type Terms struct {
	Decay    float64 // factor d of the device credit
	Credit   float64 // blocks that are credited, over all tiers
	Prefill  float64 // prompt blocks to compute, less Credit, weighted
	Decode   float64 // blocks held; in branch D less Credit
	Requests float64
	Taint    float64 // factor
}

// Cost puts the terms together.
func (t *Terms) Cost() float64 { return (t.Prefill + t.Decode + t.Requests) * t.Taint }

// Terms takes the cost of a candidate apart. leastPrefill is the least ActivePrefillTokens of all candidates.
func (c *Candidate) Terms(req *Request, w *Weights, leastPrefill int64) Terms {
	size := float64(max(req.BlockSize, 1))
	t := Terms{
		Decay: 1, Taint: 1, Decode: float64(c.PotentialDecodeBlocks()), Requests: w.DecodeActiveRequestWeight * float64(c.ActiveRequests),
	}
	if req.TrackPrefill && w.CreditDecay > 0 {
		ahead := float64(c.ActivePrefillTokens-leastPrefill) / size / max(math.Ceil(float64(req.ISLTokens)/size), 1)
		t.Decay = 1 / (1 + w.CreditDecay*ahead)
	}
	cached := c.CachedTokens
	if w.OverlapCredit > 0 {
		t.Credit = w.SharedMultiplier * float64(c.SharedBeyond)
		if uint64(c.DeviceBlocks)+uint64(c.HostBlocks)+uint64(c.DiskBlocks) >= uint64(w.MinOverlapBlocks) {
			t.Credit += w.OverlapCredit*t.Decay*float64(c.DeviceBlocks) + w.HostWeight*float64(c.HostBlocks) + w.DiskWeight*float64(c.DiskBlocks)
		}
	} else {
		cached = 0
	}
	switch {
	case req.TrackPrefill:
		tokens := c.ActivePrefillTokens + max(int64(req.ISLTokens), cached)
		t.Prefill = w.PrefillLoadScale * max(float64(tokens)/size-t.Credit, 0)
	case req.Role != RolePrefill && w.OverlapCredit > 0:
		t.Decode = max(t.Decode-t.Credit, 0)
	}
	if !req.Pinned && c.TaintWeight != 0 {
		t.Taint = math.Exp(-math.Tanh(c.TaintWeight))
	}
	return t
}
