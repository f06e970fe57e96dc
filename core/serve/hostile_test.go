package serve_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/serve"
)

// TestHostileClients: what is not a request, or too much of one, gets a status in OpenAI's shape, or its connection closed; the server lives,
// and nothing stays booked.
func TestHostileClients(t *testing.T) {
	m := mocks(t, 2, nil)
	within := func(seconds float64) *serve.Server {
		return start(t, m, func(c *serve.Config) {
			c.Limits = serve.Limits{BodyBytes: 200_000, BufferedBytes: 2_000_000, HeadBytes: 4096, ReadSeconds: seconds, IdleSeconds: seconds}
		})
	}
	impatient, patient := within(1), within(3600)
	post := "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
	for name, c := range map[string]struct {
		sent   string
		status string
	}{
		"nothing":                   {"", "408"},
		"noise":                     {"\x00\x01\x02\xff\r\n\r\n", "400"},
		"another protocol":          {"SSH-2.0-x\r\n\r\n", "400"},
		"a huge head":               {post + "A: " + strings.Repeat("b", 10_000) + "\r\n\r\n", "431"},
		"many headers":              {post + strings.Repeat("A: b\r\n", 2000) + "\r\n", "431"},
		"a head that stops":         {post, "408"},
		"a body that stops":         {post + "Content-Length: 100\r\n\r\n{", "408"},
		"a large body that stops":   {post + "Content-Length: 150000\r\n\r\n{", "408"},
		"a body that is announced":  {post + "Content-Length: 99999999999\r\n\r\n", "413"},
		"a body too large":          {post + "Content-Length: 250000\r\n\r\n" + strings.Repeat("x", 250_000), "413"},
		"chunks without end":        {post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1000\r\n"+strings.Repeat("x", 4096)+"\r\n", 100), "413"},
		"chunks that stop":          {post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "408"},
		"a trailer that is late":    {post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", "408"},
		"a trailer that stops":      {post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nA: b", "408"},
		"half an end of a trailer":  {post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r", "408"},
		"an endless extension":      {post + "Transfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("x", 1_000_000) + "\r\n{}\r\n0\r\n\r\n", "413"},
		"many extensions":           {post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;x="+strings.Repeat("x", 1000)+"\r\n \r\n", 1000) + "0\r\n\r\n", "413"},
		"a chunk of no size":        {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
		"a huge chunk":              {post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "400"},
		"a negative length":         {post + "Content-Length: -5\r\n\r\n", "400"},
		"two lengths":               {post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ", "400"},
		"another content type":      {post + "Content-Type: text/xml\r\nContent-Length: 4\r\n\r\n<a/>", "400"},
		"no JSON":                   {post + "Content-Length: 4\r\n\r\n\xff\xfe{}", "400"},
		"deep JSON":                 {post + "Content-Length: 100000\r\n\r\n" + strings.Repeat("[", 100_000), "400"},
		"deep JSON within":          {post + "Content-Length: 100005\r\n\r\n" + `{"a":` + strings.Repeat("[", 100_000), "400"},
		"a worker that is no id":    {post + "X-Worker-Instance-Id: me\r\nContent-Length: 2\r\n\r\n{}", "400"},
		"a worker that is not here": {post + "X-Worker-Instance-Id: 5\r\nContent-Length: 14\r\n\r\n{\"prompt\":[1]}", "404"},
		"a long path":               {"GET /" + strings.Repeat("a", 3000) + " HTTP/1.1\r\nHost: x\r\n\r\n", "404"},
		"a method that is none":     {"BREW /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", "405"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := patient
			if c.status == "408" { // nothing more comes
				s = impatient
			}
			c2, err := net.Dial("tcp", s.Address())
			require.NoError(t, err)
			defer c2.Close()
			go func() { _, _ = io.WriteString(c2, c.sent) }() // it may be refused before it is all there
			require.NoError(t, c2.SetDeadline(time.Now().Add(patience)))
			r, err := http.ReadResponse(bufio.NewReader(c2), nil)
			if err != nil { // a refusal can be reset away by what was not read
				require.True(t, c.status == "413" || c.status == "431", "%v", err)
				return
			}
			defer r.Body.Close()
			require.Equal(t, c.status, fmt.Sprint(r.StatusCode))
			if text, err := io.ReadAll(r.Body); err == nil {
				require.Contains(t, string(text), `"error"`)
				require.NotContains(t, string(text), "fasthttp")
			}
		})
	}
	t.Cleanup(func() {
		for _, s := range []*serve.Server{impatient, patient} {
			if !t.Failed() {
				parse(t, ask(s, "POST", "/v1/completions", `{"prompt": [1], "max_tokens": 2}`))
				idle(t, s, m...)
			}
		}
	})
}

// TestReadersThatTakeNothing: whoever does not take the answer is cut off, and the engine's work is cancelled.
func TestReadersThatTakeNothing(t *testing.T) {
	ended := make(chan bool)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
			return
		}
		defer close(ended)
		w.Header().Set("Content-Type", "text/event-stream")
		event := []byte("data: {" + strings.Repeat(" ", 64<<10) + "}\n\n")
		for {
			if _, err := w.Write(event); err != nil {
				return
			}
		}
	}))
	defer engine.Close()
	s := start(t, nil, func(c *serve.Config) {
		c.Limits.WriteSeconds, c.Engines = 0.3, []string{engine.URL + ",none"}
	})
	c, err := net.Dial("tcp", s.Address())
	require.NoError(t, err)
	defer c.Close()
	body := `{"prompt": [1], "stream": true}`
	_, err = fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the engine goes on")
	}
	idle(t, s)
	require.EqualValues(t, 1, s.Status().Disconnected)
}

func TestBoundsOnClients(t *testing.T) {
	m := mocks(t, 1, func(c *mocker.Config) { c.Speedup, c.InterTokenMS = 1, 20 })
	s := start(t, m, func(c *serve.Config) { c.Limits.Requests, c.Limits.Connections = 2, 4 })
	var streams []*http.Response
	for range 2 {
		r, err := http.Post("http://"+s.Address()+"/v1/completions", "", strings.NewReader(`{"prompt": [1], "max_tokens": 5000, "stream": true}`))
		require.NoError(t, err)
		streams = append(streams, r)
	}
	a := post(s, `{"prompt": [1]}`)
	require.Equal(t, 503, a.status)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.Contains(t, a.text, "2 requests are in flight")
	var conns []net.Conn
	for range 6 {
		c, err := net.Dial("tcp", s.Address())
		require.NoError(t, err)
		conns = append(conns, c)
	}
	refused := 0
	for _, c := range conns {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Second/2)))
		if text, _ := io.ReadAll(c); strings.Contains(string(text), "4 connections are open") {
			refused++
		}
		c.Close()
	}
	require.GreaterOrEqual(t, refused, 3)
	for _, r := range streams {
		r.Body.Close()
	}
	idle(t, s, m...)
	require.Eventually(t, func() bool { return post(s, `{"prompt": [1], "max_tokens": 1}`).status == 200 }, patience, 10*time.Millisecond)
}

