package serve_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/serve"
)

// dial connects a client that speaks for itself.
func dial(t *testing.T, s *serve.Server) net.Conn {
	c, err := net.Dial("tcp", s.Address())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// heard gives the status of the answer that comes, and all until the connection is closed.
func heard(t *testing.T, c net.Conn) (status int, text string) {
	all, err := io.ReadAll(c)
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(all), "HTTP/1.1 %d ", &status)
	require.NoError(t, err, "%q", all)
	return status, string(all)
}

// fake is an engine that answers requests as it is told.
func fake(t *testing.T, answer http.HandlerFunc) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + ",none"
}

// TestRefusedForTheHeadAlone: nothing of the body is waited for, or asked for.
func TestRefusedForTheHeadAlone(t *testing.T) {
	m := mocks(t, 1, nil)
	s := start(t, m, func(c *serve.Config) { c.Limits.ReadSeconds = 3600 })
	for name, c := range map[string]struct {
		sent   string
		status int
	}{
		"too large":             {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 413},
		"too large, if asked":   {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n", 413},
		"nothing is there":      {"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", 404},
		"not to be posted to":   {"POST /v1/models HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n", 405},
		"another expectation":   {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: junk\r\nContent-Length: 9\r\n\r\n", 417},
		"another version":       {"GET /live HTTP/3.7\r\nHost: x\r\n\r\n", 505},
		"lines that end in LF":  {"POST /v1/completions HTTP/1.1\nHost: x\nContent-Length: 9\n\n", 400},
		"a last line in LF":     {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\n\r\n", 400},
		"an empty line in LF":   {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\n", 400},
		"a page, and no more":   {"GET /live HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", 200},
		"an older one's length": {"POST /v1/completions HTTP/1.0\r\nHost: x\r\nExpect: junk\r\nContent-Length: 99999999\r\n\r\n", 413},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, s)
			_, err := io.WriteString(conn, c.sent)
			require.NoError(t, err)
			status, text := heard(t, conn)
			require.Equal(t, c.status, status, text)
			require.Contains(t, text, "Connection: close")
		})
	}
	for name, piece := range map[string]string{"what is sent all the same": "\x00\x00\x00\x00", "what looks like a head": "x\n\n."} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, s)
			_, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 20<<20)
			require.NoError(t, err)
			_, err = io.WriteString(conn, strings.Repeat(piece, 5<<20))
			require.NoError(t, err)
			status, _ := heard(t, conn)
			require.Equal(t, 413, status, "the answer is not reset away")
		})
	}
	t.Run("what is expected", func(t *testing.T) {
		conn := dial(t, s)
		_, err := io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 31\r\n\r\n")
		require.NoError(t, err)
		in := bufio.NewReader(conn)
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
		_, err = io.WriteString(conn, `{"prompt": [1], "max_tokens":2}`)
		require.NoError(t, err)
		rest, err := io.ReadAll(in)
		require.NoError(t, err)
		require.Contains(t, string(rest), "HTTP/1.1 200 OK")
	})
	idle(t, s, m...)
}

// TestPromisesCostNothing: of the room for bodies each takes what has come of it, whatever its length is said to be.
func TestPromisesCostNothing(t *testing.T) {
	const size = 1 << 20
	m := mocks(t, 1, nil)
	s := start(t, m, func(c *serve.Config) {
		c.Limits.BodyBytes, c.Limits.BufferedBytes, c.Limits.ReadSeconds, c.Tokenizer = size, size+size/4, 3600, serve.Nobody
	})
	large := `{"prompt": [1], "max_tokens": 1, "x": "` + strings.Repeat("x", 400_000) + `"}`
	promise := func(sent int) net.Conn {
		c := dial(t, s)
		_, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat(" ", sent))
		require.NoError(t, err)
		return c
	}
	for range 40 {
		promise(10_000)
	}
	waiting := func() bool { return s.Status().Inflight == 40 }
	require.Eventually(t, waiting, patience, time.Millisecond)
	parse(t, post(s, large))
	require.Eventually(t, waiting, patience, time.Millisecond, "its room is free again")
	kept := promise(600_000)
	require.Eventually(t, func() bool {
		return strings.Contains(ask(s, "GET", "/metrics", "").text, fmt.Sprintf("\ndynamo_go_serve_buffered_bytes %d\n", size))
	}, patience, time.Millisecond, "it has room for all that it says, as more than half came")
	a := post(s, large)
	require.Equal(t, 503, a.status)
	require.Contains(t, a.text, "bytes of requests are in memory")
	kept.Close()
	require.Eventually(t, func() bool { return post(s, large).status == 200 }, patience, time.Millisecond)
}

