package serve_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/serve"
)

func TestMain(m *testing.M) {
	if isEngine() {
		return
	}
	leaktest.Main(m)
}

// patience bounds a wait for something that happens soon.
const patience = 20 * time.Second

func mock(t *testing.T, change func(*mocker.Config)) *mocker.Mocker {
	cfg := mocker.DefaultConfig()
	cfg.Speedup, cfg.BlockSize = 100, 4
	if change != nil {
		change(&cfg)
	}
	m, err := mocker.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func mocks(t *testing.T, n int, change func(*mocker.Config)) []*mocker.Mocker {
	all := make([]*mocker.Mocker, n)
	for i := range all {
		all[i] = mock(t, change)
	}
	return all
}

func text(m *mocker.Mocker) string {
	i := m.Info()
	return i.HTTP + "," + i.Events + "," + i.Replay
}

// start runs a server before engines, and waits until all are candidates.
func start(t *testing.T, engines []*mocker.Mocker, change func(*serve.Config)) *serve.Server {
	cfg := serve.Config{Listen: "127.0.0.1:0", BlockSize: 4}
	for _, m := range engines {
		cfg.Engines = append(cfg.Engines, text(m))
	}
	if change != nil {
		change(&cfg)
	}
	s, err := serve.New(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, s.Fleet().WaitReady(ctx, len(cfg.Engines)))
	return s
}

type answer struct {
	status int
	text   string
	header http.Header
	err    error
}

func ask(s *serve.Server, method, path, body string, header ...string) answer {
	r, err := http.NewRequest(method, "http://"+s.Address()+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	return answer{a.StatusCode, string(text), a.Header, err}
}

func post(s *serve.Server, body string) answer { return ask(s, "POST", "/v1/completions", body) }

// idle waits until nothing is booked anywhere.
func idle(t *testing.T, s *serve.Server, engines ...*mocker.Mocker) {
	require.Eventually(t, func() bool {
		st, err := s.Fleet().Router().Stats()
		busy := st.ActiveRequests
		for _, m := range engines {
			busy += m.Stats().Running + m.Stats().Waiting
		}
		return err == nil && busy == 0 && s.Status().Inflight == 0
	}, patience, time.Millisecond)
}

// told waits until the router knows of everything that the engines hold.
func told(t *testing.T, s *serve.Server, engines ...*mocker.Mocker) {
	said := uint64(0)
	for _, m := range engines {
		said += m.Stats().Batches
	}
	require.Eventually(t, func() bool {
		rows, err := s.Fleet().Router().Health()
		require.NoError(t, err)
		applied := uint64(0)
		for _, row := range rows {
			if row.LastSeq != nil {
				applied += *row.LastSeq + 1
			}
		}
		return applied >= said
	}, patience, time.Millisecond)
}

type completion struct {
	Choices []struct {
		Text    string
		Message struct{ Content string }
		Delta   struct{ Content string }
		Finish  *string  `json:"finish_reason"`
		Tokens  []uint32 `json:"token_ids"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *struct{ Message, Type, Code string }
}

func parse(t *testing.T, a answer) (c completion) {
	require.NoError(t, a.err)
	require.Equal(t, 200, a.status, a.text)
	require.NoError(t, json.Unmarshal([]byte(a.text), &c), a.text)
	return c
}

// What an engine says of its hits is what the router's record has, of every kind of answer that says it.
func TestActualHitsAreRecorded(t *testing.T) {
	m := mocks(t, 1, nil)
	s := start(t, m, func(c *serve.Config) { c.Router = json.RawMessage(`{"record_decisions": 10}`) })
	const prompt = `{"prompt": [1,2,3,4,5,6,7,8,9], "max_tokens": 2`
	first := parse(t, post(s, prompt+`}`))
	require.Zero(t, first.Usage.Details.Cached)
	require.Equal(t, 8, parse(t, post(s, prompt+`}`)).Usage.Details.Cached)
	chunks := events(t, post(s, prompt+`, "stream": true, "stream_options": {"include_usage": true}}`).text)
	require.Equal(t, 8, chunks[len(chunks)-1].Usage.Details.Cached)
	events(t, post(s, prompt+`, "stream": true}`).text)
	parse(t, ask(s, "POST", "/v1/chat/completions", `{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}`))
	idle(t, s, m...)
	rows, err := s.Fleet().Router().Decisions(0)
	require.NoError(t, err)
	require.Len(t, rows, 5)
	for i, want := range []*int{ptr(0), ptr(8), ptr(8), nil, ptr(0)} { // the fourth was not asked for its usage
		require.Equal(t, want, rows[i].ActualCachedTokens, i)
	}
}

func ptr[T any](v T) *T { return &v }

// https://github.com/ai-dynamo/dynamo/pull/6253: a burst spreads over equal engines that have not answered yet.
func TestConcurrentRequestsSpread(t *testing.T) {
	const engines, requests = 8, 64
	var asked [engines]atomic.Int64
	var all atomic.Int64
	answer := make(chan struct{})
	s := start(t, nil, func(c *serve.Config) {
		for i := range engines {
			c.Engines = append(c.Engines, fake(t, func(w http.ResponseWriter, _ *http.Request) {
				asked[i].Add(1)
				if all.Add(1) == requests {
					close(answer)
				}
				<-answer
				fmt.Fprint(w, `{"choices":[{"text":"a"}]}`)
			}))
		}
	})
	var clients sync.WaitGroup
	for i := range requests {
		clients.Go(func() {
			a := post(s, fmt.Sprintf(`{"prompt": %s, "max_tokens": 1}`, ids(1000*i, 40)))
			assert.NoError(t, a.err)
			assert.Equal(t, 200, a.status, a.text)
		})
	}
	clients.Wait()
	for i := range asked {
		n := asked[i].Load()
		require.True(t, n >= 7 && n <= 9, "engine %d was asked %d times", i, n)
	}
	idle(t, s)
}

// events splits a stream that ended well.
func events(t *testing.T, text string) (all []completion) {
	parts := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
	require.Equal(t, "data: [DONE]", parts[len(parts)-1])
	for _, part := range parts[:len(parts)-1] {
		var c completion
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(part, "data: ")), &c), part)
		all = append(all, c)
	}
	return all
}

func ids(from, n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint(from+i))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func TestAnswersAreTheEngines(t *testing.T) {
	m := mocks(t, 1, nil)
	s := start(t, m, nil)
	direct := ask2(t, m[0], "/v1/completions", `{"prompt": [1,2,3,4,5,6,7,8], "max_tokens": 300, "return_token_ids": true}`)
	for range 2 {
		c := parse(t, post(s, `{"prompt": [1,2,3,4,5,6,7,8], "max_tokens": 300, "return_token_ids": true}`))
		require.Equal(t, direct.Choices, c.Choices)
		require.Equal(t, 300, c.Usage.Completion)
	}
	a := post(s, `{"prompt": [1,2,3], "max_tokens": 50, "stream": true, "stream_options": {"include_usage": true}}`)
	require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
	chunks := events(t, a.text)
	require.Equal(t, 50, chunks[len(chunks)-1].Usage.Completion)

	chat := `{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20`
	want := ask2(t, m[0], "/v1/chat/completions", chat+`}`).Choices[0].Message.Content
	require.Equal(t, want, parse(t, ask(s, "POST", "/v1/chat/completions", chat+`}`)).Choices[0].Message.Content)
	said := ""
	for _, c := range events(t, ask(s, "POST", "/v1/chat/completions", chat+`, "stream": true}`).text) {
		said += c.Choices[0].Delta.Content
	}
	require.Equal(t, want, said)
	idle(t, s, m...)
}

func ask2(t *testing.T, m *mocker.Mocker, path, body string) completion {
	r, err := http.Post(m.Info().HTTP+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return parse(t, answer{r.StatusCode, string(text), nil, err})
}

func TestRequestsGoWhereTheirPromptIs(t *testing.T) {
	m := mocks(t, 4, nil)
	s := start(t, m, nil)
	talks := []string{"Once upon a time there was a router", "In the beginning was the block", "Call me a prefix"}
	for turn := range 4 {
		for i, talk := range talks {
			var c completion
			if i%2 == 0 {
				c = parse(t, post(s, fmt.Sprintf(`{"prompt": %q, "max_tokens": 8}`, talk)))
				talks[i] += c.Choices[0].Text
			} else {
				c = parse(t, ask(s, "POST", "/v1/chat/completions", fmt.Sprintf(`{"messages": [{"role": "user", "content": %q}], "max_tokens": 8}`, talk)))
				talks[i] += " and then"
			}
			if turn > 0 {
				require.Positive(t, c.Usage.Details.Cached, "turn %d of %q", turn, talk)
			}
			told(t, s, m...)
		}
	}
	require.Zero(t, s.Status().Untokenized)
	idle(t, s, m...)
}

func TestErrorsOfEnginesAreHandedOn(t *testing.T) {
	m := mocks(t, 2, nil)
	s := start(t, m, nil)
	for body, want := range map[string]struct {
		status int
		words  string
	}{
		`{"prompt": [1], "max_tokens": 0}`:  {400, "max_tokens is 0"},
		`{"prompt": [1], "model": "other"}`: {404, `\"other\" is not served`},
		`{"prompt": [1], "n": 2}`:           {400, "n is 2"},
		`{"prompt": [[1],[2]]}`:             {400, "several lists"},
		`{"prompt": "x", "stream": "yes"}`:  {400, "stream must be"},
		`{`:                                 {400, "not a completion request"},
		``:                                  {400, "not a completion request"},
		"{\"prompt\": \"\xff\", \"n\": 3}":  {400, "n is 3"},
		`{"messages": []}`:                  {400, "prompt is missing"},
	} {
		a := post(s, body)
		require.NoError(t, a.err)
		require.Equal(t, want.status, a.status, body)
		require.Contains(t, a.text, want.words)
	}
	// One engine's trouble is another one's work; if all have it, it is told.
	setFault := func(m *mocker.Mocker, body string) {
		r, err := http.Post(m.Info().HTTP+"/fault", "", strings.NewReader(body))
		require.NoError(t, err)
		r.Body.Close()
	}
	for _, fault := range []string{`{"requests": 1, "status": 503}`, `{"requests": 1, "cut_after": 0}`} {
		setFault(m[0], fault)
		for i := range 8 {
			parse(t, post(s, `{"prompt": `+ids(1000*i, 8)+`}`))
		}
	}
	require.Positive(t, s.Status().Retries)
	for _, e := range m {
		setFault(e, `{"requests": 1, "status": 500, "message": "out of luck"}`)
	}
	a := post(s, `{"prompt": [1]}`)
	require.Equal(t, 500, a.status)
	require.Contains(t, a.text, "out of luck")
	idle(t, s, m...)
}

