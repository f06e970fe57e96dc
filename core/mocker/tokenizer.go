package mocker

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// The toy tokenizer: an id below 256 is a byte, any other is written " tID", as in " t4711". Text becomes what is written so, and bytes: what an
// engine generated has the same ids again when it comes back in the next prompt.
const firstWord = 256

// Tokenize gives the ids of a text.
func Tokenize(text string) []block.Token {
	tokens := make([]block.Token, 0, len(text))
	for i := 0; i < len(text); {
		if id, n := word(text[i:]); n > 0 {
			tokens = append(tokens, id)
			i += n
			continue
		}
		tokens = append(tokens, block.Token(text[i]))
		i++
	}
	return tokens
}

// word reads " tID" at the beginning of a text; n is 0 if there is none.
func word(text string) (id block.Token, n int) {
	if len(text) < 5 || text[0] != ' ' || text[1] != 't' || text[2] == '0' {
		return 0, 0
	}
	v, i := uint64(0), 2
	for ; i < len(text) && text[i]-'0' <= 9 && v <= math.MaxUint32; i++ {
		v = v*10 + uint64(text[i]-'0')
	}
	if v < firstWord || v > math.MaxUint32 {
		return 0, 0
	}
	return block.Token(v), i
}

// Detokenize gives the text of ids.
func Detokenize(tokens []block.Token) string {
	text := make([]byte, 0, 7*len(tokens))
	for _, t := range tokens {
		if t < firstWord {
			text = append(text, byte(t))
		} else {
			text = strconv.AppendUint(append(text, " t"...), uint64(t), 10)
		}
	}
	return string(bytes.ToValidUTF8(text, []byte("\uFFFD")))
}

// message is one of a conversation. Parts that are not text mean nothing here.
type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a text, or the texts of a list of parts.
type content string

// UnmarshalJSON is given valid JSON.
func (c *content) UnmarshalJSON(data []byte) error {
	switch data = bytes.TrimSpace(data); data[0] {
	case '"':
		return json.Unmarshal(data, (*string)(c))
	case 'n':
		return nil
	case '[':
		var parts []struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(data, &parts); err != nil {
			return err
		}
		for _, p := range parts {
			*c += content(p.Text)
		}
		return nil
	}
	return badRequest("messages", "the content of a message is %.40s, must be a text or a list of parts", data)
}

// template is this engine's chat template.
func template(messages []message, generate bool) string {
	var text []byte
	for _, m := range messages {
		text = append(append(append(text, "<|"...), m.Role...), "|>\n"...)
		text = append(append(text, m.Content...), '\n')
	}
	if generate {
		text = append(text, "<|assistant|>\n"...)
	}
	return string(text)
}
