package router_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// A thousand workers, of which half accept connections and say nothing: registering waits for nobody, and the others are
// exact while those are still being waited for.
func TestSilentWorkersHoldNobodyUp(t *testing.T) {
	const workers = 1000
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "silent"))
	require.NoError(t, err)
	defer silent.Close() // nobody accepts: the kernel does
	done := make(chan struct{})
	mute, err := zmq.ListenRouter("ipc://"+filepath.Join(t.TempDir(), "mute"), zmq.Options{}, func([][]byte, func(...[]byte) error) { <-done })
	require.NoError(t, err)
	defer mute.Close()
	defer close(done)
	e := newEngine(t, 0)
	e.store(tokens(1, 64))
	k := newKit(t, 16, router.DefaultConfig())
	began := time.Now()
	for id := range uint64(workers) {
		w := router.Worker{ID: id, KVEvents: router.Endpoints{Base: e.Addr()}, Replay: router.Endpoints{Base: e.ReplayAddr()}}
		switch id % 4 {
		case 1: // neither socket answers
			w.KVEvents.Base, w.Replay.Base = "ipc://"+silent.Addr().String(), ""
		case 3: // events come, and the replay socket says nothing
			w.Replay.Base = mute.Addr()
		}
		require.NoError(t, k.AddWorker(w))
	}
	registered := time.Since(began)
	k.eventually("those that answer are exact", func() bool {
		n := 0
		for id, state := range k.states() {
			if state == feed.Exact && id%2 == 0 {
				n++
			}
		}
		return n == workers/2
	})
	depth := k.depth(tokens(1, 64))
	for id := range uint64(workers) {
		want := uint32(4)
		if id%2 == 1 {
			want = 0
		}
		require.Equal(t, want, depth[fmt.Sprintf("%d/0", id)])
	}
	t.Logf("registered in %v, half of them exact after %v", registered, time.Since(began))
	closing := time.Now()
	k.Close()
	t.Logf("closed in %v", time.Since(closing))
}

// Routers that come and go leave nothing behind.
func TestRoutersLeaveNothingBehind(t *testing.T) {
	e := newEngine(t, 0)
	e.store(tokens(1, 64))
	cycle := func() {
		r, err := router.New(16, router.DefaultConfig(), router.Options{})
		require.NoError(t, err)
		defer r.Close()
		for id := range uint64(4) {
			w := follows(id, e)
			if id == 3 {
				w.KVEvents.Base = "tcp://127.0.0.1:1"
			}
			require.NoError(t, r.AddWorker(w))
		}
		require.Eventually(t, func() bool {
			rows, err := r.Health()
			require.NoError(t, err)
			return rows[0].State == feed.Exact
		}, 20*time.Second, time.Millisecond)
	}
	count := func() (goroutines, threads, files int) {
		tasks, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		fds, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return runtime.NumGoroutine(), len(tasks), len(fds)
	}
	for range 5 {
		cycle()
	}
	goroutines, threads, files := count()
	for range 200 {
		cycle()
	}
	now := func() string {
		g, n, f := count()
		if g <= goroutines && n <= threads+20 && f <= files { // the runtime keeps every thread it once needed, and a leak would be 200
			return ""
		}
		return fmt.Sprintf("%d goroutines, before %d; %d threads, before %d; %d files, before %d", g, goroutines, n, threads, f, files)
	}
	for deadline := time.Now().Add(20 * time.Second); now() != "" && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	require.Empty(t, now())
}
