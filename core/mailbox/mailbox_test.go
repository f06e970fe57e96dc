package mailbox_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/mailbox"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/relay"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/stream"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const failed = 7

type notice struct {
	mailbox.Head
	payload []byte
}

// host is a mailbox with what a test has not looked at yet.
type host struct {
	*mailbox.Mailbox
	t       testing.TB
	notices []notice
}

func open(t testing.TB) *host {
	local := runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"}
	h := &host{t: t, Mailbox: mailbox.New(runtime.New(discovery.NewMemory(), local), func(err error) uint32 {
		if err == nil {
			return 0
		}
		return failed
	})}
	t.Cleanup(func() {
		require.NoError(t, h.Close())
		h.Notices().Close()
	})
	return h
}

func (h *host) endpoint() *runtime.Endpoint {
	e, err := h.Runtime().Endpoint("a.b.c")
	require.NoError(h.t, err)
	return e
}

// next gives the next notice of a kind about a number; 0: any.
func (h *host) next(id uint64, kind mailbox.Kind) notice {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		for i, n := range h.notices {
			if n.Kind == kind && (id == 0 || n.ID == id) {
				h.notices = append(h.notices[:i], h.notices[i+1:]...)
				return n
			}
		}
		var b stream.Batch
		require.NoError(h.t, h.Notices().Next(ctx, &b, 64), "no notice of kind %d", kind)
		for _, item := range b.Items() {
			n := notice{payload: append([]byte{}, item[mailbox.HeadBytes:]...)}
			n.ID, n.Kind, n.Flags = binary.NativeEndian.Uint64(item), mailbox.Kind(binary.NativeEndian.Uint32(item[8:])), binary.NativeEndian.Uint32(item[12:])
			h.notices = append(h.notices, n)
		}
	}
}

func text(t testing.TB, b []byte) string {
	j, err := wire.ToJSON(nil, b)
	require.NoError(t, err)
	return string(j)
}

var item = wire.Pack{}.String("item")

func (h *host) serve() (service, client uint64) {
	service, _, err := h.Serve(h.endpoint(), runtime.ServeOptions{})
	require.NoError(h.t, err)
	client, err = h.Client(h.endpoint())
	require.NoError(h.t, err)
	return service, client
}

func (h *host) call(client uint64, credit int) uint64 {
	q := &runtime.Request{ID: "id", Body: wire.Pack{}.Uint(5), Metadata: map[string]string{"k": "v"}}
	id, err := h.Call(client, mailbox.RoundRobin, 0, q, credit)
	require.NoError(h.t, err)
	return id
}

func TestCall(t *testing.T) {
	h := open(t)
	service, client := h.serve()
	id := h.call(client, 2)
	asked := h.next(0, mailbox.Request)
	require.JSONEq(t, `[`+text(t, wire.Pack{}.Uint(service))+`,"id",{"k":"v"},5]`, text(t, asked.payload))
	for range 5 {
		_, err := h.Answer(asked.ID, item)
		require.NoError(t, err)
	}
	_, err := h.Answer(asked.ID, []byte{0xc1})
	require.ErrorIs(t, err, plane.ErrInvalidArgument)
	require.NoError(t, h.Finish(asked.ID, nil))
	require.ErrorIs(t, h.Finish(asked.ID, nil), mailbox.ErrUnknown)
	h.next(id, mailbox.Begun)
	// Two items, no more, until there is credit.
	h.next(id, mailbox.Items)
	require.Equal(t, []byte(item), h.next(id, mailbox.Items).payload)
	require.NoError(t, h.More(id, 3))
	for range 3 {
		h.next(id, mailbox.Items)
	}
	require.NoError(t, h.More(id, 1)) // the end is not an item, but waits for the turn of one
	require.Zero(t, h.next(id, mailbox.Ended).Flags)
	require.ErrorIs(t, h.More(id, 1), mailbox.ErrUnknown)
}

func TestFailuresAndCancellation(t *testing.T) {
	h := open(t)
	service, client := h.serve()
	id := h.call(client, 9)
	asked := h.next(0, mailbox.Request)
	require.NoError(t, h.Finish(asked.ID, errors.New("boom")))
	ended := h.next(id, mailbox.Ended)
	require.EqualValues(t, failed, ended.Flags)
	require.Contains(t, text(t, ended.payload), "boom")
	for _, kill := range []bool{false, true} {
		id = h.call(client, 0)
		asked = h.next(0, mailbox.Request)
		h.next(id, mailbox.Begun)
		require.NoError(t, h.Cancel(id, kill))
		told := h.next(asked.ID, mailbox.Cancelled)
		require.Equal(t, kill, told.Flags == mailbox.Kill)
		require.NoError(t, h.Finish(asked.ID, nil))
		require.EqualValues(t, failed, h.next(id, mailbox.Ended).Flags)
	}
	id = h.call(client, 1)
	asked = h.next(0, mailbox.Request)
	require.NoError(t, h.End(service, true))
	h.next(asked.ID, mailbox.Cancelled)
	require.NoError(t, h.Finish(asked.ID, nil))
	h.next(service, mailbox.Closed)
	require.EqualValues(t, failed, h.next(id, mailbox.Ended).Flags)
	require.NoError(t, h.End(client, false))
	require.ErrorIs(t, h.End(client, false), mailbox.ErrUnknown)
	_, err := h.Call(client, mailbox.Random, 0, &runtime.Request{}, 0)
	require.ErrorIs(t, err, mailbox.ErrUnknown)
}

