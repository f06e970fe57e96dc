//go:build !noasm

package schedule

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// avx2 says that processor and system have what the kernels use.
var (
	avx2   = cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT
	avx512 = avx2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ
)

// group is how many costs the kernels look at in one step.
const group = 8

// leading is lowest for as many leading costs as suit the processor, and tells how many they are.
func leading(costs []float64) (least float64, first, ties, n int) {
	if !avx2 || len(costs) < group {
		return math.Inf(1), 0, 0, 0
	}
	if n = len(costs) / (2 * group); avx512 && n > 0 {
		least, first, ties = lowestAVX512(&costs[0], n)
		return least, first, ties, n * 2 * group
	}
	n = len(costs) / group
	least, first, ties = lowestAVX2(&costs[0], n)
	return least, first, ties, n * group
}

// lowestAVX2 finds the lowest of groups of costs, at least one group. It has no branch that depends on which cost is lower: among costs
// in no order it would often be foretold wrong.
//
//go:noescape
func lowestAVX2(costs *float64, groups int) (least float64, first, ties int)

//go:noescape
func lowestAVX512(costs *float64, pairs int) (least float64, first, ties int)

// The kernel reads loads as memory.
var (
	_ [24 - unsafe.Sizeof(load.Load{})]struct{}
	_ [unsafe.Sizeof(load.Load{}) - 24]struct{}
	_ [0 - unsafe.Offsetof(load.Load{}.ActivePrefillTokens)]struct{}
	_ [8 - unsafe.Offsetof(load.Load{}.ActiveBlocks)]struct{}
)

// ofNeighbours is plain.cost for as many leading candidates as are neighbours by slot and suit the processor, and tells how many they
// are; more tells that it is worth while to ask for further ones. Candidates mostly are all ranks, in the order in which they joined.
func (p *plain) ofNeighbours(costs []float64, candidates []worker.Slot, v *View) (n int, more bool) {
	groups := len(candidates) / group
	if !avx2 || groups == 0 || p.size > math.MaxUint32 {
		return 0, false
	}
	loads, device, active := v.Loads[:v.Slots], v.Device[:v.Slots], v.Active[:v.Slots]
	if avx512 {
		n = plainAVX512(&costs[:len(candidates)][0], &candidates[0], groups, &loads[0], &device[0], &active[0], v.Slots, p)
		return n * group, n > 0
	}
	done, over := plainAVX2(&costs[:len(candidates)][0], &candidates[0], groups, &loads[0], &device[0], &active[0], v.Slots, p)
	if over>>52 != 0 {
		return 0, false
	}
	return done * group, done > 0
}

// plainAVX2 is plain.cost for groups of neighbours, of at least one that is asked for. It stops before a group whose candidates are not
// neighbours, or beyond slots. If over has a bit from 2^52 on, some number was too large, and the costs are wrong.
//
//go:noescape
func plainAVX2(costs *float64, candidates *worker.Slot, groups int, loads *load.Load, device, active *uint32, slots int, p *plain) (done int, over uint64)

//go:noescape
func plainAVX512(costs *float64, candidates *worker.Slot, groups int, loads *load.Load, device, active *uint32, slots int, p *plain) (done int)
