package ticks

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// behind is the most that a clock may be behind.
const behind = 200_000

func TestClose(t *testing.T) {
	c := New()
	for range 200_000 {
		before := time.Since(c.start).Nanoseconds()
		now := c.Now()
		after := time.Since(c.start).Nanoseconds()
		require.GreaterOrEqual(t, now, before-behind)
		require.LessOrEqual(t, now, after)
	}
}

func TestGoesOn(t *testing.T) {
	c := New()
	for last, changes := c.Now(), 0; changes < 100; {
		now := c.Now()
		require.GreaterOrEqual(t, now, last)
		if now > last {
			last, changes = now, changes+1
		}
	}
}

// A counter that was ahead, of another processor or before a pause of the machine, does not stop the clock.
func TestCounterGoesBack(t *testing.T) {
	for _, ahead := range []uint64{1, 1 << 30, math.MaxUint64 / 2} {
		c := New()
		c.now.Store(-1)
		c.at.Store(ticks() + ahead)
		for c.Now() < 0 { // for as long as it takes the counter to pass, at most
		}
	}
}

func TestManyAsk(t *testing.T) {
	c := New()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			last := int64(0)
			for range 50_000 {
				before := time.Since(c.start).Nanoseconds()
				if now := c.Now(); now < last || now < before-behind || now > time.Since(c.start).Nanoseconds() {
					t.Errorf("%d at %d, after %d", now, before, last)
				} else {
					last = now
				}
			}
		})
	}
	all.Wait()
}

// Two ask at once after nobody did for a while: the one who does not read the time anew has the other's.
func TestTwoAskAfterAPause(t *testing.T) {
	c := New()
	var all sync.WaitGroup
	var there atomic.Int64
	for range 2 {
		all.Go(func() {
			for n := int64(1); n <= 1000; n++ {
				for start := time.Now(); time.Since(start) < 2*behind; {
				}
				for there.Add(1); there.Load() < 2*n; {
					runtime.Gosched()
				}
				before := time.Since(c.start).Nanoseconds()
				if now := c.Now(); now < before-behind {
					t.Errorf("%d at %d", now, before)
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkNow(b *testing.B) {
	c := New()
	for b.Loop() {
		c.Now()
	}
}

func BenchmarkSystem(b *testing.B) {
	c := New()
	for b.Loop() {
		_ = time.Since(c.start)
	}
}
