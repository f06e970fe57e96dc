package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/mocker"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// within gives a context that ends a test that hangs.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// serve starts a server; /health is answered unless the handler serves it.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/health") {
			return
		}
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// open makes an engine that is healthy.
func open(t *testing.T, url string, change func(*engine.Config)) *engine.Engine {
	cfg := engine.Config{URL: url, Health: engine.Health{Backoff: 10 * time.Millisecond, MaxBackoff: 80 * time.Millisecond}}
	if change != nil {
		change(&cfg)
	}
	e, err := engine.New(cfg)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	require.NoError(t, e.WaitHealthy(within(t)))
	return e
}

func mock(t *testing.T, change func(*mocker.Config)) *mocker.Mocker {
	cfg := mocker.DefaultConfig()
	cfg.Speedup = 100
	if change != nil {
		change(&cfg)
	}
	m, err := mocker.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func address(m *mocker.Mocker) string { return m.Info().HTTP }

func prompt(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i)
	}
	return ids
}

func maxTokens(n int) map[string]json.RawMessage {
	return map[string]json.RawMessage{"max_tokens": json.RawMessage(fmt.Sprint(n))}
}

// drain takes all items of a stream.
func drain(s *engine.Stream) (tokens []uint32, last engine.Item, err error) {
	for {
		it, err := s.Recv()
		if err != nil {
			return tokens, last, err
		}
		tokens = append(tokens, it.Tokens...)
		last = it
	}
}

// rest waits until nothing runs on an engine.
func rest(t *testing.T, e *engine.Engine) {
	require.NoError(t, e.WaitIdle(within(t)))
}

func TestCompleteGivesTokenIDsFinishReasonAndUsage(t *testing.T) {
	m := mock(t, nil)
	e := open(t, address(m), nil)
	for range 3 {
		s, err := e.Complete(within(t), &engine.Completion{Tokens: prompt(64), Fields: maxTokens(8), ID: "r-1"})
		require.NoError(t, err)
		tokens, last, err := drain(s)
		require.Equal(t, io.EOF, err)
		require.Len(t, tokens, 8)
		require.Equal(t, "length", last.FinishReason)
		require.NotNil(t, last.Usage)
		require.Equal(t, 64, last.Usage.PromptTokens)
		require.Equal(t, 8, last.Usage.CompletionTokens)
		require.True(t, last.Usage.CachedKnown)
	}
	rest(t, e)
	st := e.Status()
	require.EqualValues(t, 3, st.Requests)
	require.Zero(t, st.Faults)
}

// sse writes events as engines do.
func sse(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, ev := range events {
		fmt.Fprintf(w, "data: %s\n\n", ev)
	}
	_ = http.NewResponseController(w).Flush()
}

func complete(t *testing.T, e *engine.Engine) ([]uint32, engine.Item, error) {
	s, err := e.Complete(within(t), &engine.Completion{Tokens: prompt(4)})
	if err != nil {
		return nil, engine.Item{}, err
	}
	defer s.Close()
	tokens, last, err := drain(s)
	if err == io.EOF {
		err = nil
	}
	return tokens, last, err
}

func TestWhatIsAskedIsWhatBothEnginesUnderstand(t *testing.T) {
	var got map[string]json.RawMessage
	var header http.Header
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		require.NoError(t, json.NewDecoder(r.Body).Decode(&got))
		sse(w, `{"choices":[{"index":0,"text":"a","token_ids":[7],"finish_reason":"stop","matched_stop":5}]}`, "[DONE]")
	})
	e := open(t, srv.URL, func(c *engine.Config) {
		c.Kind, c.DPSize, c.Model, c.Header = engine.SGLang, 2, "m", http.Header{"Authorization": {"Bearer k"}}
	})
	s, err := e.Complete(within(t), &engine.Completion{Tokens: prompt(3), DPRank: 1, ID: "abc", Fields: map[string]json.RawMessage{"temperature": json.RawMessage("0.5")}})
	require.NoError(t, err)
	tokens, last, err := drain(s)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []uint32{7}, tokens)
	require.Equal(t, "stop", last.FinishReason)
	require.JSONEq(t, "5", string(last.StopReason))
	require.Nil(t, last.Usage)
	body, _ := json.Marshal(got)
	require.JSONEq(t, `{"prompt":[0,1,2],"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"model":"m","data_parallel_rank":1,"temperature":0.5}`, string(body))
	require.Equal(t, "1", header.Get("X-Data-Parallel-Rank"))
	require.Equal(t, "abc", header.Get("X-Request-Id"))
	require.Equal(t, "Bearer k", header.Get("Authorization"))
	require.Empty(t, header.Get("Idempotency-Key"))
}

