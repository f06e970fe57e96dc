package index_test

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/internal/workload"
)

var _ block.Hash

func TestXXMixed(t *testing.T) {
	base := workload.NewBase(64, 1_000_000)
	x := sharded()
	applyAll(x, slices.Collect(base.Stores(workload.Engine)))
	ch := base.Churn(workload.Engine)
	qs := base.Sessions(2000)
	for _, bound := range []bool{false, true, false, true} {
		for _, rate := range []int{0, 50_000, 1 << 30} {
			var stop atomic.Bool
			done := make(chan int)
			go func() {
				if bound {
					runtime.LockOSThread()
				}
				n := 0
				s := time.Now()
				for !stop.Load() && rate > 0 {
					if rate < 1<<30 && float64(n) > time.Since(s).Seconds()*float64(rate) {
						continue
					}
					op := ch[n%len(ch)]
					x.Apply(op.Slot, op.Event, index.Count)
					n++
				}
				done <- n
			}()
			if bound {
				runtime.LockOSThread()
			}
			var lat []time.Duration
			dst := make([]index.Overlap, 0, 100)
			s := time.Now()
			for i := 0; time.Since(s) < 700*time.Millisecond; i++ {
				q := index.Query{Hashes: qs[i*7%len(qs)]}
				a := time.Now()
				dst = x.Match(dst[:0], q)
				lat = append(lat, time.Since(a))
			}
			el := time.Since(s).Seconds()
			stop.Store(true)
			n := <-done
			if bound {
				runtime.UnlockOSThread()
			}
			slices.Sort(lat)
			p := func(f float64) time.Duration { return lat[int(f*float64(len(lat)-1))] }
			t.Logf("bound=%v rate=%d ev/s=%.0f: p50 %v p99 %v p99.9 %v n=%d", bound, rate, float64(n)/el, p(.5), p(.99), p(.999), len(lat))
		}
	}
}
