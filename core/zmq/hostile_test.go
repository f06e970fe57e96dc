package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
)

// small keeps failures quick: heartbeats off unless the test is about them.
var small = Options{Heartbeat: -1, MaxMessage: 1 << 20, MaxFrames: 4}

func recvError(t *testing.T, endpoint string, o Options) error {
	t.Helper()
	return within(t, "an error", func() error {
		c, err := Dial(context.Background(), endpoint, Sub, o)
		if err != nil {
			return err
		}
		defer c.Close()
		for {
			if _, err := c.Recv(); err != nil {
				_, again := c.Recv()
				require.Equal(t, err, again, "the error stays")
				return err
			}
		}
	})
}

func long(flags byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, n)
}

func TestHostileFramesAfterTheHandshake(t *testing.T) {
	frame := func(flags byte, n int) []byte { return append([]byte{flags, byte(n)}, make([]byte, n)...) }
	cases := map[string]struct {
		send []byte
		want error
	}{
		"frames without end":        {bytes.Repeat(frame(flagMore, 0), 5), ErrTooLarge},
		"message too large":         {append(append(long(flagMore, 1<<19), make([]byte, 1<<19)...), long(0, 1<<19+1)...), ErrTooLarge},
		"unknown flags":             {[]byte{0xf8, 0}, ErrProtocol},
		"command inside a message":  {append(frame(flagMore, 1), frame(flagCommand, 1)...), ErrProtocol},
		"command with more":         {frame(flagCommand|flagMore, 1), ErrProtocol},
		"command without a name":    {frame(flagCommand, 0), ErrProtocol},
		"name longer than command":  {append([]byte{flagCommand, 2}, 9, 'P'), ErrProtocol},
		"ping without time to live": {append([]byte{flagCommand, 5}, "\x04PING"...), ErrProtocol},
		"ping with a long context":  {append([]byte{flagCommand, 5 + 2 + 17}, append([]byte("\x04PING"), make([]byte, 19)...)...), ErrProtocol},
		"error command":             {append([]byte{flagCommand, 6}, "\x05ERROR"...), ErrProtocol},
		"half a header":             {[]byte{flagLong, 0, 0}, io.EOF},
		"half a frame":              {append(long(0, 1<<20), 1, 2, 3), io.ErrUnexpectedEOF},
		"half a small frame":        {[]byte{0, 9, 1}, io.ErrUnexpectedEOF},
		"HTTP":                      {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), ErrProtocol},
	}
	for _, n := range []uint64{1<<20 + 1, 1 << 33, 1 << 40, 1 << 50, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		cases[fmt.Sprint("length ", n)] = struct {
			send []byte
			want error
		}{long(0, n), ErrTooLarge}
		cases[fmt.Sprint("command length ", n)] = struct {
			send []byte
			want error
		}{long(flagCommand, n), ErrTooLarge}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			end := rawPeer(t, func(conn net.Conn) {
				r := shake(conn, "PUB")
				conn.Write(c.send)
				if errors.Is(c.want, io.EOF) || errors.Is(c.want, io.ErrUnexpectedEOF) {
					return
				}
				io.Copy(io.Discard, r) // stay, so that the error is not the end of the stream
			})
			require.ErrorIs(t, recvError(t, end, small), c.want)
		})
	}
}

func TestHostileHandshakes(t *testing.T) {
	g, bad := greeting(), greeting()
	bad[12] = 'X'
	old := greeting()
	old[10] = 1
	meta := func(s string) []byte {
		body := "\x05READY" + s
		return append(g[:len(g):len(g)], append([]byte{flagCommand, byte(len(body))}, body...)...)
	}
	late := errors.New("nothing more comes")
	for name, c := range map[string]struct {
		send []byte
		want error
	}{
		"silence":               {nil, late},
		"half a greeting":       {g[:30], late},
		"greeting only":         {g, late},
		"half a command":        {append(g[:len(g):len(g)], flagCommand, 20, 5), late},
		"HTTP":                  {[]byte("HTTP/1.1 200 OK\r\n"), ErrProtocol},
		"zeros":                 {make([]byte, 1000), ErrProtocol},
		"unknown mechanism":     {bad, ErrHandshake},
		"version 1":             {old, ErrHandshake},
		"message":               {append(g[:len(g):len(g)], 0, 1, 1), ErrProtocol},
		"2^62 bytes of command": {append(g[:len(g):len(g)], long(flagCommand, 1<<62)...), ErrTooLarge},
		"not READY":             {append(g[:len(g):len(g)], append([]byte{flagCommand, 6}, "\x05HELLO"...)...), ErrHandshake},
		"metadata name":         {meta("\xffSocket-Type"), ErrHandshake},
		"metadata value":        {meta("\x0bSocket-Type\xff\xff\xff\xffPUB"), ErrHandshake},
		"metadata cut":          {meta("\x0bSocket-Type\x00"), ErrProtocol},
		"no socket type":        {meta(""), ErrHandshake},
		"wrong socket type":     {append(g[:len(g):len(g)], ready("DEALER")...), ErrHandshake},
	} {
		t.Run(name, func(t *testing.T) {
			end := rawPeer(t, func(conn net.Conn) {
				conn.Write(c.send)
				io.Copy(io.Discard, conn)
			})
			o := small
			o.HandshakeTimeout = time.Hour
			if c.want == late {
				o.HandshakeTimeout, c.want = 50*time.Millisecond, ErrHandshake
			}
			require.ErrorIs(t, recvError(t, end, o), c.want)
		})
	}
}

