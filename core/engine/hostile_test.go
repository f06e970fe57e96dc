package engine_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/engine"
)

// peer answers health checks, and has its way with the connection of anything else.
func peer(t *testing.T, way func(c net.Conn)) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					q, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, q.Body)
					if q.URL.Path == "/health" {
						fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
						continue
					}
					way(c)
					return
				}
			}()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return "http://" + ln.Addr().String()
}

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// pour writes the same again and again, until nobody takes it any more.
func pour(c net.Conn, text string) {
	for {
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
	}
}

func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

const token = `data: {"choices":[{"index":0,"text":"a","token_ids":[1]}]}` + "\n\n"

// small limits, so that a test at the limit is a quick one.
func small(c *engine.Config) {
	c.Health.Failures = 1 << 20
	c.Limits = engine.Limits{
		HeaderBytes: 16 << 10, EventBytes: 64 << 10, StreamEvents: 1000, BodyBytes: 64 << 10, ErrorBytes: 1 << 10,
		Begin: 2 * time.Second, Between: 300 * time.Millisecond, Connect: time.Second,
	}
}

func TestHostileEnginesAreBoundedAndToldByKind(t *testing.T) {
	for name, c := range map[string]struct {
		way  func(c net.Conn)
		want error // of Complete and its stream; nil: any, as long as it ends
		raw  error // of Forward and its body; nil: none
	}{
		"a stream without end": {func(c net.Conn) { io.WriteString(c, streamHead); pour(c, chunk(token)) }, engine.ErrTooLarge, nil},
		"a line of 100 MB": {func(c net.Conn) {
			io.WriteString(c, streamHead)
			io.WriteString(c, chunk("data: "))
			pour(c, chunk(strings.Repeat("x", 1<<20)))
		}, engine.ErrTooLarge, nil},
		"comments without end":      {func(c net.Conn) { io.WriteString(c, streamHead); pour(c, chunk(": ping\n\n")) }, engine.ErrTooLarge, nil},
		"an event of many lines":    {func(c net.Conn) { io.WriteString(c, streamHead); pour(c, chunk("data: xxxxxxxx\n")) }, engine.ErrTooLarge, nil},
		"headers without end":       {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\n"); pour(c, "X-Y: z\r\n") }, engine.ErrTooLarge, engine.ErrTooLarge},
		"a header of 1 MB":          {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("y", 1<<20)+"\r\n\r\n") }, engine.ErrTooLarge, engine.ErrTooLarge},
		"a status line without end": {func(c net.Conn) { pour(c, "HTTP/1.1 200 OKKKKKKKKK") }, nil, engine.ErrTooLarge},
		"no HTTP":                   {func(c net.Conn) { io.WriteString(c, "\x00\x01\x02 hello\r\n\r\n") }, engine.ErrProtocol, engine.ErrProtocol},
		"another protocol": {func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
			pour(c, "x")
		}, engine.ErrProtocol, engine.ErrProtocol},
		"informal answers without end": {func(c net.Conn) { pour(c, "HTTP/1.1 102 Processing\r\n\r\n") }, nil, nil},
		"a chunk that lies":            {func(c net.Conn) { io.WriteString(c, streamHead+"ffffffffffffffff\r\nx") }, nil, nil},
		"a chunk that is none":         {func(c net.Conn) { io.WriteString(c, streamHead+"zz\r\n") }, nil, nil},
		"a length that lies": {func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100000\r\n\r\n"+token)
		}, engine.ErrBroken, engine.ErrBroken},
		"two lengths": {func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx")
		}, nil, engine.ErrBroken},
		"a negative length": {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n") }, nil, engine.ErrBroken},
		"a reset":           {func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }, engine.ErrBroken, engine.ErrBroken},
		"a reset in mid-stream": {func(c net.Conn) {
			io.WriteString(c, streamHead+chunk(token))
			time.Sleep(20 * time.Millisecond)
			c.(*net.TCPConn).SetLinger(0)
		}, engine.ErrBroken, engine.ErrBroken},
		"silence": {func(c net.Conn) { io.WriteString(c, streamHead+chunk(token)); io.Copy(io.Discard, c) }, engine.ErrTimeout, engine.ErrTimeout},
		"a byte at a time": {func(c net.Conn) {
			io.WriteString(c, streamHead+chunk(token))
			for {
				if _, err := io.WriteString(c, chunk(":")); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}, engine.ErrTimeout, nil},
		"invalid UTF-8": {func(c net.Conn) {
			io.WriteString(c, streamHead+chunk("data: {\"choices\":[{\"text\":\"\xff\xfe\",\"finish_reason\":\"stop\"}]}\n\n")+"0\r\n\r\n")
		}, io.EOF, io.EOF},
		"NUL and nesting": {func(c net.Conn) {
			io.WriteString(c, streamHead+chunk("data: "+strings.Repeat("[", 30000)+"\n\n")+"0\r\n\r\n")
		}, engine.ErrProtocol, io.EOF},
		"an error too long": {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); pour(c, "x") }, engine.ErrStatus, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, peer(t, c.way), func(cfg *engine.Config) {
				small(cfg)
				if c.want != engine.ErrTimeout { // another limit ends it, however long it takes to come to that
					cfg.Limits.Begin, cfg.Limits.Between, cfg.Limits.Connect = time.Minute, time.Minute, time.Minute
				}
			})
			s, err := e.Complete(within(t), &engine.Completion{Tokens: prompt(4)})
			for err == nil {
				var it engine.Item
				it, err = s.Recv()
				require.True(t, strings.ToValidUTF8(it.Text, "") == it.Text)
			}
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			require.Less(t, len(err.Error()), 8<<10)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "what ends it is no limit of the caller's")

			r, err := e.Forward(within(t), &engine.Request{Method: "POST", Path: "/v1/completions"})
			if err == nil { // a stream without end is its caller's to bound
				stop := time.AfterFunc(time.Second, func() { r.Body.Close() })
				defer stop.Stop()
				_, err = io.CopyN(io.Discard, r.Body, 200<<10)
				r.Body.Close()
			}
			if c.raw != nil {
				require.ErrorIs(t, err, c.raw)
			}
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			rest(t, e)
		})
	}
}

// descriptors are how many this process has.
func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("SKIPPED: no /proc")
	}
	return len(all)
}

func TestNothingIsLeftOfRequestsThatFailed(t *testing.T) {
	ways := []func(c net.Conn){
		func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) },
		func(c net.Conn) { io.WriteString(c, streamHead+chunk(token)) },
		func(c net.Conn) { io.WriteString(c, streamHead+chunk(token)); io.Copy(io.Discard, c) },
		func(c net.Conn) { pour(c, "HTTP/1.1 200 OKKKKKKKKK") },
		func(c net.Conn) { io.WriteString(c, "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno") },
	}
	for i, way := range ways {
		e := open(t, peer(t, way), func(c *engine.Config) {
			small(c)
			c.Limits.Between, c.Health.Interval = 5*time.Millisecond, time.Hour
		})
		ask := func() {
			s, err := e.Complete(within(t), &engine.Completion{Tokens: prompt(4)})
			if err == nil {
				s.Close()
			}
		}
		ask()
		rest(t, e)
		goroutines, files := runtime.NumGoroutine(), descriptors(t)
		for range 100 {
			ask()
		}
		rest(t, e)
		require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+4 && descriptors(t) <= files+4 }, 10*time.Second, 10*time.Millisecond,
			"way %d: goroutines %d then, descriptors %d then", i, goroutines, files)
	}
}