// TestSlowAndSteadyReaders: who takes something now and then gets all, however long a piece takes.
func TestSlowAndSteadyReaders(t *testing.T) {
	const events, size = 100, 64 << 10
	at := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		event := "data: {" + strings.Repeat(" ", size-10) + "}\n\n"
		for range events {
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	s := start(t, nil, func(c *serve.Config) { c.Limits.WriteSeconds, c.Engines = 1, []string{at} })
	c := dial(t, s)
	require.NoError(t, c.(*net.TCPConn).SetReadBuffer(64<<10))
	body := `{"prompt": [1], "stream": true}`
	_, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
	buffer := make([]byte, 16<<10)
	for range 200 { // at this pace what waits in buffers takes several times the second to be taken
		_, err := io.ReadFull(c, buffer)
		require.NoError(t, err)
		time.Sleep(20 * time.Millisecond)
	}
	rest, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Greater(t, len(rest), events*size-200*len(buffer))
	require.Contains(t, string(rest[len(rest)-100:]), "[DONE]")
	idle(t, s)
	require.Zero(t, s.Status().Disconnected)
}

// TestHalfRequestsKeepNoServer: who is in the middle of sending a request when a server is stopped is told so soon.
func TestHalfRequestsKeepNoServer(t *testing.T) {
	s := start(t, mocks(t, 1, nil), func(c *serve.Config) { c.Limits.ReadSeconds, c.Limits.IdleSeconds = 3600, 3600 })
	var clients []net.Conn
	for _, half := range []string{
		"POST /v1/completions HTTP/1.1\r\nHost",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{" + strings.Repeat(" ", 50_000),
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
	} {
		c := dial(t, s)
		_, err := io.WriteString(c, half)
		require.NoError(t, err)
		clients = append(clients, c)
	}
	idler := dial(t, s)
	_, err := io.WriteString(idler, "GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	_, err = bufio.NewReader(idler).ReadString('\n')
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Status().Inflight == 2 }, patience, time.Millisecond, "those whose body is read in pieces")
	s.Stop(time.Hour)
	for _, c := range clients {
		status, text := heard(t, c)
		require.Equal(t, 503, status, text)
		require.Contains(t, text, "the server is stopping")
	}
	select {
	case <-s.Drained():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
}

// A stop ends the reading of those who have not sent anything yet, and the library closes their connections: at once, if they are older than 5 s.
func TestStopWhileManyAreSilent(t *testing.T) {
	t.Parallel()
	s := start(t, mocks(t, 1, nil), func(c *serve.Config) { c.Limits.ReadSeconds = 3600 })
	var silent []net.Conn
	for range 200 {
		silent = append(silent, dial(t, s))
	}
	time.Sleep(6 * time.Second)
	began := time.Now()
	s.Close()
	require.Less(t, time.Since(began), patience, "nobody is waited for who has nothing to read")
	for _, c := range silent {
		_, err := io.ReadAll(c)
		require.NoError(t, err, "closed, and not reset")
	}
}

// TestStopIsToldToWhoGoesOnSending: what still comes of a request is taken, and does not have the answer reset away.
func TestStopIsToldToWhoGoesOnSending(t *testing.T) {
	s := start(t, mocks(t, 1, nil), func(c *serve.Config) { c.Limits.ReadSeconds = 3600 })
	c := dial(t, s)
	piece := strings.Repeat(" ", 8<<10)
	_, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 8<<20, piece)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Status().Inflight == 1 }, patience, time.Millisecond)
	s.Stop(time.Hour)
	answered := make(chan string, 1)
	go func() {
		text := make([]byte, len("HTTP/1.1 503"))
		_, _ = io.ReadFull(c, text)
		answered <- string(text)
	}()
	told := false
	for more := 5; more > 0; time.Sleep(time.Millisecond) {
		_, err = io.WriteString(c, piece[:100]) // more slowly than all comes in a second
		require.NoError(t, err)
		select {
		case text := <-answered:
			require.Equal(t, "HTTP/1.1 503", text)
			told = true
		default:
		}
		if told {
			more--
		}
	}
}