// A host that is ahead of the caller is told to wait, and refused if it does not; what it sent arrives.
func TestAhead(t *testing.T) {
	h := open(t)
	_, client := h.serve()
	id := h.call(client, 0)
	asked := h.next(0, mailbox.Request)
	large := wire.Pack{}.String(string(make([]byte, 16<<10)))
	sent, waits := 0, false
	for {
		wait, err := h.Answer(asked.ID, large)
		if err != nil {
			require.ErrorIs(t, err, mailbox.ErrAhead)
			break
		}
		sent, waits = sent+1, waits || wait
	}
	require.True(t, waits)
	require.NoError(t, h.More(id, sent+1))
	h.next(asked.ID, mailbox.Drained)
	require.NoError(t, h.Finish(asked.ID, nil))
	for range sent {
		require.Equal(t, []byte(large), h.next(id, mailbox.Items).payload)
	}
	require.Zero(t, h.next(id, mailbox.Ended).Flags)
}

func TestGenerate(t *testing.T) {
	h := open(t)
	h.serve()
	e := h.endpoint()
	require.ErrorIs(t, h.Model(e, h.Runtime().ID(), nil), mailbox.ErrUnknown)
	require.ErrorIs(t, h.Model(e, 1, []byte("null")), plane.ErrInvalidArgument)
	require.NoError(t, h.Model(e, h.Runtime().ID(), []byte(`{"kv_cache_block_size":8}`)))
	require.NoError(t, h.Model(e, h.Runtime().ID(), []byte(`{"kv_cache_block_size":4}`)))
	adapter := []byte(`{"lora":{"name":"My/Adapter"},"display_name":"My/Adapter"}`)
	require.NoError(t, h.Model(e, h.Runtime().ID(), adapter))
	require.NoError(t, h.Model(e, h.Runtime().ID(), adapter), "again")
	require.NoError(t, h.Model(e, h.Runtime().ID(), []byte(`{"lora":{"name":"My/Adapter"}}`)))
	require.ErrorIs(t, h.Model(e, h.Runtime().ID(), []byte(`{"lora":{"name":"My/Adapter"}}`)), mailbox.ErrUnknown)
	require.ErrorIs(t, h.Model(e, h.Runtime().ID(), []byte(`{"lora":{"name":"..."},"slug":""}`)), plane.ErrInvalidArgument)
	require.NoError(t, h.Model(e, h.Runtime().ID(), adapter))
	k, err := kvrouter.New(e, 4, router.DefaultConfig(), router.Options{})
	require.NoError(t, err)
	defer k.Close()
	require.NoError(t, k.WaitForWorkers(t.Context(), 1))
	q := &kvrouter.Request{}
	q.Tokens = []uint32{1, 2, 3, 4, 5}
	id, err := h.Generate(k, q, 10)
	require.NoError(t, err)
	asked := h.next(0, mailbox.Request)
	require.Contains(t, text(t, h.next(id, mailbox.Begun).payload), `,0,0,1,"`)
	last, err := wire.FromJSON(nil, []byte(`{"token_ids":[1],"finish_reason":"stop"}`))
	require.NoError(t, err)
	_, err = h.Answer(asked.ID, last)
	require.NoError(t, err)
	require.NoError(t, h.Finish(asked.ID, nil))
	n := h.next(id, mailbox.Items)
	require.Equal(t, mailbox.First|mailbox.Last, n.Flags)
	require.Equal(t, last, n.payload[:len(last)])
	require.NoError(t, wire.Valid(n.payload[len(last):]))
	require.Zero(t, h.next(id, mailbox.Ended).Flags)
	require.NoError(t, h.Model(e, h.Runtime().ID(), nil))
	require.NoError(t, h.Close())
	_, err = h.Generate(k, q, 10)
	require.ErrorIs(t, err, plane.ErrClosed)
	_, err = h.Client(e)
	require.Error(t, err)
}

// settled opens a mailbox in memory with a router of its endpoint.
func settled(t *testing.T) (*host, *kvrouter.KvRouter) {
	h := open(t)
	k, err := h.Router(h.endpoint(), 4, router.DefaultConfig(), router.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { h.CloseRouter(k) })
	return h, k
}

