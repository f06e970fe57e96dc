package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/router"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 20 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newFleet(t *testing.T, change func(*fleet.Options)) *fleet.Fleet {
	o := fleet.Options{Health: engine.Health{Backoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}, Poll: 5 * time.Millisecond}
	if change != nil {
		change(&o)
	}
	f, err := fleet.New(16, router.DefaultConfig(), o)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
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

func spec(m *mocker.Mocker) fleet.Spec {
	i := m.Info()
	return fleet.Spec{URL: i.HTTP, KVEvents: router.Endpoints{Base: i.Events}, Replay: router.Endpoints{Base: i.Replay}}
}

// join adds mock engines, and waits until they are candidates.
func join(t *testing.T, f *fleet.Fleet, n int) (all []*mocker.Mocker, ids []uint64) {
	for range n {
		m := mock(t, nil)
		id, err := f.Add(spec(m))
		require.NoError(t, err)
		all, ids = append(all, m), append(ids, id)
	}
	require.NoError(t, f.WaitReady(within(t), n))
	return all, ids
}

func prompt(first, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(first*100_000 + i)
	}
	return ids
}

func ask(tokens []uint32) *router.Request {
	return &router.Request{Prompt: router.Prompt{Tokens: tokens}}
}

func maxTokens(n int) *engine.Completion {
	return &engine.Completion{Fields: map[string]json.RawMessage{"max_tokens": json.RawMessage(fmt.Sprint(n))}}
}

// complete takes a whole answer.
func complete(t *testing.T, f *fleet.Fleet, tokens []uint32, n int) (router.Choice, engine.Item) {
	s, err := f.Complete(within(t), ask(tokens), maxTokens(n))
	require.NoError(t, err)
	defer s.Close()
	got := 0
	var last engine.Item
	for {
		it, err := s.Recv()
		if err == io.EOF {
			require.Equal(t, n, got)
			return s.Choice(), last
		}
		require.NoError(t, err)
		got += len(it.Tokens)
		last = it
	}
}

// idle waits until nothing is booked, and nothing runs.
func idle(t *testing.T, f *fleet.Fleet) {
	require.Eventually(t, func() bool {
		st, err := f.Router().Stats()
		require.NoError(t, err)
		for _, i := range f.Engines() {
			if i.Active != 0 {
				return false
			}
		}
		return st.ActiveRequests == 0
	}, patience, time.Millisecond)
}

func TestPromptsGoWhereTheirBlocksAre(t *testing.T) {
	f := newFleet(t, nil)
	join(t, f, 3)
	for i := range 6 {
		first, _ := complete(t, f, prompt(i, 320), 2)
		require.Eventually(t, func() bool {
			scores, err := f.Router().OverlapScores(&router.Prompt{Tokens: prompt(i, 320)})
			require.NoError(t, err)
			for _, w := range scores.Workers {
				if w.WorkerID == first.WorkerID {
					return w.DeviceBlocks >= 19
				}
			}
			return false
		}, patience, time.Millisecond)
		again, last := complete(t, f, prompt(i, 320), 2)
		require.Equal(t, first.WorkerID, again.WorkerID)
		require.GreaterOrEqual(t, again.OverlapBlocks, uint32(19))
		require.NotNil(t, last.Usage)
		require.Positive(t, last.Usage.CachedTokens)
	}
	idle(t, f)
}