// TestEndOfTheGraceIsTold: what is cut off when the time to end is over is told so, as the API tells errors, and is no client that went away.
func TestEndOfTheGraceIsTold(t *testing.T) {
	m := mocks(t, 1, func(c *mocker.Config) { c.Speedup, c.InterTokenMS = 1, 20 })
	s := start(t, m, nil)
	answers := make(map[string]chan answer)
	for _, stream := range []string{"true", "false"} {
		ended := make(chan answer, 1)
		answers[stream] = ended
		go func() { ended <- post(s, `{"prompt": [1], "max_tokens": 5000, "stream": `+stream+`}`) }()
	}
	require.Eventually(t, func() bool { return m[0].Stats().Running == 2 && m[0].Stats().OutputTokens > 4 }, patience, time.Millisecond)
	s.Stop(time.Second / 10)
	a := <-answers["true"]
	require.NoError(t, a.err)
	all := events(t, a.text)
	require.Equal(t, "overloaded", all[len(all)-1].Error.Code)
	require.Contains(t, all[len(all)-1].Error.Message, "the server is stopping")
	a = <-answers["false"]
	require.NoError(t, a.err)
	require.Equal(t, 503, a.status)
	require.Contains(t, a.text, "the server is stopping")
	require.Equal(t, "1", a.header.Get("Retry-After"))
	<-s.Drained()
	require.Zero(t, s.Status().Disconnected)
	require.Zero(t, s.Status().Broken)
	require.Eventually(t, func() bool { return m[0].Stats().Running == 0 }, patience, time.Millisecond)
}

// TestCloseTellsWhoIsCutOff: as the end of the grace does, also when a stop is in its grace.
func TestCloseTellsWhoIsCutOff(t *testing.T) {
	m := mocks(t, 1, func(c *mocker.Config) { c.Speedup, c.InterTokenMS = 1, 20 })
	for name, before := range map[string]func(*serve.Server){
		"at once":      func(*serve.Server) {},
		"in its grace": func(s *serve.Server) { s.Stop(time.Hour) },
		"in a drain":   func(s *serve.Server) { s.Stop(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, m, func(c *serve.Config) {
				if name == "in a drain" {
					c.Drain = 3600
				}
			})
			c := dial(t, s)
			body := `{"prompt": [1], "max_tokens": 5000, "stream": true}`
			fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			_, err := io.ReadFull(c, make([]byte, 500))
			require.NoError(t, err)
			before(s)
			ended := make(chan struct{})
			go func() { defer close(ended); s.Close() }()
			rest, err := io.ReadAll(c)
			require.NoError(t, err)
			text := string(rest)
			require.Contains(t, text, "the server is stopping")
			require.Contains(t, text, `"overloaded"`)
			require.Contains(t, text, "data: [DONE]\n\n\r\n0\r\n\r\n", "the answer is whole")
			<-ended
			require.Eventually(t, func() bool { return m[0].Stats().Running == 0 }, patience, time.Millisecond)
		})
	}
}

// TestCloseWaitsForNobodyWhoTakesNothing: not for a client that reads nothing, and not for one that asks for nothing.
func TestCloseWaitsForNobodyWhoTakesNothing(t *testing.T) {
	engine := fake(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		event := []byte("data: {" + strings.Repeat(" ", 64<<10) + "}\n\n")
		for {
			if _, err := w.Write(event); err != nil {
				return
			}
		}
	})
	s := start(t, nil, func(c *serve.Config) { c.Engines = []string{engine} })
	c := dial(t, s)
	fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 31\r\n\r\n{\"prompt\": [1], \"stream\": true}")
	dial(t, s)
	require.Eventually(t, func() bool { return s.Status().Inflight == 1 }, patience, time.Millisecond)
	ended := make(chan struct{})
	go func() { defer close(ended); s.Close() }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
}

