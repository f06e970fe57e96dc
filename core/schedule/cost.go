package schedule

import (
	"math"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
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
	Blocks       int  // full blocks that a rank has to hold for it, shared ones included; 0 if blocks are not tracked
	BlockSize    int  // less than 1 counts as 1
	TrackPrefill bool // prompt tokens count as load
	Role         Role
	Pinned       bool // to one worker: preferred taints do not matter
}

// fullBlocks counts the prompt's, tracked or not.
func (r *Request) fullBlocks() uint64 { return uint64(r.ISLTokens / r.BlockSize) }

// Scores are the costs of the candidates of one request. The zero value is ready; a used one computes without allocating.
type Scores struct {
	Costs []float64 // by position of the candidate

	// The lowest cost, where it first occurs, and how often; ties is 0 if there is no number.
	least       float64
	first, ties int

	overlap []float64 // credits, by position
}

// Compute gives each candidate its cost. Weights are valid, see Weights.Validate.
//
// It works in passes over the candidates, each so small that it keeps what it needs in registers. Products are converted to float64 before they are added, so that no platform fuses the two and
// rounds differently than the model.
func (s *Scores) Compute(v *View, candidates []worker.Slot, req *Request, w *Weights) {
	s.Costs = slices.Grow(s.Costs[:0], len(candidates))[:len(candidates)]
	if req.BlockSize < 1 {
		r := *req
		r.BlockSize = 1
		req = &r
	}
	credited := w.OverlapCredit > 0
	switch {
	case req.TrackPrefill && credited && w.CreditDecay == 0 && w.MinOverlapBlocks <= 1 && v.deviceOnly() && req.BlockSize&(req.BlockSize-1) == 0:
		s.ofDevice(v, candidates, req, w)
		s.requests(v, candidates, w)
	case req.TrackPrefill:
		s.credit(v, candidates, req, w)
		s.prefill(v, candidates, req, w)
		s.decode(v, candidates, req)
		s.requests(v, candidates, w)
	case credited && req.Role != RolePrefill:
		s.credit(v, candidates, req, w)
		s.decodeLessCredit(v, candidates, req, w)
	default:
		clear(s.Costs)
		s.decode(v, candidates, req)
		s.requests(v, candidates, w)
	}
	if v.Taints != nil && !req.Pinned {
		s.preferences(v, candidates)
	}
	s.lowest()
}

// ofDevice writes prefill and decode terms where nothing but device blocks is credited, and all the same, and where a division by
// the block size is a multiplication. More than the prompt is cached only where more blocks are held than it has.
func (s *Scores) ofDevice(v *View, candidates []worker.Slot, req *Request, w *Weights) {
	costs, loads, device, active := s.Costs[:len(candidates)], v.Loads[:v.Slots], v.Device[:v.Slots], v.Active[:v.Slots]
	p := plain{
		isl: int64(req.ISLTokens), size: int64(req.BlockSize), blocks: int64(req.Blocks),
		perToken: 1 / float64(req.BlockSize), credit: w.OverlapCredit, scale: w.PrefillLoadScale,
	}
	for fast := true; len(candidates) > 0; {
		n := 0
		if fast {
			n, fast = p.ofNeighbours(costs, candidates, v)
			costs, candidates = costs[n:], candidates[n:]
		}
		n = min(len(candidates), 8)
		for i, slot := range candidates[:n] {
			costs[i] = p.cost(&loads[slot], device[slot], active[slot])
		}
		costs, candidates = costs[n:], candidates[n:]
	}
}

// plain is what ofDevice knows of a request.
type plain struct {
	isl, size, blocks       int64
	perToken, credit, scale float64
}

func (p *plain) cost(l *load.Load, device, active uint32) float64 {
	held := int64(device)
	prefill := float64(l.ActivePrefillTokens+max(p.isl, held*p.size))*p.perToken - float64(p.credit*float64(held))
	return float64(p.scale*positive(prefill)) + float64(l.ActiveBlocks+p.blocks-int64(active))
}

// prefill writes the prefill term, given the credits. More than the prompt is cached only where more blocks are held
// than it has: no tier's weight is above 1.
func (s *Scores) prefill(v *View, candidates []worker.Slot, req *Request, w *Weights) {
	costs, overlap, loads := s.Costs[:len(candidates)], s.overlap[:len(candidates)], v.Loads[:v.Slots]
	isl, most, size, scale := int64(req.ISLTokens), req.fullBlocks(), float64(req.BlockSize), w.PrefillLoadScale
	if !(w.OverlapCredit > 0) {
		most = math.MaxUint64
	}
	device, host, disk := v.Device, v.Host, v.Disk
	for i, slot := range candidates {
		tokens := loads[slot].ActivePrefillTokens + isl
		if uint64(of(device, slot))+uint64(of(host, slot))+uint64(of(disk, slot)) > most {
			cached := EffectiveCachedTokens(of(device, slot), of(host, slot), of(disk, slot), w, req.BlockSize)
			tokens += max(cached-isl, 0)
		}
		costs[i] = scale * positive(float64(tokens)/size-overlap[i])
	}
}