// In memory nothing is seen later than the call returns that says it.
func TestWhatIsSaidIsSeenInMemory(t *testing.T) {
	h, k := settled(t)
	e, id := h.endpoint(), h.Runtime().ID()
	workers := func() int {
		all, err := k.Router().Workers()
		require.NoError(t, err)
		return len(all)
	}
	require.NoError(t, h.Model(e, id, []byte(`{"kv_cache_block_size":4}`)))
	service, client := h.serve()
	for range 100 {
		require.Equal(t, 1, workers())
		require.NoError(t, h.List(service, false))
		require.Zero(t, workers())
		c, err := h.Instances(client)
		require.NoError(t, err)
		require.Empty(t, c.IDs())
		require.NoError(t, h.List(service, true))
	}
	require.NoError(t, h.Model(e, id, nil))
	require.Zero(t, workers())
	require.NoError(t, h.Model(e, id, []byte(`{}`)))
	require.Equal(t, 1, workers())
	require.NoError(t, h.End(service, true))
	require.Zero(t, workers())
	again, _, err := h.Serve(e, runtime.ServeOptions{})
	require.NoError(t, err, "the instance is free again at once")
	require.Equal(t, 1, workers())
	require.NoError(t, h.End(again, false))
}

// What a router in memory cannot take is refused, and changes nothing.
func TestWhatARouterRefuses(t *testing.T) {
	h, k := settled(t)
	e, id := h.endpoint(), h.Runtime().ID()
	require.NoError(t, h.Model(e, id, []byte(`{"kv_cache_block_size":8}`)), "nobody serves")
	_, _, err := h.Serve(e, runtime.ServeOptions{})
	require.ErrorIs(t, err, plane.ErrInvalidArgument)
	require.ErrorContains(t, err, "block_size=8")
	require.NoError(t, h.Model(e, id, []byte(`{"kv_cache_block_size":4}`)))
	service, client := h.serve()
	require.ErrorIs(t, h.Model(e, id, []byte(`{"kv_cache_block_size":8}`)), plane.ErrInvalidArgument)
	workers, err := k.Router().Workers()
	require.NoError(t, err)
	require.Len(t, workers, 1)
	require.NoError(t, h.List(service, false))
	require.NoError(t, h.Model(e, id, []byte(`{"kv_cache_block_size":8}`)))
	require.ErrorIs(t, h.List(service, true), plane.ErrInvalidArgument)
	c, err := h.Instances(client)
	require.NoError(t, err)
	require.Empty(t, c.IDs())
	h.CloseRouter(k)
	require.NoError(t, h.List(service, true))
	_, err = h.Router(e, 4, router.DefaultConfig(), router.Options{})
	require.ErrorContains(t, err, "block_size=8")
	require.ErrorIs(t, h.Model(e, id, []byte(`{"display_name":"`+strings.Repeat("x", discovery.MaxRecordBytes)+`"}`)), plane.ErrInvalidArgument)
}

func TestPublishersOfARankShareIt(t *testing.T) {
	h, k := settled(t)
	e, id := h.endpoint(), h.Runtime().ID()
	require.NoError(t, h.Model(e, id, []byte(`{"runtime_config":{"enable_local_indexer":true}}`)))
	h.serve()
	var two [2]*mailbox.Publisher
	for i := range two {
		var err error
		two[i], err = h.Publisher(e, kvsource.Config{BlockSize: 4}, nil)
		require.NoError(t, err)
		_, err = two[i].Publish(0, publish.Stored(nil, []block.EngineHash{1}, []uint32{1, 2, 3, 4}, 4))
		require.NoError(t, err)
	}
	removed := publish.Removed([]block.EngineHash{1})
	held := func(n int) func() bool {
		return func() bool {
			c, err := k.Router().BestWorker(&router.Request{Prompt: router.Prompt{Tokens: []uint32{1, 2, 3, 4}}})
			return err == nil && int(c.OverlapBlocks) == n
		}
	}
	require.Eventually(t, held(1), 20*time.Second, time.Millisecond)
	_, err := two[0].Publish(0, removed)
	require.NoError(t, err)
	require.NoError(t, two[0].Close())
	require.NoError(t, two[0].Close())
	_, err = two[0].Publish(0, removed)
	require.ErrorIs(t, err, publish.ErrClosed)
	_, err = two[1].Publish(0, removed)
	require.NoError(t, err)
	require.Eventually(t, held(0), 20*time.Second, time.Millisecond)
	for name, c := range map[string]kvsource.Config{"router": {BlockSize: 8, DPRank: 1}, "publisher": {BlockSize: 8}} {
		_, err = h.Publisher(e, c, nil)
		require.ErrorIs(t, err, plane.ErrInvalidArgument, name)
	}
	var engine relay.EngineConfig
	require.NoError(t, json.Unmarshal([]byte(`{"kv_events":"tcp://127.0.0.1:1"}`), &engine))
	_, err = h.Publisher(e, kvsource.Config{BlockSize: 4}, &engine)
	require.ErrorIs(t, err, plane.ErrInvalidArgument)
	h.CloseRouter(k)
	_, err = h.Router(e, 8, router.DefaultConfig(), router.Options{})
	require.ErrorContains(t, err, "blocks of 4 tokens")
	require.NoError(t, two[1].Close())
	k, err = h.Router(e, 8, router.DefaultConfig(), router.Options{})
	require.NoError(t, err)
	h.CloseRouter(k)
}