func TestTokenIDsOfAnOldVLLMComeByLogprobs(t *testing.T) {
	var asked atomic.Pointer[string]
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m","owned_by":"vllm","max_model_len":100}]}`)
		case "/version":
			fmt.Fprint(w, `{"version":"0.9.1"}`)
		case "/v1/completions":
			b, _ := io.ReadAll(r.Body)
			text := string(b)
			asked.Store(&text)
			sse(w, `{"choices":[{"index":0,"text":"ab","logprobs":{"tokens":["token_id:7","token_id:8"]},"finish_reason":"stop"}]}`, "[DONE]")
		default:
			http.NotFound(w, r)
		}
	})
	e := open(t, srv.URL, nil)
	d, err := e.Describe(within(t))
	require.NoError(t, err)
	require.Equal(t, engine.VLLM, d.Kind)
	require.Equal(t, "0.9.1", d.Version)
	tokens, last, err := complete(t, e)
	require.NoError(t, err)
	require.Equal(t, []uint32{7, 8}, tokens)
	require.Nil(t, last.Logprobs) // not what the caller asked for
	require.Contains(t, *asked.Load(), `"return_tokens_as_token_ids":true,"logprobs":0`)
}

func TestErrorsHaveAKindAndSayWhetherAnotherEngineMayDo(t *testing.T) {
	one := `{"choices":[{"index":0,"text":"a","token_ids":[1],"finish_reason":null}]}`
	for name, c := range map[string]struct {
		answer    http.HandlerFunc
		want      error
		elsewhere bool
		says      string
	}{
		"bad request": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			fmt.Fprint(w, `{"error":{"message":"too long","type":"BadRequestError","code":400}}`)
		}, engine.ErrStatus, false, "engine error 400: too long"},
		"old vLLM's error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(404)
			fmt.Fprint(w, `{"object":"error","message":"no such model","type":"NotFoundError","code":404}`)
		}, engine.ErrStatus, false, "engine error 404: no such model"},
		"FastAPI's error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(422)
			fmt.Fprint(w, `{"detail":[{"loc":["body"]}]}`)
		}, engine.ErrStatus, false, `engine error 422: [{"loc":["body"]}]`},
		"overloaded": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, engine.ErrStatus, true, "Too Many Requests"},
		"not ready":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503); fmt.Fprint(w, "<html>") }, engine.ErrStatus, true, "<html>"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, engine.ErrStatus, false, "engine error 307"},
		"an error in the stream": {func(w http.ResponseWriter, _ *http.Request) {
			sse(w, `{"error":{"object":"error","message":"out of memory","type":"InternalServerError","code":500}}`, "[DONE]")
		}, engine.ErrStatus, true, "engine error 500: out of memory"},
		"an error in JSON": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"object":"error","message":"bad","code":400}`)
		}, engine.ErrStatus, false, "engine error 400: bad"},
		"another content type": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>hello`) }, engine.ErrProtocol, true, `it begins with "<html>hello"`},
		"no JSON":              {func(w http.ResponseWriter, _ *http.Request) { sse(w, `{"choices":`) }, engine.ErrProtocol, true, "event"},
		"negative ids":         {func(w http.ResponseWriter, _ *http.Request) { sse(w, `{"choices":[{"token_ids":[-1]}]}`) }, engine.ErrProtocol, true, "token_ids"},
		"two answers": {func(w http.ResponseWriter, _ *http.Request) {
			sse(w, `{"choices":[{"index":1,"text":"a"}]}`)
		}, engine.ErrProtocol, true, "several answers"},
		"an end too soon":  {func(w http.ResponseWriter, _ *http.Request) { sse(w, one, "[DONE]") }, engine.ErrBroken, true, "without a finish reason"},
		"an empty stream":  {func(w http.ResponseWriter, _ *http.Request) { sse(w) }, engine.ErrBroken, true, ""},
		"a broken stream":  {func(w http.ResponseWriter, _ *http.Request) { sse(w, one); panic(http.ErrAbortHandler) }, engine.ErrBroken, true, ""},
		"no answer at all": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, engine.ErrBroken, true, ""},
		"no status": {func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 000 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n")
				_ = conn.Close()
			}
		}, engine.ErrProtocol, true, "status 000"},
		"a broken 200": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Write([]byte("x"))
		}, engine.ErrBroken, true, ""},
		"ids that are huge": {func(w http.ResponseWriter, _ *http.Request) { sse(w, `{"choices":[{"token_ids":[4294967296]}]}`) }, engine.ErrProtocol, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t, serve(t, c.answer).URL, func(c *engine.Config) { c.Health.Failures = 1000 })
			_, _, err := complete(t, e)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.says)
			require.Equal(t, c.elsewhere, engine.Elsewhere(err))
			rest(t, e)
		})
	}
}

