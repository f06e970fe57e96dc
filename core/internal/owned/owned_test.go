package owned

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// told collects what is told of while body runs, and counts.
func told(t *testing.T, body func()) (text string, count uint64) {
	t.Helper()
	var log bytes.Buffer
	Tell(slog.New(slog.NewTextHandler(&log, nil)))
	defer Tell(nil)
	before := Faults()
	body()
	return log.String(), Faults() - before
}

func TestAGoroutineThatPanicsEndsNothingElse(t *testing.T) {
	closed := false
	text, count := told(t, func() {
		var g Group
		g.Go(func() {
			defer func() { closed = true }()
			panic("a fault")
		})
		g.Go(func() {})
		g.Wait()
	})
	require.True(t, closed, "what it deferred was done")
	require.EqualValues(t, 1, count)
	require.Contains(t, text, `cause="a fault"`)
	require.Contains(t, text, "owned_test.go", "the stack says where")
}

func TestALoopThatIsKeptBeginsAnew(t *testing.T) {
	stop := make(chan struct{})
	var g Group
	var runs atomic.Int32
	_, count := told(t, func() {
		g.keep(stop, time.Millisecond, func() {
			if runs.Add(1) < 3 {
				panic("a fault")
			}
			<-stop
		})
		require.Eventually(t, func() bool { return runs.Load() == 3 }, 10*time.Second, time.Millisecond)
		close(stop)
		g.Wait()
	})
	require.EqualValues(t, 2, count)
}

func TestALoopThatIsKeptEndsInItsRest(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	var g Group
	_, count := told(t, func() {
		g.keep(stop, time.Hour, func() { panic("a fault") })
		g.Wait()
	})
	require.EqualValues(t, 1, count)
}

func TestTryMakesAnErrorOfAPanic(t *testing.T) {
	own := errors.New("own")
	_, count := told(t, func() {
		require.NoError(t, Try(func() error { return nil }))
		require.ErrorIs(t, Try(func() error { return own }), own)
		err := Try(func() error { panic(own) })
		require.ErrorIs(t, err, ErrFault)
		require.ErrorContains(t, err, "own")
		require.True(t, Do(func() {}))
		require.False(t, Do(func() { clear([]int{0}[len(os.Args)+1:]) }))
	})
	require.EqualValues(t, 2, count)
}

func TestWhatATimerOrAContextRunsIsGuarded(t *testing.T) {
	_, count := told(t, func() {
		ctx, cancel := context.WithCancel(t.Context())
		before := Faults()
		After(ctx, func() { panic("a fault") })
		time.AfterFunc(0, Guarded(func() { panic("another") }))
		cancel()
		require.Eventually(t, func() bool { return Faults() == before+2 }, 10*time.Second, time.Millisecond)
		require.True(t, After(t.Context(), func() {})(), "in time")
	})
	require.EqualValues(t, 2, count)
}

// TestGoexitIsNoFault: a test's FailNow, for one, ends a goroutine so.
func TestGoexitIsNoFault(t *testing.T) {
	_, count := told(t, func() {
		var g Group
		g.Go(runtime.Goexit)
		g.Wait()
	})
	require.Zero(t, count)
}
