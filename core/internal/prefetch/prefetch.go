// Package prefetch has memory loaded into the cache while the processor goes on: who looks at many places that are far from each other
// waits for all of them at once.
package prefetch

import (
	"unsafe"

	"github.com/klauspost/cpuid/v2"
)

// Sparing says how this processor is best asked for what is read once, in order. If so, for no more than it keeps in flight, and apart from what stays
// in the caches: what is asked for beyond that holds up all that comes after. AMD's are so. Others take many requests, as their second-level cache
// waits for most of them, and bring what need not stay more slowly than the rest. A decision over 128 blocks takes 4 % longer on a third-generation EPYC if it is
// asked for a third more than that, and a quarter longer on a Xeon of today if it is asked as an EPYC is.
var Sparing = cpuid.CPU.IsVendor(cpuid.AMD) || cpuid.CPU.IsVendor(cpuid.Hygon)

// head is how many lines Head asks for at most: a few more than a processor waits for at a time if it is asked sparingly, as some have come before
// they are read; and as many as the first-level cache waits for otherwise.
var head = 16

func init() {
	if Sparing {
		head = 32
	}
}

// Lines asks for the cache lines at addresses, which may be anything: a prefetch neither reads nor fails.
func Lines(addresses []uintptr) {
	if len(addresses) > 0 {
		lines(&addresses[0], len(addresses))
	}
}

// lineBytes is the size of a cache line on the processors that have run and lines.
const lineBytes = 64

// Head asks for the beginning of an array that is read once from there on, and soon: what reads on sees to the rest itself.
func Head[T any](array []T) {
	if n := min(len(array)*int(unsafe.Sizeof(*new(T)))/lineBytes, head); n > 0 {
		run(unsafe.Pointer(unsafe.SliceData(array)), n, Sparing)
	}
}
