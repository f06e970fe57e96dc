package rawhttp

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
)

const patience = 10 * time.Second

var limits = Limits{Idle: 4, IdleFor: time.Minute, Connect: patience, Begin: patience, Between: patience}

func head(method, path string, length int) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", method, path, length)
}

// server answers each connection with what answer says, which is given the connection after each request.
func server(t *testing.T, answer func(c net.Conn, body []byte) bool) *Pool {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var owned sync.WaitGroup
	owned.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			owned.Go(func() {
				defer c.Close()
				buf := make([]byte, 0, 1<<20)
				for {
					b := make([]byte, 64<<10)
					n, err := c.Read(b)
					if err != nil {
						return
					}
					buf = append(buf, b[:n]...)
					at := bytes.Index(buf, []byte("\r\n\r\n"))
					var length int
					if i := bytes.Index(buf, []byte("Content-Length: ")); i >= 0 {
						_, _ = fmt.Sscanf(string(buf[i:]), "Content-Length: %d", &length)
					}
					if at < 0 || len(buf) < at+4+length {
						continue
					}
					body := bytes.Clone(buf[at+4 : at+4+length])
					buf = buf[:0]
					if !answer(c, body) {
						return
					}
				}
			})
		}
	})
	p := NewPool(l.Addr().String(), nil, limits)
	t.Cleanup(func() { p.Close(); l.Close(); owned.Wait() })
	return p
}

// says answers each request with the same bytes, and goes on as it tells.
func says(text string, on bool) func(net.Conn, []byte) bool {
	return func(c net.Conn, _ []byte) bool {
		_, err := io.WriteString(c, text)
		return err == nil && on
	}
}

func fetch(p *Pool, body string) (int, string, error) {
	var x Exchange
	defer x.End()
	if err := x.Do(p, head("POST", "/a", len(body)), []byte(body)); err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(&x)
	return x.Status(), string(text), err
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name, sent string
		on         bool // the server keeps the connection
		status     int
		body       string
		err        error
		idle       int // connections that are kept then
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", true, 200, "hello", nil, 1},
		{"nothing", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true, 200, "", nil, 1},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", true, 204, "", nil, 1},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX: y\r\n\r\n", true, 200, "hello", nil, 1},
		{"close", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", true, 200, "hello", nil, 0},
		{"until close", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", false, 200, "hello", nil, 0},
		{"1.0", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, 200, "hello", nil, 0},
		{"continue first", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 5\r\n\r\nhello", true, 404, "hello", nil, 1},
		{"more than said", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200", true, 200, "hello", nil, 0},

		{"nothing at all", "", false, 0, "", ErrBroken, 0},
		{"half a head", "HTTP/1.1 200 OK\r\nContent-Le", false, 0, "", ErrBroken, 0},
		{"half a body", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", false, 200, "hello", ErrBroken, 0},
		{"half the chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", false, 200, "hel", ErrBroken, 0},
		{"half a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhel", false, 200, "hel", ErrBroken, 0},
		{"no trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n", false, 200, "hel", ErrBroken, 0},
		{"bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhel\r\n", false, 200, "", ErrProtocol, 0},
		{"long chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n", false, 200, "hel", ErrProtocol, 0},
		{"huge chunk length", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("f", 17) + "\r\n", false, 200, "", ErrProtocol, 0},
		{"endless trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("A: b\r\n", 5000), false, 200, "", ErrProtocol, 0},
		{"another protocol", "SSH-2.0-OpenSSH_9\r\n\r\n", false, 0, "", ErrProtocol, 0},
		{"another protocol, asked for", "HTTP/1.1 101 Switching\r\n\r\n", false, 0, "", ErrProtocol, 0},
		{"bad length", "HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\nhello", false, 0, "", ErrProtocol, 0},
		{"no status", "HTTP/1.1 000 OK\r\nContent-Length: 5\r\n\r\nhello", false, 0, "", ErrProtocol, 0},
		{"bad status", "HTTP/1.1 abc OK\r\nContent-Length: 5\r\n\r\nhello", false, 0, "", ErrProtocol, 0},
		{"large head", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 2*headBytes) + "\r\n\r\n", false, 0, "", ErrTooLarge, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := server(t, says(c.sent, c.on))
			for range 2 { // also on a connection that was kept
				status, body, err := fetch(p, "question")
				if c.err == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, c.err)
				}
				require.Equal(t, c.status, status)
				require.Equal(t, c.body, body)
				open, idle := p.Conns()
				require.Equal(t, c.idle, idle)
				require.Equal(t, idle, open)
			}
		})
	}
}

