//go:build (amd64 || arm64) && !noasm

package prefetch

import "unsafe"

// lines must be given a few dozen at most: the scheduler cannot interrupt assembly.
//
//go:noescape
func lines(first *uintptr, n int)

// run must be given a few dozen at most, as lines. If they are read once they need not stay in the caches at the cost of what is looked at again.
//
//go:noescape
func run(first unsafe.Pointer, n int, once bool)