func TestEngineThatBreaksInTheMiddle(t *testing.T) {
	m := mocks(t, 1, func(c *mocker.Config) { c.Speedup = 1 })
	s := start(t, m, nil)
	r, err := http.Post(m[0].Info().HTTP+"/fault", "", strings.NewReader(`{"requests": 1, "cut_after": 3}`))
	require.NoError(t, err)
	r.Body.Close()
	a := post(s, `{"prompt": [1], "max_tokens": 500, "stream": true}`)
	require.NoError(t, a.err, "the answer to the client is whole")
	all := events(t, a.text)
	require.GreaterOrEqual(t, len(all), 4)
	last := all[len(all)-1]
	require.NotNil(t, last.Error)
	require.Equal(t, "server_error", last.Error.Type)
	require.Equal(t, "engine_failed", last.Error.Code)
	idle(t, s, m...)
	require.EqualValues(t, 1, s.Status().Broken)
}

func TestEngineThatStopsInTheMiddle(t *testing.T) {
	m := mocks(t, 1, func(c *mocker.Config) { c.Speedup, c.InterTokenMS = 1, 20 })
	s := start(t, m, nil)
	r, err := http.Post("http://"+s.Address()+"/v1/completions", "", strings.NewReader(`{"prompt": [1], "max_tokens": 5000, "stream": true}`))
	require.NoError(t, err)
	defer r.Body.Close()
	in := bufio.NewReader(r.Body)
	_, err = in.ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, m[0].Close()) // it ends its answer well, but for the [DONE]
	rest, err := io.ReadAll(in)
	require.NoError(t, err)
	all := events(t, strings.TrimPrefix(string(rest), "\n"))
	require.NotNil(t, all[len(all)-1].Error)
}