func TestReadGivesWhatCame(t *testing.T) {
	next := make(chan string)
	p := server(t, func(c net.Conn, _ []byte) bool {
		for text := range next {
			if _, err := io.WriteString(c, text); err != nil {
				return false
			}
		}
		return false
	})
	var x Exchange
	defer x.End()
	go func() { next <- "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" }()
	require.NoError(t, x.Do(p, head("GET", "/", 0), nil))
	buf := make([]byte, 100)
	for _, piece := range []string{"one", "another"} {
		go func() { next <- fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece) }()
		n, err := x.Read(buf)
		require.NoError(t, err)
		require.Equal(t, piece, string(buf[:n]), "without waiting for more")
	}
	close(next)
}

func TestKeptConnectionThatClosedIsReplaced(t *testing.T) {
	var conns atomic.Int64
	p := server(t, func(c net.Conn, _ []byte) bool {
		conns.Add(1)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		return false // closed, though it did not say so
	})
	for i := range 20 {
		_, body, err := fetch(p, "q")
		require.NoError(t, err, i)
		require.Equal(t, "ok", body)
	}
	require.EqualValues(t, 20, conns.Load())
}

// TestKeptConnectionThatIsStaleIsReplaced: while it was idle, the server closed its side and went on to read, or said what no one had asked for.
func TestKeptConnectionThatIsStaleIsReplaced(t *testing.T) {
	for name, late := range map[string]string{
		"half closed": "",
		"too late":    "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n",
	} {
		for _, secured := range []bool{false, true} {
			for _, size := range []int{1, joined + 1} {
				t.Run(fmt.Sprintf("%s, %d bytes, TLS %v", name, size, secured), func(t *testing.T) {
					var conns atomic.Int64
					idle := make(chan struct{})
					answer := func(c net.Conn, half func() error) {
						conns.Add(1)
						<-idle
						if late == "" {
							_ = half()
						} else {
							_, _ = io.WriteString(c, late)
						}
						_, _ = io.Copy(io.Discard, c)
					}
					var p *Pool
					if secured {
						s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							_, _ = io.Copy(io.Discard, r.Body)
							c, _, err := w.(http.Hijacker).Hijack()
							if err != nil {
								return
							}
							defer c.Close()
							_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
							answer(c, c.(*tls.Conn).CloseWrite)
						}))
						trusted := s.Client().Transport.(*http.Transport).TLSClientConfig
						p = NewPool(strings.TrimPrefix(s.URL, "https://"), &tls.Config{RootCAs: trusted.RootCAs, ServerName: "example.com"}, limits)
						t.Cleanup(func() { p.Close(); s.Close() })
					} else {
						p = server(t, func(c net.Conn, _ []byte) bool {
							_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
							answer(c, c.(*net.TCPConn).CloseWrite)
							return false
						})
					}
					for i := range 3 {
						status, body, err := fetch(p, strings.Repeat("x", size))
						require.NoError(t, err, i)
						require.Equal(t, 200, status)
						require.Equal(t, "ok", body)
						require.Eventually(t, func() bool {
							_, idle := p.Conns()
							return idle == 1
						}, patience, time.Millisecond)
						p.mu.Lock()
						c := p.idle[0]
						p.mu.Unlock()
						idle <- struct{}{}
						require.Eventually(t, c.stale, patience, time.Millisecond)
					}
					require.EqualValues(t, 3, conns.Load())
				})
			}
		}
	}
}

// TestAnswersWithoutResultEnd: a server that says for ever that it goes on is none.
func TestAnswersWithoutResultEnd(t *testing.T) {
	p := server(t, func(c net.Conn, _ []byte) bool {
		for {
			if _, err := io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return false
			}
		}
	})
	_, _, err := fetch(p, "q")
	require.ErrorIs(t, err, ErrProtocol)
}

