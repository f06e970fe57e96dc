package mocker

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
)

func TestTextAndTokensAreTheSame(t *testing.T) {
	for text, tokens := range map[string][]block.Token{
		"":                       {},
		"a t256":                 {97, 256},
		" t4294967295b":          {4294967295, 98},
		" t255":                  {32, 116, 50, 53, 53},
		" t0300":                 {32, 116, 48, 51, 48, 48},
		" t4294967296":           {32, 116, 52, 50, 57, 52, 57, 54, 55, 50, 57, 54},
		" t99999999999999999999": Tokenize(" t" + strings.Repeat("9", 20)),
		" t t300":                {32, 116, 300},
		"ä t31999 t256 t":        {0xc3, 0xa4, 31999, 256, 32, 116},
	} {
		require.Equal(t, tokens, Tokenize(text), text)
		require.Equal(t, text, Detokenize(tokens))
	}
	require.Equal(t, "\uFFFD", Detokenize([]block.Token{0xc3}), "half of a character is no text")
}

func FuzzTokenize(f *testing.F) {
	f.Add("hello t300 t29999999999 t")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ToValidUTF8(text, "") == text {
			require.Equal(t, text, Detokenize(Tokenize(text)))
		}
	})
}

func ask(t *testing.T, m *Mocker, path, body string, header ...string) (int, string) {
	method := "POST"
	if body == "" {
		method = "GET"
	}
	r, err := http.NewRequest(method, m.Info().HTTP+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return -answer.StatusCode, string(text)
	}
	return answer.StatusCode, string(text)
}

