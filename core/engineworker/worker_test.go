package engineworker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/engineworker"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 20 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func place(t *testing.T) *runtime.Endpoint {
	r := runtime.New(discovery.NewMemory(), runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	e, err := r.Endpoint("ns.backend.generate")
	require.NoError(t, err)
	return e
}

func mock(t *testing.T) *mocker.Mocker {
	cfg := mocker.DefaultConfig()
	cfg.Speedup = 100
	m, err := mocker.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func spec(m *mocker.Mocker) fleet.Spec {
	i := m.Info()
	return fleet.Spec{URL: i.HTTP, BlockSize: i.BlockSize, KVEvents: router.Endpoints{Base: i.Events}, Replay: router.Endpoints{Base: i.Replay}}
}

func start(t *testing.T, at *runtime.Endpoint, s fleet.Spec) *engineworker.Worker {
	w, err := engineworker.Start(at, s, engineworker.Options{Health: engine.Health{Backoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}})
	require.NoError(t, err)
	t.Cleanup(func() { w.Close(false) })
	return w
}

func routing(t *testing.T, at *runtime.Endpoint, workers int) *kvrouter.KvRouter {
	config := router.DefaultConfig()
	config.RecordDecisions = 1000
	k, err := kvrouter.New(at, 16, config, router.Options{})
	require.NoError(t, err)
	t.Cleanup(k.Close)
	require.NoError(t, k.WaitForWorkers(within(t), workers))
	return k
}

func prompt(first, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(first*100_000 + i)
	}
	return ids
}

func fields(t *testing.T, text string) []byte {
	b, err := wire.FromJSON(nil, []byte(text))
	require.NoError(t, err)
	return b
}

func ask(t *testing.T, tokens []uint32, text string) *kvrouter.Request {
	q := &kvrouter.Request{Fields: fields(t, text)}
	q.Tokens = tokens
	return q
}

// items takes a whole answer, as JSON.
func items(t *testing.T, s *kvrouter.Stream) (all []map[string]any, err error) {
	defer s.Close()
	for {
		it, err := s.Recv()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		text, err := wire.ToJSON(nil, it.Data)
		require.NoError(t, err)
		var v map[string]any
		require.NoError(t, json.Unmarshal(text, &v))
		all = append(all, v)
	}
}

func idle(t *testing.T, k *kvrouter.KvRouter, all ...*engineworker.Worker) {
	require.Eventually(t, func() bool {
		st, err := k.Router().Stats()
		require.NoError(t, err)
		for _, w := range all {
			if w.Info().Active != 0 {
				return false
			}
		}
		return st.ActiveRequests == 0
	}, patience, time.Millisecond)
}

func TestBareEnginesAreWorkersOfADeployment(t *testing.T) {
	at := place(t)
	var all []*engineworker.Worker
	for range 3 {
		all = append(all, start(t, at, spec(mock(t))))
	}
	k := routing(t, at, 3)
	for i := range 4 {
		generate := func() (kvrouter.Choice, []map[string]any) {
			s, err := k.Generate(within(t), ask(t, prompt(i, 320), `{"model":"mock-8b","stop_conditions":{"max_tokens":5},"sampling_options":{"temperature":0.5,"n":1,"seed":null}}`))
			require.NoError(t, err)
			got, err := items(t, s)
			require.NoError(t, err)
			return s.Choice(), got
		}
		first, got := generate()
		n := 0
		for _, it := range got {
			n += len(it["token_ids"].([]any))
		}
		require.Equal(t, 5, n)
		last := got[len(got)-1]
		require.Equal(t, "length", last["finish_reason"])
		usage := last["completion_usage"].(map[string]any)
		require.EqualValues(t, 320, usage["prompt_tokens"])
		require.EqualValues(t, 5, usage["completion_tokens"])
		require.Eventually(t, func() bool { // its events came by way of the relay
			scores, err := k.Router().OverlapScores(&router.Prompt{Tokens: prompt(i, 320)})
			require.NoError(t, err)
			for _, w := range scores.Workers {
				if w.WorkerID == first.WorkerID {
					return w.DeviceBlocks >= 19
				}
			}
			return false
		}, patience, time.Millisecond)
		again, got := generate()
		require.Equal(t, first.WorkerID, again.WorkerID)
		rows, err := k.Router().Decisions(0)
		require.NoError(t, err)
		require.Len(t, rows, 2*i+2)
		cached := got[len(got)-1]["completion_usage"].(map[string]any)["prompt_tokens_details"].(map[string]any)["cached_tokens"]
		require.Positive(t, cached)
		require.Zero(t, *rows[2*i].ActualCachedTokens, "what the engine said of its hits")
		require.EqualValues(t, cached, *rows[2*i+1].ActualCachedTokens)
	}
	idle(t, k, all...)
	info := all[0].Info()
	require.True(t, info.Listed)
	require.Empty(t, info.Error)
	require.Equal(t, "mock-8b", info.Model)
	require.Equal(t, 16, info.BlockSize)
	require.Equal(t, engine.Healthy, info.State)
}

