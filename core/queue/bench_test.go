package queue_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/queue"
)

// A request pushed and one taken while n wait. Pushes come with random jumps, so that they land anywhere.
func BenchmarkPushNext(b *testing.B) {
	for _, lanes := range []int{1, 64, 4096} {
		for _, n := range []int{1000, 100_000} {
			b.Run(fmt.Sprintf("lanes=%d/waiting=%d", lanes, n), func(b *testing.B) {
				q := queue.New[int](queue.Single(ptr(0.0), queue.FCFS), 0)
				rng := rand.New(rand.NewPCG(1, 2))
				names := make([]string, lanes)
				for i := range names {
					names[i] = fmt.Sprint("lane ", i)
				}
				now := int64(0)
				push := func() *queue.Item[int] {
					now += 1_000_000
					jump := rng.Float64() * float64(n) / 1000
					it, _ := q.Push(now, 1, queue.Request{Lane: names[rng.IntN(lanes)], PriorityJump: jump, ISLTokens: 1000}, 0)
					return it
				}
				fits := func(*queue.Item[int]) bool { return true }
				for range n {
					push()
				}
				b.Run("next", func(b *testing.B) {
					b.ReportAllocs()
					for range b.N {
						push()
						q.Next(fits)
					}
				})
				b.Run("cancel", func(b *testing.B) {
					for range b.N {
						q.Remove(push())
					}
				})
			})
		}
	}
}

// All lanes but one blocked: what a release costs that wakes one lane, or all.
func BenchmarkRelease(b *testing.B) {
	for _, lanes := range []int{64, 4096} {
		q := queue.New[int](queue.Single(ptr(0.0), queue.FCFS), 0)
		for i := range lanes {
			_, _ = q.Push(int64(i), 1, queue.Request{Lane: fmt.Sprint(i), ISLTokens: 10}, i)
		}
		none := func(*queue.Item[int]) bool { return false }
		b.Run(fmt.Sprintf("lanes=%d/wake=one", lanes), func(b *testing.B) {
			for range b.N {
				q.WakeLane("7")
				q.Next(none)
			}
		})
		b.Run(fmt.Sprintf("lanes=%d/wake=all", lanes), func(b *testing.B) {
			for range b.N {
				q.Wake()
				q.Next(none)
			}
		})
	}
}

// Sixteen classes, all with work.
func BenchmarkRoundRobin(b *testing.B) {
	yaml := "default_policy_family: f\nuncached_isl_buckets: [{min_tokens: 0, bucket: b}]\npolicy_classes:\n" +
		"  - {name: c, policy_family: f, cache_bucket: b, quantum: 100}\n"
	for i := range 15 {
		yaml += fmt.Sprintf("  - {name: c%d, quantum: %d}\n", i, 1+i*37)
	}
	q := queue.New[int](profile(b, yaml), 0)
	rng := rand.New(rand.NewPCG(1, 2))
	push := func() {
		_, _ = q.Push(0, 1, queue.Request{Class: rng.IntN(16), ISLTokens: int64(rng.IntN(4000))}, 0)
	}
	for range 10_000 {
		push()
	}
	b.ReportAllocs()
	for b.Loop() {
		push()
		q.Next(func(*queue.Item[int]) bool { return true })
	}
}
