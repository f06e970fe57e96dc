//go:build !race

package indextest

// Race tells that the race detector is on. Tests of one goroutine show it nothing and are ten times slower under it, so they do less.
const Race = false
