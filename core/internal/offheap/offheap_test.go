package offheap

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestMappedMemoryIsZeroAndWritable(t *testing.T) {
	for _, n := range []int{1, 4096, 10_000, HugePage, HugePage + 1} {
		b := Map(n)
		require.Len(t, b, n)
		require.Equal(t, make([]byte, n), b)
		for i := range b {
			b[i] = byte(i)
		}
		if n > 4096 && Release(b[4096:n/4096*4096]) {
			require.Zero(t, b[4096])
			require.Equal(t, byte(1), b[1])
		}
		Unmap(b)
		b = ordinary(n)
		require.Len(t, b, n)
		Unmap(b)
		b[n-1] = 1 // still there: it was never mapped
	}
}

func TestPopulatedMemoryKeepsWhatIsInIt(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 4096, 3 * 4096, 1 << 20} {
		for _, b := range [][]byte{Map(n + 4096), make([]byte, n+4096)} {
			for from := range 3 {
				part := b[from*7 : from*7+n]
				for i := range b {
					b[i] = byte(i * 7)
				}
				Populate(part)
				for i := range b {
					if b[i] != byte(i*7) {
						require.Fail(t, "changed", "byte %d of %d", i, n)
					}
				}
			}
		}
	}
}

func TestReservedMemoryIsZeroAndKeepsWhatIsInIt(t *testing.T) {
	whole, huge := Reserve()
	if huge == nil {
		return // this system has none
	}
	require.Len(t, huge, HugePage)
	require.Zero(t, uintptr(unsafe.Pointer(&huge[0]))%HugePage)
	require.Equal(t, make([]byte, HugePage), huge)
	huge[0], huge[HugePage-1] = 1, 2
	Collapse(huge)
	require.Equal(t, []byte{1, 2, 0}, []byte{huge[0], huge[HugePage-1], huge[4096]})
	require.True(t, Release(huge[4096:8192]))
	Unmap(whole)
}
