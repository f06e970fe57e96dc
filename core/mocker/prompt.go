package mocker

import (
	"bytes"
	"encoding/json"
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// promptTokens reads the prompt of a completion request: token ids or a text, or a list of one of these.
type promptTokens []block.Token

// UnmarshalJSON is given valid JSON, so only its kind has to be checked. Null leaves the tokens as they are.
func (p *promptTokens) UnmarshalJSON(data []byte) (err error) {
	data = bytes.TrimSpace(data)
	if data[0] == 'n' {
		return nil
	}
	if data[0] == '"' {
		return p.text(data)
	}
	if data[0] != '[' {
		return badRequest("prompt", "prompt is %.40s, must be a text or a list of token ids", data)
	}
	inner := bytes.TrimSpace(data[1 : len(data)-1])
	if len(inner) > 0 && inner[0] == '"' {
		var texts []string
		if json.Unmarshal(data, &texts) == nil && len(texts) > 1 {
			return badRequest("prompt", "prompt has several texts: one is served at a time")
		}
		return p.text(inner)
	}
	if len(inner) > 0 && inner[0] == '[' {
		end := bytes.IndexByte(inner, ']')
		if end != len(inner)-1 {
			return badRequest("prompt", "prompt has several lists: one is served at a time")
		}
		inner = inner[1:end]
	}
	*p, err = parseTokens(inner)
	return err
}

func (p *promptTokens) text(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return badRequest("prompt", "prompt is not a text: %s", jsonFault(err))
	}
	*p = Tokenize(text)
	return nil
}

// unmarshalRequest is json.Unmarshal, but that a flat prompt, which is nearly all of the body, is read in one pass
// (a sixth of the time).
func unmarshalRequest(body []byte, r *completionRequest) error {
	if start := findPrompt(body); start >= 0 {
		if length := bytes.IndexByte(body[start:], ']'); length > 0 {
			if tokens, err := parseTokens(body[start+1 : start+length]); err == nil {
				rest := append(append(bytes.Clone(body[:start]), "null"...), body[start+length+1:]...)
				r.Prompt = tokens
				return json.Unmarshal(rest, r)
			}
		}
	}
	return json.Unmarshal(body, r)
}

// findPrompt gives the place of the list that is the value of "prompt" in an object; -1 if it is not found easily.
func findPrompt(body []byte) int {
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			text := i
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
			if depth != 1 || i >= len(body) || string(body[text:i+1]) != `"prompt"` {
				continue
			}
			if c := space(body, i+1); c < len(body) && body[c] == ':' {
				if v := space(body, c+1); v < len(body) && body[v] == '[' {
					return v
				}
				return -1
			}
		}
	}
	return -1
}

// space gives the next place that is not white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// parseTokens reads token ids separated by commas.
func parseTokens(list []byte) ([]block.Token, error) {
	tokens := make([]block.Token, 0, 1+bytes.Count(list, []byte{','}))
	i := space(list, 0)
	if i == len(list) {
		return tokens, nil
	}
	for {
		start, v := i, uint64(0)
		for ; i < len(list) && list[i]-'0' <= 9 && v <= math.MaxUint32; i++ {
			v = v*10 + uint64(list[i]-'0')
		}
		end := space(list, i)
		if i == start || v > math.MaxUint32 || list[start] == '0' && i > start+1 || end < len(list) && list[end] != ',' {
			item, _, _ := bytes.Cut(list[start:], []byte{','})
			return nil, badRequest("prompt", "prompt[%d] is %.40s, must be a token id in 0..%d", len(tokens),
				bytes.TrimSpace(item), uint32(math.MaxUint32))
		}
		tokens = append(tokens, block.Token(v))
		if end == len(list) {
			return tokens, nil
		}
		i = space(list, end+1)
	}
}
