package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"unsafe"
)

const (
	clockWall    = 1 // CLOCK_MONOTONIC
	clockProcess = 2 // CLOCK_PROCESS_CPUTIME_ID
	clockThread  = 3 // CLOCK_THREAD_CPUTIME_ID
)

func clock(id uintptr) float64 {
	var t syscall.Timespec
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&t)), 0); err != 0 {
		panic(err)
	}
	return float64(t.Nano())
}

// cpu is the CPU time of this process in nanoseconds: what the garbage collector does beside the caller counts.
func cpu() float64 { return clock(clockProcess) }

// threadCPU is the CPU time of the caller's thread, to which it must be locked.
func threadCPU() float64 { return clock(clockThread) }

// samples are CPU times of short stretches of work, per unit of it.
type samples struct {
	all, calm []float64
	spent     float64 // in all
}

// take runs a stretch of n units. It was calm if the process had a processor all the time. Otherwise caches are not what they were; and of time that a
// host takes from its guest a kernel may learn late, and take it off from a stretch that it was not in, which so looks far too short.
func (s *samples) take(n int, work func()) {
	const all = 0.95
	wall, start := clock(clockWall), cpu()
	work()
	took := cpu() - start
	wall = clock(clockWall) - wall
	s.spent += took
	s.all = append(s.all, took/float64(n))
	if took >= all*wall {
		s.calm = append(s.calm, took/float64(n))
	}
}

// best gives the calm samples, or all if none is.
func (s *samples) best() []float64 {
	if len(s.calm) == 0 {
		return s.all
	}
	return s.calm
}

// batches gives means of batches of calls, in nanoseconds a call, for about 100 ms of CPU time. call gets numbers that count up.
func batches(size int, call func(n int)) []float64 {
	var s samples
	n := 0
	for s.spent < 100e6 || len(s.all) < 3 {
		s.take(size, func() {
			for range size {
				call(n)
				n++
			}
		})
	}
	return s.best()
}

// spent gives the CPU time of a call that begins without garbage and without free memory, so that what grows pays for its pages.
func spent(call func()) float64 {
	debug.FreeOSMemory()
	start := cpu()
	call()
	return cpu() - start
}

// steady gives the CPU time of a call that begins without garbage, in a process that goes on as before: its free memory stays its own, as
// that of a peer does.
func steady(call func()) float64 {
	runtime.GC()
	start := cpu()
	call()
	return cpu() - start
}

// resident is the memory of this process in bytes, after the collector gave back what it can.
func resident() float64 {
	runtime.GC()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	must(err)
	var total, pages int
	_, err = fmt.Fscan(bytes.NewReader(text), &total, &pages)
	must(err)
	return float64(pages * os.Getpagesize())
}

// p99 gives the 99th percentile.
func p99(samples []int64) float64 {
	slices.Sort(samples)
	return float64(samples[len(samples)*99/100])
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
