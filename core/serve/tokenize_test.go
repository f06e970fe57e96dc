package serve

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// TestListsOfTokensInPieces: what an answer of /tokenize says is the same in whatever pieces it comes.
func TestListsOfTokensInPieces(t *testing.T) {
	for text, want := range map[string][]block.Token{
		`{"count":3,"max_model_len":9,"tokens":[1,22,4294967295],"token_strs":null}`: {1, 22, 4294967295},
		` { "tokens" : [ 7 , 8 ] } `:                              {7, 8},
		`{"tokens":[]}`:                                           {},
		"{\"tokens\":[\n5\t]\r,\"x\":[1,2":                        {5}, // what follows does not matter
		`{"a":"\"tokens\": [1]","b":{"tokens":[2]},"tokens":[3]}`: {3},
		`{"tokens":[1,2`:                                          nil,
		`{"tokens":null}`:                                         nil,
		`{"tokens":[1,,2]}`:                                       nil,
		`{"tokens":[,1]}`:                                         nil,
		`{"tokens":[1 2]}`:                                        nil,
		`{"tokens":[1,]}`:                                         nil,
		`{"tokens":[4294967296]}`:                                 nil,
		`{"tokens":[12345678901234567890]}`:                       nil,
		`{"tokens":[-1]}`:                                         nil,
		`{"tokens":[1.5]}`:                                        nil,
		`{"tokens":["1"]}`:                                        nil,
		`{"tokens":[[1]]}`:                                        nil,
		`[1,2]`:                                                   nil,
		``:                                                        nil,
	} {
		for _, step := range []int{1, 2, 3, 7, 1 << 20} {
			var l tokenList
			ok := true
			for rest := []byte(text); ok && len(rest) > 0; rest = rest[min(step, len(rest)):] {
				ok = l.add(rest[:min(step, len(rest))], func(ids []block.Token) ([]block.Token, bool) {
					return append(make([]block.Token, 0, len(ids)+1), ids...), true
				})
			}
			require.Equal(t, want != nil, ok && l.complete, "%.100q by %d", text, step)
			if want != nil {
				require.Equal(t, want, append([]block.Token{}, l.ids...), "%.100q by %d", text, step)
			}
		}
	}
	var l tokenList
	took := 0
	for l.add(bytes.Repeat([]byte(" "), 4096), nil) {
		took++
	}
	require.Equal(t, 15, took, "what comes before the list is bounded")
}