// What an engine says of its hits is what the router's record has, of the engine that answered in the end.
func TestActualHitsAreRecorded(t *testing.T) {
	config := router.DefaultConfig()
	config.RecordDecisions = 10
	f, err := fleet.New(16, config, fleet.Options{Mode: fleet.RoundRobin, Health: engine.Health{Failures: 1000}})
	require.NoError(t, err)
	t.Cleanup(f.Close)
	told := strings.Replace(one, `"choices"`, `"usage":{"prompt_tokens":32,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":16}},"choices"`, 1)
	_, err = f.Add(fleet.Spec{URL: server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }).URL})
	require.NoError(t, err)
	good, err := f.Add(fleet.Spec{URL: server(t, func(w http.ResponseWriter, r *http.Request) {
		events(w, map[bool]string{true: told, false: one}[r.Header.Get("X-Request-Id") == "told"], "[DONE]")
	}).URL})
	require.NoError(t, err)
	require.NoError(t, f.WaitReady(within(t), 2))
	for _, id := range []string{"told", "not told"} {
		c := maxTokens(1)
		c.ID = strings.ReplaceAll(id, " ", "-")
		q := ask(prompt(1, 32))
		q.ID = id
		s, err := f.Complete(within(t), q, c)
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		s.Close()
	}
	rows, err := f.Router().Decisions(0)
	require.NoError(t, err)
	seen := map[string]*int{}
	for _, row := range rows {
		if row.WorkerID == good {
			seen[*row.RequestID] = row.ActualCachedTokens
		} else {
			require.Nil(t, row.ActualCachedTokens)
		}
	}
	sixteen := 16
	require.Equal(t, map[string]*int{"told": &sixteen, "not told": nil}, seen)
	require.Greater(t, len(rows), 2, "one was tried in vain")
}

func TestModesSpreadAndDirectGoesWhereItIsTold(t *testing.T) {
	for _, mode := range []fleet.Mode{fleet.RoundRobin, fleet.Random, fleet.LeastLoaded, fleet.PowerOfTwo} {
		t.Run(string(mode), func(t *testing.T) {
			f := newFleet(t, func(o *fleet.Options) { o.Mode = mode })
			join(t, f, 2)
			seen := map[uint64]int{}
			for range 64 {
				l, err := f.Route(within(t), ask(prompt(1, 64)))
				require.NoError(t, err)
				seen[l.Choice().WorkerID]++
				l.FirstToken()
				l.Progress(3)
				l.Done()
				l.Done()
			}
			require.Len(t, seen, 2)
			if mode == fleet.RoundRobin || mode == fleet.LeastLoaded {
				for _, n := range seen {
					require.Equal(t, 32, n)
				}
			}
			idle(t, f)
		})
	}
	f := newFleet(t, func(o *fleet.Options) { o.Mode = fleet.Direct })
	_, ids := join(t, f, 2)
	_, err := f.Route(within(t), ask(nil))
	require.ErrorIs(t, err, fleet.ErrInvalid)
	q := ask(nil)
	q.Constraints.HasWorker, q.Constraints.Worker = true, ids[1]
	l, err := f.Route(within(t), q)
	require.NoError(t, err)
	require.Equal(t, ids[1], l.Choice().WorkerID)
	l.Done()
	_, err = fleet.New(16, router.DefaultConfig(), fleet.Options{Mode: "x"})
	require.ErrorContains(t, err, "expected one of [kv round-robin")
}

// server is an engine of the test's own.
func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/health":
		case strings.HasPrefix(r.URL.Path, "/v1/c"):
			h(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func events(w http.ResponseWriter, all ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, ev := range all {
		fmt.Fprintf(w, "data: %s\n\n", ev)
	}
	_ = http.NewResponseController(w).Flush()
}

const one = `{"choices":[{"index":0,"text":"a","token_ids":[1],"finish_reason":"stop"}]}`

// bad are engines that fail before they gave anything.
var bad = map[string]http.HandlerFunc{
	"no answer":           func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	"500":                 func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); fmt.Fprint(w, "oh") },
	"503":                 func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
	"429":                 func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) },
	"a stream of nothing": func(w http.ResponseWriter, _ *http.Request) { events(w); panic(http.ErrAbortHandler) },
	"half an event": func(w http.ResponseWriter, _ *http.Request) {
		events(w)
		fmt.Fprint(w, "data: {")
		panic(http.ErrAbortHandler)
	},
	"an error in a stream": func(w http.ResponseWriter, _ *http.Request) { events(w, `{"error":{"message":"dead","code":500}}`) },
	"a length that is none": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "90")
		fmt.Fprint(w, "{")
	},
}