func TestWhatFollowsTheLastItemIsNoError(t *testing.T) {
	last := `{"choices":[{"index":0,"text":"a","token_ids":[1],"finish_reason":"length"}]}`
	for name, after := range map[string]http.HandlerFunc{
		"nothing":  func(w http.ResponseWriter, _ *http.Request) { sse(w, last) },
		"garbage":  func(w http.ResponseWriter, _ *http.Request) { sse(w, last, "[DONE]", "{", "garbage") },
		"a break":  func(w http.ResponseWriter, _ *http.Request) { sse(w, last); panic(http.ErrAbortHandler) },
		"no frame": func(w http.ResponseWriter, _ *http.Request) { sse(w, last); fmt.Fprint(w, "data: [DONE]") },
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t, serve(t, after).URL, nil)
			tokens, _, err := complete(t, e)
			require.NoError(t, err)
			require.Equal(t, []uint32{1}, tokens)
			rest(t, e)
		})
	}
}

func TestCancellingEndsTheEnginesWork(t *testing.T) {
	gone := make(chan struct{}, 2)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		sse(w, `{"choices":[{"index":0,"text":"a","token_ids":[1]}]}`)
		<-r.Context().Done()
		gone <- struct{}{}
	})
	e := open(t, srv.URL, nil)
	s, err := e.Complete(within(t), &engine.Completion{Tokens: prompt(4)})
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	s.Close()
	<-gone
	_, err = s.Recv()
	require.ErrorIs(t, err, context.Canceled)

	ctx, cancel := context.WithCancel(within(t))
	s, err = e.Complete(ctx, &engine.Completion{Tokens: prompt(4)})
	require.NoError(t, err)
	cancel()
	<-gone
	_, _, err = drain(s)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, engine.Elsewhere(err))
	rest(t, e)
	require.Zero(t, e.Status().Faults) // the caller's doing
	require.Equal(t, engine.Healthy, e.State())
}

func TestForwardHandsOnWhatItIsGivenAndGets(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Method", r.Method+" "+r.URL.String())
		w.Header().Set("X-Asked", r.Header.Get("X-Asked"))
		w.Header().Set("X-Hop", r.Header.Get("X-Hop")+r.Header.Get("Te"))
		w.WriteHeader(418)
		_, _ = w.Write(append([]byte("got "), body...))
	})
	e := open(t, srv.URL+"/base/", nil)
	r, err := e.Forward(within(t), &engine.Request{Method: "POST", Path: "/v1/x?y=1", Body: []byte("hello"), Header: http.Header{
		"X-Asked": {"a"}, "Connection": {"X-Hop"}, "X-Hop": {"b"}, "Te": {"trailers"}, "Content-Length": {"999"}, "Host": {"evil"},
	}})
	require.NoError(t, err)
	require.Equal(t, 418, r.Status)
	require.Equal(t, "POST /base/v1/x?y=1", r.Header.Get("X-Method"))
	require.Equal(t, "a", r.Header.Get("X-Asked"))
	require.Empty(t, r.Header.Get("X-Hop"))
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, "got hello", string(body))
	require.NoError(t, r.Body.Close())
	rest(t, e)
}

func TestAnEngineThatIsGoneIsEjectedAndComesBack(t *testing.T) {
	ln, err := net.Listen("tcp", servertest.FreeAddress(t))
	require.NoError(t, err)
	start := func(ln net.Listener) *http.Server {
		s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		go s.Serve(ln)
		return s
	}
	first := start(ln)
	e := open(t, "http://"+ln.Addr().String(), nil)
	changed := e.Changed()
	require.NoError(t, first.Close())
	_, err = e.Forward(within(t), &engine.Request{Method: "GET", Path: "/"})
	require.ErrorIs(t, err, engine.ErrUnreachable)
	<-changed
	require.Equal(t, engine.Ejected, e.State())
	require.Contains(t, e.Status().Reason, "refused")
	ln, err = net.Listen("tcp", ln.Addr().String())
	require.NoError(t, err)
	second := start(ln)
	defer second.Close()
	require.NoError(t, e.WaitHealthy(within(t)))
	st := e.Status()
	require.EqualValues(t, 1, st.Ejected)
	require.EqualValues(t, 1, st.Returned)
}

