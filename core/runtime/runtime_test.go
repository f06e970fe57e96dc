package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func join(t testing.TB, store discovery.Store, o Options) *Runtime {
	o.RequestHost, o.ResponseHost = "127.0.0.1", "127.0.0.1"
	r := New(store, o)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func endpoint(t testing.TB, r *Runtime) *Endpoint {
	e, err := r.Endpoint("ns.comp.gen%erate")
	require.NoError(t, err)
	return e
}

func client(t testing.TB, r *Runtime) *Client {
	c, err := endpoint(t, r).Client()
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func msgpack(t testing.TB, j string) []byte {
	b, err := wire.FromJSON(nil, []byte(j))
	require.NoError(t, err)
	return b
}

func text(t testing.TB, b []byte) string {
	j, err := wire.ToJSON(nil, b)
	require.NoError(t, err)
	return string(j)
}

// echo gives the request three times.
func echo(c *Call) error {
	for range 3 {
		if err := c.Send(c.Body); err != nil {
			return err
		}
	}
	return nil
}

func drain(t testing.TB, s *Stream, err error) (items []string, _ error) {
	for err == nil {
		var it wire.Item
		if it, err = s.Recv(); err == nil {
			items = append(items, text(t, it.Data))
		}
	}
	if err == io.EOF {
		err = nil
	}
	return items, err
}

func ask(j string) func(testing.TB) *Request {
	return func(t testing.TB) *Request {
		return &Request{ID: "id", Body: msgpack(t, j), Metadata: map[string]string{"k": "v"}}
	}
}

var ctx = context.Background()

func TestCalls(t *testing.T) {
	for _, codec := range []string{discovery.CodecMsgpack, discovery.CodecJSON} {
		r := join(t, discovery.NewMemory(), Options{Codec: codec})
		c := client(t, r)
		_, err := c.Random(ctx, ask(`1`)(t))
		require.ErrorIs(t, err, plane.ErrNoInstances)
		s, err := endpoint(t, r).Serve(func(call *Call) error {
			assert.Equal(t, "id", call.ID)
			assert.Equal(t, map[string]string{"k": "v"}, call.Metadata)
			return echo(call)
		}, ServeOptions{})
		require.NoError(t, err)
		_, err = endpoint(t, r).Serve(echo, ServeOptions{})
		require.ErrorIs(t, err, plane.ErrInvalidArgument)
		ids, err := c.WaitForInstances(ctx)
		require.NoError(t, err)
		require.Equal(t, []uint64{r.ID()}, ids)
		body := `{"big":18446744073709551615,"text":"\u00fc"}`
		for range 2 {
			stream, err := c.Direct(ctx, r.ID(), ask(body)(t))
			items, err := drain(t, stream, err)
			require.NoError(t, err)
			require.Len(t, items, 3)
			require.JSONEq(t, body, items[2])
		}
		_, err = c.Direct(ctx, 12345, ask(`1`)(t))
		require.ErrorIs(t, err, plane.ErrInstanceNotFound)
		_, err = c.Direct(ctx, r.ID(), &Request{Body: msgpack(t, "1")})
		require.ErrorIs(t, err, plane.ErrInvalidArgument)
		_, err = c.Direct(ctx, r.ID(), &Request{ID: strings.Repeat("x", plane.MaxIDBytes+1), Body: msgpack(t, "1")})
		require.ErrorIs(t, err, plane.ErrInvalidArgument)
		bad := &Request{ID: "id", Body: []byte{0xc1}}
		stream, err := c.Direct(ctx, r.ID(), bad)
		if codec == discovery.CodecMsgpack { // the worker finds out
			var told *plane.WorkerError
			_, err = drain(t, stream, err)
			require.ErrorAs(t, err, &told)
			require.True(t, told.InvalidRequest())
		} else {
			require.ErrorIs(t, err, plane.ErrInvalidArgument)
		}
		require.NoError(t, s.Unregister())
		waitFor(t, c, 0)
		require.NoError(t, s.Register())
		waitFor(t, c, 1)
		s.Close(true)
		s.Close(true)
		waitFor(t, c, 0)
	}
}

func waitFor(t testing.TB, c *Client, n int) {
	deadline := time.After(30 * time.Second)
	for {
		changed := c.Changed()
		if len(c.IDs()) == n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.Fail(t, "instances", "%v, expected %d", c.IDs(), n)
		}
	}
}

// Every error of a handler is the caller's to see, a panic too.
func TestHandlersThatFail(t *testing.T) {
	r := join(t, discovery.NewMemory(), Options{})
	faults := map[string]func() error{
		"plain":   func() error { return errors.New("boom") },
		"invalid": func() error { return fmt.Errorf("%w: boom", plane.ErrInvalidArgument) },
		"told": func() error {
			return &plane.WorkerError{Failure: wire.Failure{Type: "Custom", Class: "NotFound", Message: "boom"}}
		},
		"panic": func() error { leaktest.Faults(1); panic("boom") },
	}
	s, err := endpoint(t, r).Serve(func(c *Call) error {
		if err := c.Send(c.Body); err != nil {
			return err
		}
		return faults[strings.Trim(text(t, c.Body), `"`)]()
	}, ServeOptions{})
	require.NoError(t, err)
	defer s.Close(false)
	c := client(t, r)
	for name, class := range map[string]string{"plain": "Internal", "invalid": "InvalidRequest", "told": "NotFound", "panic": "Internal"} {
		stream, err := c.RoundRobin(ctx, ask(`"`+name+`"`)(t))
		items, err := drain(t, stream, err)
		require.Len(t, items, 1)
		var told *plane.WorkerError
		require.ErrorAs(t, err, &told, name)
		require.Equal(t, class, told.Class)
		require.Contains(t, told.Message, "boom")
		require.Empty(t, c.Inhibited())
	}
}

// A worker has so many requests at a time and no more; those that run end when the service does, in peace if they may.
func TestLimitAndShutdown(t *testing.T) {
	r := join(t, discovery.NewMemory(), Options{MaxRequests: 2})
	begun, release := make(chan *Call, 10), make(chan struct{})
	s, err := endpoint(t, r).Serve(func(c *Call) error {
		begun <- c
		select {
		case <-release:
			return echo(c)
		case <-c.Killed().Done():
			return plane.ErrCancelled
		}
	}, ServeOptions{})
	require.NoError(t, err)
	c := client(t, r)
	var streams []*Stream
	for range 2 {
		stream, err := c.Random(ctx, ask(`1`)(t))
		require.NoError(t, err)
		streams = append(streams, stream)
		<-begun
	}
	_, err = c.Random(ctx, ask(`1`)(t))
	require.ErrorIs(t, err, plane.ErrOverloaded)
	require.Empty(t, c.Inhibited(), "who has much to do is not broken")

	var closing sync.WaitGroup
	closing.Go(func() { s.Close(true) })
	waitFor(t, c, 0)
	close(release)
	for _, stream := range streams {
		items, err := drain(t, stream, nil)
		require.NoError(t, err)
		require.Len(t, items, 3)
	}
	closing.Wait()

	release = make(chan struct{})
	s, err = endpoint(t, r).Serve(func(c *Call) error {
		begun <- c
		<-c.Killed().Done()
		return plane.ErrCancelled
	}, ServeOptions{})
	require.NoError(t, err)
	waitFor(t, c, 1)
	stream, err := c.Random(ctx, ask(`1`)(t))
	require.NoError(t, err)
	<-begun
	s.Close(false)
	_, err = drain(t, stream, nil)
	require.ErrorIs(t, err, plane.ErrDisconnected)
}

// An instance that leaves before it has begun fails the call, and one that is silent is not waited for longer than the caller does.
func TestSilentWorker(t *testing.T) {
	r := join(t, discovery.NewMemory(), Options{})
	s, err := endpoint(t, r).Serve(echo, ServeOptions{})
	require.NoError(t, err)
	defer s.Close(false)
	// A worker that acknowledges and never calls home: the service's handler is not reached by a request that cannot be read.
	c := client(t, r)
	id := r.ID()
	i := s.Instance()
	l, err := r.listener()
	require.NoError(t, err)
	p, err := l.Expect(i.Codec, false)
	require.NoError(t, err)
	require.NoError(t, r.send(ctx, &i, &plane.Message{ID: "id", Payload: []byte("no message")}), "it is acknowledged before it is read")
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = p.Wait(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	c.mu.Lock()
	inst := c.instances[id]
	c.mu.Unlock()
	inst.leave(plane.ErrUnavailable)
	_, err = c.Direct(ctx, id, ask(`1`)(t))
	require.ErrorIs(t, err, plane.ErrUnavailable)
}

func TestNothingAfterClose(t *testing.T) {
	r := New(discovery.NewMemory(), Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1"})
	e := endpoint(t, r)
	_, err := e.Serve(echo, ServeOptions{})
	require.NoError(t, err)
	c, err := e.Client()
	require.NoError(t, err)
	i := c.Instances()[0]
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	waitFor(t, c, 0)
	c.Close()
	_, err = c.WaitForInstances(ctx)
	require.ErrorIs(t, err, plane.ErrClosed)
	_, err = r.Call(ctx, &i, ask(`1`)(t))
	require.ErrorIs(t, err, plane.ErrClosed)
	_, err = e.Serve(echo, ServeOptions{})
	require.ErrorIs(t, err, plane.ErrClosed)
	_, err = e.Client()
	require.ErrorIs(t, err, discovery.ErrClosed)
}

func TestOptionsFromEnv(t *testing.T) {
	env := map[string]string{"DYN_TCP_RPC_PORT": "9000", "DYN_TCP_REQUEST_TIMEOUT": "7", "DYN_REQUEST_PLANE_CODEC": "json"}
	o, err := OptionsFromEnv(func(name string) string { return env[name] })
	require.NoError(t, err)
	require.Equal(t, 9000, o.RequestPort)
	require.Equal(t, 7*time.Second, o.TCP.AckTimeout)
	require.Equal(t, "json", o.Codec)
	for name, bad := range map[string]string{"DYN_TCP_RPC_PORT": "65536", "DYN_TCP_POOL_SIZE": "-1", "DYN_REQUEST_PLANE_CODEC": "xml"} {
		_, err := OptionsFromEnv(func(n string) string { return map[string]string{name: bad}[n] })
		require.ErrorIs(t, err, plane.ErrInvalidArgument)
		require.ErrorContains(t, err, bad)
	}
}

// Requests and responses are encrypted, and whoever cannot prove who it is gets neither.
func TestTLS(t *testing.T) {
	ours, theirs := servertest.NewCertificates(t, "process"), servertest.NewCertificates(t, "process")
	options := func(server, client *servertest.Certificates) Options {
		env := map[string]string{"DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS": "60"}
		if server != nil {
			env["DYN_TCP_TLS_CERT_PATH"], env["DYN_TCP_TLS_KEY_PATH"], env["DYN_TCP_TLS_CLIENT_CA_CERT_PATH"] = server.ServerCert, server.ServerKey, server.CA
		}
		if client != nil {
			env["DYN_TCP_TLS_CA_CERT_PATH"] = ours.CA
			env["DYN_TCP_TLS_CLIENT_CERT_PATH"], env["DYN_TCP_TLS_CLIENT_KEY_PATH"] = client.ClientCert, client.ClientKey
		}
		o, err := OptionsFromEnv(func(name string) string { return env[name] })
		require.NoError(t, err)
		return o
	}
	dir := t.TempDir()
	open := func(o Options) *Runtime {
		store, err := file.Open(dir, file.Options{})
		require.NoError(t, err)
		return join(t, store, o)
	}
	worker := open(options(ours, ours))
	s, err := endpoint(t, worker).Serve(echo, ServeOptions{})
	require.NoError(t, err)
	defer s.Close(false)
	i := s.Instance()
	for range 2 {
		stream, err := open(options(ours, ours)).Call(ctx, &i, ask(`{"a":1}`)(t))
		items, err := drain(t, stream, err)
		require.NoError(t, err)
		require.Len(t, items, 3)
	}
	stream, err := open(options(ours, ours)).Call(ctx, &i, ask(`{"a":1}`)(t))
	require.NoError(t, err)
	stream.Close()
	for name, o := range map[string]Options{"plain": {}, "no certificate": options(ours, nil), "a stranger": options(ours, theirs)} {
		_, err := open(o).Call(ctx, &i, ask(`1`)(t))
		require.ErrorIs(t, err, plane.ErrCannotConnect, name)
	}
	// A caller whose responses the worker cannot trust hears nothing.
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, o := range []Options{options(theirs, ours), options(nil, ours)} {
		_, err := open(o).Call(short, &i, ask(`1`)(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	for name, bad := range map[string]string{"DYN_TCP_TLS_CERT_PATH": "/nowhere", "DYN_TCP_TLS_CA_CERT_PATH": "/nowhere", "DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS": "-1"} {
		_, err := OptionsFromEnv(func(n string) string { return map[string]string{name: bad}[n] })
		require.ErrorIs(t, err, plane.ErrInvalidArgument)
	}
}

// BenchmarkCall is a call with an answer of three items, from end to end over loopback.
func BenchmarkCall(b *testing.B) {
	r := join(b, discovery.NewMemory(), Options{})
	s, err := endpoint(b, r).Serve(echo, ServeOptions{})
	require.NoError(b, err)
	defer s.Close(false)
	c := client(b, r)
	q := ask(`{"token_ids":[1,2,3]}`)(b)
	for b.Loop() {
		stream, err := c.RoundRobin(ctx, q)
		for err == nil {
			_, err = stream.Recv()
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
}

// BenchmarkItems is the cost of an item of a stream, on both sides.
func BenchmarkItems(b *testing.B) {
	r := join(b, discovery.NewMemory(), Options{})
	item := msgpack(b, `{"token_ids":[1000],"finish_reason":null}`)
	s, err := endpoint(b, r).Serve(func(c *Call) error {
		for c.Stopped().Err() == nil {
			if err := c.Send(item); err != nil {
				return err
			}
		}
		return nil
	}, ServeOptions{})
	require.NoError(b, err)
	defer s.Close(false)
	stream, err := client(b, r).RoundRobin(ctx, ask(`1`)(b))
	require.NoError(b, err)
	defer stream.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := stream.Recv(); err != nil {
			b.Fatal(err)
		}
	}
}

// Everything works over IPv6: records, requests, responses and events have addresses in brackets.
func TestIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("SKIPPED %s: no IPv6 on this machine: %v", t.Name(), err)
	} else {
		l.Close()
	}
	r := New(discovery.NewMemory(), Options{RequestHost: "::1", ResponseHost: "::1", EventHost: "::1"})
	defer r.Close()
	e, err := r.Endpoint("ns.comp.six")
	require.NoError(t, err)
	s, err := e.Serve(func(c *Call) error { return c.Send(c.Body) }, ServeOptions{})
	require.NoError(t, err)
	require.Contains(t, s.Instance().TCP, "[::1]:")
	c, err := e.Client()
	require.NoError(t, err)
	defer c.Close()
	stream, err := c.Random(context.Background(), &Request{ID: "x", Body: []byte{0x05}})
	require.NoError(t, err)
	defer stream.Close()
	it, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, []byte{0x05}, it.Data)
	_, err = stream.Recv()
	require.Equal(t, io.EOF, err)

	heard := make(chan string, 1)
	sub, err := event.Subscribe(r.Link(), e.Name, "topic", event.Options{Take: func(m *wire.Envelope) { heard <- string(m.Payload) }})
	require.NoError(t, err)
	defer sub.Close()
	pub, err := event.NewPublisher(r.Link(), e.Name, "topic", 0)
	require.NoError(t, err)
	defer pub.Close()
	require.Eventually(t, func() bool { return pub.Subscribers() == 1 }, 30*time.Second, time.Millisecond)
	require.NoError(t, pub.Publish([]byte("six")))
	require.Equal(t, "six", <-heard)
}
