package mocker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds a wait for something that happens soon.
const patience = 10 * time.Second

// start runs a fast engine with blocks of 4 tokens.
func start(t *testing.T, adapt func(*Config)) *Mocker {
	cfg := DefaultConfig()
	cfg.BlockSize, cfg.Blocks, cfg.InterTokenMS, cfg.Speedup = 4, 64, 1, 100
	if adapt != nil {
		adapt(&cfg)
	}
	m, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func post(t *testing.T, m *Mocker, body string) (int, string) {
	r, err := http.Post(m.Info().HTTP+"/v1/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(text)
}

// whole asks for an answer with its token ids.
func whole(t *testing.T, m *Mocker, body string) completion {
	status, text := post(t, m, `{"return_token_ids": true, `+body[1:])
	require.Equal(t, http.StatusOK, status, text)
	var c completion
	require.NoError(t, json.Unmarshal([]byte(text), &c))
	return c
}

// events splits a streamed answer.
func events(t *testing.T, text string) (chunks []completion) {
	parts := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
	require.Equal(t, "data: [DONE]", parts[len(parts)-1])
	for _, part := range parts[:len(parts)-1] {
		data, ok := strings.CutPrefix(part, "data: ")
		require.True(t, ok, part)
		var c completion
		require.NoError(t, json.Unmarshal([]byte(data), &c))
		chunks = append(chunks, c)
	}
	return chunks
}

func TestWholeCompletionAndItsUsage(t *testing.T) {
	m := start(t, nil)
	first := whole(t, m, `{"model": "mock-8b", "prompt": [1,2,3,4,5,6,7,8,9], "max_tokens": 5, "temperature": 0.7}`)
	require.Equal(t, "text_completion", first.Object)
	require.Equal(t, "mock-8b", first.Model)
	require.Len(t, first.Choices, 1)
	require.Len(t, first.Choices[0].TokenIDs, 5)
	require.Equal(t, "length", *first.Choices[0].FinishReason)
	require.Equal(t, usageOf(9, 5, 0), *first.Usage)
	require.Equal(t, metrics{QueueMS: 0, TTFTMS: 1}, *first.Metrics, "a step takes at least the inter-token time")

	again := whole(t, m, `{"prompt": [[1,2,3,4,5,6,7,8,9]], "max_tokens": 5}`)
	require.Equal(t, usageOf(9, 5, 8), *again.Usage)
	require.Equal(t, first.Choices, again.Choices, "the same prompt gets the same answer")
	require.NotEqual(t, first.ID, again.ID)
	require.Equal(t, usageOf(8, 16, 4), *whole(t, m, `{"prompt": [1,2,3,4,5,6,7,8]}`).Usage, "one token is always computed")

	// The answer is cached as well: 9 prompt tokens and 4 of the answer; the last one was never computed.
	var tokens []string
	for _, token := range append([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, first.Choices[0].TokenIDs...) {
		tokens = append(tokens, fmt.Sprint(token))
	}
	next := whole(t, m, `{"max_tokens": 1, "prompt": [`+strings.Join(tokens, ",")+`]}`)
	require.Equal(t, usageOf(14, 1, 12), *next.Usage)
}

func TestStreamedCompletion(t *testing.T) {
	m := start(t, nil)
	want := whole(t, m, `{"prompt": [5,6,7,8,9], "max_tokens": 20}`).Choices[0].TokenIDs
	for _, usage := range []bool{false, true} {
		status, text := post(t, m, fmt.Sprintf(
			`{"prompt": [5,6,7,8,9], "max_tokens": 20, "stream": true, "return_token_ids": true, "stream_options": {"include_usage": %v}}`, usage))
		require.Equal(t, http.StatusOK, status)
		chunks := events(t, text)
		if usage {
			last := chunks[len(chunks)-1]
			require.Empty(t, last.Choices)
			require.Equal(t, usageOf(5, 20, 4), *last.Usage)
			chunks = chunks[:len(chunks)-1]
		}
		var got []uint32
		for i, c := range chunks {
			require.Nil(t, c.Usage)
			require.Nil(t, c.Metrics)
			require.Equal(t, chunks[0].ID, c.ID)
			require.Len(t, c.Choices, 1)
			require.NotEmpty(t, c.Choices[0].TokenIDs)
			require.Equal(t, i == len(chunks)-1, c.Choices[0].FinishReason != nil)
			got = append(got, c.Choices[0].TokenIDs...)
		}
		require.Equal(t, want, got)
	}
}

func TestCoalescedTokensShareAChunk(t *testing.T) {
	m := start(t, func(c *Config) { c.Speedup, c.CoalesceMS = 1, 10_000 })
	_, text := post(t, m, `{"prompt": [1], "max_tokens": 100, "stream": true, "return_token_ids": true}`)
	got := 0
	chunks := events(t, text)
	for _, c := range chunks {
		got += len(c.Choices[0].TokenIDs)
	}
	require.Equal(t, 100, got)
	// The first token, and all others together; on a slow host even these meet.
	require.LessOrEqual(t, len(chunks), 2)
}

func TestBadRequestsGetOpenAIErrors(t *testing.T) {
	m := start(t, func(c *Config) { c.MaxBodyBytes, c.MaxModelLen = 4096, 300 })
	for body, want := range map[string]struct {
		status int
		kind   string
		words  string
	}{
		``:                                     {400, "invalid_request_error", "completion request"},
		`{`:                                    {400, "invalid_request_error", "completion request"},
		`[]`:                                   {400, "invalid_request_error", "completion request: it must be an object, got array"},
		`{}`:                                   {400, "invalid_request_error", "prompt is missing"},
		`{"prompt": []}`:                       {400, "invalid_request_error", "prompt is missing"},
		`{"prompt": true}`:                     {400, "invalid_request_error", "must be a text or a list"},
		`{"prompt": ["a", "b"]}`:               {400, "invalid_request_error", "several texts"},
		`{"prompt": ""}`:                       {400, "invalid_request_error", "prompt is missing"},
		`{"prompt": [1], "routed_dp_rank": 1}`: {400, "invalid_request_error", "rank 1 is not here, only 0"},
		`{"prompt": [1], "max_tokens": 0}`:     {400, "invalid_request_error", "max_tokens is 0"},
		`{"prompt": [1], "max_tokens": -5}`:    {400, "invalid_request_error", "max_tokens is -5"},
		`{"prompt": [1], "max_tokens": 1.5}`:   {400, "invalid_request_error", "max_tokens must be an integer, got number 1.5"},
		`{"prompt": [1], "max_tokens": 301}`:   {400, "invalid_request_error", "at most 300"},
		`{"prompt": [1], "max_tokens": 9223372036854775807}`:      {400, "invalid_request_error", "at most 300"},
		`{"prompt": [1], "max_tokens": 258}`:                      {400, "invalid_request_error", "the cache holds 256"},
		`{"prompt": [1], "n": 2}`:                                 {400, "invalid_request_error", "n is 2"},
		`{"prompt": [1], "stream": "yes"}`:                        {400, "invalid_request_error", "stream must be a boolean, got string"},
		`{"prompt": [1], "max_tokens": "5"}`:                      {400, "invalid_request_error", "max_tokens must be an integer, got string"},
		`{"prompt": [1], "max_tokens": [5]}`:                      {400, "invalid_request_error", "max_tokens must be an integer, got array"},
		`{"prompt": [1], "n": true}`:                              {400, "invalid_request_error", "n must be an integer, got boolean"},
		`{"prompt": [1], "model": 5}`:                             {400, "invalid_request_error", "model must be a string, got number"},
		`{"prompt": [1], "stream_options": 5}`:                    {400, "invalid_request_error", "stream_options must be an object, got number"},
		`{"prompt": [1], "stream_options": {"include_usage": 5}}`: {400, "invalid_request_error", "stream_options.include_usage must be a boolean, got number"},
		`{"prompt": [1], "model": "other"}`:                       {404, "invalid_request_error", `"other" is not served`},
		`{"prompt": [` + strings.Repeat("1,", 3000) + `1]}`:       {413, "invalid_request_error", "4096 bytes"},
	} {
		status, text := post(t, m, body)
		require.Equal(t, want.status, status, body)
		var answer struct{ Error apiError }
		require.NoError(t, json.Unmarshal([]byte(text), &answer), body)
		require.Equal(t, want.kind, answer.Error.Type, body)
		require.Contains(t, answer.Error.Message, want.words, body)
	}
	require.Equal(t, usageOf(1, 256, 0), *whole(t, m, `{"prompt": [1], "max_tokens": 256}`).Usage, "the largest that fits")
	require.Equal(t, uint64(1), m.Stats().Requests)
}

func TestOtherRoutes(t *testing.T) {
	m := start(t, nil)
	get := func(path string, status int, v any) {
		r, err := http.Get(m.Info().HTTP + path)
		require.NoError(t, err)
		defer r.Body.Close()
		require.Equal(t, status, r.StatusCode, path)
		require.NoError(t, json.NewDecoder(r.Body).Decode(v))
	}
	var health map[string]string
	get("/health", 200, &health)
	require.Equal(t, "ok", health["status"])
	var models struct {
		Data []struct {
			ID  string `json:"id"`
			Max int    `json:"max_model_len"`
		}
	}
	get("/v1/models", 200, &models)
	require.Len(t, models.Data, 1)
	require.Equal(t, "mock-8b", models.Data[0].ID)
	require.Equal(t, DefaultConfig().MaxModelLen, models.Data[0].Max)
	whole(t, m, `{"prompt": [1,2,3,4,5], "max_tokens": 3}`)
	var stats Stats
	get("/stats", 200, &stats)
	require.Equal(t, totals{Requests: 1, Finished: 1, PromptTokens: 5, OutputTokens: 3}, stats.totals)
	require.Equal(t, 64, stats.IdleBlocks)
	require.Equal(t, 1, stats.CachedBlocks)
	require.Equal(t, uint64(1), stats.Batches)
	var answer struct{ Error apiError }
	get("/v1/completions", 404, &answer)
	get("/nowhere", 404, &answer)
	require.Contains(t, answer.Error.Message, "/nowhere")
}

func TestClientThatDisconnectsFreesItsRequest(t *testing.T) {
	m := start(t, func(c *Config) { c.Speedup, c.MaxRunning, c.Blocks = 1, 1, 30_000 })
	var cancels []context.CancelFunc
	for i, stream := range []bool{true, false} { // the first runs, the second waits behind it
		ctx, cancel := context.WithCancel(context.Background())
		cancels = append(cancels, cancel)
		body := fmt.Sprintf(`{"prompt": [1,2,3,4,5], "max_tokens": 100000, "stream": %v}`, stream)
		r, err := http.NewRequestWithContext(ctx, "POST", m.Info().HTTP+"/v1/completions", strings.NewReader(body))
		require.NoError(t, err)
		if stream {
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			defer answer.Body.Close()
			_, err = bufio.NewReader(answer.Body).ReadString('\n')
			require.NoError(t, err, "the first token has come")
		} else {
			go func() {
				if answer, err := http.DefaultClient.Do(r); err == nil {
					answer.Body.Close()
				}
			}()
		}
		require.Eventually(t, func() bool {
			st := m.Stats()
			return st.Requests == uint64(i+1) && st.Running == 1 && st.Waiting == i
		}, patience, time.Millisecond)
	}
	for i, cancel := range cancels {
		cancel()
		require.Eventually(t, func() bool { return m.Stats().Cancelled == uint64(i+1) }, patience, time.Millisecond)
	}
	st := m.Stats()
	require.Zero(t, st.Running+st.Waiting)
	require.Equal(t, st.Blocks, st.IdleBlocks)
}

// TestSlowBodiesDelayNobody checks that peers that announce a body and do not send it take no turn from others.
func TestSlowBodiesDelayNobody(t *testing.T) {
	m := start(t, nil)
	for range 2 * parseParallel {
		c, err := net.Dial("tcp", strings.TrimPrefix(m.Info().HTTP, "http://"))
		require.NoError(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
		require.NoError(t, err)
	}
	client := http.Client{Timeout: patience} // shorter than readTimeout
	for range 3 {
		r, err := client.Post(m.Info().HTTP+"/v1/completions", "", strings.NewReader(`{"prompt": [1]}`))
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, r.StatusCode)
		r.Body.Close()
	}
}

func TestFullQueueRefuses(t *testing.T) {
	m := start(t, func(c *Config) { c.Speedup, c.MaxRunning, c.MaxWaiting, c.InterTokenMS = 1, 1, 1, 60_000 })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range 2 {
		go func() {
			r, err := http.NewRequestWithContext(ctx, "POST", m.Info().HTTP+"/v1/completions", strings.NewReader(`{"prompt": [1]}`))
			if err == nil {
				_, err = http.DefaultClient.Do(r)
			}
			if err == nil {
				t.Error("the request ended")
			}
		}()
		require.Eventually(t, func() bool { s := m.Stats(); return s.Running == 1 && s.Waiting == i }, patience, time.Millisecond)
	}
	status, text := post(t, m, `{"prompt": [1]}`)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, text, "queue_full")
}

func TestCloseCutsRequestsOff(t *testing.T) {
	m := start(t, func(c *Config) { c.Speedup, c.InterTokenMS = 1, 60_000 })
	ended := make(chan error)
	go func() {
		r, err := http.Post(m.Info().HTTP+"/v1/completions", "", strings.NewReader(`{"prompt": [1], "stream": true}`))
		if err == nil {
			_, err = io.ReadAll(r.Body)
		}
		ended <- err
	}()
	require.Eventually(t, func() bool { return m.Stats().Running == 1 }, patience, time.Millisecond)
	require.NoError(t, m.Close())
	<-ended
	require.NoError(t, m.Close())
	_, err := http.Get(m.Info().HTTP + "/health")
	require.Error(t, err)
}

func TestNewRefusesTakenAddresses(t *testing.T) {
	m := start(t, nil)
	for _, adapt := range []func(*Config){
		func(c *Config) { c.HTTP = strings.TrimPrefix(m.Info().HTTP, "http://") },
		func(c *Config) { c.Events = m.Info().Events },
		func(c *Config) { c.Replay = m.Info().Replay },
		func(c *Config) { c.HTTP = "nowhere" },
		func(c *Config) { c.Events = "udp://x" },
	} {
		cfg := DefaultConfig()
		adapt(&cfg)
		_, err := New(cfg)
		require.Error(t, err)
	}
	_, err := New(Config{})
	require.ErrorIs(t, err, ErrConfig)
}