func TestClientThatDisconnectsCancelsTheEngine(t *testing.T) {
	m := mocks(t, 1, func(c *mocker.Config) { c.Speedup, c.InterTokenMS = 1, 100 })
	s := start(t, m, nil)
	for i, stream := range []bool{true, false, true, false} {
		ctx, cancel := context.WithCancel(context.Background())
		r, err := http.NewRequestWithContext(ctx, "POST", "http://"+s.Address()+"/v1/completions",
			strings.NewReader(fmt.Sprintf(`{"prompt": [1], "max_tokens": 1000, "stream": %v}`, stream)))
		require.NoError(t, err)
		began := make(chan bool)
		go func() {
			defer close(began)
			if a, err := http.DefaultClient.Do(r); err == nil {
				_, _ = bufio.NewReader(a.Body).ReadString('\n')
				if stream {
					began <- true
				}
				_, _ = io.Copy(io.Discard, a.Body)
				a.Body.Close()
			}
		}()
		if stream {
			<-began
		}
		require.Eventually(t, func() bool { return m[0].Stats().Running == 1 }, patience, time.Millisecond)
		cancel()
		require.Eventually(t, func() bool { return m[0].Stats().Cancelled == uint64(i+1) }, patience, time.Millisecond)
		<-began
	}
	idle(t, s, m...)
	require.EqualValues(t, 4, s.Status().Disconnected)
}