// TestDrain: a load balancer sees by /health that the server is about to stop, while all that comes is served, and answers end their connections.
func TestDrain(t *testing.T) {
	m := mocks(t, 1, nil)
	s := start(t, m, func(c *serve.Config) { c.Drain = 1 })
	require.Empty(t, post(s, `{"prompt": [1]}`).header.Get("Connection"))
	s.Stop(patience)
	a := ask(s, "GET", "/health", "")
	require.Equal(t, 503, a.status)
	require.Contains(t, a.text, `"status":"draining"`)
	require.Equal(t, 200, ask(s, "GET", "/live", "").status)
	c := dial(t, s)
	fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{\"prompt\": [1]}")
	status, text := heard(t, c) // to its end
	require.Equal(t, 200, status)
	require.Contains(t, text, "Connection: close")
	require.Equal(t, 200, ask(s, "GET", "/v1/models", "").status)
	select {
	case <-s.Drained():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	require.Error(t, ask(s, "GET", "/live", "").err)

	_, err := serve.New(serve.Config{Drain: -1}, nil)
	require.ErrorIs(t, err, serve.ErrConfig)
	require.ErrorContains(t, err, "drain_seconds is -1, expected 0 .. 86400")
}

// TestHeadsOfLaterRequestsThatEndInLF are refused at once, as that of the first is, in as many pieces as they come; and nothing is taken for one.
func TestHeadsOfLaterRequestsThatEndInLF(t *testing.T) {
	m := mocks(t, 1, nil)
	s := start(t, m, func(c *serve.Config) { c.Limits.ReadSeconds = 3600 })
	odd := `{"prompt": [1],` + strings.Repeat("\n", 20_000) + `"max_tokens": 1}` // in more than one piece
	good := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(odd), odd)
	bad := "GET /live HTTP/1.1\nHost: x\n\n"
	next := func(t *testing.T, r *bufio.Reader) (int, string) {
		a, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		return a.StatusCode, string(text)
	}
	for name, pieces := range map[string][]string{
		"at once":          {bad},
		"in pieces":        {bad[:10], bad[10 : len(bad)-1], "\n"},
		"byte by byte":     strings.Split(bad, ""),
		"some":             {"GET /live HTTP/1.1\r\nHost: x\n\r\n"},
		"with a body":      {"POST /v1/completions HTTP/1.1\nContent-Length: 2\n\n{}"},
		"empty lines lead": {"\r\n", bad},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s)
			r := bufio.NewReader(c)
			for range 2 {
				for _, piece := range []string{good[:60], good[60:]} {
					_, err := io.WriteString(c, piece)
					require.NoError(t, err)
					time.Sleep(time.Millisecond)
				}
				status, text := next(t, r)
				require.Equal(t, 200, status, text)
			}
			for _, piece := range pieces {
				_, err := io.WriteString(c, piece)
				require.NoError(t, err)
				time.Sleep(time.Millisecond)
			}
			status, text := next(t, r)
			require.Equal(t, 400, status)
			require.Contains(t, text, "the lines of the head end in LF, expected CRLF")
		})
	}
	t.Run("many at once", func(t *testing.T) { // of which each is read along with the one before
		c := dial(t, s)
		r := bufio.NewReader(c)
		for range 2 {
			go func() { _, _ = io.WriteString(c, strings.Repeat(good, 5)) }()
			for range 5 {
				status, text := next(t, r)
				require.Equal(t, 200, status, text)
			}
		}
	})
}

// TestTheAddressIsToldAsItWasAskedFor: all addresses have more than one name.
func TestTheAddressIsToldAsItWasAskedFor(t *testing.T) {
	for _, host := range []string{"0.0.0.0", "127.0.0.1"} {
		s := start(t, nil, func(c *serve.Config) {
			c.Listen = host + ":0"
			c.Engines = []string{fake(t, nil)}
		})
		require.True(t, strings.HasPrefix(s.Address(), host+":"), s.Address())
		require.Equal(t, 200, ask(s, "GET", "/live", "").status)
	}
}

// TestNothingIsInvented: of an answer without a body, or without a type, none is said.
func TestNothingIsInvented(t *testing.T) {
	for status, body := range map[int]string{204: "", 304: "", 200: "what it is nobody says"} {
		s := start(t, nil, func(c *serve.Config) {
			c.Engines = []string{fake(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = nil
				w.WriteHeader(status)
				fmt.Fprint(w, body)
			})}
		})
		a := post(s, `{"prompt": [1]}`)
		require.NoError(t, a.err)
		require.Equal(t, status, a.status)
		require.Equal(t, body, a.text)
		require.NotContains(t, a.header, "Content-Type", status)
	}
}

