package mocker

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// longPrompt is a prompt of the mean length of public conversation traces.
func longPrompt() []block.Token {
	prompt := make([]block.Token, 13_700)
	for i := range prompt {
		prompt[i] = block.Token(splitmix(uint64(i)) >> 48)
	}
	return prompt
}

func BenchmarkReadRequest(b *testing.B) {
	var text []string
	for _, t := range longPrompt() {
		text = append(text, strconv.Itoa(int(t)))
	}
	body := []byte(`{"model": "mock-8b", "max_tokens": 300, "stream": true, "prompt": [` + strings.Join(text, ",") + `]}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		var r completionRequest
		require.NoError(b, unmarshalRequest(body, &r))
	}
}

func BenchmarkNewSequence(b *testing.B) {
	prompt := longPrompt()
	for b.Loop() {
		newSequence(prompt, 300, 16, "", nil)
	}
}