// decode adds the decode term.
func (s *Scores) decode(v *View, candidates []worker.Slot, req *Request) {
	costs, loads, active, blocks := s.Costs[:len(candidates)], v.Loads[:v.Slots], v.Active, int64(req.Blocks)
	for i, slot := range candidates {
		costs[i] += float64(loads[slot].ActiveBlocks + blocks - int64(of(active, slot)))
	}
}

// requests adds the term of active requests.
func (s *Scores) requests(v *View, candidates []worker.Slot, w *Weights) {
	weight := w.DecodeActiveRequestWeight
	if weight == 0 {
		return
	}
	for i, slot := range candidates {
		s.Costs[i] += float64(weight * float64(v.Loads[slot].ActiveRequests))
	}
}

// decodeLessCredit is branch D: overlap lowers the decode cost.
func (s *Scores) decodeLessCredit(v *View, candidates []worker.Slot, req *Request, w *Weights) {
	costs, overlap, loads, active := s.Costs[:len(candidates)], s.overlap[:len(candidates)], v.Loads[:v.Slots], v.Active
	blocks, weight := int64(req.Blocks), w.DecodeActiveRequestWeight
	for i, slot := range candidates {
		l := &loads[slot]
		held := l.ActiveBlocks + blocks - int64(of(active, slot))
		costs[i] = positive(float64(held)-overlap[i]) + float64(weight*float64(l.ActiveRequests))
	}
}

// preferences scales the costs by how well the ranks' taints are liked.
func (s *Scores) preferences(v *View, candidates []worker.Slot) {
	for i, slot := range candidates {
		if weight := v.Taints[slot]; weight != 0 {
			s.Costs[i] *= math.Exp(-math.Tanh(weight))
		}
	}
}

// credit counts the blocks that each rank need not compute, by what each tier is worth. Factors are multiplied in an order in
// which none meets an infinity: a product that overflows is infinite, not NaN.
func (s *Scores) credit(v *View, candidates []worker.Slot, req *Request, w *Weights) {
	s.overlap = slices.Grow(s.overlap[:0], len(candidates))[:len(candidates)]
	overlap := s.overlap
	clear(overlap)
	if !(w.OverlapCredit > 0) {
		return
	}
	if req.TrackPrefill && w.CreditDecay > 0 && v.Device != nil {
		s.creditDecayed(v, candidates, req, w)
	} else {
		s.addTier(v.Device, candidates, w.OverlapCredit)
	}
	s.addTier(v.Host, candidates, w.HostWeight)
	s.addTier(v.Disk, candidates, w.DiskWeight)
	if minimum := uint64(w.MinOverlapBlocks); minimum > 1 {
		for i, slot := range candidates {
			if uint64(of(v.Device, slot))+uint64(of(v.Host, slot))+uint64(of(v.Disk, slot)) < minimum {
				overlap[i] = 0
			}
		}
	}
	s.addTier(v.Shared, candidates, w.SharedMultiplier)
}

// creditDecayed writes the device credit of ranks that have more to prefill than the least loaded one.
func (s *Scores) creditDecayed(v *View, candidates []worker.Slot, req *Request, w *Weights) {
	overlap, loads, device := s.overlap[:len(candidates)], v.Loads[:v.Slots], v.Device[:v.Slots]
	least := int64(math.MaxInt64)
	for _, slot := range candidates {
		least = min(least, loads[slot].ActivePrefillTokens)
	}
	size := float64(req.BlockSize)
	blocks := max(math.Ceil(float64(req.ISLTokens)/size), 1) // the last partial one included
	credit, decay := w.OverlapCredit, w.CreditDecay
	for i, slot := range candidates {
		ahead := float64(loads[slot].ActivePrefillTokens-least) / size / blocks
		overlap[i] = credit * (1 / (1 + float64(decay*ahead))) * float64(device[slot])
	}
}

func (s *Scores) addTier(tier []uint32, candidates []worker.Slot, weight float64) {
	if tier == nil {
		return
	}
	overlap := s.overlap[:len(candidates)]
	for i, slot := range candidates {
		overlap[i] += float64(weight * float64(tier[slot]))
	}
}

// positive is max(0, x) without the builtin's care for NaN and negative zero, which costs more than the rest of the cost.
func positive(x float64) float64 {
	if x > 0 {
		return x
	}
	return 0
}