func TestClaimedLengthTakesNoMemory(t *testing.T) {
	const peers, claim = 40, 256 << 20
	o := small
	o.MaxMessage = claim
	end := rawPeer(t, func(conn net.Conn) {
		shake(conn, "PUB")
		conn.Write(append(long(0, claim), 1, 2, 3))
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var done sync.WaitGroup
	for range peers {
		c, err := Dial(context.Background(), end, Sub, o)
		require.NoError(t, err)
		done.Go(func() { // the peer closes what it sends after the header
			_, err := c.Recv()
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			c.Close()
		})
	}
	done.Wait()
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "%d claims of %d bytes", peers, claim)
}

func TestLargeMessagesArriveWhole(t *testing.T) {
	pub, err := ListenPub("tcp://127.0.0.1:0", Options{})
	require.NoError(t, err)
	defer pub.Close()
	sub := Subscribe(pub.Addr(), nil, Options{})
	defer sub.Close()
	eventually(t, "subscribed", func() bool { return pub.Stats().Subscribers == 1 })
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 255, 256, withhold - 1, withhold, withhold + 1, 3*withhold + 7, 20 << 20} {
		body := make([]byte, n)
		for i := 0; i < n; i += 1 + n/1000 {
			body[i] = byte(rng.Uint32())
		}
		require.NoError(t, pub.Publish([]byte("t"), body, body[:min(n, 300)]))
		f := until(t, sub, Message).Frames
		require.Len(t, f, 3)
		require.True(t, bytes.Equal(body, f[1]) && bytes.Equal(body[:min(n, 300)], f[2]), "%d bytes", n)
	}
}

func TestCloseUnblocks(t *testing.T) {
	silent := rawPeer(t, func(conn net.Conn) { shake(conn, "PUB"); io.Copy(io.Discard, conn) })
	c, err := Dial(context.Background(), silent, Sub, Options{})
	require.NoError(t, err)
	errs := make(chan error, 1)
	go func() { _, err := c.Recv(); errs <- err }()
	require.NoError(t, c.Close())
	require.ErrorIs(t, within(t, "Recv", func() error { return <-errs }), ErrClosed)
	require.ErrorIs(t, c.Send(nil), ErrClosed)
	require.NoError(t, c.Close())
}

