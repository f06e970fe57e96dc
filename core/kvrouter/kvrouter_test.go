package kvrouter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const blockSize = 4

func newRuntime(t testing.TB) *runtime.Runtime {
	r := runtime.New(discovery.NewMemory(), runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func endpoint(t testing.TB, r *runtime.Runtime) *runtime.Endpoint {
	e, err := r.Endpoint("ns.comp.generate")
	require.NoError(t, err)
	return e
}

func item(j string) []byte {
	b, err := wire.FromJSON(nil, []byte(j))
	if err != nil {
		panic(err)
	}
	return b
}

const plainCard = `{"display_name":"m","kv_cache_block_size":4,"runtime_config":{"total_kv_blocks":100,"enable_local_indexer":true,"data_parallel_size":1}}`

// testWorker is one of ours. Its handler sends items until told to end by what arrives on next.
type testWorker struct {
	*runtime.Service
	id     uint64
	source *kvsource.Source
	calls  chan *runtime.Call
	next   chan error // nil: an item; errCached: one with a usage; io.EOF: the end; another: a failure
}

var errCached = errors.New("an item with a usage")

func newWorker(t testing.TB, r *runtime.Runtime, id uint64, card string) *testWorker {
	w := &testWorker{id: id, calls: make(chan *runtime.Call, 100), next: make(chan error)}
	var err error
	w.Service, err = endpoint(t, r).Serve(w.handle, runtime.ServeOptions{ID: id})
	require.NoError(t, err)
	w.source, err = kvsource.New(endpoint(t, r), kvsource.Config{WorkerID: id, BlockSize: blockSize})
	require.NoError(t, err)
	if card != "" {
		require.NoError(t, w.RegisterModel([]byte(card)))
	}
	t.Cleanup(func() {
		w.Close(false)
		require.NoError(t, w.source.Close())
	})
	return w
}

func (w *testWorker) handle(c *runtime.Call) error {
	w.calls <- c
	for i := 0; ; i++ {
		select {
		case <-c.Stopped().Done():
			return plane.ErrCancelled
		case err := <-w.next:
			if err == io.EOF {
				return c.Send(item(`{"token_ids":[],"finish_reason":"length"}`))
			}
			if err == nil {
				err = c.Send(item(fmt.Sprintf(`{"token_ids":[%d]}`, i)))
			} else if err == errCached {
				err = c.Send(item(`{"token_ids":[1],"completion_usage":{"prompt_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}}`))
			}
			if err != nil {
				return err
			}
		}
	}
}

func (w *testWorker) store(t testing.TB, tokens []block.Token) {
	names := make([]block.EngineHash, len(tokens)/blockSize)
	for i := range names {
		names[i] = block.EngineHash(rand.Uint64())
	}
	_, err := w.source.Publish(publish.Stored(nil, names, tokens[:len(names)*blockSize], blockSize))
	require.NoError(t, err)
}

func start(t testing.TB, r *runtime.Runtime, config router.Config) *KvRouter {
	k, err := New(endpoint(t, r), blockSize, config, router.Options{})
	require.NoError(t, err)
	t.Cleanup(k.Close)
	return k
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

func request(tokens ...block.Token) *Request {
	q := &Request{Fields: item(`{"model":"m"}`)}
	q.Tokens = tokens
	return q
}

func active(t testing.TB, k *KvRouter) int {
	s, err := k.Router().Stats()
	require.NoError(t, err)
	return s.ActiveRequests
}

func overlap(t testing.TB, k *KvRouter, id uint64, tokens []block.Token) int {
	rows, err := k.Router().OverlapScores(&router.Prompt{Tokens: tokens})
	require.NoError(t, err)
	for _, row := range rows.Workers {
		if row.WorkerID == id {
			return int(row.DeviceBlocks)
		}
	}
	return -1
}

// The life of a request: booked when it is sent, its prompt until the first item, all of it until the end.
func TestGenerate(t *testing.T) {
	r := newRuntime(t)
	w := newWorker(t, r, 1<<64-1, plainCard)
	k := start(t, r, router.DefaultConfig())
	require.NoError(t, k.WaitForWorkers(context.Background(), 1))
	prefill := func() int64 {
		rows, err := k.Router().PotentialLoads(nil, &router.Prompt{})
		require.NoError(t, err)
		return int64(rows[0].PotentialPrefillTokens)
	}
	q := request(1, 2, 3, 4, 5, 6, 7, 8, 9)
	q.Routing, q.Send = item(`{"priority":3}`), []uint32{7}
	s, err := k.Generate(context.Background(), q)
	require.NoError(t, err)
	require.Equal(t, w.id, s.Choice().WorkerID)
	require.Equal(t, 2, s.Choice().PromptBlocks)
	call := <-w.calls
	require.Equal(t, s.Choice().RequestID, call.ID)
	body, err := wire.ToJSON(nil, call.Body)
	require.NoError(t, err)
	require.JSONEq(t, `{"model":"m","token_ids":[7],"routing":{"priority":3,"dp_rank":0}}`, string(body))
	require.Equal(t, 1, active(t, k))
	require.EqualValues(t, 9, prefill())

	w.next <- nil
	it, err := s.Recv()
	require.NoError(t, err)
	require.True(t, it.First && !it.Last)
	require.Zero(t, prefill())
	require.Equal(t, 1, active(t, k))
	w.next <- io.EOF
	close(w.next)
	it, err = s.Recv()
	require.NoError(t, err)
	require.True(t, it.Last && !it.First)
	for active(t, k) > 0 {
		_, err = s.Recv()
		require.NotNil(t, err)
	}
	timing := s.Timing()
	require.GreaterOrEqual(t, timing.Total, timing.Wait+timing.Prefill)
}

// Every end of a stream ends its booking.
func TestEndsOfStreams(t *testing.T) {
	r := newRuntime(t)
	w := newWorker(t, r, 1, plainCard)
	k := start(t, r, router.DefaultConfig())
	for name, c := range map[string]struct {
		end  func(s *Stream, cancel func())
		want error
	}{
		"failure": {func(*Stream, func()) { w.next <- io.ErrNoProgress }, plane.ErrWorker},
		"stop":    {func(s *Stream, _ func()) { s.Stop() }, plane.ErrCancelled},
		"close":   {func(s *Stream, _ func()) { s.Close(); s.Close() }, plane.ErrCancelled},
		"context": {func(_ *Stream, cancel func()) { cancel() }, plane.ErrCancelled},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		s, err := k.Generate(ctx, request(1))
		require.NoError(t, err)
		call := <-w.calls
		require.Equal(t, 1, active(t, k))
		c.end(s, cancel)
		for err == nil {
			_, err = s.Recv()
		}
		require.ErrorIs(t, err, c.want, name)
		await(t, name, func() bool { return active(t, k) == 0 })
		<-call.Killed().Done()
		cancel()
	}
	s, err := k.Generate(context.Background(), request(1))
	require.NoError(t, err)
	w.Close(false)
	for err == nil {
		_, err = s.Recv()
	}
	require.Error(t, err)
	await(t, "the worker is gone", func() bool { return active(t, k) == 0 })
	_, err = k.Generate(context.Background(), request(1))
	require.Error(t, err)
}

// A request goes on to another worker when one cannot be reached or refuses it, but not if it is pinned.
func TestElsewhere(t *testing.T) {
	r := newRuntime(t)
	dead := discovery.Instance{Name: endpoint(t, r).Name, ID: 1, TCP: "127.0.0.1:1/x", Codec: discovery.CodecMsgpack}
	require.NoError(t, r.Store().Create(discovery.InstanceKey(dead.Name, 1), dead.Encode()))
	model := discovery.Model{Name: dead.Name, ID: 1, Card: []byte(plainCard)}
	require.NoError(t, r.Store().Create(discovery.ModelKey(dead.Name, 1, ""), model.Encode()))
	w := newWorker(t, r, 2, plainCard)
	k := start(t, r, router.DefaultConfig())
	require.NoError(t, k.WaitForWorkers(context.Background(), 2))
	pinned := request(1)
	pinned.Constraints.HasWorker, pinned.Constraints.Worker = true, 1
	_, err := k.Generate(context.Background(), pinned)
	require.ErrorIs(t, err, plane.ErrCannotConnect)
	for range 20 {
		s, err := k.Generate(context.Background(), request(1, 2, 3))
		require.NoError(t, err)
		require.EqualValues(t, 2, s.Choice().WorkerID)
		<-w.calls
		s.Close()
	}
	require.Contains(t, k.Client().Inhibited(), uint64(1))
	await(t, "nothing is booked", func() bool { return active(t, k) == 0 })
	only := request(1)
	only.Constraints.Allowed = map[uint64]struct{}{1: {}}
	_, err = k.Generate(context.Background(), only)
	require.ErrorIs(t, err, plane.ErrCannotConnect, "who is left alone is asked if there is nobody else")
	require.Zero(t, active(t, k))
}

// Workers are those with an instance and a card, whichever comes first; changes of the card act.
func TestMembers(t *testing.T) {
	r := newRuntime(t)
	k := start(t, r, router.DefaultConfig())
	w := newWorker(t, r, 7, "")
	_, n := k.members.count()
	require.Zero(t, n)
	require.NoError(t, w.RegisterModel([]byte(plainCard)))
	require.NoError(t, k.WaitForWorkers(context.Background(), 1))

	// It is booked from the moment it is a candidate.
	k.Close()
	k = start(t, r, router.DefaultConfig())
	_, err := k.Router().BestWorker(&router.Request{Prompt: router.Prompt{Tokens: []block.Token{1}}, ID: "x", Book: true})
	require.NoError(t, err, "workers that are there are known at once")
	require.Equal(t, 1, active(t, k))
	require.NoError(t, k.Router().MarkPrefillComplete("x"))
	require.NoError(t, k.Router().Free("x"))

	key := discovery.ModelKey(endpoint(t, r).Name, 7, "")
	replace := func(card string) {
		m := discovery.Model{Name: endpoint(t, r).Name, ID: 7, Card: []byte(card)}
		require.NoError(t, r.Store().Replace(key, m.Encode()))
	}
	info := func() (router.WorkerInfo, bool) {
		rows, err := k.Router().Workers()
		require.NoError(t, err)
		if len(rows) == 0 {
			return router.WorkerInfo{}, false
		}
		return rows[0], true
	}
	w.store(t, []block.Token{1, 2, 3, 4})
	await(t, "the event arrives", func() bool { return overlap(t, k, 7, []block.Token{1, 2, 3, 4}) == 1 })
	replace(`{"kv_cache_block_size":4,"runtime_config":{"enable_local_indexer":true,"taints":["b","a"],"total_kv_blocks":5}}`)
	await(t, "taints act", func() bool { i, _ := info(); return len(i.Taints) == 2 && *i.TotalKVBlocks == 5 })
	require.Equal(t, 1, overlap(t, k, 7, []block.Token{1, 2, 3, 4}), "what it holds is still known")
	replace(`{"kv_cache_block_size":4,"runtime_config":{"enable_local_indexer":true,"data_parallel_start_rank":2,"data_parallel_size":3}}`)
	await(t, "ranks act", func() bool { i, _ := info(); return i.DPStart == 2 && i.DPSize == 3 })
	replace(`{"kv_cache_block_size":8}`)
	await(t, "another block size is unfit", func() bool { _, ok := info(); return !ok && k.Unfit()[7] != nil })
	replace(`"nonsense"`)
	await(t, "no card", func() bool { return k.Unfit()[7] != nil })
	replace(plainCard)
	await(t, "fit again", func() bool { _, ok := info(); return ok && len(k.Unfit()) == 0 })
	await(t, "and known again", func() bool { return overlap(t, k, 7, []block.Token{1, 2, 3, 4}) == 1 })
	require.NoError(t, w.Unregister())
	await(t, "unregistered", func() bool { _, ok := info(); return !ok })
	require.NoError(t, w.Register())
	await(t, "registered", func() bool { return overlap(t, k, 7, []block.Token{1, 2, 3, 4}) == 1 })
}

// Requests for an adapter go to those that have a card of it, in a decision and from end to end; which may come and go.
func TestAdapters(t *testing.T) {
	r := newRuntime(t)
	k := start(t, r, router.DefaultConfig())
	w7, w8 := newWorker(t, r, 7, plainCard), newWorker(t, r, 8, plainCard)
	require.NoError(t, k.WaitForWorkers(context.Background(), 2))
	const name = "Org/My Adapter"
	goesTo := func(adapter string) (ids map[uint64]bool) {
		ids = map[uint64]bool{}
		for range 40 {
			c, err := k.Router().BestWorker(&router.Request{Prompt: router.Prompt{Tokens: []block.Token{1}, LoRAName: adapter}})
			require.NoError(t, err)
			ids[c.WorkerID] = true
		}
		return ids
	}
	both, only7 := map[uint64]bool{7: true, 8: true}, map[uint64]bool{7: true}
	require.Equal(t, both, goesTo(name))
	require.ErrorIs(t, w7.RegisterModel([]byte(`{"lora":{"name":"..."}}`)), plane.ErrInvalidArgument)
	require.NoError(t, w7.RegisterModel([]byte(`{"display_name":"Org/My Adapter","lora":{"name":"Org/My Adapter"},"runtime_config":{"total_kv_blocks":1}}`)))
	info := func(adapters int) func() bool {
		return func() bool {
			rows, err := k.Router().Workers()
			require.NoError(t, err)
			return len(rows) == 2 && len(rows[0].Adapters) == adapters
		}
	}
	await(t, "the adapter acts", info(1))
	rows, err := k.Router().Workers()
	require.NoError(t, err)
	require.Equal(t, []string{name}, rows[0].Adapters)
	require.EqualValues(t, 100, *rows[0].TotalKVBlocks, "the instance's own card says what it is like")
	require.Equal(t, only7, goesTo(name))
	require.Equal(t, both, goesTo("another"))
	require.Equal(t, both, goesTo(""))
	for range 8 { // though it is the busier one
		q := request(1, 2, 3, 4)
		q.LoRAName = name
		s, err := k.Generate(context.Background(), q)
		require.NoError(t, err)
		require.EqualValues(t, 7, s.Choice().WorkerID)
		defer s.Close()
	}
	require.NoError(t, w7.RegisterModel([]byte(`{"lora":{"name":"second"}}`)))
	await(t, "a second one", info(2))
	require.NoError(t, w7.UnregisterAdapter(name))
	await(t, "the first is gone", info(1))
	require.Equal(t, only7, goesTo("second"))
	require.Equal(t, 8, active(t, k), "its requests go on")
	require.NoError(t, w8.RegisterModel([]byte(`{"lora":{"name":"second"}}`)))
	await(t, "another worker has it", func() bool { return len(goesTo("second")) == 1 && !goesTo("second")[7] })
}

// Requests that come at once spread, though no worker has answered any of them.
func TestConcurrentRequestsSpread(t *testing.T) {
	r := newRuntime(t)
	for id := range uint64(8) {
		newWorker(t, r, id+1, plainCard)
	}
	k := start(t, r, router.DefaultConfig())
	require.NoError(t, k.WaitForWorkers(context.Background(), 8))
	var all sync.WaitGroup
	streams := make([]*Stream, 64)
	for i := range streams {
		all.Go(func() {
			var err error
			streams[i], err = k.Generate(context.Background(), request(block.Token(i), 2, 3, 4, 5, 6, 7, 8))
			assert.NoError(t, err)
		})
	}
	all.Wait()
	rows, err := k.Router().PotentialLoads(nil, &router.Prompt{})
	require.NoError(t, err)
	for _, row := range rows {
		require.True(t, row.ActiveRequests >= 7 && row.ActiveRequests <= 9, "%+v", rows)
	}
	for _, s := range streams {
		s.Close()
	}
	require.Zero(t, active(t, k))
}

// A stream's booking lives as long as the stream does, also while its worker says nothing, and ends with it.
func TestSilentStreamsStayBooked(t *testing.T) {
	r := newRuntime(t)
	w := newWorker(t, r, 7, plainCard)
	var clock, reads atomic.Int64
	config := router.DefaultConfig()
	config.RecordDecisions = 1
	k, err := New(endpoint(t, r), blockSize, config, router.Options{Clock: func() time.Time {
		reads.Add(1)
		return time.Unix(0, clock.Load())
	}})
	require.NoError(t, err)
	defer k.Close()
	require.NoError(t, k.WaitForWorkers(context.Background(), 1))
	k.renewal = time.Millisecond
	s, err := k.Generate(context.Background(), request(1, 2, 3, 4))
	require.NoError(t, err)
	<-w.calls
	for range 5 {
		clock.Add(int64(router.DefaultRequestExpiry) * 2 / 3)
		seen := reads.Load() + 2 // one may have been under way
		await(t, "it is renewed", func() bool { return reads.Load() > seen })
	}
	require.Equal(t, 1, active(t, k))
	w.next <- nil
	_, err = s.Recv()
	require.NoError(t, err)
	w.next <- errCached
	_, err = s.Recv()
	require.NoError(t, err)
	rows, err := k.Router().Decisions(0)
	require.NoError(t, err)
	require.Equal(t, 3, *rows[0].ActualCachedTokens, "the engine told with its usage")
	s.Close()
	require.Zero(t, active(t, k))
	s, err = k.Generate(context.Background(), request(1, 2, 3, 4))
	require.NoError(t, err)
	k.Close()
	s.Close()
}

// Two publishers for one rank are one too many: nobody is believed, until one is gone.
func TestAmbiguousSources(t *testing.T) {
	r := newRuntime(t)
	w := newWorker(t, r, 7, plainCard)
	k := start(t, r, router.DefaultConfig())
	tokens := []block.Token{1, 2, 3, 4, 5, 6, 7, 8}
	w.store(t, tokens)
	state := func(want string) func() bool {
		return func() bool {
			rows, err := k.Router().Health()
			require.NoError(t, err)
			return len(rows) == 1 && string(rows[0].State) == want
		}
	}
	await(t, "one source", func() bool { return overlap(t, k, 7, tokens) == 2 && state("exact")() })
	second, err := kvsource.New(endpoint(t, r), kvsource.Config{WorkerID: 7, BlockSize: blockSize})
	require.NoError(t, err)
	await(t, "ambiguous", state("disconnected"))
	require.NoError(t, w.source.Close())
	await(t, "the second one takes over, and holds nothing", func() bool { return overlap(t, k, 7, tokens) == 0 && state("exact")() })
	w.source = second
	w.store(t, tokens[:4])
	await(t, "its events count", func() bool { return overlap(t, k, 7, tokens) == 1 })
}

// Events may be published in the scope of another endpoint than the one that the worker serves, if its card says so; and then only those count.
func TestStateOfAnotherEndpoint(t *testing.T) {
	r := newRuntime(t)
	w := newWorker(t, r, 7, plainCard)
	k := start(t, r, router.DefaultConfig())
	here, there := []block.Token{1, 2, 3, 4}, []block.Token{5, 6, 7, 8}
	w.store(t, here)
	await(t, "its own scope counts", func() bool { return overlap(t, k, 7, here) == 1 })

	own, state := endpoint(t, r).Name, discovery.Name{Namespace: "ns", Component: "state", Endpoint: "kv"}
	source, err := kvsource.New(endpoint(t, r), kvsource.Config{WorkerID: 7, BlockSize: blockSize, State: state})
	require.NoError(t, err)
	defer source.Close()
	_, err = source.Publish(publish.Stored(nil, []block.EngineHash{1}, there, blockSize))
	require.NoError(t, err)
	card := func(runtimeConfig string) {
		m := discovery.Model{Name: own, ID: 7, Card: []byte(`{"kv_cache_block_size":4,"runtime_config":{"enable_local_indexer":true` + runtimeConfig + `}}`)}
		require.NoError(t, r.Store().Replace(discovery.ModelKey(own, 7, ""), m.Encode()))
	}
	card(`,"kv_state_endpoint":{"namespace":"ns","component":"state","name":"kv"}`)
	await(t, "the named scope counts, and nothing else", func() bool { return overlap(t, k, 7, there) == 1 && overlap(t, k, 7, here) == 0 })
	late := start(t, r, router.DefaultConfig())
	await(t, "for who comes late, too", func() bool { return overlap(t, late, 7, there) == 1 })
	card(`,"kv_state_endpoint":{"namespace":"ns","component":"","name":"kv"}`)
	await(t, "what is no endpoint is no card", func() bool { return k.Unfit()[7] != nil })
	card("")
	await(t, "its own again", func() bool { return overlap(t, k, 7, there) == 0 && overlap(t, k, 7, here) == 1 })
}

// Cards that name ever other scopes do not make a router watch all of them.
func TestScopesAreBounded(t *testing.T) {
	store := discovery.NewMemory()
	defer store.Close()
	x := newScopes(store)
	name := func(i int) discovery.Name {
		return discovery.Name{Namespace: "ns", Component: "c", Endpoint: fmt.Sprint(i)}
	}
	for i := range maxScopes {
		_, err := x.get(name(i))
		require.NoError(t, err)
	}
	_, err := x.get(name(maxScopes))
	require.ErrorIs(t, err, errScopes)
	x.keep(func(n discovery.Name) bool { return n == name(3) })
	require.Len(t, x.open, 1)
	_, err = x.get(name(maxScopes))
	require.NoError(t, err)
	x.keep(func(discovery.Name) bool { return false })
}

// Routers agree, whatever they are told by whom; one that is closed takes its bookings with it, and disturbs nobody.
func TestRoutersOfOneRuntime(t *testing.T) {
	r := newRuntime(t)
	w := newWorker(t, r, 7, plainCard)
	config := router.DefaultConfig()
	config.RouterReplicaSync = true
	a, b := start(t, r, config), start(t, r, config)
	await(t, "they hear each other", func() bool {
		x, err := a.Router().Stats()
		require.NoError(t, err)
		y, err := b.Router().Stats()
		require.NoError(t, err)
		return x.Replicas.Listeners == 2 && y.Replicas.Listeners == 2
	})
	s, err := a.Generate(context.Background(), request(1, 2, 3, 4, 5))
	require.NoError(t, err)
	<-w.calls
	await(t, "the other one counts it", func() bool { return active(t, b) == 1 })
	loads := func(k *KvRouter) string {
		rows, err := k.Router().PotentialLoads(nil, &router.Prompt{Tokens: []block.Token{1, 2, 3, 4}})
		require.NoError(t, err)
		return fmt.Sprint(rows)
	}
	require.Equal(t, loads(a), loads(b))
	s.Close()
	await(t, "and its end", func() bool { return active(t, b) == 0 })
	s, err = a.Generate(context.Background(), request(1, 2, 3, 4, 5))
	require.NoError(t, err)
	defer s.Close()
	await(t, "the other one counts it", func() bool { return active(t, b) == 1 })
	a.Close()
	await(t, "a router that is gone has nothing", func() bool { return active(t, b) == 0 })
	tokens := []block.Token{9, 9, 9, 9}
	w.store(t, tokens)
	await(t, "the other one hears on", func() bool { return overlap(t, b, 7, tokens) == 1 })
	_, err = a.Generate(context.Background(), request(1))
	require.ErrorIs(t, err, router.ErrClosed)
}

// Messages that are lost are asked for.
func TestLostEventsAreRecovered(t *testing.T) {
	r := newRuntime(t)
	w := newWorker(t, r, 7, plainCard)
	k := start(t, r, router.DefaultConfig())
	var want [][]block.Token
	for i := range 200 {
		tokens := []block.Token{block.Token(i), 1, 2, 3, 4, 5, 6, 7}
		want = append(want, tokens)
		w.store(t, tokens)
	}
	// The first are published before the router hears the worker: they are asked for at its local indexer.
	await(t, "all arrive, whatever came first", func() bool {
		for _, tokens := range want {
			if overlap(t, k, 7, tokens) != 2 {
				return false
			}
		}
		return true
	})
	await(t, "nothing is missing any more", func() bool {
		rows, err := k.Router().Health()
		require.NoError(t, err)
		return rows[0].State == "exact"
	})
}

// Streams of many requests at once lose nothing, and leave nothing.
func TestManyStreams(t *testing.T) {
	r := newRuntime(t)
	const tokens, streams = 50, 200
	for id := range uint64(4) {
		s, err := endpoint(t, r).Serve(func(c *runtime.Call) error {
			for i := range tokens {
				if err := c.Send(item(fmt.Sprintf(`{"token_ids":[%d]}`, i))); err != nil {
					return err
				}
			}
			return nil
		}, runtime.ServeOptions{ID: id + 1})
		require.NoError(t, err)
		require.NoError(t, s.RegisterModel([]byte(`{"kv_cache_block_size":4}`)))
		t.Cleanup(func() { s.Close(false) })
	}
	config := router.DefaultConfig()
	config.RouterTrackOutputBlocks = true
	k := start(t, r, config)
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			s, err := k.Generate(context.Background(), request(block.Token(i), 2, 3, 4))
			if !assert.NoError(t, err) {
				return
			}
			n := 0
			for {
				it, err := s.Recv()
				if err == io.EOF {
					break
				}
				if !assert.NoError(t, err) {
					return
				}
				j, err := wire.ToJSON(nil, it.Data)
				assert.NoError(t, err)
				assert.Equal(t, fmt.Sprintf(`{"token_ids":[%d]}`, n), string(j))
				n++
			}
			assert.Equal(t, tokens, n)
		})
	}
	all.Wait()
	require.Zero(t, active(t, k))
}

// What workers say of their load is kept while they are workers.
func TestMetrics(t *testing.T) {
	r := newRuntime(t)
	w := newWorker(t, r, 7, plainCard)
	k := start(t, r, router.DefaultConfig())
	p, err := event.NewPublisher(r.Link(), endpoint(t, r).Name, wire.TopicMetrics, 0)
	require.NoError(t, err)
	defer p.Close()
	await(t, "it is heard", func() bool {
		blocks := uint64(3)
		load := wire.ActiveLoad{DecodeBlocks: &blocks}
		for _, id := range []uint64{7, 8} {
			load.Worker.ID = id
			require.NoError(t, p.Publish(wire.AppendActiveLoad(nil, &load)))
		}
		require.NoError(t, p.Publish([]byte{0xc1}))
		return len(k.Metrics()) == 1
	})
	require.EqualValues(t, 3, *k.Metrics()[0].DecodeBlocks)
	require.NoError(t, w.Unregister())
	await(t, "it is gone", func() bool { return len(k.Metrics()) == 0 })
}
