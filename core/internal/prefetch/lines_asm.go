//go:build (amd64 || arm64) && !noasm

package prefetch

import "unsafe"

// lines must be given a few dozen at most: the scheduler cannot interrupt assembly.
//
//go:noescape
func lines(first *uintptr, n int)

// run must be given a few dozen at most, as lines.
//
//go:noescape
func run(first unsafe.Pointer, n int)