func TestCloseAtAnyTime(t *testing.T) {
	for range 10 {
		s, err := serve.New(serve.Config{Listen: "127.0.0.1:0", Engines: []string{"http://127.0.0.1:1,none"}, Tokenizer: serve.ByHost}, nil)
		require.NoError(t, err)
		s.Close()
		s.Close()
		require.Error(t, ask(s, "GET", "/live", "").err)
	}
	m := mocks(t, 1, func(c *mocker.Config) { c.Speedup, c.InterTokenMS = 1, 20 })
	for i, grace := range []time.Duration{0, patience} {
		s := start(t, m, nil)
		ended := make(chan answer)
		go func() { ended <- post(s, `{"prompt": [1], "max_tokens": 25, "stream": true}`) }()
		require.Eventually(t, func() bool { return m[0].Stats().Requests == uint64(i+1) }, patience, time.Millisecond)
		s.Stop(grace)
		if grace > 0 {
			a := <-ended
			require.NoError(t, a.err)
			events(t, a.text)
			<-s.Drained()
			s.Close()
		} else {
			<-s.Drained()
			s.Close()
			<-ended
		}
		require.Eventually(t, func() bool { return m[0].Stats().Running == 0 }, patience, time.Millisecond)
	}
}

func TestPages(t *testing.T) {
	m := mocks(t, 2, nil)
	s := start(t, m, nil)
	a := ask(s, "GET", "/v1/models", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, 1, strings.Count(a.text, `"id":"mock-8b"`), "each model once")
	a = ask(s, "GET", "/health", "")
	require.Equal(t, 200, a.status)
	require.Contains(t, a.text, `"status":"ready"`)
	require.Equal(t, 200, ask(s, "GET", "/live", "").status)
	parse(t, post(s, `{"prompt": [1], "max_tokens": 7}`))
	a = ask(s, "GET", "/metrics", "")
	require.Equal(t, 200, a.status)
	require.Contains(t, a.text, `dynamo_frontend_requests_total{model="unknown",endpoint="completions",request_type="unary",status="200"} 1`)
	require.Contains(t, a.text, `dynamo_frontend_output_tokens_total{model="unknown"} 7`)
	require.Contains(t, a.text, `dynamo_frontend_time_to_first_token_seconds_count{model="unknown"} 1`)
	for _, bad := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/completions", 405}, {"POST", "/health", 405}, {"DELETE", "/v1/models", 405},
		{"POST", "/v1/embeddings", 404}, {"GET", "/", 404}, {"GET", "/v1/completions/", 404},
	} {
		a := ask(s, bad.method, bad.path, "")
		require.Equal(t, bad.status, a.status, bad)
		var told struct {
			Error struct{ Message, Type, Code string }
		}
		require.NoError(t, json.Unmarshal([]byte(a.text), &told), a.text)
		require.Equal(t, "invalid_request_error", told.Error.Type)
	}
}

