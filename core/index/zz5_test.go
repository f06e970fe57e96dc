package index_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func TestVVClear(t *testing.T) {
	base := workload.NewBase(64, 1000000)
	ops := slices.Collect(base.Stores(workload.Engine))
	x := sharded()
	applyAll(x, ops)
	var by [64][]workload.Op
	for _, op := range ops {
		by[op.Slot] = append(by[op.Slot], op)
	}
	best, sum := time.Hour, time.Duration(0)
	for i := range 640 {
		w := worker.Slot(i % 64)
		s := time.Now()
		x.Apply(w, &event.Event{Kind: event.Cleared}, index.Count)
		d := time.Since(s)
		best = min(best, d)
		sum += d
		applyAll(x, by[w])
	}
	t.Log("clear best", best, "mean", sum/640)
}
