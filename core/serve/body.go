package serve

import (
	"bytes"
	"encoding/json"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/tokenids"
)

// asked is what is read of the body of a request. Everything else of it is the engine's business: it is handed on as it is, also what is wrong with it.
// The slices are parts of the body, but for tokens.
type asked struct {
	tokens  []block.Token // of the prompt, if it is one list of token ids
	hasIDs  bool
	text    []byte // of the prompt, if it is one text: a JSON string
	several bool   // the prompt is a list of several
	chat    bool   // there are messages
	stream  bool
	model   string
	salt    string // of vLLM and SGLang: cache_salt
	session string // of SGLang: session_id
	n       int    // answers asked for, if more than 1
	images  bool   // there may be content besides text
}

// read looks for what concerns a router in a body; tokens is room for the ids. It tells whether the body is a JSON object as far as it was looked at;
// if it is not, what was found does not count.
func (a *asked) read(body []byte, tokens []block.Token) bool {
	*a = asked{tokens: tokens[:0], n: 1}
	s := scanner{data: body}
	if !s.open('{') {
		return false
	}
	for first := true; ; first = false {
		key, more := s.key(first)
		if !more {
			break
		}
		a.member(&s, key)
		if s.bad {
			return false
		}
	}
	return !s.bad && s.end()
}

// member reads the value of a key.
func (a *asked) member(s *scanner, key []byte) {
	switch string(key) {
	case "prompt":
		a.prompt(s)
	case "messages":
		v := s.value()
		a.chat = len(v) > 0 && v[0] == '['
		a.images = bytes.Contains(v, []byte(`_url"`)) || bytes.Contains(v, []byte(`"input_audio"`))
	case "stream":
		a.stream = string(s.value()) == "true"
	case "model":
		a.model = text(s.value())
	case "cache_salt":
		a.salt = text(s.value())
	case "session_id":
		a.session = text(s.value())
	case "n":
		a.n = 1
		if v := s.value(); len(v) < 10 {
			if json.Unmarshal(v, &a.n) != nil || a.n < 1 {
				a.n = 1
			}
		}
	default:
		s.value()
	}
}

// text gives the value of a JSON string of reasonable size, or "".
func text(v []byte) (t string) {
	if len(v) < 2 || len(v) > 4096 || v[0] != '"' {
		return ""
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1])
	}
	if json.Unmarshal(v, &t) != nil {
		return ""
	}
	return t
}

// prompt reads the prompt in all its forms: a text, token ids, or a list of these.
func (a *asked) prompt(s *scanner) {
	a.tokens, a.hasIDs, a.text, a.several = a.tokens[:0], false, nil, false // the last of equal keys counts, as for engines
	start := s.at
	if s.peek() == '[' {
		if s.ids(&a.tokens) {
			a.hasIDs = true
			return
		}
		if s.bad {
			return
		}
		s.at = start
	}
	v := s.value()
	if s.bad {
		return
	}
	if v[0] == '"' {
		a.text = v
		return
	}
	if v[0] != '[' {
		return
	}
	inner := scanner{data: v}
	inner.open('[')
	if inner.peek() == ']' {
		return
	}
	inside := inner.at
	one := inner.value()
	if inner.bad {
		return
	}
	if inner.peek() == ',' {
		a.several = true
		return
	}
	switch one[0] {
	case '"':
		a.text = one
	case '[':
		inner.at = inside
		a.hasIDs = inner.ids(&a.tokens)
	}
}

// scanner walks through JSON without building anything. It accepts some things that are not JSON: what it is for is to find members, and whoever gets
// the body in the end parses it in full.
type scanner struct {
	data []byte
	at   int
	bad  bool
}

// peek gives the next byte that is not white space, or 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.data); s.at++ {
		switch s.data[s.at] {
		case ' ', '\t', '\n', '\r':
		default:
			return s.data[s.at]
		}
	}
	return 0
}

func (s *scanner) open(c byte) bool {
	if s.peek() != c {
		s.bad = true
		return false
	}
	s.at++
	return true
}

// end tells whether nothing follows.
func (s *scanner) end() bool { return s.peek() == 0 && s.at == len(s.data) }

// key gives the next key of an object, unquoted, and goes on to its value; false at the end of the object, or if something is wrong.
func (s *scanner) key(first bool) ([]byte, bool) {
	c := s.peek()
	if c == '}' && !s.bad {
		s.at++
		return nil, false
	}
	if !first {
		if c != ',' {
			s.bad = true
			return nil, false
		}
		s.at++
		c = s.peek()
	}
	if c != '"' {
		s.bad = true
		return nil, false
	}
	start := s.at
	s.skipString()
	if s.bad {
		return nil, false
	}
	key := s.data[start+1 : s.at-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		key = []byte(text(s.data[start:s.at]))
	}
	return key, s.open(':')
}

// value gives the next value as it is written.
func (s *scanner) value() []byte {
	c, start := s.peek(), s.at
	switch {
	case c == 0 || c == ',' || c == '}' || c == ']' || c == ':':
		s.bad = true
		return nil
	case c == '"':
		s.skipString()
	case c == '{' || c == '[':
		s.skipNested()
	default:
		for s.at < len(s.data) {
			if c := s.data[s.at]; c <= ' ' || c == ',' || c == '}' || c == ']' || c == '"' || c == '{' || c == '[' || c == ':' {
				break
			}
			s.at++
		}
	}
	if s.bad {
		return nil
	}
	return s.data[start:s.at]
}

// skipString goes behind a string, which begins here.
func (s *scanner) skipString() {
	for i := s.at + 1; ; {
		n := bytes.IndexByte(s.data[i:], '"')
		if n < 0 {
			s.bad = true
			return
		}
		end := i + n
		slashes := 0
		for end-1-slashes > s.at && s.data[end-1-slashes] == '\\' {
			slashes++
		}
		if i = end + 1; slashes%2 == 0 {
			s.at = i
			return
		}
	}
}

// skipNested goes behind an object or a list, which begins here.
func (s *scanner) skipNested() {
	for depth := 0; s.at < len(s.data); {
		switch s.data[s.at] {
		case '"':
			if s.skipString(); s.bad {
				return
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				s.at++
				return
			}
		}
		s.at++
	}
	s.bad = true
}

// ids reads a list of token ids, behind which it goes on; false, with the position undefined, if it is anything else.
func (s *scanner) ids(tokens *[]block.Token) (ok bool) {
	if *tokens, s.at, ok = tokenids.Read(s.data, s.at+1, (*tokens)[:0]); !ok {
		*tokens = (*tokens)[:0]
	}
	return ok
}
