//go:build interop

package kvrouter_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/dynamotest"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

const (
	path      = "wire.back-end.generate"
	blockSize = 16
)

var local = runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"}

func join(t *testing.T, dir string) *runtime.Runtime {
	store, err := file.Open(dir, file.Options{})
	require.NoError(t, err)
	r := runtime.New(store, local)
	t.Cleanup(func() { r.Close() })
	return r
}

func newRouter(t *testing.T, r *runtime.Runtime, workers int) *kvrouter.KvRouter {
	e, err := r.Endpoint(path)
	require.NoError(t, err)
	c := router.DefaultConfig()
	c.RouterReplicaSync = true
	k, err := kvrouter.New(e, blockSize, c, router.Options{})
	require.NoError(t, err)
	t.Cleanup(k.Close)
	require.NoError(t, k.WaitForWorkers(patience(t), workers))
	return k
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), dynamotest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(dynamotest.Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

func prompt(tokens []uint32, model string) *kvrouter.Request {
	fields, err := wire.FromJSON(nil, []byte(`{"model":"`+model+`","stop_conditions":{"max_tokens":3}}`))
	if err != nil {
		panic(err)
	}
	q := &kvrouter.Request{Fields: fields}
	q.Tokens = tokens
	return q
}

func random(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rand.Uint32()
	}
	return tokens
}

// drain reads a stream to its end.
func drain(s *kvrouter.Stream) (items int, err error) {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return items, nil
		} else if err != nil {
			return items, err
		}
		items++
	}
}

// overlap is how much of a prompt a worker is known to hold.
func overlap(t *testing.T, k *kvrouter.KvRouter, tokens []uint32, worker uint64) int {
	rows, err := k.Router().OverlapScores(&router.Prompt{Tokens: tokens})
	require.NoError(t, err)
	for _, row := range rows.Workers {
		if row.WorkerID == worker {
			return int(row.DeviceBlocks)
		}
	}
	return -1
}

func idle(t *testing.T, k *kvrouter.KvRouter) {
	await(t, "nothing is booked any more", func() bool {
		s, err := k.Router().Stats()
		require.NoError(t, err)
		return s.ActiveRequests == 0
	})
}

// Our router with Dynamo's workers.
func TestRouterOfDynamosWorkers(t *testing.T) {
	for _, release := range dynamotest.Releases(t) {
		t.Run(release, func(t *testing.T) { routerOf(t, release) })
	}
}

