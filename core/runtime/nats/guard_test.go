package nats

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

const hello = `INFO {"server_id":"x","version":"2.14.0","proto":1,"headers":true,"max_payload":9223372036854775807}` + "\r\n"

// Whatever answers instead of a server: it is tried again, takes no memory, and nothing panics.
func TestImpostors(t *testing.T) {
	const room = 64 << 20
	for name, c := range map[string]struct {
		first string // instead of the greeting
		then  func(w io.Writer)
	}{
		"a message beyond all bounds": {then: func(w io.Writer) { _, _ = io.WriteString(w, "MSG s 1 9223372036854775807\r\nx") }},
		"a message of many gigabytes": {then: func(w io.Writer) { _, _ = io.WriteString(w, "HMSG s 1 r 12 99999999999\r\nx") }},
		"a size that is none":         {then: func(w io.Writer) { _, _ = io.WriteString(w, "msg s 1 -1\r\n") }},
		"no size":                     {then: func(w io.Writer) { _, _ = io.WriteString(w, "MSG\r\n") }},
		"a long line before it":       {then: func(w io.Writer) { _, _ = io.WriteString(w, "MSG "+strings.Repeat("s", 8<<10)+" 1 1\r\nx\r\n") }},
		"garbage":                     {then: func(w io.Writer) { _, _ = io.WriteString(w, "\x00\xffnonsense\r\n") }},
		"a line without end":          {then: func(w io.Writer) { endless(w, "INFO ") }},
		"an error without end":        {then: func(w io.Writer) { endless(w, "-ERR '") }},
		"no greeting":                 {first: "GET / HTTP/1.1\r\n"},
		"a greeting that is none":     {first: "INFO 5\r\n"},
		"a greeting without end":      {first: "endless"},
	} {
		t.Run(name, func(t *testing.T) {
			faults := owned.Faults()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			var came atomic.Int64
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					came.Add(1)
					go func() {
						defer conn.Close()
						if c.first == "endless" {
							endless(conn, "INFO ")
							return
						}
						if c.first != "" {
							_, _ = io.WriteString(conn, c.first)
							_, _ = io.Copy(io.Discard, conn)
							return
						}
						_, _ = io.WriteString(conn, hello)
						in := bufio.NewReader(conn)
						for line := ""; !strings.HasPrefix(line, "PING"); {
							if line, err = in.ReadString('\n'); err != nil {
								return
							}
						}
						_, _ = io.WriteString(conn, "PONG\r\n")
						c.then(conn)
						_, _ = io.Copy(io.Discard, in)
					}()
				}
			}()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			o, err := OptionsFromEnv(env("NATS_SERVER", "nats://"+l.Addr().String()))
			require.NoError(t, err)
			o.ReconnectMax = 10 * time.Millisecond
			conn, err := Connect(o)
			require.NoError(t, err)
			await(t, "it is tried again", func() bool { return came.Load() >= 3 })
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(room))
			conn.Close()
			require.Equal(t, faults, owned.Faults())
		})
	}
}

func endless(w io.Writer, begin string) {
	_, err := io.WriteString(w, begin)
	for more := bytes.Repeat([]byte("x"), 1<<16); err == nil; {
		_, err = w.Write(more)
	}
}

// What a server says passes as it is, however it is cut.
func TestGuardLetsServersTalk(t *testing.T) {
	said := hello + "PING\r\n+OK\r\nMSG a.b 1 5\r\nMSG x\r\nmsg a 2 reply 0\r\n\r\nHMSG a 3 12 17\r\nNATS/1.0\r\n\r\nhello\r\n" + "-ERR 'no'\r\n" +
		"MSG a 1 70000\r\n" + strings.Repeat("MSG z 1 99999999999\r\n", 70000)[:70000] + "\r\nPONG\r\n"
	for _, piece := range []int{1, 2, 3, 7, 100, 1 << 20} {
		g := &guard{}
		for b := []byte(said); len(b) > 0; {
			n := min(piece, len(b))
			require.NoError(t, g.look(b[:n]))
			b = b[n:]
		}
		require.Zero(t, g.skip)
		require.Empty(t, g.line)
		require.Error(t, g.look([]byte("MSG z 1 99999999999\r\n")))
	}
	for first, encrypted := range map[string]bool{"\x16\x03\x01": true, "CONNECT {}\r\n": false} {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		g := &guard{Conn: ours}
		require.NoError(t, g.look([]byte(hello)))
		for _, b := range []string{first, "\x16"} {
			_, err := g.Write([]byte(b))
			require.NoError(t, err)
		}
		err := g.look([]byte("MSG z 1 99999999999\n" + strings.Repeat("x", maxLine+1)))
		require.Equal(t, encrypted, err == nil, "%v", err)
		ours.Close()
	}
}
