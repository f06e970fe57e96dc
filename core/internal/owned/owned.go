// Package owned is how goroutines are started: each belongs to a Group, whose Wait is how its owner stops it, and none ends the process.
//
// The library is a guest: a panic that nobody recovers would end a host that serves. So every goroutine, and every function that a timer or a
// context runs on one, recovers; what was recovered is counted and told. A Go host is told by slog's default logger, unless Tell says otherwise.
// What the goroutine was about ends: locks are given back and sockets closed by what it deferred. An owner that cannot do without it keeps it
// with Keep, or makes an error of the panic with Try.
package owned

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// ErrFault: the library panicked. It is its own fault, and not the caller's.
var ErrFault = errors.New("internal fault")

var (
	faults atomic.Uint64
	teller atomic.Pointer[slog.Logger]
)

// Faults counts the panics that were recovered since the process started.
func Faults() uint64 { return faults.Load() }

// Tell says which logger is told of panics; nil: slog's default one.
func Tell(log *slog.Logger) { teller.Store(log) }

// Report counts a panic, and tells of it with the stack: call it where recover is called.
func Report(cause any) {
	defer faults.Add(1)
	defer func() { _ = recover() }() // of a logger that panics too
	log := teller.Load()
	if log == nil {
		log = slog.Default()
	}
	log.Error("fault of the library: recovered", "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
}

// Try runs body. A panic is reported, and becomes an error: ErrFault.
func Try(body func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			Report(cause)
			err = fmt.Errorf("%w: %v", ErrFault, cause)
		}
	}()
	return body()
}

// Do runs body, and tells whether it came to its end. A panic is reported.
func Do(body func()) (ok bool) {
	return Try(func() error { body(); return nil }) == nil
}

// Guarded is body, and reports a panic of it: for time.AfterFunc and context.AfterFunc, which run it on a goroutine of its own.
func Guarded(body func()) func() {
	return func() { Do(body) }
}

// A Group is the goroutines of one owner. The zero value is empty.
type Group struct{ sync.WaitGroup }

// Go runs body on a goroutine of the group.
func (g *Group) Go(body func()) { g.WaitGroup.Go(Guarded(body)) }

// pause is how long a loop rests after a panic: a fault that comes again at once must not take a whole core.
const pause = time.Second

// Keep is Go for a loop that its owner cannot do without: after a panic, and a second, it begins anew, unless stop is closed by then. So body must be
// fit to be called again.
func (g *Group) Keep(stop <-chan struct{}, body func()) { g.keep(stop, pause, body) }

func (g *Group) keep(stop <-chan struct{}, pause time.Duration, body func()) {
	g.Go(func() {
		for !Do(body) {
			rest := time.NewTimer(pause)
			select {
			case <-stop:
				rest.Stop()
				return
			case <-rest.C:
			}
		}
	})
}

// After runs body on a goroutine when ctx ends, unless stop is called before; stop tells whether it was in time, as that of context.AfterFunc.
func After(ctx context.Context, body func()) (stop func() bool) {
	return context.AfterFunc(ctx, Guarded(body))
}