func TestFaultsInARowEjectAndTheBackOffGrows(t *testing.T) {
	var checks atomic.Int64
	var good atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/health":
			checks.Add(1)
		case good.Load():
		default:
			w.WriteHeader(500)
		}
	}))
	t.Cleanup(srv.Close)
	e := open(t, srv.URL, func(c *engine.Config) {
		c.Health.Backoff, c.Health.MaxBackoff, c.Health.Interval = 40*time.Millisecond, time.Minute, time.Hour
	})
	ask := func() {
		r, err := e.Forward(within(t), &engine.Request{Method: "GET", Path: "/"})
		require.NoError(t, err)
		_, err = io.ReadAll(r.Body)
		require.NoError(t, err)
		r.Body.Close()
	}
	var waits []time.Duration
	for range 4 {
		for range 2 {
			ask()
			require.Equal(t, engine.Healthy, e.State())
		}
		good.Store(true)
		ask() // in between: not in a row
		good.Store(false)
		ask()
		ask()
		began := time.Now()
		ask()
		require.EqualValues(t, len(waits)+1, e.Status().Ejected)
		require.NoError(t, e.WaitHealthy(within(t)))
		waits = append(waits, time.Since(began))
	}
	require.Greater(t, waits[3], 4*40*time.Millisecond) // 8 of them, less an eighth
	require.EqualValues(t, 4, e.Status().Ejected)
}

func TestAnEngineThatSaysItCannotServeIsEjectedAtOnce(t *testing.T) {
	var code atomic.Int64
	code.Store(200)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(int(code.Load())) }))
	t.Cleanup(srv.Close)
	e := open(t, srv.URL, nil)
	changed := e.Changed()
	code.Store(503)
	e.Check()
	<-changed
	require.Equal(t, engine.Ejected, e.State())
	require.Contains(t, e.Status().Reason, "503")
	code.Store(200)
	require.NoError(t, e.WaitHealthy(within(t)))
	changed = e.Changed()
	e.Drain()
	<-changed
	require.Equal(t, engine.Draining, e.State())
	e.Resume()
	require.Equal(t, engine.Healthy, e.State())
}

func TestRequestsAreBounded(t *testing.T) {
	hold := make(chan struct{})
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) { <-hold })
	e := open(t, srv.URL, func(c *engine.Config) { c.Limits.Requests = 1 })
	done := make(chan error)
	go func() {
		r, err := e.Forward(context.Background(), &engine.Request{Method: "GET", Path: "/"})
		if err == nil {
			r.Body.Close()
		}
		done <- err
	}()
	require.Eventually(t, func() bool { return e.Status().Active == 1 }, 5*time.Second, time.Millisecond)
	_, err := e.Forward(within(t), &engine.Request{Method: "GET", Path: "/"})
	require.ErrorIs(t, err, engine.ErrFull)
	require.True(t, engine.Elsewhere(err))
	close(hold)
	require.NoError(t, <-done)
	e.Close()
	_, err = e.Forward(within(t), &engine.Request{Method: "GET", Path: "/"})
	require.ErrorIs(t, err, engine.ErrClosed)
}

func TestConfigurationIsRefusedWithTheReason(t *testing.T) {
	for text, why := range map[string]string{
		"":                "not a URL", // url.Parse takes it; the scheme is missing
		"host:8000":       "scheme",
		"ftp://h":         "scheme",
		"http://":         "no host",
		"http://h:99999":  "port",
		"http://h:":       "no port",
		"http://u@h":      "user",
		"http://h?x":      "query",
		"http://h\x00":    "not a URL",
		"http://h:1/#abc": "fragment",
	} {
		_, err := engine.New(engine.Config{URL: text})
		require.ErrorIs(t, err, engine.ErrInvalid, text)
		if text != "" {
			require.ErrorContains(t, err, why, text)
		}
	}
	_, err := engine.New(engine.Config{URL: "http://h", Kind: "x"})
	require.ErrorContains(t, err, "kind")
	_, err = engine.New(engine.Config{URL: "http://h", Header: http.Header{"A": {"b\nc"}}})
	require.ErrorContains(t, err, "header")
	_, err = engine.New(engine.Config{URL: "http://h", Limits: engine.Limits{EventBytes: -1}})
	require.ErrorContains(t, err, "event_bytes is -1")
	e := open(t, serve(t, func(http.ResponseWriter, *http.Request) {}).URL, nil)
	for _, c := range []engine.Completion{
		{},
		{Tokens: prompt(1), ID: "a b"},
		{Tokens: prompt(1), Fields: map[string]json.RawMessage{"stream": json.RawMessage("false")}},
		{Tokens: prompt(1), Fields: map[string]json.RawMessage{"n": json.RawMessage("2")}},
		{Tokens: prompt(1), Fields: map[string]json.RawMessage{"x": json.RawMessage("{")}},
	} {
		_, err := e.Complete(within(t), &c)
		require.ErrorIs(t, err, engine.ErrInvalid)
		require.False(t, engine.Elsewhere(err))
	}
}

