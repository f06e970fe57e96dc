// Package model is the cost and the choice of package schedule written out as the formula reads, to be checked by eye and
// compared with. The conversions of products keep them from being fused with sums: one formula, one rounding everywhere.
package model

import (
	"math"

	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// Cost is the cost of candidates[i].
func Cost(candidates []schedule.Candidate, i int, req *schedule.Request, w *schedule.Weights) float64 {
	c := candidates[i]
	b := float64(req.BlockSize)

	d := 1.0
	if req.TrackPrefill && w.CreditDecay > 0 {
		minActive := c.ActivePrefillTokens
		for _, o := range candidates {
			minActive = min(minActive, o.ActivePrefillTokens)
		}
		requestBlocks := math.Ceil(float64(req.ISLTokens) / b)
		norm := (float64(c.ActivePrefillTokens-minActive) / b) / math.Max(requestBlocks, 1)
		d = 1 / (1 + float64(w.CreditDecay*norm))
	}

	device, host, disk := float64(c.DeviceBlocks), float64(c.HostBlocks), float64(c.DiskBlocks)
	if device+host+disk < float64(w.MinOverlapBlocks) {
		device, host, disk = 0, 0, 0
	}
	overlapCredit := float64(w.OverlapCredit*d*device) + float64(w.HostWeight*host) + float64(w.DiskWeight*disk) +
		float64(w.SharedMultiplier*float64(c.SharedBeyond))
	cached := float64(c.CachedTokens)
	if w.OverlapCredit == 0 {
		overlapCredit, cached = 0, 0
	}

	decodeCost := float64(c.ActiveBlocks) + float64(c.NewBlocks)
	reqCost := float64(w.DecodeActiveRequestWeight * float64(c.ActiveRequests))

	var logit float64
	if req.Role != schedule.RolePrefill && !req.TrackPrefill && w.OverlapCredit > 0 {
		logit = math.Max(0, decodeCost-overlapCredit) + reqCost
	} else {
		rawPrefillTokens := 0.0
		if req.TrackPrefill {
			isl := float64(req.ISLTokens)
			rawPrefillTokens = float64(c.ActivePrefillTokens) + math.Max(isl-cached, 0) + cached
		}
		adjusted := math.Max(0, rawPrefillTokens/b-overlapCredit)
		logit = float64(w.PrefillLoadScale*adjusted) + decodeCost + reqCost
	}
	if !req.Pinned && c.TaintWeight != 0 {
		logit *= math.Exp(-math.Tanh(c.TaintWeight))
	}
	return logit
}

// Probabilities gives the chances of finite costs whose range is finite, at a temperature.
func Probabilities(costs []float64, temperature float64) []float64 {
	least, most := costs[0], costs[0]
	for _, c := range costs {
		least, most = math.Min(least, c), math.Max(most, c)
	}
	out := make([]float64, len(costs))
	var sum float64
	for i, c := range costs {
		switch {
		case least == most:
			out[i] = 1
		case temperature == 0 && c > least:
			out[i] = 0
		case temperature == 0:
			out[i] = 1
		default:
			out[i] = math.Exp(-(c - least) / (most - least) / temperature)
		}
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}
