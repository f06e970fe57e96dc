package callhome

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func listen(t *testing.T, o Options) *Listener {
	l, err := Listen("127.0.0.1:0", "127.0.0.1", o)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

// pair connects both sides of a response.
func pair(t *testing.T, l *Listener, codec string, plain bool) (*Stream, *Sender) {
	p, err := l.Expect(codec, plain)
	require.NoError(t, err)
	s, err := Dial(context.Background(), &plane.Control{ID: "id", Codec: codec, Response: p.Response()}, plain, Options{})
	require.NoError(t, err)
	t.Cleanup(s.Abort)
	require.NoError(t, s.Begin(nil))
	stream, err := p.Wait(context.Background())
	require.NoError(t, err)
	t.Cleanup(stream.Close)
	return stream, s
}

func item(t testing.TB, v string) []byte {
	b, err := wire.FromJSON(nil, []byte(v))
	require.NoError(t, err)
	return b
}

func await(t *testing.T, what string, ok func() bool) {
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

func TestComplete(t *testing.T) {
	l := listen(t, Options{})
	for _, codec := range []string{discovery.CodecMsgpack, discovery.CodecJSON} {
		for _, plain := range []bool{false, true} {
			stream, s := pair(t, l, codec, plain)
			go func() {
				for i := range 1000 {
					assert.NoError(t, s.Send(item(t, fmt.Sprintf(`{"token_ids":[%d],"id":18446744073709551615}`, i))))
				}
				assert.NoError(t, s.End())
			}()
			for i := range 1000 {
				it, err := stream.Recv()
				require.NoError(t, err)
				j, err := wire.ToJSON(nil, it.Data)
				require.NoError(t, err)
				require.JSONEq(t, fmt.Sprintf(`{"token_ids":[%d],"id":18446744073709551615}`, i), string(j))
			}
			for range 2 {
				_, err := stream.Recv()
				require.Equal(t, io.EOF, err)
			}
			await(t, "the worker is done", func() bool { return s.Killed().Err() != nil })
			require.ErrorIs(t, s.Send(nil), plane.ErrClosed)
		}
	}
	await(t, "no connection is left", func() bool { return l.Stats() == Stats{} })
}

// An error of the handler is the last item; a refusal to begin is told before; a broken stream is never an end.
func TestFailures(t *testing.T) {
	l := listen(t, Options{})
	stream, s := pair(t, l, discovery.CodecMsgpack, false)
	require.NoError(t, s.Send(item(t, `{}`)))
	var failing sync.WaitGroup
	failing.Go(func() {
		assert.NoError(t, s.Fail(plane.FailureOf(fmt.Errorf("boom"))))
		assert.NoError(t, s.End())
	})
	_, err := stream.Recv()
	require.NoError(t, err)
	_, err = stream.Recv()
	var told *plane.WorkerError
	require.ErrorAs(t, err, &told)
	require.ErrorIs(t, err, plane.ErrWorker)
	require.Equal(t, "Internal: boom", err.Error())
	_, again := stream.Recv()
	require.Equal(t, err, again)
	failing.Wait()

	stream, s = pair(t, l, discovery.CodecMsgpack, false)
	require.NoError(t, s.Send(item(t, `{}`)))
	_, err = stream.Recv()
	require.NoError(t, err)
	s.Abort()
	_, err = stream.Recv()
	require.ErrorIs(t, err, plane.ErrDisconnected)
	require.True(t, plane.Quarantines(err))

	for _, c := range []struct {
		failure *wire.Failure
		want    error
	}{
		{plane.FailureOf(fmt.Errorf("%w: no", plane.ErrInvalidArgument)), plane.ErrWorker},
		{plane.FailureOf(fmt.Errorf("not now")), plane.ErrCannotConnect},
	} {
		p, err := l.Expect(discovery.CodecMsgpack, false)
		require.NoError(t, err)
		s, err := Dial(context.Background(), &plane.Control{ID: "id", Codec: discovery.CodecMsgpack, Response: p.Response()}, false, Options{})
		require.NoError(t, err)
		var worker sync.WaitGroup
		worker.Go(func() { assert.NoError(t, s.Begin(c.failure)) })
		_, err = p.Wait(context.Background())
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, c.failure.Message)
		worker.Wait()
	}
}

func TestStopAndKill(t *testing.T) {
	l := listen(t, Options{})
	stream, s := pair(t, l, discovery.CodecMsgpack, false)
	stream.Stop()
	<-s.Stopped().Done()
	require.NoError(t, s.Killed().Err())
	require.ErrorIs(t, s.Send(item(t, "{}")), plane.ErrCancelled)
	require.ErrorIs(t, s.End(), plane.ErrCancelled)
	_, err := stream.Recv()
	require.ErrorIs(t, err, plane.ErrCancelled)

	for name, end := range map[string]func(*Stream){"kill": (*Stream).Kill, "close": (*Stream).Close} {
		stream, s := pair(t, l, discovery.CodecMsgpack, false)
		filled := make(chan error)
		go func() { // a sender that nobody reads waits, and goes on when it is told to stop
			for {
				if err := s.Send(make([]byte, 1<<20)); err != nil {
					filled <- err
					return
				}
			}
		}()
		end(stream)
		<-s.Killed().Done()
		require.Error(t, <-filled, name)
		_, err := stream.Recv()
		require.ErrorIs(t, err, plane.ErrCancelled, name)
	}
	await(t, "no connection is left", func() bool { return l.Stats() == Stats{} })
}

func TestWaitEnds(t *testing.T) {
	l := listen(t, Options{})
	p, err := l.Expect(discovery.CodecMsgpack, false)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(plane.ErrUnavailable)
	_, err = p.Wait(ctx)
	require.ErrorIs(t, err, plane.ErrUnavailable)
	require.Zero(t, l.Stats().Expected)

	// The worker connects and says nothing more.
	p, err = l.Expect(discovery.CodecMsgpack, false)
	require.NoError(t, err)
	s, err := Dial(context.Background(), &plane.Control{Response: p.Response()}, false, Options{})
	require.NoError(t, err)
	defer s.Abort()
	ctx, cancel = context.WithCancelCause(context.Background())
	time.AfterFunc(time.Millisecond, func() { cancel(plane.ErrTimeout) })
	_, err = p.Wait(ctx)
	require.ErrorIs(t, err, plane.ErrTimeout)
	<-s.Killed().Done()

	p, err = l.Expect(discovery.CodecMsgpack, false)
	require.NoError(t, err)
	go l.Close()
	_, err = p.Wait(context.Background())
	require.ErrorIs(t, err, plane.ErrClosed)
	_, err = l.Expect(discovery.CodecMsgpack, false)
	require.ErrorIs(t, err, plane.ErrClosed)
}

// What a hostile worker sends is a typed error, and what hostile connections send is nobody's.
func TestHostileWorkers(t *testing.T) {
	l := listen(t, Options{MaxHalfOpen: 4, HandshakeTimeout: time.Hour, MaxMessage: 1000})
	impatient := listen(t, Options{HandshakeTimeout: 50 * time.Millisecond})
	dial := func(l *Listener) net.Conn {
		c, err := net.Dial("tcp", l.Address())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	message := func(header, body string) []byte { return plane.AppendMessage(nil, []byte(header), []byte(body)) }
	for name, hostile := range map[string][]byte{
		"silence": nil, "garbage": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "length": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"unknown subject": message(`{"subject":"x","stream_type":"response"}`, ""), "no subject": message(`{}`, ""), "a body": message("", "x"),
		"no JSON": message("{", ""),
	} {
		c := dial(impatient)
		_, err := c.Write(hostile)
		require.NoError(t, err)
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err, name)
		require.NotErrorIs(t, err, context.DeadlineExceeded, name)
	}
	var flood []net.Conn
	for range 10 {
		flood = append(flood, dial(l))
	}
	await(t, "a flood is refused", func() bool { return l.Stats().Refused >= 6 })
	require.LessOrEqual(t, l.Stats().HalfOpen, 4)
	speaking, s := pair(t, l, discovery.CodecMsgpack, false) // who speaks at once is served meanwhile
	require.NoError(t, s.Send(item(t, `{}`)))
	_, err := speaking.Recv()
	require.NoError(t, err)
	speaking.Close()
	for _, c := range flood {
		c.Close()
	}
	for _, each := range []*Listener{l, impatient} {
		await(t, "nothing is left", func() bool { s := each.Stats(); return s.Conns == 0 && s.HalfOpen == 0 })
	}

	good := item(t, `{"data":{"data":{}},"complete_final":false}`)
	for name, c := range map[string]struct {
		sent []byte
		want error
	}{
		"prologue with a body": {message(`{"error":null}`, "x"), plane.ErrProtocol},
		"prologue no JSON":     {message("nonsense", ""), plane.ErrProtocol},
		"end at once":          {nil, plane.ErrCannotConnect},
		"half a prologue":      {message(`{"error":null}`, "")[:30], plane.ErrCannotConnect},
		"a word":               {append(message(`{"error":null}`, ""), message(wordKill, "")...), plane.ErrProtocol},
		"a sentinel":           {append(message(`{"error":null}`, ""), message(wordSentinel, "")...), plane.ErrProtocol},
		"no item":              {append(message(`{"error":null}`, ""), message("", "\xc1")...), plane.ErrProtocol},
		"an empty item":        {append(message(`{"error":null}`, ""), message("", "\x81\xaecomplete_final\xc2")...), plane.ErrProtocol},
		"header and body":      {append(message(`{"error":null}`, ""), message("x", string(good))...), plane.ErrProtocol},
		"large":                {append(message(`{"error":null}`, ""), message("", string(make([]byte, 1001)))...), plane.ErrDisconnected},
		"half an item":         {append(message(`{"error":null}`, ""), message("", string(good))[:40]...), plane.ErrDisconnected},
		"end":                  {append(message(`{"error":null}`, ""), message("", string(good))...), plane.ErrDisconnected},
	} {
		p, err := l.Expect(discovery.CodecMsgpack, false)
		require.NoError(t, err)
		conn := dial(l)
		hello, _ := json.Marshal(handshake{p.Response().Subject, "response"})
		_, err = conn.Write(append(message(string(hello), ""), c.sent...))
		require.NoError(t, err)
		conn.(*net.TCPConn).CloseWrite()
		stream, err := p.Wait(context.Background())
		for err == nil {
			_, err = stream.Recv()
		}
		require.ErrorIs(t, err, c.want, name)
		require.NotEqual(t, io.EOF, err, name)
	}
	await(t, "nothing is left", func() bool { s := l.Stats(); return s.Conns == 0 && s.Expected == 0 })
}

// Who asked may say what it likes on the way back: words that are none end the work, and take no memory.
func TestHostileRouters(t *testing.T) {
	for name, said := range map[string][]byte{
		"garbage": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "length": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"a body": plane.AppendMessage(nil, nil, []byte("x")), "a long word": plane.AppendMessage(nil, make([]byte, 5<<10), nil),
		"a half": plane.AppendMessage(nil, []byte(wordStop), nil)[:20], "the end": nil,
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer ln.Close()
		response := plane.Response{Address: ln.Addr().String(), Subject: "s"}
		s, err := Dial(context.Background(), &plane.Control{ID: "id", Codec: discovery.CodecMsgpack, Response: response}, false, Options{})
		require.NoError(t, err)
		c, err := ln.Accept()
		require.NoError(t, err)
		_, err = c.Write(append(plane.AppendMessage(nil, []byte(`"hello"`), nil), said...)) // a word that is not known is passed over
		require.NoError(t, err)
		_ = c.(*net.TCPConn).CloseWrite() // it may be over already
		<-s.Killed().Done()
		require.ErrorIs(t, s.Send(item(t, "{}")), plane.ErrCancelled, name)
		s.Abort()
		c.Close()
	}
	// One that is silent, and does not read, holds nobody up who is told to end.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := Dial(ctx, &plane.Control{ID: "id", Codec: discovery.CodecMsgpack, Response: plane.Response{Address: ln.Addr().String()}}, false, Options{})
	require.NoError(t, err)
	defer s.Abort()
	filled := make(chan error)
	go func() {
		for {
			if err := s.Send(make([]byte, 1<<20)); err != nil {
				filled <- err
				return
			}
		}
	}()
	cancel()
	require.Error(t, <-filled)
}

// Whatever a connection begins with, it is handed to nobody but who expects its subject.
func FuzzHandshake(f *testing.F) {
	f.Add(plane.AppendMessage(nil, []byte(`{"subject":"x","stream_type":"response"}`), nil))
	f.Add(plane.AppendMessage(nil, []byte(`{}`), []byte("x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(b)
			theirs.Close()
		}()
		p := &Pending{subject: "x", conn: make(chan accepted, 1), begun: make(chan struct{})}
		l := &Listener{opts: Options{}.filled(), conns: map[net.Conn]struct{}{ours: {}}, half: plane.NewHalfOpen(1), expected: map[string]*Pending{"x": p}}
		l.half.Add(ours)
		l.greet(ours)
		require.Zero(t, l.half.Len())
		_, there := l.conns[ours]
		require.Equal(t, len(p.conn) == 1, there, "it is kept if it is handed on")
		require.Equal(t, len(p.conn) == 1, l.expected["x"] == nil)
		ours.Close()
	})
}

func FuzzResponse(f *testing.F) {
	f.Add(plane.AppendMessage(nil, []byte(`{"error":null}`), nil))
	f.Add(plane.AppendMessage(plane.AppendMessage(nil, []byte(`{"error":null}`), nil), nil, wire.AppendFinal(nil)))
	f.Add(plane.AppendMessage(plane.AppendMessage(nil, []byte(`{"error":null}`), nil), nil, wire.AppendFailure(nil, &wire.Failure{Type: "Unknown"})))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		go func() {
			_, _ = theirs.Write(b)
			theirs.Close()
		}()
		l := &Listener{conns: map[net.Conn]struct{}{}}
		s := &Stream{l: l, conn: ours, r: plane.NewReader(ours, 1<<16), codec: discovery.CodecMsgpack}
		err := s.begin(context.Background())
		for err == nil {
			_, err = s.Recv()
		}
	})
}
