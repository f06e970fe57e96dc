package kvrouter

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
	"github.com/dynamo-go/dynamo-go/core/runtime/nats"
)

// over joins a directory's deployment with both planes over a NATS server.
func over(t testing.TB, dir string, server *servertest.NATS) *runtime.Runtime {
	store, err := file.Open(dir, file.Options{})
	require.NoError(t, err)
	c, err := nats.Connect(nats.Options{Servers: []string{server.URL}})
	require.NoError(t, err)
	r := runtime.New(store, runtime.Options{
		RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1", Requests: c, Events: c, Shared: []interface{ Close() }{c},
	})
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// storing is a worker that holds what it was asked, and answers in a few items.
func storing(t testing.TB, r *runtime.Runtime) *testWorker {
	w := &testWorker{id: r.ID()}
	s, err := endpoint(t, r).Serve(func(c *runtime.Call) error {
		for i := range 3 {
			if err := c.Send(item(fmt.Sprintf(`{"token_ids":[%d]}`, i))); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return c.Send(item(`{"token_ids":[],"finish_reason":"length"}`))
	}, runtime.ServeOptions{})
	require.NoError(t, err)
	w.Service = s
	w.source, err = kvsource.New(endpoint(t, r), kvsource.Config{BlockSize: blockSize})
	require.NoError(t, err)
	require.NoError(t, s.RegisterModel([]byte(plainCard)))
	t.Cleanup(func() {
		s.Close(false)
		require.NoError(t, w.source.Close())
	})
	return w
}

func tokens(n int) []block.Token {
	all := make([]block.Token, n)
	for i := range all {
		all[i] = block.Token(rand.Uint32())
	}
	return all
}

// A NATS server that is killed and comes back, under load, loses no request whose worker lives; what the workers told meanwhile is known soon after, and
// nothing is left behind.
func TestNATSServerRestartsUnderLoad(t *testing.T) {
	server := servertest.StartNATS(t, nil, "")
	dir := t.TempDir()
	workers := map[uint64]*testWorker{}
	for range 2 {
		w := storing(t, over(t, dir, server))
		workers[w.id] = w
	}
	config := router.DefaultConfig()
	config.RouterReplicaSync = true
	k, other := start(t, over(t, dir, server), config), start(t, over(t, dir, server), config)
	require.NoError(t, k.WaitForWorkers(context.Background(), 2))
	require.NoError(t, other.WaitForWorkers(context.Background(), 2))
	exact := func(k *KvRouter) func() bool {
		return func() bool {
			rows, err := k.Router().Health()
			require.NoError(t, err)
			for _, row := range rows {
				if row.State != "exact" {
					return false
				}
			}
			return len(rows) == 2
		}
	}
	await(t, "all is known", exact(k))

	var load sync.WaitGroup
	var done atomic.Int64
	var worst atomic.Int64
	stop := make(chan struct{})
	load.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ; { // 50 a second
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
			load.Go(func() {
				began := time.Now()
				s, err := k.Generate(context.Background(), request(tokens(4*blockSize)...))
				if !assert.NoError(t, err) {
					return
				}
				n := 0
				for ; err == nil; n++ {
					_, err = s.Recv()
				}
				assert.Equal(t, io.EOF, err)
				assert.Equal(t, 5, n)
				done.Add(1)
				for took := int64(time.Since(began)); ; {
					if was := worst.Load(); took <= was || worst.CompareAndSwap(was, took) {
						break
					}
				}
			})
		}
	})
	await(t, "it runs", func() bool { return done.Load() > 20 })
	goroutines := goruntime.NumGoroutine()
	var held [][]block.Token
	for range 3 {
		server.Kill()
		for _, w := range workers { // nothing follows that would show that this is missing
			kept := tokens(8 * blockSize)
			w.store(t, kept)
			held = append(held, kept)
		}
		time.Sleep(500 * time.Millisecond)
		server.Start()
		back := time.Now()
		before := done.Load()
		await(t, "it goes on", func() bool { return done.Load() > before+20 })
		for _, r := range []*KvRouter{k, other} {
			await(t, "what was told meanwhile is known", func() bool {
				for _, kept := range held {
					rows, err := r.Router().OverlapScores(&router.Prompt{Tokens: kept})
					require.NoError(t, err)
					best := 0
					for _, row := range rows.Workers {
						best = max(best, int(row.DeviceBlocks))
					}
					if best != 8 {
						return false
					}
				}
				return exact(r)()
			})
		}
		t.Logf("known again %v after the server was back", time.Since(back))
	}
	close(stop)
	load.Wait()
	t.Logf("%d requests, none lost; the slowest took %v", done.Load(), time.Duration(worst.Load()))
	await(t, "nothing is booked", func() bool { // the other router may have missed an end, which expires there
		s, err := k.Router().Stats()
		require.NoError(t, err)
		return s.ActiveRequests == 0
	})
	await(t, "no goroutine is left of what was", func() bool { return goruntime.NumGoroutine() <= goroutines })
}