// TestErrorsArePassedWhole: status, headers and body, however large, of the engine that was asked last.
func TestErrorsArePassedWhole(t *testing.T) {
	body := `{"error": {"message": "` + strings.Repeat("x", 300_000) + `"}}`
	for _, chunked := range []bool{true, false} {
		at := fake(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "17")
			if !chunked {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			w.WriteHeader(503)
			fmt.Fprint(w, body)
		})
		s := start(t, nil, func(c *serve.Config) { c.Engines = []string{at} })
		a := post(s, `{"prompt": [1]}`)
		require.NoError(t, a.err)
		require.Equal(t, 503, a.status)
		require.Equal(t, body, a.text)
		require.Equal(t, "17", a.header.Get("Retry-After"))
		require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
		idle(t, s)
	}
}

// TestClientsAreNotToldOfTheInside: neither where engines are, nor what they sent that is no answer.
func TestClientsAreNotToldOfTheInside(t *testing.T) {
	for name, sent := range map[string]string{
		"junk": "INNER-SECRET\r\n\r\n", "nothing": "", "half": "HTTP/1.1 200 OK\r\nInner-Secret", "other lines": "HTTP/1.1 200 OK\r\nContent-Length: INNER-SECRET\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			at := fake(t, func(w http.ResponseWriter, _ *http.Request) {
				c, _, err := w.(http.Hijacker).Hijack()
				if err == nil {
					_, _ = io.WriteString(c, sent)
					_ = c.Close()
				}
			})
			s := start(t, nil, func(c *serve.Config) { c.Engines = []string{at} })
			a := post(s, `{"prompt": [1]}`)
			require.NoError(t, a.err)
			require.Equal(t, 502, a.status)
			require.Contains(t, a.text, `"code":"engine_failed"`)
			require.NotContains(t, a.text, "127.0.0.1")
			require.NotContains(t, strings.ToUpper(a.text), "INNER-SECRET")
		})
	}
}

// TestEngineThatIsNamed: in every mode a request goes to the engine that it names, and nowhere else, whatever that holds and however it is.
func TestEngineThatIsNamed(t *testing.T) {
	ill := fake(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "I am ill", 500) })
	for _, mode := range []fleet.Mode{fleet.KV, fleet.RoundRobin, fleet.Direct} {
		t.Run(string(mode), func(t *testing.T) {
			m := mocks(t, 2, nil)
			s := start(t, m, func(c *serve.Config) {
				c.Mode = mode
				c.Engines = append(c.Engines, ill)
			})
			body := `{"prompt": ` + ids(0, 400) + `, "max_tokens": 1}`
			named := func(i int) answer {
				url := []string{m[0].Info().HTTP, m[1].Info().HTTP, strings.TrimSuffix(ill, ",none")}[i]
				all := s.Status().Engines
				at := slices.IndexFunc(all, func(e fleet.Info) bool { return e.URL == url })
				return ask(s, "POST", "/v1/completions", body, "X-Worker-Instance-Id", fmt.Sprint(all[at].WorkerID))
			}
			for i := range 2 { // the blocks of the first draw there what names nobody
				for range 5 {
					require.Equal(t, 200, named(i).status)
				}
			}
			a := named(2)
			require.Equal(t, 500, a.status)
			require.Contains(t, a.text, "I am ill")
			require.EqualValues(t, 5, m[0].Stats().Requests)
			require.EqualValues(t, 5, m[1].Stats().Requests)
			require.Equal(t, 404, ask(s, "POST", "/v1/completions", body, "X-Worker-Instance-Id", "7").status)
			idle(t, s, m...)
		})
	}
}

// TestRanksThatNobodyHas: which is the client's mistake, and no want of engines.
func TestRanksThatNobodyHas(t *testing.T) {
	m := mocks(t, 2, nil)
	for _, mode := range []fleet.Mode{fleet.KV, fleet.RoundRobin, fleet.Direct} {
		s := start(t, m, func(c *serve.Config) { c.Mode = mode })
		for _, worker := range []string{"", fmt.Sprint(s.Fleet().Engines()[0].WorkerID)} {
			header := []string{"X-Dp-Rank", "7"}
			if worker != "" {
				header = append(header, "X-Worker-Instance-Id", worker)
			}
			a := ask(s, "POST", "/v1/completions", `{"prompt": [1]}`, header...)
			require.NoError(t, a.err)
			require.Equal(t, 404, a.status, a.text)
			require.Contains(t, a.text, `"code":"worker_not_found"`)
			header[1] = "0"
			if mode != fleet.Direct || worker != "" {
				parse(t, ask(s, "POST", "/v1/completions", `{"prompt": [1]}`, header...))
			}
		}
	}
}

