package serve

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
)

func TestWhatIsReadOfABody(t *testing.T) {
	for _, c := range []struct {
		body string
		want asked
	}{
		{`{}`, asked{}},
		{` { "prompt" : [ 1 , 22,333 ] , "stream" : true } `, asked{tokens: []block.Token{1, 22, 333}, hasIDs: true, stream: true}},
		{`{"prompt": [[4, 5]], "stream": false}`, asked{tokens: []block.Token{4, 5}, hasIDs: true}},
		{`{"prompt":"a \"quoted\\\" text","model":"m"}`, asked{text: []byte(`"a \"quoted\\\" text"`), model: "m"}},
		{`{"prompt":["one"]}`, asked{text: []byte(`"one"`)}},
		{`{"prompt":["one", "two"]}`, asked{several: true}},
		{`{"prompt":[[1],[2]]}`, asked{several: true}},
		{`{"prompt":[]}`, asked{}},
		{`{"prompt":[[]]}`, asked{}},
		{`{"prompt":[1.5]}`, asked{}},
		{`{"prompt":[-1, 2]}`, asked{several: true}},
		{`{"prompt":[4294967296]}`, asked{}},
		{`{"prompt":[01]}`, asked{}},
		{`{"prompt":null,"model":null,"n":null}`, asked{}},
		{`{"prompt":[1],"prompt":"x"}`, asked{text: []byte(`"x"`)}},
		{`{"prompt":"x","prompt":[7]}`, asked{tokens: []block.Token{7}, hasIDs: true}},
		{`{"pro\u006dpt":[7]}`, asked{tokens: []block.Token{7}, hasIDs: true}},
		{`{"a":{"prompt":[7],"b":["]",{"}":"\\"}]},"prompt":[8]}`, asked{tokens: []block.Token{8}, hasIDs: true}},
		{`{"messages":[{"role":"user","content":"\"prompt\": [1]"}],"n":3}`, asked{chat: true, n: 3}},
		{`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, asked{chat: true, images: true}},
		{`{"messages":"x","cache_salt":"s","session_id":"\u0041"}`, asked{salt: "s", session: "A"}},
		{`{"n":-1,"model":"` + strings.Repeat("m", 5000) + `"}`, asked{}},
	} {
		var got asked
		require.True(t, got.read([]byte(c.body), nil), c.body)
		if c.want.n == 0 {
			c.want.n = 1
		}
		if len(got.tokens) == 0 {
			got.tokens = nil
		}
		require.Equal(t, c.want, got, c.body)
	}
	for _, body := range []string{
		``, `x`, `[]`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{"a" 1}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":"`, `{"a":"\"}`, `{"a":[}`,
		`{"a":[1}`, `{"prompt":[1,2`, `{"prompt":}`, `{"prompt":[1,}`, `{} x`, `{}{}`, `{"a":{]}`[:6],
	} {
		var got asked
		require.False(t, got.read([]byte(body), nil), body)
	}
}

// FuzzBody checks that what is found in a body that is JSON is what encoding/json finds.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"a": {"prompt": 1}, "prompt": [1, 22,333], "stream": true, "model": "x"}`))
	f.Add([]byte(`{"prompt": [[1]], "model": "\\\"prompt", "messages": [{}]}`))
	f.Add([]byte(`{"prompt": "text\\", "n": 2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var got asked
		ok := got.read(body, nil)
		var want map[string]json.RawMessage
		if json.Unmarshal(body, &want) != nil || want == nil {
			return // it must only not panic
		}
		require.True(t, ok)
		var ids []block.Token
		var nested [][]block.Token
		prompt := want["prompt"]
		switch {
		case len(prompt) == 0 || string(prompt) == "null":
			require.False(t, got.hasIDs)
		case prompt[0] == '"':
			require.Equal(t, string(prompt), string(got.text))
		case strict(prompt, &ids) && len(ids) > 0:
			require.Equal(t, ids, got.tokens)
		case strict(prompt, &nested) && len(nested) == 1 && len(nested[0]) > 0:
			require.Equal(t, nested[0], got.tokens)
		case strict(prompt, &nested) && len(nested) > 1:
			require.True(t, got.several)
		}
		require.Equal(t, len(want["messages"]) > 0 && want["messages"][0] == '[', got.chat)
		require.Equal(t, string(want["stream"]) == "true", got.stream)
	})
}

// strict tells whether data is a v, without a null in it.
func strict(data []byte, v any) bool {
	return !bytes.Contains(data, []byte("null")) && json.Unmarshal(data, v) == nil
}

func BenchmarkBody(b *testing.B) {
	var ids []string
	for i := range 4096 {
		ids = append(ids, strconv.Itoa(i*31%128_000))
	}
	body := []byte(`{"model":"m","max_tokens":300,"stream":true,"prompt":[` + strings.Join(ids, ",") + `]}`)
	var a asked
	var room []block.Token
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		a.read(body, room)
		room = a.tokens
	}
}
