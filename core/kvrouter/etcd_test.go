package kvrouter

import (
	"context"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/etcd"
)

// seconds gives how long a part of a test takes: a soak sets the variable.
func seconds(t testing.TB, name string, fallback time.Duration) time.Duration {
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// echo is a worker that answers at once, in a process of its own by discovery.
type echo struct {
	r       *runtime.Runtime
	service *runtime.Service
}

func newEcho(t testing.TB, o etcd.Options) *echo {
	store, err := etcd.Open(o)
	require.NoError(t, err)
	w := &echo{r: runtime.New(store, runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})}
	w.service, err = endpoint(t, w.r).Serve(func(c *runtime.Call) error {
		return c.Send(item(`{"token_ids":[1],"finish_reason":"length"}`))
	}, runtime.ServeOptions{})
	require.NoError(t, err)
	require.NoError(t, w.service.RegisterModel([]byte(plainCard)))
	t.Cleanup(w.close)
	return w
}

func (w *echo) close() {
	w.service.Close(true)
	_ = w.r.Close()
}

func inEtcd(t testing.TB, o etcd.Options) *runtime.Runtime {
	store, err := etcd.Open(o)
	require.NoError(t, err)
	r := runtime.New(store, runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func admin(t testing.TB, e *servertest.Etcd) *clientv3.Client {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.URL}})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func workerIDs(t testing.TB, k *KvRouter) (ids []uint64) {
	rows, err := k.Router().Workers()
	require.NoError(t, err)
	for _, row := range rows {
		ids = append(ids, row.WorkerID)
	}
	slices.Sort(ids)
	return ids
}

func descriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Etcd is stopped and started, loses its history, and workers lose their leases, while 50 requests a second go on: none is lost; who joined meanwhile
// is there after etcd's return; nothing is left behind. DGO_SOAK_ETCD_OUTAGE is how long etcd is away.
func TestRequestsGoOnWithoutEtcd(t *testing.T) {
	outage := seconds(t, "DGO_SOAK_ETCD_OUTAGE", 3*time.Second)
	e := servertest.StartEtcd(t, nil)
	options := etcd.Options{Endpoints: []string{e.URL}, LeaseTTL: 3 * time.Second}
	var workers []*echo
	for range 4 {
		workers = append(workers, newEcho(t, options))
	}
	k := start(t, inEtcd(t, options), router.DefaultConfig())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+outage)
	defer cancel()
	require.NoError(t, k.WaitForWorkers(ctx, 4))
	c := admin(t, e)
	_, err := c.Get(ctx, "other") // it is connected from now on
	require.NoError(t, err)

	var sent, failed atomic.Int64
	stop := make(chan struct{})
	var load, requests sync.WaitGroup
	load.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := uint32(0); ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			requests.Go(func() {
				sent.Add(1)
				s, err := k.Generate(ctx, request(n, n, n, n))
				for err == nil {
					_, err = s.Recv()
				}
				if !assert.Equal(t, io.EOF, err) {
					failed.Add(1)
				}
			})
		}
	})
	await(t, "requests go", func() bool { return sent.Load() > 20 })
	goroutines, files, memory := goruntime.NumGoroutine(), descriptors(t), heap()

	round := func(outage time.Duration) {
		e.Kill()
		down := time.Now()
		late := options
		late.Background = true
		joined := newEcho(t, late)
		workers = append(workers, joined)
		leaving := workers[0]
		workers = workers[1:]
		leaving.close()
		time.Sleep(time.Until(down.Add(outage)))
		e.Start()
		back := time.Now()
		await(t, "who joined is seen", func() bool { return slices.Contains(workerIDs(t, k), joined.r.ID()) })
		t.Logf("etcd was away for %v; who joined is seen %v after its return", outage, time.Since(back))

		answer, err := c.Put(ctx, "other", "x")
		require.NoError(t, err)
		_, err = c.Compact(ctx, answer.Header.Revision)
		require.NoError(t, err)
		_, err = c.Revoke(ctx, clientv3.LeaseID(workers[1].r.ID()))
		require.NoError(t, err)
		await(t, "all who live are workers, and nobody else", func() bool {
			var want []uint64
			for _, w := range workers {
				want = append(want, w.r.ID())
			}
			slices.Sort(want)
			return slices.Equal(want, workerIDs(t, k))
		})
	}
	round(outage)
	round(time.Second)
	close(stop)
	load.Wait()
	requests.Wait()
	require.Zero(t, failed.Load(), "of %d requests", sent.Load())
	t.Logf("%d requests, none lost", sent.Load())
	await(t, "no goroutine is left", func() bool { return goruntime.NumGoroutine() <= goroutines })
	await(t, "no descriptor is left", func() bool { return descriptors(t) <= files+8 }) // idle connections come and go
	require.Less(t, heap(), memory+8<<20)
}

