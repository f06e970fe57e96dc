package tcp

import (
	"bufio"
	"bytes"
	"context"
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
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func listen(t *testing.T, o Options, h Handler) *Listener {
	l, err := Listen("127.0.0.1:0", o, h)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

func pool(t *testing.T, o Options) *Pool {
	p := NewPool(o)
	t.Cleanup(p.Close)
	return p
}

func await(t *testing.T, what string, ok func() bool) {
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

// Many requests at once go over a few connections, each arrives once and whole, and each gets its own acknowledgement.
func TestPipelined(t *testing.T) {
	var mu sync.Mutex
	got := map[string]int{}
	l := listen(t, Options{}, func(q Request) error {
		mu.Lock()
		defer mu.Unlock()
		got[string(q.Payload)]++
		switch {
		case strings.HasPrefix(string(q.Payload), "full"):
			return plane.ErrOverloaded
		case q.Path != "a/b":
			return fmt.Errorf("unknown endpoint %s", q.Path)
		}
		return nil
	})
	p := pool(t, Options{AckTimeout: time.Minute}) // the machine may be slow
	var senders sync.WaitGroup
	for i := range 500 {
		senders.Go(func() {
			large := strings.Repeat("x", i*30)
			address := l.Addr().String() + "/a/b"
			assert.NoError(t, p.Send(context.Background(), address, "id", fmt.Appendf(nil, "%d%s", i, large)))
			assert.ErrorIs(t, p.Send(context.Background(), address, "id", fmt.Appendf(nil, "full%d", i)), plane.ErrOverloaded)
			err := p.Send(context.Background(), address+"x", "id", fmt.Appendf(nil, "lost%d", i))
			assert.ErrorIs(t, err, plane.ErrUnavailable)
			assert.ErrorContains(t, err, "Server unavailable: unknown endpoint a/bx")
		})
	}
	senders.Wait()
	require.Equal(t, 1500, len(got))
	for _, n := range got {
		require.Equal(t, 1, n)
	}
	require.LessOrEqual(t, p.Conns(), 8)
}

func TestErrorsOfSend(t *testing.T) {
	p := pool(t, Options{AckTimeout: 50 * time.Millisecond, MaxMessage: 10, Pipeline: 1})
	ctx := context.Background()
	require.ErrorIs(t, p.Send(ctx, "nowhere", "id", nil), plane.ErrInvalidArgument)
	require.ErrorIs(t, p.Send(ctx, "127.0.0.1:1/x", "id", nil), plane.ErrCannotConnect)
	require.ErrorIs(t, p.Send(ctx, "127.0.0.1:1/x", "id", make([]byte, 11)), plane.ErrTooLarge)
	require.ErrorIs(t, p.Send(ctx, "127.0.0.1:1/"+strings.Repeat("x", 1<<16), "id", nil), plane.ErrTooLarge)

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	address := silent.Addr().String() + "/x"
	require.ErrorIs(t, p.Send(ctx, address, "id", nil), plane.ErrTimeout)
	await(t, "a silent host's connection is broken", func() bool { return p.Conns() == 0 })
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, p.Send(cancelled, address, "id", nil), context.Canceled)
	silent.Close()
	p.Close()
	require.ErrorIs(t, p.Send(ctx, address, "id", nil), plane.ErrClosed)

	p = pool(t, Options{AckTimeout: time.Minute}) // what ends these is the answer
	for name, answer := range map[string]string{
		"an acknowledgement of nothing": strings.Repeat("\x00", 8), "a huge one": "\xff\xff\xff\xff", "its end": "\x00\x00\x00\x09half",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go func() {
			c, err := l.Accept()
			if err == nil {
				_, _ = ReadRequest(bufio.NewReader(c), 100, func(int) error { return nil })
				_, _ = c.Write([]byte(answer))
				c.Close()
			}
		}()
		if err := p.Send(ctx, l.Addr().String()+"/x", "id", nil); err != nil {
			require.ErrorIs(t, err, plane.ErrCannotConnect, name)
		}
		await(t, name, func() bool { return p.Conns() == 0 })
		l.Close()
	}
}

// A worker that comes back at the same address is reached again.
func TestWorkerRestarts(t *testing.T) {
	address := servertest.FreeAddress(t)
	l, err := Listen(address, Options{}, func(Request) error { return nil })
	require.NoError(t, err)
	defer l.Close()
	p := pool(t, Options{})
	require.NoError(t, p.Send(context.Background(), address+"/x", "id", nil))
	l.Close()
	await(t, "the broken connection is forgotten", func() bool { return p.Conns() == 0 })
	require.ErrorIs(t, p.Send(context.Background(), address+"/x", "id", nil), plane.ErrCannotConnect)
	again, err := Listen(address, Options{}, func(Request) error { return nil })
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, p.Send(context.Background(), address+"/x", "id", nil))
}

// Whoever sends what is no request, or none, is cut off; others are served, and nothing is left of it.
func TestHostileClients(t *testing.T) {
	o := Options{MaxMessage: 1000, MaxHalfOpen: 4, MaxConns: 20, FrameTimeout: time.Hour}
	l := listen(t, o, func(Request) error { return nil })
	o.FrameTimeout = 50 * time.Millisecond
	impatient := listen(t, o, func(Request) error { return nil })
	dial := func(l *Listener) net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	ended := func(c net.Conn) {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		b, err := io.ReadAll(c)
		require.Empty(t, b)
		if err != nil {
			require.ErrorContains(t, err, "reset")
		}
	}
	good, err := AppendRequest(nil, "x", []byte("{}"), []byte("payload"))
	require.NoError(t, err)
	proven := dial(l)
	_, err = proven.Write(good)
	require.NoError(t, err)
	_, err = io.ReadFull(proven, make([]byte, 4))
	require.NoError(t, err)

	for _, hostile := range [][]byte{
		nil, {0}, bytes.Repeat([]byte{0xff}, 100_000), append(good[:7:7], 0xff, 0xff, 0xff, 0xff), good[:len(good)-1],
		[]byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		c := dial(impatient)
		_, _ = c.Write(hostile)
		ended(c)
	}
	var flood []net.Conn
	for range 10 {
		flood = append(flood, dial(l))
	}
	await(t, "a flood is refused", func() bool { return l.Stats().Refused >= 6 })
	require.LessOrEqual(t, l.Stats().HalfOpen, 4)
	_, err = proven.Write(good)
	require.NoError(t, err, "who has proven itself is served meanwhile")
	_, err = io.ReadFull(proven, make([]byte, 4))
	require.NoError(t, err)
	for _, late := range []net.Conn{dial(l), dial(l)} { // and so is who speaks at once
		_, err = late.Write(good)
		require.NoError(t, err)
		_, err = io.ReadFull(late, make([]byte, 4))
		require.NoError(t, err)
		late.Close()
	}
	for _, c := range flood[:6] {
		ended(c)
	}
	for _, c := range flood[6:] {
		c.Close()
	}
	await(t, "nothing is left", func() bool { s := l.Stats(); return s.Conns == 1 && s.HalfOpen == 0 })
	await(t, "nothing is left", func() bool { s := impatient.Stats(); return s.Conns == 0 && s.HalfOpen == 0 })
}

// Handshakes that are begun and not ended are bounded, and given up, as anything else that is half sent.
func TestHalfHandshakes(t *testing.T) {
	c := servertest.NewCertificates(t, "process")
	load := func(timeout time.Duration) *secure.TLS {
		secured, err := secure.Load(secure.Files{
			Cert: c.ServerCert, Key: c.ServerKey, ClientCA: c.CA, CA: c.CA, ClientCert: c.ClientCert, ClientKey: c.ClientKey,
		}, timeout)
		require.NoError(t, err)
		return secured
	}
	secured := load(time.Hour)
	l := listen(t, Options{MaxHalfOpen: 4, TLS: secured}, func(Request) error { return nil })
	p := pool(t, Options{TLS: secured, AckTimeout: time.Minute})
	address := l.Addr().String() + "/x"
	require.NoError(t, p.Send(context.Background(), address, "id", []byte("payload")))
	begin := func(l *Listener) net.Conn {
		raw, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { raw.Close() })
		_, _ = raw.Write([]byte{0x16, 3, 1}) // a handshake begins so
		return raw
	}
	var flood []net.Conn
	for range 10 {
		flood = append(flood, begin(l))
	}
	await(t, "a flood is refused", func() bool { return l.Stats().Refused >= 6 })
	require.LessOrEqual(t, l.Stats().HalfOpen, 4)
	require.NoError(t, p.Send(context.Background(), address, "id", []byte("payload")), "who has proven itself is served meanwhile")
	for _, raw := range flood {
		raw.Close()
	}
	await(t, "nothing is left", func() bool { s := l.Stats(); return s.Conns == 1 && s.HalfOpen == 0 })

	impatient := listen(t, Options{TLS: load(20 * time.Millisecond)}, func(Request) error { return nil })
	begin(impatient)
	await(t, "it is given up", func() bool { return impatient.Stats() == ListenerStats{Broken: 1} })
}

func FuzzReadRequest(f *testing.F) {
	good, _ := AppendRequest(nil, "path", []byte("{}"), []byte("payload"))
	f.Add(good)
	f.Add([]byte{0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			q, err := ReadRequest(r, 1<<20, func(int) error { return nil })
			if err != nil {
				return
			}
			again, err := AppendRequest(nil, q.Path, q.Headers, q.Payload)
			require.NoError(t, err)
			require.True(t, bytes.Contains(b, again))
		}
	})
}