// TestAnswersThatAreNone: an engine that ends says 200 and nothing, or stops within an event stream whose length it told.
func TestAnswersThatAreNone(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"nothing":            {"", `"error"`},
		"a stream cut short": {"data: {\"choices\":[]}\n\n", "data: {\"choices\":[]}\n\ndata: {\"error\""},
	} {
		t.Run(name, func(t *testing.T) {
			dying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost {
					fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("Content-Length", fmt.Sprint(len(c.body)))
				fmt.Fprint(w, c.body)
			}))
			defer dying.Close()
			s := start(t, nil, func(c *serve.Config) { c.Engines = []string{dying.URL + ",none"} })
			r, err := http.Post("http://"+s.Address()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[1,2,3],"stream":true}`))
			require.NoError(t, err)
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Contains(t, string(text), c.want)
		})
	}
}

// TestErrorEventThatGoesOn: what an event stream begins with looks like an error, and is none any more once the event is whole.
func TestErrorEventThatGoesOn(t *testing.T) {
	junk := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"error":{"message":"x","type":"y","code":500}}`)
		w.(http.Flusher).Flush()
		time.Sleep(50 * time.Millisecond)
		fmt.Fprint(w, "\ndata: junk\n\ndata: [DONE]\n\n")
	}))
	defer junk.Close()
	s := start(t, nil, func(c *serve.Config) { c.Engines = []string{junk.URL + ",none"} })
	r, err := http.Post("http://"+s.Address()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[1,2,3],"stream":true}`))
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NotContains(t, string(text), "a fault of the server")
	require.Contains(t, string(text), `"message":"x"`)
}

// TestHostileEngines: whatever an engine sends, the client gets an answer that is one or a connection that is cut, the server lives, and nothing stays booked.
func TestHostileEngines(t *testing.T) {
	event := func(text string) string { return "data: " + text + "\n\n" }
	stream := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
	for name, c := range map[string]struct {
		sent   string
		status int
		text   string // in the answer
		whole  bool   // the answer is; else it is cut, or an error, as what is wrong is seen before something was given away, or later
	}{
		"a huge header":            {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", 502, `"engine_failed"`, true},
		"headers without end":      {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 1<<17), 502, `"engine_failed"`, true},
		"another protocol":         {"SSH-2.0-x\r\n\r\n", 502, `"engine_failed"`, true},
		"a page of a web server":   {"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", 200, "<html>", true},
		"less than it says":        {"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n{}", 0, "", false},
		"chunks that are none":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n", 0, "", false},
		"text that is none":        {stream + event("{\"choices\":[{\"text\":\"\xff\xfe\"}]}") + event("[DONE]"), 200, "\xff\xfe", true},
		"no events":                {stream + "<html>what is this?</html>", 200, `"engine_failed"`, true},
		"half an event":            {stream + event(`{"choices":[]}`) + `data: {"choi`, 200, `"engine_failed"`, true},
		"an event of great length": {stream + event(`{"choices":[{"text":"`+strings.Repeat("x", 4<<20)+`"}]}`) + event("[DONE]"), 200, "[DONE]", true},
		"lines of other ends":      {stream + "data: {\"choices\":[]}\r\n\r\ndata: [DONE]\r\n\r\n", 200, "[DONE]", true},
		"the word in a text":       {stream + event(`{"choices":[{"text":"say [DONE] now"}]}`), 200, `"engine_failed"`, true},
		"a text that is the word":  {stream + event(`{"choices":[{"text":"data: [DONE]"}]}`), 200, `"engine_failed"`, true},
		"an event that has it too": {stream + event("{}") + event("1\ndata: [DONE]"), 200, `"engine_failed"`, true},
		"headers of hops":          {"HTTP/1.1 200 OK\r\nConnection: X-Hop, close\r\nX-Hop: y\r\nKeep-Alive: z\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := fake(t, func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err == nil {
					_, _ = io.WriteString(conn, c.sent)
					_ = conn.Close()
				}
			})
			s := start(t, nil, func(cfg *serve.Config) { cfg.Engines = []string{at} })
			a := post(s, `{"prompt": [1], "stream": true}`)
			if !c.whole {
				require.True(t, a.err != nil || a.status == 502, "%d: %q", a.status, a.text)
				return
			}
			require.NoError(t, a.err)
			require.Equal(t, c.status, a.status)
			require.Contains(t, a.text, c.text)
			require.NotContains(t, a.header, "X-Hop")
			require.NotContains(t, a.header, "Keep-Alive")
			if strings.HasPrefix(c.sent, stream) {
				require.True(t, strings.HasSuffix(strings.TrimRight(a.text, "\r\n"), "data: [DONE]"), "it ends as a stream does")
			}
			idle(t, s)
		})
	}
}

// TestStreamsWithoutEnd: what an engine sends without an end costs no more than what is on its way, and ends with its client.
func TestStreamsWithoutEnd(t *testing.T) {
	ended := make(chan bool)
	at := fake(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			if _, err := io.WriteString(w, "data: {\"choices\":[]}\n\n"); err != nil {
				return
			}
		}
	})
	s := start(t, nil, func(c *serve.Config) { c.Engines = []string{at} })
	r, err := http.Post("http://"+s.Address()+"/v1/completions", "", strings.NewReader(`{"prompt": [1], "stream": true}`))
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, r.Body, 8<<20)
	require.NoError(t, err)
	r.Body.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the engine goes on")
	}
	idle(t, s)
}