// TestPartOfAChunkIsWaitedForInFull: what is there of it already does not count as waiting.
func TestPartOfAChunkIsWaitedForInFull(t *testing.T) {
	next := make(chan struct{})
	p := server(t, func(c net.Conn, _ []byte) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n2")
		<-next
		_, _ = io.WriteString(c, "\r\ncd\r\n0\r\n\r\n")
		return true
	})
	var x Exchange
	defer x.End()
	require.NoError(t, x.Do(p, head("GET", "/", 0), nil))
	buf := make([]byte, 10)
	n, err := x.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "ab", string(buf[:n]))
	by := func() time.Time {
		x.conn.mu.Lock()
		defer x.conn.mu.Unlock()
		return x.conn.by
	}
	before := by()
	go func() {
		defer close(next)
		for deadline := time.Now().Add(patience); !by().After(before) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		}
	}()
	rest, err := io.ReadAll(&x)
	require.NoError(t, err)
	require.Equal(t, "cd", string(rest))
	require.True(t, by().After(before))
}

func TestLargeBodiesAndEarlyAnswers(t *testing.T) {
	var got atomic.Int64
	p := server(t, func(c net.Conn, body []byte) bool {
		got.Store(int64(len(body)))
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		return err == nil
	})
	_, _, err := fetch(p, strings.Repeat("x", 500_000))
	require.NoError(t, err)
	require.EqualValues(t, 500_000, got.Load())

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 413 Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c) // so that the answer is not reset away
		c.Close()
	}()
	early := NewPool(l.Addr().String(), nil, limits)
	defer early.Close()
	status, body, err := fetch(early, strings.Repeat("x", 4<<20))
	require.NoError(t, err)
	require.Equal(t, 413, status)
	require.Equal(t, "no", body)
}

func TestCancelEndsWhateverWaits(t *testing.T) {
	asked, gone := make(chan bool, 10), make(chan bool, 10)
	p := server(t, func(c net.Conn, body []byte) bool {
		asked <- true
		if string(body) != "head" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
		}
		_, err := c.Read(make([]byte, 1))
		gone <- err != nil
		return false
	})
	for _, what := range []string{"head", "body"} {
		var x Exchange
		began, ended := make(chan bool), make(chan error)
		go func() {
			err := x.Do(p, head("POST", "/", 4), []byte(what))
			if err == nil {
				_, err = x.Read(make([]byte, 10))
				require.NoError(t, err)
				close(began)
				_, err = x.Read(make([]byte, 10))
			}
			x.End()
			ended <- err
		}()
		<-asked
		if what == "body" {
			<-began
		}
		x.Cancel()
		require.ErrorIs(t, <-ended, ErrCancelled)
		require.True(t, <-gone, "the server sees it")
	}
	var x Exchange
	x.Cancel()
	require.ErrorIs(t, x.Do(p, head("POST", "/", 4), []byte("body")), ErrCancelled, "before it began")
	x.End()
	open, idle := p.Conns()
	require.Zero(t, open+idle)
}

func TestWaitsAreBounded(t *testing.T) {
	p := server(t, func(c net.Conn, body []byte) bool {
		switch string(body) {
		case "half":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
		case "head":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
		}
		_, _ = c.Read(make([]byte, 1))
		return false
	})
	p.limits.Begin, p.limits.Between = patience, time.Second/10
	_, body, err := fetch(p, "half")
	require.ErrorIs(t, err, ErrTimeout)
	require.Equal(t, "some", body)
	p.limits.Begin, p.limits.Between = time.Second/10, patience
	_, _, err = fetch(p, "none")
	require.ErrorIs(t, err, ErrTimeout)
	_, body, err = fetch(p, "head")
	require.ErrorIs(t, err, ErrTimeout)
	require.Empty(t, body)
	p.limits.Begin = patience
	x := Exchange{By: time.Now().Add(time.Second / 10)}
	require.ErrorIs(t, x.Do(p, head("POST", "/", 4), []byte("none")), ErrTimeout)
	x.End()
	require.Zero(t, x.By)
}