// TestAdapters: a request that names a LoRA adapter as its model goes where that is loaded and its prefix is held; the prefix of another is none.
func TestAdapters(t *testing.T) {
	m := []*mocker.Mocker{
		mock(t, func(c *mocker.Config) { c.Adapters = []string{"poet", "clerk"} }),
		mock(t, func(c *mocker.Config) { c.Adapters = []string{"clerk"} }),
		mock(t, nil),
	}
	for _, mode := range []fleet.Mode{fleet.KV, fleet.RoundRobin} {
		s := start(t, m, func(c *serve.Config) { c.Mode = mode })
		require.Contains(t, ask(s, "GET", "/v1/models", "").text, `"poet"`)
		for range 6 { // the engines that do not have it say 404
			parse(t, post(s, `{"model": "poet", "prompt": [1,2], "max_tokens": 1}`))
			parse(t, post(s, `{"model": "clerk", "prompt": [1,2], "max_tokens": 1}`))
			parse(t, post(s, `{"prompt": [1,2], "max_tokens": 1}`))
		}
		require.Equal(t, 404, post(s, `{"model": "nobody", "prompt": [1,2]}`).status)
		require.Zero(t, s.Status().Retries)
		if mode != fleet.KV {
			continue
		}
		cached := func(model string) int {
			return parse(t, post(s, fmt.Sprintf(`{"model": %q, "prompt": %s, "max_tokens": 1}`, model, ids(7000, 64)))).Usage.Details.Cached
		}
		for _, model := range []string{"clerk", "poet", "mock-8b"} {
			require.Zero(t, cached(model), "%s: the blocks of others are none of its", model)
			q := router.Request{}
			for i := range 64 {
				q.Tokens = append(q.Tokens, uint32(7000+i))
			}
			if model != "mock-8b" {
				q.LoRAName = model
			}
			require.Eventually(t, func() bool {
				c, err := s.Fleet().Router().BestWorker(&q)
				return err == nil && c.OverlapBlocks == 16
			}, patience, time.Millisecond, "its events are those of %s", model)
			require.GreaterOrEqual(t, cached(model), 60)
		}
	}
}

