// Package main is libdynamo_go.so: the C interface of include/dynamo_go.h.
//
// It holds no logic. A public function lives in shim.c, which includes both the public header and cgo's own, so that the
// compiler checks one against the other; it refuses to enter Go in a forked child, and calls the Go function of the same
// name. That checks pointers and lengths (memory.go), finds the object of the handle (handle.go), makes one call and
// maps one error (errors.go). A panic becomes DGO_INTERNAL (guard.go).
//
// Nothing of the caller's memory is kept after a call, and no Go pointer ever leaves: handles are numbers, results are
// copied.
//
// Each file that uses cgo repeats the include below; exports keep names of their own (dgo_go_*), because cgo's prototypes
// know no const.
package main

import "runtime"

// minProcs is how many scheduler slots the library needs: a C caller waits for a free one, so with as few as busy
// goroutines a call waits for a preemption, 8-15 ms at p99 (measured with 2); with 4 and two busy it is below 1 ms.
const minProcs = 4

func init() {
	if runtime.GOMAXPROCS(0) < minProcs {
		runtime.GOMAXPROCS(minProcs)
	}
}

func main() {}