func TestAnotherEngineIsAskedBeforeTheFirstToken(t *testing.T) {
	for name, h := range bad {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			f := newFleet(t, func(o *fleet.Options) { o.Mode, o.Health.Failures = fleet.RoundRobin, 1000 })
			for range 2 {
				_, err := f.Add(fleet.Spec{URL: server(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); h(w, r) }).URL})
				require.NoError(t, err)
			}
			good, err := f.Add(fleet.Spec{URL: server(t, func(w http.ResponseWriter, _ *http.Request) { events(w, one, "[DONE]") }).URL})
			require.NoError(t, err)
			require.NoError(t, f.WaitReady(within(t), 3))
			for range 6 {
				s, err := f.Complete(within(t), ask(prompt(1, 32)), maxTokens(1))
				require.NoError(t, err)
				_, err = s.Recv()
				require.NoError(t, err)
				require.Equal(t, good, s.Choice().WorkerID)
				_, err = s.Recv()
				require.Equal(t, io.EOF, err)

				a, err := f.Forward(within(t), ask(prompt(1, 32)), &engine.Request{Method: "POST", Path: "/v1/completions", Body: []byte("{}")})
				require.NoError(t, err)
				require.Equal(t, 200, a.Status)
				body, err := io.ReadAll(a.Body)
				require.NoError(t, err)
				require.Contains(t, string(body), `"token_ids":[1]`)
				require.NoError(t, a.Body.Close())
			}
			require.Positive(t, asked.Load())
			idle(t, f)
		})
	}
}

func TestIfAllFailTheLastOnesWordsAreTheAnswer(t *testing.T) {
	f := newFleet(t, func(o *fleet.Options) { o.Health.Failures = 1000 })
	for range 3 {
		_, err := f.Add(fleet.Spec{URL: server(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(503)
			fmt.Fprint(w, `{"error":{"message":"busy"}}`)
		}).URL})
		require.NoError(t, err)
	}
	require.NoError(t, f.WaitReady(within(t), 3))
	a, err := f.Forward(within(t), ask(prompt(1, 32)), &engine.Request{Method: "POST", Path: "/v1/completions"})
	require.NoError(t, err)
	defer a.Body.Close()
	require.Equal(t, 503, a.Status)
	require.Equal(t, "7", a.Header.Get("Retry-After"))
	require.Equal(t, 3, a.Tried())
	body, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	require.JSONEq(t, `{"error":{"message":"busy"}}`, string(body))
	_, err = f.Complete(within(t), ask(prompt(1, 32)), maxTokens(1))
	require.ErrorContains(t, err, "engine error 503: busy")
	idle(t, f)
}

func TestAWrongRequestIsAskedOnce(t *testing.T) {
	var asked atomic.Int64
	f := newFleet(t, nil)
	for range 2 {
		_, err := f.Add(fleet.Spec{URL: server(t, func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); w.WriteHeader(400); fmt.Fprint(w, "no") }).URL})
		require.NoError(t, err)
	}
	require.NoError(t, f.WaitReady(within(t), 2))
	a, err := f.Forward(within(t), ask(prompt(1, 32)), &engine.Request{Method: "POST", Path: "/v1/completions"})
	require.NoError(t, err)
	require.Equal(t, 400, a.Status)
	a.Body.Close()
	_, err = f.Complete(within(t), ask(prompt(1, 32)), maxTokens(1))
	require.ErrorIs(t, err, engine.ErrStatus)
	require.EqualValues(t, 2, asked.Load())
	idle(t, f)
}

