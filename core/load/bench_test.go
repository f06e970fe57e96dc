package load_test

import (
	"fmt"
	"testing"

	"github.com/dynamo-go/dynamo-go/core/load"
)

// Booking and freeing 256 blocks: of a prompt that is new, and of one whose first third others hold too.
func BenchmarkBookFree(b *testing.B) {
	for _, slots := range []int{64, 512, 4096} {
		l := filled(slots, 16, 256)
		for name, p := range map[string][]uint64{"new": {77, 256}, "shared": {1, 85}} {
			prompt := append(chain(p[0], int(p[1])), chain(5, 256-int(p[1]))...)
			b.Run(fmt.Sprintf("prompt=%s/workers=%d", name, slots), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					_ = l.Book(load.Booking{ID: "x", Slot: 3, Sequences: prompt, PrefillTokens: 96}, 1)
					_ = l.Free("x", 1)
				}
			})
		}
	}
}

// The overlap of a 256-block prompt with all slots: its first third is held by all of them.
func BenchmarkMatched(b *testing.B) {
	for _, slots := range []int{8, 64, 512, 4096} {
		l := filled(slots, 16, 256)
		query := chain(1, 256)
		copy(query[85:], chain(2, 256))
		dst := make([]uint32, slots)
		b.Run(fmt.Sprintf("workers=%d", slots), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				l.Matched(dst, query)
			}
		})
	}
}

func BenchmarkOutputBlock(b *testing.B) {
	l := filled(64, 16, 256)
	half := 0.5
	for range b.N {
		_ = l.AddOutputBlocks("3-3", 1, &half, 1)
	}
}