// server is an engine of the test's own.
func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/completions":
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

const one = `{"choices":[{"index":0,"text":"a","token_ids":[1],"logprobs":{"token_logprobs":[-0.5]},"finish_reason":"abort","stop_reason":"x"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}}`

func TestAnotherWorkerIsAskedIfTheEngineDidNotBegin(t *testing.T) {
	at := place(t)
	var asked atomic.Int64
	for i, h := range []http.HandlerFunc{
		func(http.ResponseWriter, *http.Request) { asked.Add(1); panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); w.WriteHeader(503) },
		func(w http.ResponseWriter, _ *http.Request) { events(w, one, "[DONE]") },
	} {
		start(t, at, fleet.Spec{ID: uint64(i + 1), URL: server(t, h).URL, BlockSize: 16, NoEvents: true})
	}
	k := routing(t, at, 3)
	for range 12 {
		s, err := k.Generate(within(t), ask(t, prompt(1, 32), `{}`))
		require.NoError(t, err)
		require.EqualValues(t, 3, s.Choice().WorkerID)
		got, err := items(t, s)
		require.NoError(t, err)
		require.Equal(t, []map[string]any{{
			"token_ids": []any{1.0}, "index": 0.0, "text": "a", "log_probs": []any{-0.5}, "finish_reason": "cancelled", "stop_reason": "x",
			"completion_usage": map[string]any{"prompt_tokens": 3.0, "completion_tokens": 1.0, "total_tokens": 4.0, "prompt_tokens_details": map[string]any{"cached_tokens": 2.0}},
		}}, got)
	}
	require.Positive(t, asked.Load())
	idle(t, k)
}

func TestFailuresAreToldForWhatTheyAre(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		begins bool
		want   error
	}{
		"wrong": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400); fmt.Fprint(w, "too long") }, false, plane.ErrWorker},
		"full":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, false, plane.ErrCannotConnect},
		"down":  {func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, false, plane.ErrCannotConnect},
		"half way": {func(w http.ResponseWriter, _ *http.Request) {
			events(w, `{"choices":[{"text":"a"}]}`)
			panic(http.ErrAbortHandler)
		}, true, plane.ErrDisconnected},
	} {
		t.Run(name, func(t *testing.T) {
			at := place(t)
			w := start(t, at, fleet.Spec{URL: server(t, c.answer).URL, BlockSize: 16, NoEvents: true})
			k := routing(t, at, 1)
			s, err := k.Generate(within(t), ask(t, prompt(1, 32), `{}`))
			if c.begins {
				require.NoError(t, err)
				_, err = items(t, s)
			}
			require.ErrorIs(t, err, c.want)
			idle(t, k, w)
		})
	}
}

