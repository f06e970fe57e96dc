package kvrouter

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// KvRouter routes to the workers of an endpoint. All methods are safe for concurrent use.
type KvRouter struct {
	r       *runtime.Runtime
	name    discovery.Name
	config  router.Config
	router  *router.Router
	client  *runtime.Client
	members members
	metrics *event.Subscription
	stop    chan struct{}
	once    sync.Once
	running owned.Group
	renewal time.Duration // how often the bookings of streams are renewed

	mu    sync.Mutex // guards loads
	loads map[worker.Rank]Load
}

// New follows an endpoint. The workers that are there are known when it returns; their KV events follow. Errors: those of router.New and of the
// store, and of binding if the configuration asks for replica sync.
func New(e *runtime.Endpoint, blockSize int, config router.Config, options router.Options) (*KvRouter, error) {
	replicas := config.RouterReplicaSync
	config.RouterReplicaSync = false // what the runtime does
	inner, err := router.New(blockSize, config, options)
	if err != nil {
		return nil, err
	}
	k := &KvRouter{
		r: e.Runtime(), name: e.Name, config: config, router: inner, stop: make(chan struct{}), loads: make(map[worker.Rank]Load),
		renewal: cmp.Or(options.RequestExpiry, router.DefaultRequestExpiry) / 4,
	}
	if err := k.start(e, replicas); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

func (k *KvRouter) start(e *runtime.Endpoint, replicas bool) (err error) {
	if k.client, err = e.Client(); err != nil {
		return err
	}
	if err := k.members.watch(k); err != nil {
		return err
	}
	k.members.sync()
	k.metrics, err = event.Subscribe(k.r.Link(), k.name, wire.TopicMetrics, event.Options{Take: k.heard})
	if err != nil {
		return err
	}
	if replicas {
		err = k.router.Share(func(sink replica.Sink) (router.Mesh, error) {
			return event.NewMesh(k.r.Link(), k.name, sink)
		})
	}
	if err == nil {
		k.running.Keep(k.stop, k.members.run)
	}
	return err
}

// Router is what decides. Its workers come and go by discovery: AddWorker and RemoveWorker are not for others.
func (k *KvRouter) Router() *router.Router { return k.router }

// Client calls the workers directly.
func (k *KvRouter) Client() *runtime.Client { return k.client }

// Close stops following, and closes the Router. Streams go on, without bookings. It is idempotent.
func (k *KvRouter) Close() {
	k.once.Do(func() {
		close(k.stop)
		k.running.Wait()
		k.members.close()
		if k.metrics != nil {
			k.metrics.Close()
		}
		if k.client != nil {
			k.client.Close()
		}
		k.router.Close()
	})
}

// Sync takes what discovery shows now; otherwise that follows by itself. The KV events of workers that came follow in any case.
func (k *KvRouter) Sync() {
	k.client.Refresh()
	k.members.sync()
}

// WaitForWorkers waits until so many workers are candidates. Errors: that of ctx, plane.ErrClosed.
func (k *KvRouter) WaitForWorkers(ctx context.Context, n int) error {
	for {
		changed, have := k.members.count()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-k.stop:
			return plane.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Changed gives a channel that is closed when workers come, change or leave.
func (k *KvRouter) Changed() <-chan struct{} {
	changed, _ := k.members.count()
	return changed
}

// Closed is closed by Close.
func (k *KvRouter) Closed() <-chan struct{} { return k.stop }

// Load is what a worker said of itself.
type Load struct {
	wire.ActiveLoad
	At time.Time
}

// heard takes what a worker says of its load.
func (k *KvRouter) heard(e *wire.Envelope) {
	l, err := wire.DecodeActiveLoad(e.Payload)
	if err != nil || !k.members.has(l.Worker.ID) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loads[l.Worker] = Load{l, time.Now()}
}

// Metrics is what the workers' ranks said of their load last, by rank.
func (k *KvRouter) Metrics() []Load {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(maps.Values(k.loads), func(a, b Load) int { return a.Worker.Compare(b.Worker) })
}

// forget drops what a worker said.
func (k *KvRouter) forget(id uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.loads, func(r worker.Rank, _ Load) bool { return r.ID == id })
}

// requestID draws an id that no other request of the deployment has, a UUID as Dynamo's.
func requestID() string {
	a, b := rand.Uint64(), rand.Uint64()
	const version, variant = 4 << 12, 2 << 62
	a = a&^0xf000 | version
	b = b&^(3<<62) | variant
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&(1<<48-1))
}

// ask sends a range query to a worker.
func (k *KvRouter) ask(ctx context.Context, to *discovery.Instance, query []byte) ([]byte, error) {
	s, err := k.r.Call(ctx, to, &runtime.Request{ID: requestID(), Body: query, Plain: true})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	stop := owned.After(ctx, s.Close)
	defer stop()
	it, err := s.Recv()
	if err == io.EOF {
		err = fmt.Errorf("%w: a local indexer that answers nothing", plane.ErrProtocol)
	}
	return it.Data, cmp.Or(context.Cause(ctx), err)
}
