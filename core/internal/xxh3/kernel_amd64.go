//go:build !noasm

package xxh3

import (
	"golang.org/x/sys/cpu"

	"github.com/dynamo-go/dynamo-go/core/internal/prefetch"
)

// avx2 says that processor and system have what blocksAVX2 and bothAVX2 use.
var avx2 = cpu.X86.HasAVX2

// sparing chooses blocksSparing in place of blocksAVX2.
var sparing = prefetch.Sparing

// How many blocks the kernels take at a time; the rest is for those that take one.
const (
	blocksGroup = 8
	group       = 4
)

// longest bounds the blocks of one call of a kernel: the scheduler cannot interrupt assembly, and this many take about 15 us.
const longest = 4096

func blocks(dst []uint64, tokens []uint32, k *key) {
	for len(dst) > 0 {
		n := min(len(dst), longest)
		switch {
		case !avx2 || n < blocksGroup:
			blocksMul(&dst[0], &tokens[0], n, k)
		case sparing:
			n -= n % blocksGroup
			blocksSparing(&dst[0], &tokens[0], n/blocksGroup, k)
		default:
			n -= n % blocksGroup
			blocksAVX2(&dst[0], &tokens[0], n/blocksGroup, k)
		}
		dst, tokens = dst[n:], tokens[n*Tokens:]
	}
}

func both(dst, seqs []uint64, tokens []uint32, k *key) {
	var parent *uint64
	from := 0
	for avx2 && len(dst)-from >= group {
		groups := min(len(dst)-from, longest) / group
		bothAVX2(&dst[from], &seqs[from], &tokens[from*Tokens], groups, k, parent)
		from += groups * group
		parent = &seqs[from-1]
	}
	bothGo(dst, seqs, tokens, k, from)
}

// blocksMul is blocksGo for at least one block.
//
//go:noescape
func blocksMul(dst *uint64, tokens *uint32, n int, k *key)

// blocksAVX2 is blocksGo for groups of eight blocks, at least one group.
//
//go:noescape
func blocksAVX2(dst *uint64, tokens *uint32, groups int, k *key)

// blocksSparing is blocksAVX2 for processors that are asked for tokens sparingly.
//
//go:noescape
func blocksSparing(dst *uint64, tokens *uint32, groups int, k *key)

// bothAVX2 hashes groups of four blocks, at least one group, and chains them below parent; nil is none.
//
//go:noescape
func bothAVX2(dst, seqs *uint64, tokens *uint32, groups int, k *key, parent *uint64)