func TestABreakInMidStreamIsToldAndBooksNothing(t *testing.T) {
	f := newFleet(t, nil)
	part := `{"choices":[{"index":0,"text":"a","token_ids":[1]}]}`
	_, err := f.Add(fleet.Spec{URL: server(t, func(w http.ResponseWriter, _ *http.Request) { events(w, part); panic(http.ErrAbortHandler) }).URL})
	require.NoError(t, err)
	require.NoError(t, f.WaitReady(within(t), 1))
	s, err := f.Complete(within(t), ask(prompt(1, 32)), maxTokens(9))
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	_, err = s.Recv()
	require.ErrorIs(t, err, engine.ErrBroken)
	idle(t, f)
	a, err := f.Forward(within(t), ask(prompt(1, 32)), &engine.Request{Method: "POST", Path: "/v1/completions"})
	require.NoError(t, err)
	got, err := io.ReadAll(a.Body)
	require.ErrorIs(t, err, engine.ErrBroken)
	require.Contains(t, string(got), part)
	idle(t, f)
}

func TestDrainingAndReturn(t *testing.T) {
	f := newFleet(t, nil)
	ms, ids := join(t, f, 2)
	complete(t, f, prompt(1, 320), 2)
	complete(t, f, prompt(2, 320), 2)
	changed := f.Changed()
	require.NoError(t, f.Drain(ids[0]))
	<-changed
	require.Eventually(t, func() bool { return !f.Engines()[at(f, ids[0])].Candidate }, patience, time.Millisecond)
	for i := range 8 {
		c, _ := complete(t, f, prompt(10+i, 64), 1)
		require.Equal(t, ids[1], c.WorkerID)
	}
	require.NoError(t, f.WaitIdle(within(t), ids[0]))
	require.NoError(t, f.Resume(ids[0]))
	require.NoError(t, f.WaitReady(within(t), 2))
	require.ErrorIs(t, f.Drain(77), fleet.ErrNotFound)

	// One that is killed is no candidate any more, and requests do not notice.
	require.NoError(t, ms[1].Close())
	for i := range 8 {
		c, _ := complete(t, f, prompt(30+i, 64), 1)
		require.Equal(t, ids[0], c.WorkerID)
	}
	require.Eventually(t, func() bool { return f.Engines()[at(f, ids[1])].State == engine.Ejected }, patience, time.Millisecond)
	require.NoError(t, f.Remove(ids[1]))
	require.ErrorIs(t, f.Remove(ids[1]), fleet.ErrNotFound)
	idle(t, f)
}

func at(f *fleet.Fleet, id uint64) int {
	for i, e := range f.Engines() {
		if e.WorkerID == id {
			return i
		}
	}
	return -1
}

func TestRequestsOfARemovedEngineGoOn(t *testing.T) {
	f := newFleet(t, nil)
	hold := make(chan struct{})
	id, err := f.Add(fleet.Spec{URL: server(t, func(w http.ResponseWriter, _ *http.Request) {
		events(w, `{"choices":[{"index":0,"text":"a","token_ids":[1]}]}`)
		<-hold
		events(w, one, "[DONE]")
	}).URL})
	require.NoError(t, err)
	require.NoError(t, f.WaitReady(within(t), 1))
	s, err := f.Complete(within(t), ask(prompt(1, 32)), maxTokens(9))
	require.NoError(t, err)
	require.NoError(t, f.Remove(id))
	require.Eventually(t, func() bool {
		_, err := f.Route(within(t), ask(nil))
		return err != nil
	}, patience, time.Millisecond)
	close(hold)
	for range 2 {
		_, err = s.Recv()
		require.NoError(t, err)
	}
	_, err = s.Recv()
	require.Equal(t, io.EOF, err)
}

func TestAnEngineWithTheSameIDWaitsUntilTheOtherOneLeft(t *testing.T) {
	f := newFleet(t, nil)
	a, b := mock(t, nil), mock(t, nil)
	first, second := spec(a), spec(b)
	first.ID, second.ID = 7, 7
	for i := range 10 {
		require.NoError(t, f.Set([]fleet.Spec{first}))
		if i%2 == 0 {
			require.NoError(t, f.WaitReady(within(t), 1))
		}
		require.NoError(t, f.Set([]fleet.Spec{second}))
	}
	require.NoError(t, f.WaitReady(within(t), 1))
	complete(t, f, prompt(1, 64), 1)
	require.Zero(t, a.Stats().Requests)
	require.Equal(t, b.Info().HTTP, f.Engines()[0].URL)
	idle(t, f)
}