// TestDeadlineOfBeforeIsNone: a connection that was kept has the deadline of an exchange before, which may fire at any time.
func TestDeadlineOfBeforeIsNone(t *testing.T) {
	var requests atomic.Int64
	p := server(t, func(c net.Conn, body []byte) bool {
		requests.Add(1)
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		return true
	})
	for _, size := range []int{0, 1, joined, joined + 1, 500_000} {
		for range 3 {
			_, body, err := fetch(p, strings.Repeat("x", size))
			require.NoError(t, err)
			require.Len(t, body, size)
			p.mu.Lock()
			require.Len(t, p.idle, 1)
			c := p.idle[0]
			p.mu.Unlock()
			require.NoError(t, c.SetDeadline(past)) // fires now
			c.armed = past
		}
	}
	open, _ := p.Conns()
	require.Equal(t, 1, open)
	require.EqualValues(t, 15, requests.Load(), "none was sent twice")
}

func TestUnreachableAndClosed(t *testing.T) {
	p := NewPool(servertest.FreeAddress(t), nil, limits)
	_, _, err := fetch(p, "")
	require.ErrorIs(t, err, ErrUnreachable)
	p.Close()
	p.Close()
	_, _, err = fetch(p, "")
	require.ErrorIs(t, err, ErrClosed)
}

func TestIdleConnectionsAreFewAndYoung(t *testing.T) {
	p := server(t, says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true))
	var all [6]Exchange
	for i := range all {
		require.NoError(t, all[i].Do(p, head("GET", "/", 0), nil))
		_, err := io.ReadAll(&all[i])
		require.NoError(t, err)
	}
	for i := range all {
		all[i].End()
	}
	open, idle := p.Conns()
	require.Equal(t, limits.Idle, idle)
	require.Equal(t, idle, open)
	p.Tidy()
	_, idle = p.Conns()
	require.Equal(t, limits.Idle, idle, "young ones stay")
	p.limits.IdleFor = 0
	_, body, err := fetch(p, "")
	require.NoError(t, err)
	require.Equal(t, "ok", body)
	p.Tidy()
	open, idle = p.Conns()
	require.Zero(t, open+idle)
	p.limits.IdleFor = time.Minute
	_, _, err = fetch(p, "")
	require.NoError(t, err)
	p.CloseIdle()
	open, idle = p.Conns()
	require.Zero(t, open+idle)
}

func TestTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer s.Close()
	trusted := s.Client().Transport.(*http.Transport).TLSClientConfig
	address := strings.TrimPrefix(s.URL, "https://")
	p := NewPool(address, &tls.Config{RootCAs: trusted.RootCAs, ServerName: "example.com"}, limits)
	defer p.Close()
	for range 2 {
		_, body, err := fetch(p, "secret")
		require.NoError(t, err)
		require.Equal(t, "secret", body)
	}
	stranger := NewPool(address, &tls.Config{}, limits)
	defer stranger.Close()
	_, _, err := fetch(stranger, "secret")
	require.ErrorIs(t, err, ErrUnreachable)
}

func TestPoolClosedInTheMiddle(t *testing.T) {
	p := server(t, func(c net.Conn, _ []byte) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
		_, _ = c.Read(make([]byte, 1))
		return false
	})
	var x Exchange
	defer x.End()
	require.NoError(t, x.Do(p, head("GET", "/", 0), nil))
	_, err := x.Read(make([]byte, 4))
	require.NoError(t, err)
	p.Close()
	_, err = x.Read(make([]byte, 4))
	require.ErrorIs(t, err, ErrBroken)
}

// FuzzAnswer checks that no answer makes an exchange panic, hang or read without end.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		near, far := net.Pipe()
		go func() {
			_, _ = far.Write(answer)
			_ = far.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		p := NewPool("", nil, limits)
		c := newConn(near)
		x := Exchange{pool: p, conn: c}
		if x.head(c) == nil {
			n, _ := io.Copy(io.Discard, &x)
			require.LessOrEqual(t, n, int64(len(answer)))
		}
		x.End()
	})
}
