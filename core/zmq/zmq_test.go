package zmq

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
)

// TestMain checks that no test left a goroutine behind.
func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 20 * time.Second // for what must happen; reached only by a failure

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, 2*time.Millisecond, what)
}

// within fails the test if f does not return.
func within[T any](t *testing.T, what string, f func() T) T {
	t.Helper()
	got := make(chan T, 1)
	go func() { got <- f() }()
	select {
	case v := <-got:
		return v
	case <-time.After(patience):
		require.FailNow(t, "still waiting", what)
		panic("unreachable")
	}
}

// next takes the next event of a subscriber and checks its kind.
func next(t *testing.T, s *Subscriber, kind EventKind) Event {
	t.Helper()
	select {
	case e := <-s.Events():
		require.Equal(t, kind, e.Kind, "event %+v", e)
		return e
	case <-time.After(patience):
		require.FailNow(t, "no event")
		panic("unreachable")
	}
}

// until takes events up to the next of a kind.
func until(t *testing.T, s *Subscriber, kind EventKind) Event {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e := <-s.Events():
			if e.Kind == kind {
				return e
			}
		case <-deadline:
			require.FailNow(t, "no event of that kind")
		}
	}
}

// rawPeer serves every connection to a port with the script, until the test ends; it gives the endpoint.
func rawPeer(t *testing.T, script func(net.Conn)) string {
	t.Helper()
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
			go func() { defer c.Close(); script(c) }()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return "tcp://" + ln.Addr().String()
}

// greeting is a valid ZMTP 3.0 greeting, and ready a READY command for a socket type.
func greeting() []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	return g
}

func ready(kind string) []byte {
	body := "\x05READY\x0bSocket-Type\x00\x00\x00" + string(rune(len(kind))) + kind
	return append([]byte{flagCommand, byte(len(body))}, body...)
}

// shake makes the peer's side of the handshake by hand and leaves a reader for what follows.
func shake(c net.Conn, kind string) *bufio.Reader {
	c.Write(greeting())
	c.Write(ready(kind))
	r := bufio.NewReader(c)
	io.CopyN(io.Discard, r, greetingBytes)
	readFrame(r)
	return r
}

func readFrame(r *bufio.Reader) (flags byte, body []byte, err error) {
	var h [2]byte
	if _, err = io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	body = make([]byte, h[1])
	_, err = io.ReadFull(r, body)
	return h[0], body, err
}

func TestASubscriberHearsWhichIncarnationItFollows(t *testing.T) {
	for _, name := range []string{"", "one"} {
		pub, err := ListenPub("tcp://127.0.0.1:0", Options{Incarnation: name})
		require.NoError(t, err)
		sub := Subscribe(pub.Addr(), nil, Options{})
		require.Equal(t, Event{Kind: Connected, Incarnation: name}, <-sub.Events())
		sub.Close()
		require.NoError(t, pub.Close())
	}
}

// python gives a Python that can import zmq, or skips the test with the one line that declares it.
func python(t *testing.T) string {
	t.Helper()
	py := os.Getenv("DGO_TEST_PYTHON")
	if py == "" {
		py = "python3"
		if err := exec.Command(py, "-c", "import zmq, msgspec").Run(); err != nil {
			fmt.Printf("SKIPPED %s: python3 cannot import zmq and msgspec, and DGO_TEST_PYTHON is not set\n", t.Name())
			t.Skip("no pyzmq")
		}
	}
	return py
}

// script runs a Python program line by line: say sends it a line, hear waits for one.
type script struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

const prelude = `
import sys, json, zmq
ctx = zmq.Context()
def hear():
    line = sys.stdin.readline()
    if not line: sys.exit(0)
    return json.loads(line)
def say(x): print(json.dumps(x), flush=True)
def sock(kind, **opts):
    s = ctx.socket(kind); s.linger = 0; s.rcvtimeo = 20000
    for k, v in opts.items(): setattr(s, k, v)
    return s
`

func run(t *testing.T, program string) *script {
	t.Helper()
	py := python(t)
	file := filepath.Join(t.TempDir(), "peer.py")
	require.NoError(t, os.WriteFile(file, []byte(prelude+program), 0o600))
	s := &script{t: t, cmd: exec.Command(py, file)}
	s.cmd.Stderr = os.Stderr
	var err error
	s.in, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.out = bufio.NewReader(out)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		s.in.Close()
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
	return s
}

// overheard is an endpoint that leads to another, and counts the PONGs that come from there.
func overheard(t *testing.T, to string) (end string, pongs *atomic.Int64) {
	t.Helper()
	pongs = new(atomic.Int64)
	end = rawPeer(t, func(near net.Conn) {
		far, err := net.Dial("tcp", strings.TrimPrefix(to, "tcp://"))
		if err != nil {
			return
		}
		go func() { // ends with near
			defer far.Close()
			_, _ = io.Copy(far, near)
		}()
		buf, kept := make([]byte, 64<<10), 0 // what may be the beginning of a PONG
		const pong = "\x04PONG"
		for {
			n, err := far.Read(buf[kept:])
			if _, writing := near.Write(buf[kept : kept+n]); err != nil || writing != nil {
				return
			}
			all := buf[:kept+n]
			pongs.Add(int64(bytes.Count(all, []byte(pong))))
			kept = copy(buf, all[max(0, len(all)-len(pong)+1):])
		}
	})
	return end, pongs
}

func (s *script) say(v any) {
	s.t.Helper()
	b, err := json.Marshal(v)
	require.NoError(s.t, err)
	_, err = s.in.Write(append(b, '\n'))
	require.NoError(s.t, err)
}

func (s *script) hear() string {
	s.t.Helper()
	line := within(s.t, "python", func() string { line, _ := s.out.ReadString('\n'); return line })
	return strings.TrimSpace(line)
}
