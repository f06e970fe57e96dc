package schedule

import (
	"math"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// View is what a decision knows of the ranks: arrays by slot, so that their owners fill them in without a loop over all
// ranks. Each has at least Slots elements; all but Loads may be nil, which says 0 for every rank.
type View struct {
	Slots  int         // above every candidate
	Loads  []load.Load // what the rank is busy with
	Active []uint32    // leading blocks of the prompt that the rank's active requests hold already; at most Request.Blocks

	// Leading blocks of the prompt by tier. Host and Disk continue the tier before; they are not cumulative.
	Device []uint32
	Host   []uint32
	Disk   []uint32
	Shared []uint32 // blocks of a shared cache from position Device on

	Taints []float64 // Constraints.TaintWeight; may be infinite, not NaN
}

// deviceOnly tells that the prompt may be held on devices and by active requests, and nowhere else.
func (v *View) deviceOnly() bool {
	return v.Device != nil && v.Active != nil && v.Host == nil && v.Disk == nil && v.Shared == nil
}

// of gives the element of a slot, 0 if there is no array.
func of[T uint32 | float64](array []T, slot worker.Slot) T {
	if array == nil {
		return 0
	}
	return array[slot]
}

// Candidate is what a view shows of one rank. Numbers are not negative.
type Candidate struct {
	DeviceBlocks uint32
	HostBlocks   uint32
	DiskBlocks   uint32
	SharedBeyond uint32

	CachedTokens int64 // EffectiveCachedTokens of the tiers

	ActivePrefillTokens int64
	ActiveBlocks        int64
	ActiveRequests      int64
	NewBlocks           int64 // blocks that the request adds to those of the rank's active requests

	TaintWeight float64
}

// Candidate puts together what is known of one slot for a request.
func (v *View) Candidate(slot worker.Slot, req *Request, w *Weights) Candidate {
	c := Candidate{
		DeviceBlocks: of(v.Device, slot), HostBlocks: of(v.Host, slot), DiskBlocks: of(v.Disk, slot), SharedBeyond: of(v.Shared, slot),
		NewBlocks: int64(req.Blocks) - int64(of(v.Active, slot)), TaintWeight: of(v.Taints, slot),
	}
	c.CachedTokens = EffectiveCachedTokens(c.DeviceBlocks, c.HostBlocks, c.DiskBlocks, w, req.BlockSize)
	l := &v.Loads[slot]
	c.ActivePrefillTokens, c.ActiveBlocks, c.ActiveRequests = l.ActivePrefillTokens, l.ActiveBlocks, int64(l.ActiveRequests)
	return c
}

// EffectiveCachedTokens tells how many prompt tokens a rank need not compute, lower tiers counted by their weight.
func EffectiveCachedTokens(device, host, disk uint32, w *Weights, blockSize int) int64 {
	if host|disk == 0 {
		return int64(device) * int64(blockSize)
	}
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
	return c.ActivePrefillTokens + EffectivePrefillTokens(int64(req.ISLTokens), c.CachedTokens)
}

// PotentialDecodeBlocks tells how many blocks the rank would hold if it took the request.
func (c *Candidate) PotentialDecodeBlocks() int64 { return c.ActiveBlocks + c.NewBlocks }

// Potential is what a rank would be busy with if it took a request; see Candidate.
type Potential struct{ PrefillTokens, DecodeBlocks int64 }

// Potentials fills dst by slot, for all slots of the view, and returns it extended as needed.
func (v *View) Potentials(dst []Potential, req *Request, w *Weights) []Potential {
	dst = slices.Grow(dst[:0], v.Slots)[:v.Slots]
	if v.Active != nil && v.Device != nil && v.Host == nil && v.Disk == nil && req.TrackPrefill {
		v.potentialsOfDevice(dst, req)
		return dst
	}
	for slot := range dst {
		c := v.Candidate(worker.Slot(slot), req, w)
		dst[slot] = Potential{c.PotentialPrefillTokens(req), c.PotentialDecodeBlocks()}
	}
	return dst
}

// potentialsOfDevice is the same where only devices hold the prompt.
func (v *View) potentialsOfDevice(dst []Potential, req *Request) {
	loads, device, active := v.Loads[:len(dst)], v.Device[:len(dst)], v.Active[:len(dst)]
	isl, size, blocks := int64(req.ISLTokens), int64(req.BlockSize), int64(req.Blocks)
	for slot := range dst {
		l := &loads[slot]
		dst[slot] = Potential{
			PrefillTokens: l.ActivePrefillTokens + EffectivePrefillTokens(isl, int64(device[slot])*size),
			DecodeBlocks:  l.ActiveBlocks + blocks - int64(active[slot]),
		}
	}
}