// TestTextsOfAnySizeAreCounted: a text and its token ids have room within that for bodies, or it goes by load.
func TestTextsOfAnySizeAreCounted(t *testing.T) {
	const size = 1 << 20
	var s *serve.Server
	var buffered string
	answers := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/tokenize" {
				for line := range strings.Lines(ask(s, "GET", "/metrics", "").text) {
					if n, is := strings.CutPrefix(line, "dynamo_go_serve_buffered_bytes "); is {
						buffered = strings.TrimSpace(n)
					}
				}
				fmt.Fprint(w, `{"choices": []}`)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"count": 5, "x": {"tokens": [true]}, "max_model_len": 7, "tokens": [1`+strings.Repeat(", 70000", n-1)+`], "token_strs": null}`)
		}
	}
	text := `{"prompt": "` + strings.Repeat("x", size) + `"}`
	for _, c := range []struct {
		ids   int
		room  int64
		known bool // to the router
	}{
		{size / 4, 4 << 20, true},
		{size / 4, 3 << 19, false},
		{2 * size, 16 << 20, false}, // more than there are bytes
	} {
		at := fake(t, answers(c.ids))
		s = start(t, nil, func(cfg *serve.Config) {
			cfg.Engines, cfg.Limits.BodyBytes, cfg.Limits.BufferedBytes = []string{at, at + ",dp_start=1"}, 5<<18, c.room
			cfg.Limits.Tokenize = 3600
		})
		a := post(s, text)
		require.NoError(t, a.err)
		require.Equal(t, 200, a.status, a.text)
		require.Equal(t, c.known, s.Status().Untokenized == 0, c)
		n, err := strconv.ParseInt(buffered, 10, 64)
		require.NoError(t, err)
		require.LessOrEqual(t, n, c.room)
		if c.known {
			require.GreaterOrEqual(t, n, int64(size+4*c.ids))
		}
		idle(t, s)
	}
}

// TestIllTokenizersEjectNobody: text that no /tokenize takes is routed by load, to engines that stay candidates, in the time that is for one text.
func TestIllTokenizersEjectNobody(t *testing.T) {
	for name, ill := range map[string]http.HandlerFunc{
		"hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"fails": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"cuts":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			const texts = 12
			var asked atomic.Int64
			answer := func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/tokenize" {
					asked.Add(1)
					ill(w, r)
					return
				}
				fmt.Fprint(w, `{"choices": []}`)
			}
			s := start(t, nil, func(c *serve.Config) {
				c.Engines, c.Limits.Tokenize = []string{fake(t, answer), fake(t, answer)}, 3600
				if name == "hangs" {
					c.Limits.Tokenize = 0.05
				}
			})
			for range texts {
				a := post(s, `{"prompt": "hello"}`)
				require.NoError(t, a.err)
				require.Equal(t, 200, a.status, a.text)
			}
			require.EqualValues(t, texts, s.Status().Untokenized)
			for _, e := range s.Status().Engines {
				require.True(t, e.Candidate, e)
				require.Zero(t, e.Ejected, e)
				require.Zero(t, e.Faults, e)
			}
			if name == "hangs" {
				require.LessOrEqual(t, asked.Load(), int64(texts), "no time is left to ask another engine")
			} else {
				require.GreaterOrEqual(t, asked.Load(), int64(2*texts), "another engine is asked")
			}
		})
	}
}

// TestUnfinishedBodiesKeepNobodyOut: a request counts among those in flight once its body is here.
func TestUnfinishedBodiesKeepNobodyOut(t *testing.T) {
	s := start(t, mocks(t, 1, nil), func(c *serve.Config) { c.Limits.Requests, c.Limits.ReadSeconds = 2, 3600 })
	for range 4 {
		_, err := io.WriteString(dial(t, s), "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{")
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return s.Status().Inflight == 4 }, patience, time.Millisecond)
	for range 3 {
		parse(t, post(s, `{"prompt": [1], "max_tokens": 1}`))
	}
}
