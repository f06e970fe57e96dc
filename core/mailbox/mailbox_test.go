package mailbox_test

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/mailbox"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
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
