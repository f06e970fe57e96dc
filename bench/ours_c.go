package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/router"
)

func init() {
	prepare["c"] = func() map[string]measurement {
		return map[string]measurement{
			"call":        func() map[string][]float64 { return one(fromC("call") - fromGo(sequences())) },
			"best_worker": func() map[string][]float64 { return one(fromC("best_worker") - fromGo(bestWorker())) },
			"best_worker_apart": func() map[string][]float64 {
				decide := bestWorker()
				apart := fromGo(func() { something(); decide() }) - fromGo(something)
				return one(fromC("best_worker") - apart)
			},
			"stream": func() map[string][]float64 { return one(fromC("stream")) },
		}
	}
}

// fromC runs c/calls.c, which build.sh compiles, and gives what it measured.
func fromC(what string) (figure float64) {
	text, err := exec.Command(os.Getenv("DGO_BENCH_C"), what).Output()
	must(err)
	_, err = fmt.Sscan(string(text), &figure)
	must(err)
	return figure
}

// fromGo measures a call as c/calls.c does: the least mean of a window, on one thread.
func fromGo(call func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least := 1e18
	for range 400 {
		start := threadCPU()
		for range 500 {
			call()
		}
		least = min(least, (threadCPU()-start)/500)
	}
	return least
}

// something is other code, as there is between the calls of a program that does more than to call.
func something() {
	var text [64]byte
	_ = fmt.Appendf(text[:0], "%d %d", 17, 18)
}

func sequences() func() {
	hashes, room := []block.Hash{1}, make([]block.SequenceHash, 1)
	return func() { block.Sequences(room[:0], hashes) }
}

func bestWorker() func() {
	r, err := router.New(16, router.DefaultConfig(), router.Options{})
	must(err)
	must(r.AddWorker(router.Worker{}))
	return func() {
		var request router.Request
		_, err := r.BestWorker(&request)
		must(err)
	}
}
