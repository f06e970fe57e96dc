//go:build !amd64 || noasm

package schedule

import (
	"math"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// leading leaves all to the loop of lowest.
func leading([]float64) (least float64, first, ties, n int) { return math.Inf(1), 0, 0, 0 }

// ofNeighbours leaves all to the loop of ofDevice.
func (p *plain) ofNeighbours([]float64, []worker.Slot, *View) (n int, more bool) { return 0, false }
