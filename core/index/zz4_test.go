package index_test

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func cpu() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(1, &r) // RUSAGE_THREAD
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func TestWWStore(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("N"))
	if n == 0 {
		n = 1_000_000
	}
	runtime.LockOSThread()
	base := workload.NewBase(64, n)
	ops := slices.Collect(base.Stores(workload.Engine))
	rem := slices.Collect(base.Removes(workload.Engine))
	_ = rem
	for range 4 {
		x := sharded()
		a := cpu()
		var worst time.Duration
		last := a
		for i, op := range ops {
			x.Apply(op.Slot, op.Event, index.Count)
			if n > 4e6 || i%1 == 0 {
				now := cpu()
				worst = max(worst, now-last)
				last = now
			}
		}
		s := cpu() - a
		ta := cpu()
		for range 1000 {
			cpu()
		}
		tc := (cpu() - ta) / 1000
		s -= tc * time.Duration(len(ops))
		st := x.Stats()
		runtime.GC()
		g := time.Now()
		runtime.GC()
		gc := time.Since(g)
		a = cpu()
		x.Apply(5, &event.Event{Kind: event.Cleared}, index.Count)
		cl := cpu() - a
		a = cpu()
		applyAll(x, rem)
		rm := cpu() - a
		t.Logf("store %.1f ns/pair, worst %v, %.2f B/pair %.2f B/unique, gc wall %v, clear %v, remove %.1f %+v", float64(s)/float64(st.Pairs), worst, float64(st.Bytes)/float64(st.Pairs), float64(st.Bytes)/float64(st.Blocks), gc, cl, float64(rm)/float64(blocksOf(rem)), st.Memory)
		x.Close()
	}
	_ = worker.Slot(0)
}
