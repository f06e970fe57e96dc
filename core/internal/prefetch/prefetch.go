// Package prefetch has memory loaded into the cache while the processor goes on: who looks at many places that are far from each other
// waits for all of them at once.
package prefetch

// Lines asks for the cache lines at addresses, which may be anything: a prefetch neither reads nor fails.
func Lines(addresses []uintptr) {
	if len(addresses) > 0 {
		lines(&addresses[0], len(addresses))
	}
}
