//go:build !noasm

package xxh3

import "golang.org/x/sys/cpu"

// avx2 says that processor and system have what the kernels use.
var avx2 = cpu.X86.HasAVX2

// group is how many blocks a kernel takes at a time; the rest is for the twin.
const group = 4

// longest bounds the groups of one call of a kernel: the scheduler cannot interrupt assembly, and 1024 groups take
// about 15 us.
const longest = 1024

func blocks(dst []uint64, tokens []uint32, k *key) {
	from := 0
	for avx2 && len(dst)-from >= group {
		groups := min((len(dst)-from)/group, longest)
		blocksAVX2(&dst[from], &tokens[from*Tokens], groups, k)
		from += groups * group
	}
	blocksGo(dst[from:], tokens[from*Tokens:], k)
}

func both(dst, seqs []uint64, tokens []uint32, k *key) {
	var parent *uint64
	from := 0
	for avx2 && len(dst)-from >= group {
		groups := min((len(dst)-from)/group, longest)
		bothAVX2(&dst[from], &seqs[from], &tokens[from*Tokens], groups, k, parent)
		from += groups * group
		parent = &seqs[from-1]
	}
	bothGo(dst, seqs, tokens, k, from)
}

// blocksAVX2 is blocksGo for groups of four blocks, at least one group.
//
//go:noescape
func blocksAVX2(dst *uint64, tokens *uint32, groups int, k *key)

// bothAVX2 hashes groups of four blocks, at least one group, and chains them below parent; nil is none.
//
//go:noescape
func bothAVX2(dst, seqs *uint64, tokens *uint32, groups int, k *key, parent *uint64)
