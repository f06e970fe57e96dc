package mocker

import (
	"bytes"
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// promptTokens reads the prompt of a completion request: a list of token ids, or a list of one such list.
type promptTokens []block.Token

// UnmarshalJSON reads the tokens in one pass. It is given valid JSON, so only its kind has to be checked.
func (p *promptTokens) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	if data[0] != '[' {
		return badRequest("prompt", "prompt must be a list of token ids: this engine has no tokenizer")
	}
	inner := bytes.TrimSpace(data[1 : len(data)-1])
	if len(inner) > 0 && inner[0] == '[' {
		end := bytes.IndexByte(inner, ']')
		if end != len(inner)-1 {
			return badRequest("prompt", "prompt has several lists: one is served at a time")
		}
		inner = bytes.TrimSpace(inner[1:end])
	}
	tokens := make([]block.Token, 0, 1+bytes.Count(inner, []byte{','}))
	for len(inner) > 0 {
		item, rest, _ := bytes.Cut(inner, []byte{','})
		item, inner = bytes.TrimSpace(item), rest
		t, ok := parseToken(item)
		if !ok {
			return badRequest("prompt", "prompt[%d] is %.40s, must be a token id in 0..%d", len(tokens), item, uint32(math.MaxUint32))
		}
		tokens = append(tokens, t)
	}
	*p = tokens
	return nil
}

func parseToken(digits []byte) (block.Token, bool) {
	var v uint64
	if len(digits) == 0 || len(digits) > 10 {
		return 0, false
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		v = v*10 + uint64(d-'0')
	}
	return block.Token(v), v <= math.MaxUint32
}