func routerOf(t *testing.T, release string) {
	dir := t.TempDir()
	workers := map[uint64]*dynamotest.Process{}
	var started []*dynamotest.Process
	for range 2 {
		started = append(started, dynamotest.Start(t, release, dir, "worker.py", path))
	}
	for _, w := range started {
		workers[w.Ready()] = w
	}
	ctx := patience(t)
	k := newRouter(t, join(t, dir), 2)

	// Prompts that grow by a block: each finds what the one before left, and so the same worker.
	began := time.Now()
	var home uint64
	tokens := random(4 * blockSize)
	for i := range 100 {
		s, err := k.Generate(ctx, prompt(tokens, "ok"))
		require.NoError(t, err)
		c := s.Choice()
		if i == 0 {
			home = c.WorkerID
		} else {
			require.Equal(t, home, c.WorkerID)
			require.EqualValues(t, len(tokens)/blockSize-1, c.OverlapBlocks)
		}
		n, err := drain(s)
		require.NoError(t, err)
		require.Equal(t, 3, n)
		timing := s.Timing()
		require.NotZero(t, timing.Prefill)
		require.NotZero(t, timing.Total)
		held := len(tokens) / blockSize
		await(t, "the worker's event arrives", func() bool { return overlap(t, k, tokens, home) == held })
		tokens = append(tokens, random(blockSize)...)
	}
	t.Logf("100 generates: %v", time.Since(began))
	idle(t, k)
	for _, h := range health(t, k) {
		require.Equal(t, "exact", string(h.State), "%+v", h)
	}

	// Errors and ends of all kinds free what was booked.
	for model, want := range map[string]string{"err0": "boom before first item", "errmid": "boom after first item"} {
		s, err := k.Generate(ctx, prompt(random(64), model))
		require.NoError(t, err)
		_, err = drain(s)
		require.ErrorIs(t, err, plane.ErrWorker)
		require.ErrorContains(t, err, want)
	}
	for name, end := range map[string]func(*kvrouter.Stream){"stop": (*kvrouter.Stream).Stop, "close": (*kvrouter.Stream).Close} {
		s, err := k.Generate(ctx, prompt(random(64), "slow"))
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		end(s)
		_, err = drain(s)
		require.ErrorIs(t, err, plane.ErrCancelled)
		var line struct{ Killed bool }
		workers[s.Choice().WorkerID].Await("killed", "", &line)
		require.Equal(t, name == "close", line.Killed)
	}
	cancelled, cancel := context.WithCancel(ctx)
	s, err := k.Generate(cancelled, prompt(random(64), "slow"))
	require.NoError(t, err)
	cancel()
	_, err = drain(s)
	require.ErrorIs(t, err, plane.ErrCancelled)
	idle(t, k)

	// A router that comes late recovers the tree, and both agree on loads.
	late := newRouter(t, join(t, dir), 2)
	tokens = tokens[:len(tokens)-blockSize]
	await(t, "the late router recovers", func() bool { return overlap(t, late, tokens, home) == len(tokens)/blockSize })
	await(t, "the routers hear each other", func() bool {
		a, err := k.Router().Stats()
		require.NoError(t, err)
		b, err := late.Router().Stats()
		require.NoError(t, err)
		return a.Replicas.Connected == 2 && b.Replicas.Connected == 2 && a.Replicas.Listeners == 2 && b.Replicas.Listeners == 2
	})
	var streams []*kvrouter.Stream
	for _, r := range []*kvrouter.KvRouter{k, late, k} {
		s, err := r.Generate(ctx, prompt(random(160), "slow"))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	agree := func() bool {
		x, err := k.Router().PotentialLoads(nil, &router.Prompt{})
		require.NoError(t, err)
		y, err := late.Router().PotentialLoads(nil, &router.Prompt{})
		require.NoError(t, err)
		return fmt.Sprint(x) == fmt.Sprint(y)
	}
	await(t, "both count three requests", func() bool {
		a, _ := k.Router().Stats()
		b, _ := late.Router().Stats()
		return a.ActiveRequests == 3 && b.ActiveRequests == 3 && agree()
	})
	for _, s := range streams {
		s.Close()
	}
	idle(t, k)
	idle(t, late)
	require.True(t, agree())

	// What a worker says of its load.
	direct(t, k, home, `{"cmd":"metrics"}`)
	await(t, "the worker's metrics arrive", func() bool {
		m := k.Metrics()
		return len(m) == 1 && m[0].Worker.ID == home && *m[0].DecodeBlocks == 7 && m[0].PrefillTokens == nil && *m[0].KVUsedBlocks == 9
	})

	// A worker that is killed ends its streams, and leaves within its lease. Meanwhile its requests go to the other one.
	s, err = k.Generate(ctx, prompt(tokens, "slow"))
	require.NoError(t, err)
	require.Equal(t, home, s.Choice().WorkerID)
	_, err = s.Recv()
	require.NoError(t, err)
	workers[home].Signal(syscall.SIGKILL)
	_, err = drain(s)
	require.ErrorIs(t, err, plane.ErrDisconnected)
	s, err = k.Generate(ctx, prompt(tokens, "ok"))
	require.NoError(t, err)
	require.NotEqual(t, home, s.Choice().WorkerID)
	_, err = drain(s)
	require.NoError(t, err)
	await(t, "the dead worker leaves", func() bool {
		rows, err := k.Router().Workers()
		require.NoError(t, err)
		return len(rows) == 1 && rows[0].WorkerID != home
	})
	idle(t, k)
}

func health(t *testing.T, k *kvrouter.KvRouter) []router.RankHealth {
	rows, err := k.Router().Health()
	require.NoError(t, err)
	return rows
}

func direct(t *testing.T, k *kvrouter.KvRouter, id uint64, body string) {
	b, err := wire.FromJSON(nil, []byte(body))
	require.NoError(t, err)
	s, err := k.Client().Direct(patience(t), id, &runtime.Request{ID: "direct", Body: b})
	require.NoError(t, err)
	for err == nil {
		_, err = s.Recv()
	}
	require.Equal(t, io.EOF, err)
}