// TestRanksBehindOneURL: an engine with data-parallel ranks, each with a cache and events of its own, behind one address, as vLLM tells them. Each refuses
// what is not for it; a prefix is found at the rank that holds it.
func TestRanksBehindOneURL(t *testing.T) {
	const ranks = 3
	var all []*mocker.Mocker
	var via []http.Handler
	sources := map[string]any{}
	for rank := range ranks {
		m := mock(t, func(c *mocker.Config) { c.DPRank = uint32(rank) })
		at, err := url.Parse(m.Info().HTTP)
		require.NoError(t, err)
		all, via = append(all, m), append(via, httputil.NewSingleHostReverseProxy(at))
		sources[fmt.Sprint(rank)] = map[string]string{"publisher": "zmq", "endpoint": m.Info().Events, "replay_endpoint": m.Info().Replay}
	}
	var unnamed atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"mock-8b","owned_by":"vllm"}]}`)
		case "/kv_event_sources":
			_ = json.NewEncoder(w).Encode(sources)
		case "/v1/completions", "/v1/chat/completions":
			rank, err := strconv.Atoi(r.Header.Get("X-Data-Parallel-Rank"))
			if err != nil {
				unnamed.Add(1)
			}
			via[rank%ranks].ServeHTTP(w, r)
		default:
			via[0].ServeHTTP(w, r)
		}
	}))
	t.Cleanup(front.Close)
	s := start(t, nil, func(c *serve.Config) { c.Engines = []string{front.URL} })
	require.EqualValues(t, ranks, s.Fleet().Engines()[0].DPSize)
	for prefix := range 3 * ranks {
		body := fmt.Sprintf(`{"prompt": %s, "max_tokens": 2}`, ids(1000*prefix+1, 64))
		first := ask(s, "POST", "/v1/completions", body, "X-Dp-Rank", fmt.Sprint(prefix%ranks)) // who is free is drawn at random
		require.Zero(t, parse(t, first).Usage.Details.Cached)
		q := router.Request{}
		for i := range 64 {
			q.Tokens = append(q.Tokens, uint32(1000*prefix+1+i))
		}
		require.Eventually(t, func() bool {
			c, err := s.Fleet().Router().BestWorker(&q)
			return err == nil && c.OverlapBlocks == 16
		}, patience, time.Millisecond)
		for range 3 {
			require.GreaterOrEqual(t, parse(t, post(s, body)).Usage.Details.Cached, 60, "it goes to the rank that holds it")
		}
	}
	for rank := range ranks {
		before := all[rank].Stats().Requests
		require.EqualValues(t, 3*(1+3), before, "rank %d", rank)
		parse(t, ask(s, "POST", "/v1/completions", `{"prompt": [1], "max_tokens": 1}`, "X-Dp-Rank", fmt.Sprint(rank)))
		require.Equal(t, before+1, all[rank].Stats().Requests)
	}
	require.Equal(t, 404, ask(s, "POST", "/v1/completions", `{"prompt": [1]}`, "X-Dp-Rank", "3").status)
	require.Zero(t, unnamed.Load())
	idle(t, s, all...)
}

// lines is a log that is read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestEventsThatAreNotThereAreTold(t *testing.T) {
	m := mock(t, nil)
	nowhere := "tcp://" + servertest.FreeAddress(t)
	var said lines
	s, err := serve.New(serve.Config{Listen: "127.0.0.1:0", BlockSize: 4, Engines: []string{m.Info().HTTP + "," + nowhere}}, slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn})))
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.Eventually(t, func() bool { return strings.Contains(said.String(), "not connected") }, patience, 10*time.Millisecond)
	require.Contains(t, said.String(), "kv_events="+nowhere)
	var page struct {
		Engines []struct {
			Ranks []map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(ask(s, "GET", "/engines", "").text), &page))
	require.Len(t, page.Engines[0].Ranks, 1)
	rank := page.Engines[0].Ranks[0]
	require.Equal(t, "disconnected", rank["state"])
	require.Equal(t, nowhere, rank["kv_events"])
	require.NotEmpty(t, rank["reason"])
	require.Contains(t, rank, "findings")
}

func TestEnginesThatAreOutAreCounted(t *testing.T) {
	s, err := serve.New(serve.Config{Listen: "127.0.0.1:0", Engines: []string{"http://127.0.0.1:1,none"}}, nil)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.Eventually(t, func() bool {
		return strings.Contains(post(s, `{"prompt": [1, 2]}`).text, "of 1 engines 1 starting; see /engines")
	}, patience, 10*time.Millisecond)
}
