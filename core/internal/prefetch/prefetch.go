// Package prefetch has memory loaded into the cache while the processor goes on: who looks at many places that are far from each other
// waits for all of them at once.
package prefetch

import "unsafe"

// Lines asks for the cache lines at addresses, which may be anything: a prefetch neither reads nor fails.
func Lines(addresses []uintptr) {
	if len(addresses) > 0 {
		lines(&addresses[0], len(addresses))
	}
}

// lineBytes is the size of a cache line on the processors that have run and lines.
const lineBytes = 64

// Head asks for the beginning of an array that is read once from there on, and soon, at most so many bytes: what reads on sees to the rest itself.
// The lines are not kept at the cost of what is looked at again.
func Head[T any](array []T, most int) {
	if n := min(len(array)*int(unsafe.Sizeof(*new(T))), most) / lineBytes; n > 0 {
		run(unsafe.Pointer(unsafe.SliceData(array)), n)
	}
}