func TestAFileIsFollowedAndABrokenOneChangesNothing(t *testing.T) {
	a, b := mock(t, nil), mock(t, nil)
	path := filepath.Join(t.TempDir(), "engines.yaml")
	put := func(text string) {
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	entry := func(m *mocker.Mocker, more string) string {
		return fmt.Sprintf("  - {url: %q, kv_events: %q, replay: %q%s}\n", m.Info().HTTP, m.Info().Events, m.Info().Replay, more)
	}
	f := newFleet(t, nil)
	require.Error(t, f.Watch(path))
	put("engines:\n" + entry(a, ""))
	require.NoError(t, f.Watch(path))
	require.ErrorIs(t, f.Watch(path), fleet.ErrInvalid)
	require.NoError(t, f.WaitReady(within(t), 1))
	put("engines:\n" + entry(a, "") + entry(b, ""))
	require.NoError(t, f.WaitReady(within(t), 2))
	for _, broken := range []string{"engines: [", "engines:\n" + entry(a, ", colour: red"), "", "engines:\n" + entry(a, "") + entry(a, "")} {
		put(broken)
		require.Eventually(t, func() bool { return f.File().Error != "" }, patience, time.Millisecond)
		require.Len(t, f.Engines(), 2)
		put("engines:\n" + entry(a, "") + entry(b, ""))
		require.Eventually(t, func() bool { return f.File().Error == "" }, patience, time.Millisecond)
	}
	require.NoError(t, os.Remove(path))
	require.Eventually(t, func() bool { return strings.Contains(f.File().Error, "no such file") }, patience, time.Millisecond)
	require.Len(t, f.Engines(), 2)
	started := f.Engine(fleet.IDOf(b.Info().HTTP, 0))
	put("engines:\n" + entry(b, ", draining: true"))
	require.Eventually(t, func() bool {
		all := f.Engines()
		return len(all) == 1 && all[0].State == engine.Draining
	}, patience, time.Millisecond)
	require.Same(t, started, f.Engine(fleet.IDOf(b.Info().HTTP, 0)), "nothing but that changed")
	put("engines:\n" + entry(b, ""))
	require.NoError(t, f.WaitReady(within(t), 1))
}

func TestWhatAFileMayHold(t *testing.T) {
	specs, err := fleet.Parse([]byte(`{"engines": [{"url": "http://h:8000/", "worker_id": 18446744073709551615, "kind": "sglang", "model": "m",
		"kv_events": {"4": "tcp://*:5557", "5": "tcp://*:5558"}, "replay": "tcp://*:6557", "topic": "t", "dp_start": 4, "dp_size": 2,
		"max_num_batched_tokens": 8192, "total_kv_blocks": 1000, "taints": ["a"], "adapters": ["l"], "headers": {"authorization": "Bearer k"},
		"health_path": "/ping", "draining": true}, {"url": "http://i", "kv_events": "none", "replay": null}]}`))
	require.NoError(t, err)
	require.Equal(t, fleet.Spec{
		ID: 1<<64 - 1, URL: "http://h:8000", Kind: engine.SGLang, Model: "m", KVEvents: router.Endpoints{ByRank: map[uint32]string{4: "tcp://*:5557", 5: "tcp://*:5558"}},
		Replay: router.Endpoints{Base: "tcp://*:6557"}, Topic: "t", DPStart: 4, DPSize: 2, MaxNumBatchedTokens: 8192, TotalKVBlocks: 1000,
		Taints: []string{"a"}, Adapters: []string{"l"}, Header: http.Header{"Authorization": {"Bearer k"}}, HealthPath: "/ping", Draining: true,
	}, specs[0])
	require.True(t, specs[1].NoEvents)
	require.NotZero(t, specs[1].ID)
	for text, why := range map[string]string{
		"":                              "not YAML",
		"[]":                            "expected a mapping",
		"{}":                            "expected a list",
		"engines: 3":                    "expected a list",
		"engines: [3]":                  "engines[0] (line 1): expected a mapping",
		"engines: [{}]":                 "url is missing",
		"engines: [{url: 3}]":           "expected a text",
		"engines: [{url: ftp://x}]":     "neither http nor https",
		"engines: []\nengines: []":      "is there twice",
		"engines: []\n---\nengines: []": "more than one document",
		"others: []":                    `unknown key "others"; known: engines`,
		"engines:\n- url: http://h\n  dp_size: -1":              "engines[0].dp_size (line 3): \"-1\", expected a whole number",
		"engines: [{url: http://h, worker_id: 1.5}]":            "whole number",
		"engines: [{url: http://h, draining: 1}]":               "true or false",
		"engines: [{url: http://h, taints: a}]":                 "expected a list",
		"engines: [{url: http://h, taints: [{}]}]":              "expected a text",
		"engines: [{url: http://h, kv_events: {x: tcp://h:1}}]": "rank \"x\"",
		"engines: [{url: http://h, kv_events: udp://h:1}]":      "udp",
		"engines: [{url: http://h, replay: tcp://h:1}]":         "replay without kv_events",
		"engines: [{url: http://h, colour: red}]":               "unknown key \"colour\"; known: url, worker_id",
		"engines: &a [*a]":                                      "",
	} {
		_, err := fleet.Parse([]byte(text))
		require.ErrorIs(t, err, fleet.ErrInvalid, text)
		require.ErrorContains(t, err, why, text)
	}
	_, err = fleet.Parse([]byte("engines: [" + strings.Repeat("{url: http://h},", 5000) + "]"))
	require.ErrorContains(t, err, "at most 4096")
	_, err = fleet.Parse(make([]byte, 2<<20))
	require.ErrorContains(t, err, "at most")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("engines:\n  - {url: http://h, kv_events: {0: tcp://h:1}}"))
	f.Add([]byte(`{"engines": [{"url": "http://h:8000/", "taints": ["a"], "headers": {"a": "b"}}]}`))
	f.Add([]byte("engines: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := fleet.Parse(data)
		if err != nil {
			require.ErrorIs(t, err, fleet.ErrInvalid)
			return
		}
		for _, s := range specs {
			require.NotZero(t, s.ID)
		}
	})
}

