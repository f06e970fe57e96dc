//go:build (amd64 || arm64) && !noasm

package prefetch

// lines must be given a few dozen at most: the scheduler cannot interrupt assembly.
//
//go:noescape
func lines(first *uintptr, n int)