func TestAnErrorCarriesWhatAProxyHandsOn(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(429)
		fmt.Fprint(w, strings.Repeat("x", 100<<10))
	})
	_, _, err := complete(t, open(t, srv.URL, nil))
	var told *engine.StatusError
	require.True(t, errors.As(err, &told))
	require.Equal(t, 429, told.Code)
	require.Equal(t, "3", told.Header.Get("Retry-After"))
	require.Len(t, told.Body, 64<<10)
	require.Less(t, len(err.Error()), 2000)
}

func TestEnginesAreAskedWhatTheyAre(t *testing.T) {
	pages := func(all map[string]string) string {
		return serve(t, func(w http.ResponseWriter, r *http.Request) {
			text, ok := all[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
			}
			fmt.Fprint(w, text)
		}).URL
	}
	sglang := pages(map[string]string{
		"/v1/models": `{"object":"list","data":[{"id":"m","owned_by":"sglang","max_model_len":4096},{"id":"lora","owned_by":"sglang"}]}`,
		"/server_info": `{"version":"0.5.23","served_model_name":"m","page_size":32,"dp_size":2,"max_total_num_tokens":6400,"chunked_prefill_size":8192,
			"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":16,"dp_size":2,"replay_endpoint_port_base":6557}}`,
	})
	vllm := pages(map[string]string{
		"/v1/models": `{"data":[{"id":"m","owned_by":"vllm","max_model_len":null}]}`,
		"/version":   `{"version":"0.33.0"}`,
		"/kv_event_sources": `{"0":{"publisher":"zmq","endpoint":"tcp://10.1.1.1:41233","replay_endpoint":"tcp://*:6557","topic":"t"},
			"1":{"publisher":"zmq","endpoint":"tcp://10.1.1.1:41234","replay_endpoint":null,"topic":"t"},"x":{},"9999999":{"publisher":"zmq"},"2":{"publisher":"null"}}`,
		"/metrics": "# HELP x\nvllm:other 1\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"a,b=c\",num_gpu_blocks=\"1000\",engine=\"0\"} 1.0\n",
	})
	other := pages(map[string]string{"/v1/models": `{"data":[]}`})
	hostile := pages(map[string]string{
		"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
		"/server_info": `{"page_size":-1,"dp_size":4294967295,"kv_events":{"publisher":"zmq","endpoint_port_base":70000,"dp_size":4294967295}}`,
	})
	ask := func(url string) engine.Description {
		d, err := open(t, url, nil).Describe(within(t))
		require.NoError(t, err)
		return d
	}
	require.Equal(t, engine.Description{
		Kind: engine.SGLang, Version: "0.5.23", Model: "m", Models: []string{"m", "lora"}, MaxModelLen: 4096, DPSize: 2, BlockSize: 16, TotalBlocks: 200, MaxBatched: 8192,
		KVEvents: map[uint32]string{0: "tcp://127.0.0.1:5557", 1: "tcp://127.0.0.1:5558"}, Replay: map[uint32]string{0: "tcp://127.0.0.1:6557", 1: "tcp://127.0.0.1:6558"}, Topic: "kv",
	}, ask(sglang))
	require.Equal(t, engine.Description{
		Kind: engine.VLLM, Version: "0.33.0", Model: "m", Models: []string{"m"}, DPSize: 2, BlockSize: 16, TotalBlocks: 1000,
		KVEvents: map[uint32]string{0: "tcp://10.1.1.1:41233", 1: "tcp://10.1.1.1:41234"}, Replay: map[uint32]string{0: "tcp://127.0.0.1:6557"}, Topic: "t",
	}, ask(vllm))
	require.Equal(t, engine.Description{}, ask(other))
	require.Equal(t, engine.Description{Kind: engine.SGLang, Model: "m", Models: []string{"m"}}, ask(hostile))
	_, err := open(t, pages(nil), nil).Describe(within(t))
	require.ErrorIs(t, err, engine.ErrStatus)
}