func TestEnginesComeAndGoUnderLoad(t *testing.T) {
	f := newFleet(t, nil)
	ms, _ := join(t, f, 4)
	var served, failed, broken atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for c := range 32 {
		clients.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				s, err := f.Complete(context.Background(), ask(prompt(c%16, 64)), maxTokens(4))
				if err != nil {
					t.Errorf("no token yet: %v", err)
					failed.Add(1)
					continue
				}
				for err == nil {
					_, err = s.Recv()
				}
				if s.Close(); err == io.EOF {
					served.Add(1)
				} else {
					broken.Add(1)
				}
			}
		})
	}
	for range 3 {
		before := served.Load()
		require.Eventually(t, func() bool { return served.Load() >= before+60 }, patience, time.Millisecond)
		require.NoError(t, ms[0].Close())
		ms = ms[1:]
		m := mock(t, nil)
		_, err := f.Add(spec(m))
		require.NoError(t, err)
		ms = append(ms, m)
		require.NoError(t, f.WaitReady(within(t), 4))
	}
	close(stop)
	clients.Wait()
	require.Zero(t, failed.Load())
	require.GreaterOrEqual(t, served.Load(), int64(180))
	idle(t, f)
	t.Logf("served %d, broken off in mid-stream %d", served.Load(), broken.Load())
}

