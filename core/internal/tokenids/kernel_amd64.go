//go:build !noasm

package tokenids

import (
	"bytes"
	"slices"

	"golang.org/x/sys/cpu"
)

// avx2 says that processor and system have what the kernels use.
var avx2 = cpu.X86.HasAVX2 && cpu.X86.HasBMI1 && cpu.X86.HasPOPCNT

const (
	// window is how many bytes the kernels take at a time: the scheduler cannot interrupt assembly, and the places of commas in it fit into the stack.
	window = 1024
	// commas is how many of them a window can have, and what commasAVX2 writes behind the last one.
	commas = window + 8
)

// fast is many. Ids are written one right behind the other's comma, or with one space between; of a list written in another way it reads the first ones.
func fast(d []byte, i int, list []uint32) ([]uint32, int) {
	if !avx2 {
		return many(d, i, list)
	}
	first := bytes.IndexByte(d[i:min(len(d), i+64)], ',')
	if first < 0 || i+first+1 == len(d) {
		return list, i
	}
	gap := 0
	if d[i+first+1] == ' ' {
		gap = 1
	}
	var ends [1 + commas]int32
	for {
		blocks := min(len(d)-i, window) / 64
		if blocks == 0 {
			return list, i
		}
		ends[0] = int32(-1 - gap) // where the comma before the first id would be
		found := commasAVX2(&ends[1], &d[i], blocks, gap)
		groups := found / 4
		if groups == 0 {
			return list, i
		}
		list = slices.Grow(list, 4*groups)
		n := 4 * convertAVX2(&list[:len(list)+1][len(list)], &d[i-widest], &ends, groups, gap)
		list = list[:len(list)+n]
		if n == 0 {
			return list, i
		}
		i += int(ends[n]) + 1
		if gap > 0 && i < len(d) && d[i] == ' ' {
			i++
		}
	}
}

// commasAVX2 writes where commas are in so many blocks of 64 bytes, at least one, and tells how many it found. With a gap of 1 it ends before a block
// where what is behind a comma is no space, or a space is anywhere else. It may write eight places more than it found.
//
//go:noescape
func commasAVX2(to *int32, d *byte, blocks, gap int) (found int)

// convertAVX2 reads ids that end at ends[1], ends[2] and so on, groups of four, at least one. It tells how many groups it read: it ends before one that
// has something else than ids of at most eight digits, with gap bytes before them that it does not look at. d is where the eight bytes before ends' 0
// begin.
//
//go:noescape
func convertAVX2(to *uint32, d *byte, ends *[1 + commas]int32, groups, gap int) (read int)