func asked[T any](t *testing.T, m *Mocker, path, body string) (v T) {
	status, text := ask(t, m, path, body)
	require.Equal(t, http.StatusOK, status, text)
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

type tokenized struct {
	Count  int
	Max    int `json:"max_model_len"`
	Tokens []block.Token
}

func TestWhatIsGeneratedIsFoundAgainInTheNextTurn(t *testing.T) {
	m := start(t, nil)
	talk := `{"role": "user", "content": [{"type": "text", "text": "Say some"}, {"type": "image_url"}, {"type": "text", "text": "thing"}]}`
	first := asked[completion](t, m, "/v1/chat/completions", `{"messages": [`+talk+`], "max_completion_tokens": 5, "return_token_ids": true}`)
	require.Equal(t, "chat.completion", first.Object)
	require.Equal(t, "assistant", first.Choices[0].Message.Role)
	require.Nil(t, first.Choices[0].Text)
	require.Equal(t, Tokenize(first.Choices[0].Message.Content), first.Choices[0].TokenIDs)
	require.Equal(t, usageOf(len(first.PromptIDs), 5, 0), *first.Usage)
	require.Equal(t, "<|user|>\nSay something\n<|assistant|>\n", Detokenize(first.PromptIDs))

	said, err := json.Marshal(first.Choices[0].Message)
	require.NoError(t, err)
	next := `[` + talk + `,` + string(said) + `,{"role": "user", "content": "more"}]`
	tokens := asked[tokenized](t, m, "/tokenize", `{"messages": `+next+`}`)
	require.Equal(t, tokens.Count, len(tokens.Tokens))
	require.Equal(t, tokens, asked[tokenized](t, m, "/v1/tokenize", `{"stream": true, "messages": `+next+`}`))
	again := asked[completion](t, m, "/v1/chat/completions", `{"messages": `+next+`, "max_tokens": 1, "return_token_ids": true}`)
	require.Equal(t, tokens.Tokens, again.PromptIDs, "/tokenize gives what the engine computes")
	require.Equal(t, (len(first.PromptIDs)+4)/4*4, again.Usage.PromptDetails.CachedTokens, "the prompt and its answer but for the last token")
	require.Len(t, asked[tokenized](t, m, "/tokenize", `{"messages": `+next+`, "add_generation_prompt": false}`).Tokens, tokens.Count-len("<|assistant|>\n"))
}

func TestStreamedChat(t *testing.T) {
	m := start(t, nil)
	body := `{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "return_token_ids": true`
	want := asked[completion](t, m, "/v1/chat/completions", body+`}`)
	status, text := ask(t, m, "/v1/chat/completions", body+`, "stream": true, "stream_options": {"include_usage": true}}`)
	require.Equal(t, 200, status)
	chunks, said, ids := events(t, text), "", []block.Token(nil)
	for i, c := range chunks[:len(chunks)-1] {
		require.Equal(t, "chat.completion.chunk", c.Object)
		require.Equal(t, i == 0, c.Choices[0].Delta.Role == "assistant")
		require.Equal(t, i == 0, len(c.PromptIDs) > 0)
		said += c.Choices[0].Delta.Content
		ids = append(ids, c.Choices[0].TokenIDs...)
	}
	require.Equal(t, want.Choices[0].Message.Content, said)
	require.Equal(t, want.Choices[0].TokenIDs, ids)
	require.Equal(t, 7, chunks[len(chunks)-1].Usage.CompletionTokens)
}

func TestTokenIDsComeIfAskedFor(t *testing.T) {
	m := start(t, nil)
	_, text := post(t, m, `{"prompt": [300, 301]}`)
	require.NotContains(t, text, "token_ids")
	c := whole(t, m, `{"prompt": [300, 301]}`)
	require.Equal(t, []block.Token{300, 301}, c.Choices[0].PromptIDs)
	require.Equal(t, Detokenize(c.Choices[0].TokenIDs), *c.Choices[0].Text)
	require.Equal(t, c.Choices[0].TokenIDs, whole(t, m, `{"prompt": " t300 t301"}`).Choices[0].TokenIDs)
}

func TestBadChatsAndTexts(t *testing.T) {
	m := start(t, nil)
	for _, bad := range [][3]string{
		{"/v1/chat/completions", `{}`, "messages is missing"},
		{"/v1/chat/completions", `{"messages": 5}`, "messages must be"},
		{"/v1/chat/completions", `{"messages": [{"content": [{"type": "text", "text": "x"}]}], "n": 2}`, "n is 2, only 1 is served"},
		{"/v1/chat/completions", `{"messages": [{"content": 5}]}`, "content of a message is 5"},
		{"/v1/chat/completions", `{"messages": [{"content": [5]}]}`, "content must be an object, got number"},
		{"/tokenize", `{}`, "neither a prompt nor messages"},
		{"/tokenize", `{"prompt": 5}`, "prompt must be a string"},
		{"/detokenize", `{"tokens": [-1]}`, "tokens must be"},
		{"/fault", `{"status": 200}`, "status is 200"},
		{"/fault", `{"delay_ms": -1}`, "delay_ms is -1"},
		{"/fault", `{"cut_after": -1}`, "cut_after is -1"},
		{"/fault", `{"requests": -1}`, "requests is -1"},
	} {
		status, text := ask(t, m, bad[0], bad[1])
		require.Equal(t, http.StatusBadRequest, status, bad)
		require.Contains(t, text, bad[2], bad)
	}
}

func TestRankIsTakenInEachWay(t *testing.T) {
	m := start(t, func(c *Config) { c.DPRank = 3 })
	for _, rank := range []string{"3", "2", "x"} {
		want := map[string]int{"3": 200, "2": 400, "x": 200}[rank]
		status, text := ask(t, m, "/v1/completions", `{"prompt": [1]}`, "X-data-parallel-rank", rank)
		require.Equal(t, want, status, text)
		if rank != "x" {
			status, _ = ask(t, m, "/v1/completions", `{"prompt": [1], "routed_dp_rank": `+rank+`}`)
			require.Equal(t, want, status)
			status, _ = ask(t, m, "/v1/completions", `{"prompt": [1], "data_parallel_rank": `+rank+`}`)
			require.Equal(t, want, status)
		}
	}
}

func TestFaults(t *testing.T) {
	m := start(t, func(c *Config) { c.Speedup, c.InterTokenMS, c.Blocks = 1, 5, 30_000 })
	ask(t, m, "/fault", `{"requests": 2, "status": 503, "message": "away"}`)
	for range 2 {
		status, text := ask(t, m, "/v1/completions", `{"prompt": [1]}`)
		require.Equal(t, 503, status)
		require.Contains(t, text, `"message":"away"`)
	}
	whole(t, m, `{"prompt": [1]}`)

	ask(t, m, "/fault", `{"requests": 1, "cut_after": 0}`)
	status, _ := ask(t, m, "/v1/chat/completions", `{"messages": [{"content": "x"}]}`)
	require.Zero(t, status, "no answer")
	ask(t, m, "/fault", `{"requests": 1, "cut_after": 2}`)
	status, text := ask(t, m, "/v1/completions", `{"prompt": [1], "max_tokens": 10000, "stream": true}`)
	require.Equal(t, -200, status, "cut off")
	require.Equal(t, 2, strings.Count(text, "data: "))
	require.Eventually(t, func() bool { return m.Stats().Cancelled == 1 }, patience, 1e6)
	ask(t, m, "/fault", `{"requests": 1, "delay_ms": 600000}`)
	ask(t, m, "/fault", `{"requests": 0}`)
	whole(t, m, `{"prompt": [1]}`)
}

func TestInfoOfBothEngines(t *testing.T) {
	m := start(t, func(c *Config) { c.DPRank, c.Topic = 2, "kv" })
	require.Equal(t, version, asked[map[string]string](t, m, "/version", "")["version"])
	type told struct {
		Events struct {
			Publisher string
			Host      string `json:"endpoint_host"`
			Port      int    `json:"endpoint_port_base"`
			Replay    int    `json:"replay_endpoint_port_base"`
			Topic     string
			BlockSize int `json:"block_size"`
			Ranks     int `json:"dp_size"`
		} `json:"kv_events"`
	}
	e := asked[told](t, m, "/server_info", "").Events
	require.Equal(t, asked[told](t, m, "/get_server_info", "").Events, e)
	_, port, ok := tcp(m.Info().Events)
	require.True(t, ok)
	require.Equal(t, port, e.Port+2)
	require.Equal(t, "zmq", e.Publisher)
	require.Equal(t, "kv", e.Topic)
	require.Equal(t, 4, e.BlockSize)
	whole(t, m, `{"prompt": [1,2,3]}`)
	_, text := ask(t, m, "/metrics", "")
	require.Contains(t, text, `vllm:prompt_tokens_total{model_name="mock-8b"} 3`)
	require.Contains(t, text, `vllm:num_requests_running{model_name="mock-8b"} 0`)
}
