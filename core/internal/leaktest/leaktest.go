// Package leaktest fails a package's tests if they leave goroutines behind, or if one of them panicked and no test meant it to.
package leaktest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

var meant atomic.Uint64

// Faults says that a test means so many panics of the library's goroutines.
func Faults(n uint64) { meant.Add(n) }

// Main is a TestMain: it runs the tests, waits for their goroutines to end, and exits.
func Main(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(code) // the fuzzer leaves goroutines of its own
	}
	for range 3000 {
		if runtime.NumGoroutine() <= before {
			if n := owned.Faults(); n != meant.Load() {
				fmt.Fprintf(os.Stderr, "%d panics were recovered and are told above; the tests meant %d\n", n, meant.Load())
				os.Exit(1)
			}
			os.Exit(code)
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Fprintf(os.Stderr, "goroutines left: %d before, %d after\n", before, runtime.NumGoroutine())
	pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	os.Exit(1)
}
