package mocker

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, DefaultConfig(), c)

	c, err = ParseConfig([]byte(`{"blocks": 7, "speedup": 2.5, "replay": "", "inter_token_ms": 0}`))
	require.NoError(t, err)
	require.Equal(t, 7, c.Blocks)
	require.Equal(t, 2.5, c.Speedup)
	require.Empty(t, c.Replay)
	require.Zero(t, c.InterTokenMS)

	for text, fault := range map[string]string{
		``:                                "EOF",
		`null x`:                          "follows",
		`{} {}`:                           "follows",
		`[]`:                              "array",
		`{"blockz": 1}`:                   "blockz",
		`{"blocks": "many"}`:              "blocks",
		`{"blocks": 1.5}`:                 "blocks",
		`{"blocks": 0}`:                   "blocks is 0, must be in 1..16777216",
		`{"blocks": "5"}`:                 "blocks must be an integer, got string",
		`{"speedup": "x"}`:                "speedup must be a number, got string",
		`{"dp_rank": -1}`:                 "dp_rank must be an integer of 0..4294967295, got number -1",
		`{"block_size": -1}`:              "block_size is -1",
		`{"speedup": 0}`:                  "speedup is 0",
		`{"prefill_tokens_per_second":0}`: "prefill_tokens_per_second is 0",
		`{"inter_token_ms": -1}`:          "inter_token_ms is -1",
		`{"max_num_seqs": 0}`:             "max_num_seqs is 0",
		`{"buffer_steps": 0}`:             "buffer_steps is 0",
		`{"model": ""}`:                   "model is empty",
		`{"http": ""}`:                    "http is empty",
		`{"kv_events": ""}`:               "kv_events is empty",
	} {
		_, err := ParseConfig([]byte(text))
		require.ErrorIs(t, err, ErrConfig, text)
		require.ErrorContains(t, err, fault, text)
	}
	_, err = ParseConfig([]byte(`{"blocks": 0, "block_size": 0}`))
	require.ErrorContains(t, err, "block_size is 0")
	require.ErrorContains(t, err, "blocks is 0")
}

func TestPromptTokens(t *testing.T) {
	for text, want := range map[string]promptTokens{
		`null`:            nil,
		`[]`:              {},
		`[[]]`:            {},
		`[1, 2,3]`:        {1, 2, 3},
		` [ [ 7 , 8 ] ] `: {7, 8},
		`[0, 4294967295]`: {0, 4294967295},
		`"ab t999"`:       {97, 98, 999},
		`["\u00e4"]`:      {0xc3, 0xa4},
	} {
		var p promptTokens
		require.NoError(t, p.UnmarshalJSON([]byte(text)), text)
		require.Equal(t, want, p, text)
	}
	for text, fault := range map[string]string{
		`7`:               "prompt is 7, must be a text or a list",
		`{"a": [1]}`:      "must be a text or a list",
		`["a", "b"]`:      "several texts",
		`["a", 1]`:        "prompt is not a text",
		`[1, -2]`:         "prompt[1] is -2",
		`[1.0]`:           "prompt[0] is 1.0",
		`[1e3]`:           "prompt[0] is 1e3",
		`[4294967296]`:    "prompt[0] is 4294967296",
		`[99999999999]`:   "prompt[0] is 99999999999",
		`[null]`:          "prompt[0] is null",
		`[1, [2]]`:        "prompt[1] is [2]",
		`[[1], [2]]`:      "several lists",
		`[[[1]]]`:         "several lists",
		`[[1], "a]"]`:     "several lists",
		`[true, {"": 1}]`: "prompt[0] is true",
	} {
		var p promptTokens
		err := p.UnmarshalJSON([]byte(text))
		var bad *apiError
		require.ErrorAs(t, err, &bad, text)
		require.Equal(t, 400, bad.status)
		require.Equal(t, "prompt", *bad.Param)
		require.ErrorContains(t, err, fault, text)
	}
}

func TestUnmarshalRequestReadsWhatJSONReads(t *testing.T) {
	for _, body := range []string{
		`{"prompt": [1,2,3], "max_tokens": 7, "stream": true}`,
		`{"stream_options": {"include_usage": true, "prompt": [9]}, "x": ["prompt", {"prompt": [8]}], "prompt":[ 1 , 2 ]}`,
		`{"model": "\"prompt\": [1]", "user": "prompt", "prompt" : [[4, 5]], "n": 1}`,
		`{"prompt": [1], "prompt": [2, 3]}`,
		`{"prompt": [1], "prompt": "text"}`,
		`{"prompt": [], "max_tokens": 1}`,
		`{"prompt": [1, -2]}`,
		`{"prompt": [007]}`,
		`{"prompt": [1,]}`,
		`{"prompt": [1 2]}`,
		`{"prompt": [1], }`,
		`{"prompt": [1]`,
		`{"prompt": [1`,
		`{"prompt": `,
		`{"prompt"`,
		`{"prompt`,
		`{"prompt\`,
		`{"a": nonsense, "prompt": [1]}`,
		`{"prompt": 5, "max_tokens": 1}`,
		`["prompt", [1]]`,
		`}{"prompt": [1]}`,
		``,
	} {
		var got, want completionRequest
		gotErr, wantErr := unmarshalRequest([]byte(body), &got), json.Unmarshal([]byte(body), &want)
		require.Equal(t, wantErr == nil, gotErr == nil, "%s: %v, %v", body, gotErr, wantErr)
		if wantErr == nil {
			require.Equal(t, want, got, body)
		}
	}
}

func FuzzUnmarshalRequest(f *testing.F) {
	f.Add([]byte(`{"a": {"prompt": 1}, "prompt": [1, 22,333], "stream": true}`))
	f.Add([]byte(`{"prompt": [[1]], "model": "\\\"prompt"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var got, want completionRequest
		gotErr, wantErr := unmarshalRequest(body, &got), json.Unmarshal(body, &want)
		require.Equal(t, wantErr == nil, gotErr == nil, "%v, %v", gotErr, wantErr)
		if wantErr == nil {
			require.Equal(t, want, got)
		}
	})
}