func TestWhatIsAskedOfAWorkerIsAskedOfTheEngine(t *testing.T) {
	at := place(t)
	var body, rank atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m","owned_by":"sglang","max_model_len":100},{"id":"lora"}]}`)
		case "/server_info":
			fmt.Fprint(w, `{"page_size":16,"dp_size":2,"version":"0.5.23","max_total_num_tokens":1600,"kv_events":null}`)
		case "/v1/completions":
			b, _ := io.ReadAll(r.Body)
			body.Store(string(b))
			rank.Store(r.Header.Get("X-Data-Parallel-Rank"))
			events(w, one, "[DONE]")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	w := start(t, at, fleet.Spec{URL: s.URL, DPStart: 4})
	k := routing(t, at, 1)
	q := ask(t, prompt(0, 3), `{"model":"lora","stop_conditions":{"stop":["a"],"stop_token_ids":[7],"stop_token_ids_hidden":[5,7],"ignore_eos":true,"max_thinking_tokens":3},
		"sampling_options":{"temperature":0.5,"include_stop_str_in_output":true,"guided_decoding":{"json":{"type":"object"}},"use_beam_search":false},"output_options":{"logprobs":2,"formatted_prompt":true}}`)
	q.Constraints.HasDPRank, q.Constraints.DPRank = true, 5
	got, err := k.Generate(within(t), q)
	require.NoError(t, err)
	_, err = items(t, got)
	require.NoError(t, err)
	require.JSONEq(t, `{"prompt":[0,1,2],"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"data_parallel_rank":1,"model":"lora","max_tokens":97,
		"stop":["a"],"stop_token_ids":[5,7],"ignore_eos":true,"temperature":0.5,"no_stop_trim":true,"json_schema":"{\"type\":\"object\"}","logprobs":2}`, body.Load().(string))
	require.Equal(t, "1", rank.Load())
	require.EqualValues(t, 2, w.Info().DPSize)
	require.Contains(t, w.Info().Error, "kv_events is not given")
	infos, err := k.Router().Workers()
	require.NoError(t, err)
	require.EqualValues(t, 100, *infos[0].TotalKVBlocks)
	require.EqualValues(t, 4, infos[0].DPStart)

	q = ask(t, prompt(0, 3), `{"model":"m","routing":{"lora_name":"later"}}`)
	got, err = k.Generate(within(t), q)
	require.NoError(t, err)
	_, err = items(t, got)
	require.NoError(t, err)
	require.Contains(t, body.Load(), `"model":"later"`, "an adapter is asked for as a model")

	q = ask(t, prompt(0, 3), `{"sampling_options":{"n":2}}`)
	_, err = k.Generate(within(t), q)
	require.ErrorContains(t, err, "n=2, expected 1")
}

func TestDroppingAStreamEndsTheEnginesWork(t *testing.T) {
	at := place(t)
	gone := make(chan struct{}, 1)
	w := start(t, at, fleet.Spec{URL: server(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		events(w, `{"choices":[{"text":"a","token_ids":[1]}]}`)
		<-r.Context().Done()
		gone <- struct{}{}
	}).URL, BlockSize: 16, NoEvents: true})
	k := routing(t, at, 1)
	s, err := k.Generate(within(t), ask(t, prompt(1, 32), `{}`))
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	s.Close()
	<-gone
	idle(t, k, w)
	require.Equal(t, engine.Healthy, w.Info().State)
}

func TestAnEngineThatIsDownOrDrainsIsWithdrawnAndComesBackWithAllItHolds(t *testing.T) {
	at := place(t)
	m := mock(t)
	w := start(t, at, spec(m))
	start(t, at, spec(mock(t)))
	k := routing(t, at, 2)
	q := ask(t, prompt(1, 320), `{"stop_conditions":{"max_tokens":1}}`)
	q.Constraints.HasWorker, q.Constraints.Worker = true, w.ID()
	s, err := k.Generate(within(t), q)
	require.NoError(t, err)
	_, err = items(t, s)
	require.NoError(t, err)
	holds := func() bool {
		scores, err := k.Router().OverlapScores(&router.Prompt{Tokens: prompt(1, 320)})
		require.NoError(t, err)
		for _, row := range scores.Workers {
			if row.WorkerID == w.ID() {
				return row.DeviceBlocks >= 19
			}
		}
		return false
	}
	require.Eventually(t, holds, patience, time.Millisecond)
	seen := func(n int) func() bool {
		return func() bool {
			all, err := k.Router().Workers()
			require.NoError(t, err)
			return len(all) == n
		}
	}
	w.Engine().Drain()
	require.Eventually(t, seen(1), patience, time.Millisecond)
	require.False(t, w.Info().Listed)
	w.Engine().Resume()
	require.Eventually(t, seen(2), patience, time.Millisecond)
	require.Eventually(t, holds, patience, time.Millisecond)
	require.NoError(t, m.Close())
	w.Engine().Check()
	require.Eventually(t, seen(1), patience, time.Millisecond)
	require.Equal(t, engine.Ejected, w.Info().State)
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	at := place(t)
	w := start(t, at, fleet.Spec{URL: server(t, nil).URL})
	require.Eventually(t, func() bool { return strings.Contains(w.Info().Error, "give block_size") }, patience, time.Millisecond)
	require.False(t, w.Info().Listed)
	_, err := engineworker.Start(at, fleet.Spec{URL: "x"}, engineworker.Options{})
	require.ErrorIs(t, err, engine.ErrInvalid)
	_, err = engineworker.Start(at, fleet.Spec{URL: w.Info().URL}, engineworker.Options{})
	require.Error(t, err, "the same one again")
}