// heap is what lives.
func heap() uint64 {
	goruntime.GC()
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Of 1,000 workers a tenth is replaced each second, in Dynamo's order of records: the router's workers are never more than 2 s behind.
// DGO_SOAK_CHURN is for how long. The CPU share is told.
func TestWorkersComeAndGo(t *testing.T) {
	const all, perSecond = 1000, 100
	duration := seconds(t, "DGO_SOAK_CHURN", 3*time.Second)
	e := servertest.StartEtcd(t, nil)
	c := admin(t, e)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+duration)
	defer cancel()
	name := endpoint(t, newRuntime(t)).Name
	next := uint64(1 << 60)
	var order []uint64
	gone := make(map[uint64]time.Time)
	joined := make(map[uint64]time.Time)
	join := func() {
		next++
		id := next
		_, err := c.Grant(ctx, 600)
		require.NoError(t, err)
		i := discovery.Instance{Name: name, ID: id, TCP: "127.0.0.1:1/x", Codec: discovery.CodecMsgpack}
		m := discovery.Model{Name: name, ID: id, Card: []byte(`{"display_name":"m","kv_cache_block_size":4,"runtime_config":{"total_kv_blocks":100}}`)}
		ch := discovery.Channel{Scope: name, Topic: "kv-events", Publisher: id, ZMQ: "tcp://127.0.0.1:1"}
		src := discovery.Source{Scope: name, Topic: "kv-events", Publisher: id, WorkerID: id}
		_, err = c.Txn(ctx).Then(
			clientv3.OpPut(discovery.ModelKey(name, id, "").String(), string(m.Encode())),
			clientv3.OpPut(discovery.ChannelKey(name, "kv-events", id).String(), string(ch.Encode())),
			clientv3.OpPut(discovery.SourceKey(name, "kv-events", id).String(), string(src.Encode())),
			clientv3.OpPut(discovery.InstanceKey(name, id).String(), string(i.Encode())),
		).Commit()
		require.NoError(t, err)
		order = append(order, id)
		joined[id] = time.Now()
	}
	leave := func() {
		id := order[0]
		order = order[1:]
		delete(joined, id)
		gone[id] = time.Now()
		_, err := c.Txn(ctx).Then(
			clientv3.OpDelete(discovery.ModelKey(name, id, "").String()), clientv3.OpDelete(discovery.ChannelKey(name, "kv-events", id).String()),
			clientv3.OpDelete(discovery.SourceKey(name, "kv-events", id).String()), clientv3.OpDelete(discovery.InstanceKey(name, id).String()),
		).Commit()
		require.NoError(t, err)
	}
	for range all {
		join()
	}
	// Replacing them costs something too: first without a router.
	alone, began := cpuTime(), time.Now()
	for replaced := range perSecond {
		time.Sleep(time.Until(began.Add(time.Duration(replaced) * time.Second / perSecond)))
		leave()
		join()
	}
	alone = time.Duration(float64(cpuTime()-alone) / time.Since(began).Seconds())

	k := start(t, inEtcd(t, etcd.Options{Endpoints: []string{e.URL}}), router.DefaultConfig())
	require.NoError(t, k.WaitForWorkers(ctx, all))
	began = time.Now()
	cpu := cpuTime()
	slowest := time.Duration(0)
	for replaced := 0; time.Since(began) < duration; replaced++ {
		time.Sleep(time.Until(began.Add(time.Duration(replaced) * time.Second / perSecond)))
		leave()
		join()
		if replaced%20 != 19 {
			continue
		}
		// Whatever is longer ago than the slack is known to the router.
		ids, now := workerIDs(t, k), time.Now()
		for id, at := range joined {
			if !slices.Contains(ids, id) {
				slowest = max(slowest, now.Sub(at))
			}
		}
		for _, id := range ids {
			if at, left := gone[id]; left {
				slowest = max(slowest, now.Sub(at))
			}
		}
		require.Less(t, slowest, 2*time.Second)
	}
	spent := time.Since(began)
	t.Logf("%d workers, %d replaced a second for %v: never more than %v behind; CPU %.0f %% of a core, and %.0f %% to replace them",
		all, perSecond, spent, slowest, 100*(float64(cpuTime()-cpu)/spent.Seconds()-float64(alone))/float64(time.Second), 100*alone.Seconds())
	await(t, "all is as it should be in the end", func() bool {
		want := slices.Clone(order)
		slices.Sort(want)
		return slices.Equal(want, workerIDs(t, k))
	})
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprint(err))
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
