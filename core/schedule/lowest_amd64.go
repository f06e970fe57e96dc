//go:build !noasm

package schedule

import (
	"math"

	"golang.org/x/sys/cpu"
)

// avx2 says that processor and system have what lowestAVX2 uses.
var avx2 = cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT

// group is how many costs lowestAVX2 looks at in one step.
const group = 8

// leading is lowest for as many leading costs as suit the processor, and tells how many they are.
func leading(costs []float64) (least float64, first, ties, n int) {
	if !avx2 || len(costs) < group {
		return math.Inf(1), 0, 0, 0
	}
	least, first, ties = lowestAVX2(&costs[0], len(costs)/group)
	return least, first, ties, len(costs) / group * group
}

// lowestAVX2 finds the lowest of groups of costs, at least one group. It has no branch that depends on which cost is lower: among costs
// in no order it would often be foretold wrong.
//
//go:noescape
func lowestAVX2(costs *float64, groups int) (least float64, first, ties int)
