// Package leaktest fails a package's tests if they leave goroutines behind.
package leaktest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"
)

// Main is a TestMain: it runs the tests, waits for their goroutines to end, and exits.
func Main(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(code) // the fuzzer leaves goroutines of its own
	}
	for range 500 {
		if runtime.NumGoroutine() <= before {
			os.Exit(code)
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Fprintf(os.Stderr, "goroutines left: %d before, %d after\n", before, runtime.NumGoroutine())
	pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	os.Exit(1)
}