// TestWhatWaitsForAHungEngineGoesElsewhere: an engine that answers nothing any more, no checks either, keeps no request that got nothing yet, in
// whichever way it was sent; while there is no other engine they wait, as it may come back.
func TestWhatWaitsForAHungEngineGoesElsewhere(t *testing.T) {
	var hung atomic.Bool
	over := make(chan struct{})
	stuck := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodPost || hung.Load() {
			select {
			case <-r.Context().Done():
			case <-over:
			}
			return
		}
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	}))
	defer stuck.Close()
	defer close(over)
	f := newFleet(t, func(o *fleet.Options) {
		o.Health = engine.Health{Interval: 20 * time.Millisecond, Timeout: time.Second, Failures: 2, Backoff: 20 * time.Millisecond, MaxBackoff: 50 * time.Millisecond}
	})
	id, err := f.Add(fleet.Spec{URL: stuck.URL, NoEvents: true})
	require.NoError(t, err)
	require.NoError(t, f.WaitReady(within(t), 1))
	ended := make(chan error, 3)
	go func() { // complete
		s, err := f.Complete(within(t), ask(prompt(1, 32)), maxTokens(2))
		if err == nil {
			s.Close()
		}
		ended <- err
	}()
	go func() { // forward
		a, err := f.Forward(within(t), ask(prompt(2, 32)), &engine.Request{Method: "POST", Path: "/v1/completions", Body: []byte(`{"prompt":[1],"max_tokens":2}`)})
		if err == nil {
			a.Body.Close()
		}
		ended <- err
	}()
	go func() { // call
		body := `{"prompt":[1],"max_tokens":2}`
		l, err := f.Route(within(t), ask(prompt(3, 32)))
		for err == nil {
			var c engine.Call
			e := l.Engine()
			if err = c.Send(e, e.Finish(e.Head(nil, "POST", "/v1/completions"), len(body), 0), []byte(body)); err == nil {
				_, err = c.Read(make([]byte, 100))
			}
			c.End()
			if err == nil {
				break
			}
			err = l.Next(within(t), err)
		}
		if err == nil {
			l.Done()
		}
		ended <- err
	}()
	require.Eventually(t, func() bool { return f.Engine(id).Status().Active == 3 }, patience, time.Millisecond)
	hung.Store(true)
	require.Eventually(t, func() bool { return f.Engine(id).State() == engine.Ejected }, patience, time.Millisecond)
	require.Equal(t, 3, f.Engine(id).Status().Active, "there is no elsewhere")
	join2 := mock(t, nil)
	_, err = f.Add(spec(join2))
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, <-ended)
	}
	idle(t, f)
}

// TestAdaptersThatAreLoadedLater: engines load LoRA adapters while they run.
func TestAdaptersThatAreLoadedLater(t *testing.T) {
	models := atomic.Pointer[string]{}
	say := func(text string) { models.Store(&text) }
	say(`{"data":[{"id":"m","parent":null}]}`)
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, *models.Load())
		}
	}))
	defer e.Close()
	f := newFleet(t, func(o *fleet.Options) { o.Look = time.Millisecond })
	id, err := f.Add(fleet.Spec{URL: e.URL, NoEvents: true, Adapters: []string{"told"}})
	require.NoError(t, err)
	require.NoError(t, f.WaitReady(within(t), 1))
	has := func(want bool, names ...string) {
		for _, name := range names {
			require.Eventually(t, func() bool { return f.HasAdapter(name) == want }, patience, time.Millisecond, name)
		}
	}
	has(true, "told")
	has(false, "m", "a", "")
	say(`{"data":[{"id":"m"},{"id":"a","parent":"m"}]}`)
	has(true, "a", "told")
	require.Eventually(t, func() bool {
		w, err := f.Router().Workers()
		return err == nil && len(w) == 1 && fmt.Sprint(w[0].Adapters) == "[a told]"
	}, patience, time.Millisecond)
	say(`{"data":[{"id":"m"}]}`)
	has(false, "a")
	require.NoError(t, f.Remove(id))
	has(false, "told")
}