func TestDialEndsWithItsContext(t *testing.T) {
	silent := rawPeer(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	err := within(t, "Dial", func() error { _, err := Dial(ctx, silent, Sub, Options{HandshakeTimeout: time.Hour}); return err })
	require.ErrorIs(t, err, context.Canceled)
	_, err = Dial(context.Background(), "tcp://*:5", Sub, Options{})
	require.ErrorIs(t, err, ErrEndpoint)
	_, err = Dial(context.Background(), silent, "REP", Options{})
	require.ErrorIs(t, err, ErrHandshake)
}

func TestPingIsAnsweredWithItsContext(t *testing.T) {
	pong := make(chan string, 1)
	end := rawPeer(t, func(conn net.Conn) {
		r := shake(conn, "PUB")
		conn.Write(append([]byte{flagCommand, 5 + 2 + 4}, "\x04PING\x00\x00abcd"...))
		_, body, _ := readFrame(r)
		pong <- string(body)
		conn.Write([]byte{0, 1, 'x'})
		io.Copy(io.Discard, r)
	})
	c, err := Dial(context.Background(), end, Sub, small)
	require.NoError(t, err)
	defer c.Close()
	f := within(t, "message", func() [][]byte { f, _ := c.Recv(); return f })
	require.Equal(t, "\x04PONGabcd", <-pong)
	require.Equal(t, [][]byte{[]byte("x")}, f, "commands are not messages")
}

func TestPeerThatAcceptsAndClosesIsNotHammered(t *testing.T) {
	var mu sync.Mutex
	var waits []time.Duration
	o := Options{BackoffMin: 8 * time.Millisecond, BackoffMax: 64 * time.Millisecond, Jitter: func() float64 { return 0 }}.dialling()
	for n := range 100 {
		waits = append(waits, o.backoff(n))
	}
	require.Equal(t, []time.Duration{8e6, 16e6, 32e6, 64e6, 64e6}, waits[:5])
	require.Equal(t, 64*time.Millisecond, waits[99])
	o.Jitter = func() float64 { return 0.999 }
	require.Greater(t, o.backoff(0), 4*time.Millisecond)

	for name, script := range map[string]func(net.Conn){
		"closes at once":             func(net.Conn) {},
		"closes after the handshake": func(c net.Conn) { shake(c, "PUB") },
	} {
		count := 0
		end := rawPeer(t, func(c net.Conn) {
			mu.Lock()
			count++
			mu.Unlock()
			script(c)
		})
		start := time.Now()
		sub := Subscribe(end, nil, o)
		for downs := 0; downs < 6; {
			if within(t, name, func() Event { return <-sub.Events() }).Kind == Disconnected {
				downs++
			}
		}
		require.GreaterOrEqual(t, time.Since(start), (4+8+16+32+32)*time.Millisecond, "five waits, each at least half")
		sub.Close()
	}
}

func TestFloodOfConnections(t *testing.T) {
	pub, err := ListenPub("tcp://127.0.0.1:0", Options{MaxConns: 20, MaxHandshakes: 8, HandshakeTimeout: time.Hour})
	require.NoError(t, err)
	addr := strings.TrimPrefix(pub.Addr(), "tcp://")
	var open []net.Conn
	for range 200 {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		open = append(open, c)
	}
	eventually(t, "all but a few are closed", func() bool { return pub.Stats().Refused == 200-8 })
	for _, c := range open {
		c.Close()
	}
	eventually(t, "the others have gone", func() bool { return pub.Stats().Rejected == 8 })
	sub := Subscribe(pub.Addr(), nil, Options{})
	eventually(t, "there is room again", func() bool { return pub.Stats().Subscribers == 1 })
	sub.Close()

	var subs []*Subscriber
	for range 30 {
		subs = append(subs, Subscribe(pub.Addr(), nil, Options{BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond}))
	}
	eventually(t, "as many as allowed", func() bool { return pub.Stats().Subscribers == 20 })
	for _, s := range subs {
		s.Close()
	}
	within(t, "close", pub.Close)
	require.NoError(t, pub.Close())
	require.ErrorIs(t, pub.Publish([]byte("x")), ErrClosed)
}

func TestGarbageAtListeners(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	pub, err := ListenPub("tcp://127.0.0.1:0", Options{HandshakeTimeout: 100 * time.Millisecond})
	require.NoError(t, err)
	defer pub.Close()
	addr := strings.TrimPrefix(pub.Addr(), "tcp://")
	attack := func(send []byte) {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		c.Write(send)
		c.SetReadDeadline(time.Now().Add(patience))
		_, err = io.Copy(io.Discard, c)
		var late net.Error
		require.False(t, errors.As(err, &late) && late.Timeout(), "still connected after %q", send[:min(len(send), 80)])
	}
	shaken := append(greeting(), ready("SUB")...)
	attack([]byte("GET / HTTP/1.1\r\n\r\n"))
	attack(greeting()[:10])
	attack(append(shaken[:len(shaken):len(shaken)], long(0, 1<<62)...))
	attack(append(shaken[:len(shaken):len(shaken)], long(0, 64<<10+1)...))
	var topics []byte
	for i := range maxTopics + 1 {
		topics = append(append(topics, 0, 9, 1), fmt.Sprintf("%08d", i)...)
	}
	attack(append(shaken[:len(shaken):len(shaken)], topics...))
	huge := append(append(long(0, 40_001), 1), make([]byte, 40_000)...)
	other := append(append(long(0, 40_001), 1), bytes.Repeat([]byte{2}, 40_000)...)
	attack(append(append(shaken[:len(shaken):len(shaken)], huge...), other...))
	for range 50 {
		junk := make([]byte, rng.IntN(300))
		for i := range junk {
			junk[i] = byte(rng.Uint32())
		}
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		c.Write(append(shaken[:rng.IntN(len(shaken)+1):len(shaken)], junk...))
		c.Close()
	}
	sub := Subscribe(pub.Addr(), nil, Options{})
	defer sub.Close()
	eventually(t, "still serving", func() bool { return pub.Stats().Subscribers == 1 })
}

func TestSlowSubscriberLosesTheNewest(t *testing.T) {
	pub, err := ListenPub("tcp://127.0.0.1:0", Options{SendQueue: 10})
	require.NoError(t, err)
	defer pub.Close()
	c, err := Dial(context.Background(), pub.Addr(), Sub, Options{})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Send([]byte{1}))
	eventually(t, "subscribed", func() bool { return pub.Stats().Subscribers == 1 })
	body := make([]byte, 1<<20)
	sent := 0
	for pub.Stats().Dropped < 5 {
		require.NoError(t, pub.Publish(binary.BigEndian.AppendUint64(nil, uint64(sent)), body))
		sent++
		require.Less(t, sent, 10_000, "nothing bounds the queue")
	}
	lasts := uint64(0)
	for i := range pub.Stats().Sent {
		f, err := c.Recv()
		require.NoError(t, err)
		lasts = binary.BigEndian.Uint64(f[0])
		require.GreaterOrEqual(t, lasts, i)
	}
	require.Less(t, lasts, uint64(sent))

	box := newOutbox(3, 100)
	require.True(t, box.put(nil, 1000), "alone, whatever its size")
	require.False(t, box.put(nil, 1))
	got, _ := box.take(nil)
	require.Len(t, got, 1)
	for range 3 {
		require.True(t, box.put(nil, 33))
	}
	require.False(t, box.put(nil, 0))
}

// answering is a router socket: "panic" panics, "flood" is answered for ever, anything else by 100 messages of 1 MiB.
func answering(t *testing.T, o Options) (r *RouterSocket, flooding, flooded chan struct{}) {
	t.Helper()
	body := make([]byte, 1<<20)
	flooding, flooded = make(chan struct{}), make(chan struct{})
	r, err := ListenRouter("tcp://127.0.0.1:0", o, func(req [][]byte, reply func(...[]byte) error) {
		switch string(req[1]) {
		case "panic":
			leaktest.Faults(1)
			panic("handler")
		case "flood":
			close(flooding)
			for reply(nil, body) == nil {
			}
			close(flooded)
		default:
			for range 100 {
				reply(nil, body)
			}
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return r, flooding, flooded
}

func ask(t *testing.T, r *RouterSocket, what string) *Conn {
	t.Helper()
	c, err := Dial(context.Background(), r.Addr(), Dealer, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.Send(nil, []byte(what)))
	return c
}

func TestRouterOutlivesAPanic(t *testing.T) {
	r, _, _ := answering(t, Options{})
	c := ask(t, r, "panic")
	_, err := c.Recv()
	require.Error(t, err)
	eventually(t, "counted", func() bool { return r.Stats().Panics == 1 })
	d := ask(t, r, "hundred")
	for range 100 {
		f, err := d.Recv()
		require.NoError(t, err)
		require.Len(t, f[1], 1<<20)
	}
}

func TestRouterWaitsForASlowPeer(t *testing.T) {
	r, flooding, flooded := answering(t, Options{WriteTimeout: 50 * time.Millisecond})
	ask(t, r, "flood") // never reads
	<-flooding
	within(t, "the write timeout", func() struct{} { return <-flooded })

	r, flooding, flooded = answering(t, Options{})
	ask(t, r, "flood")
	<-flooding
	within(t, "close", r.Close)
	<-flooded
	require.NoError(t, r.Close())
}

func TestStaleSocketFileIsReplaced(t *testing.T) {
	path := t.TempDir() + "/s"
	raw, err := net.Listen("unix", path)
	require.NoError(t, err)
	raw.(*net.UnixListener).SetUnlinkOnClose(false)
	raw.Close()
	pub, err := ListenPub("ipc://"+path, Options{})
	require.NoError(t, err)
	_, err = ListenPub("ipc://"+path, Options{})
	require.Error(t, err, "a living one is not replaced")
	sub := Subscribe("ipc://"+path, nil, Options{})
	eventually(t, "subscribed", func() bool { return pub.Stats().Subscribers == 1 })
	sub.Close()
	require.NoError(t, pub.Close())
}

// FuzzGuard feeds bytes to the guard as the library would read them: it fails or passes bytes on, and never passes a
// frame beyond the limits.
func FuzzGuard(f *testing.F) {
	f.Add(append(append(greeting(), ready("PUB")...), long(0, 1<<62)...), true)
	f.Add(append(greeting(), append([]byte{flagCommand, 11}, "\x04PING\x00\x00abcd"...)...), true)
	f.Add(append(greeting(), 1, 3, 'a', 'b', 'c', 0, 0), true)
	f.Fuzz(func(t *testing.T, data []byte, established bool) {
		near, far := net.Pipe()
		go func() { far.Write(data); far.Close() }()
		defer near.Close()
		o := Options{MaxMessage: 1000, MaxFrames: 3}.dialling()
		g := newGuard(near, &o)
		g.established = established
		g.onCommand = func(name string, body []byte) error {
			if len(name)+len(body) > maxCommand {
				t.Fatal("command beyond its bound")
			}
			return nil
		}
		buf := make([]byte, 64)
		if _, err := io.ReadFull(g, buf); err != nil {
			return
		}
		for total := 0; ; {
			n, err := g.Read(buf[:1+total%9])
			if err != nil {
				return
			}
			if total += n; g.left > max(1000, maxCommand) || g.frames > 3 {
				t.Fatal("frame beyond its bound")
			}
		}
	})
}
