package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// reader walks a text that encoding/json has found valid, so that structure needs no checks here; it is this package's
// own because ids and hashes must never pass through a float, and keys must match exactly and once.
//
// Its first error stops it: every method then does nothing. Nesting is as deep as the events' form; deeper values are
// passed over without recursion.
type reader struct {
	b   []byte
	pos int
	err error
}

func newReader(text []byte) (*reader, error) {
	if !json.Valid(text) {
		return nil, fmt.Errorf("%w: not JSON: %s", ErrJSON, clip(text))
	}
	return &reader{b: text}, nil
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{ErrJSON}, args...)...)
	}
}

const maxClip = 40

// clip shortens a value for an error.
func clip(s []byte) string {
	if len(s) > maxClip {
		return string(s[:maxClip]) + "..."
	}
	return string(s)
}

// peek passes over space and gives the byte that the next value, key or closing bracket begins with.
func (r *reader) peek() byte {
	for r.pos < len(r.b) {
		switch c := r.b[r.pos]; c {
		case ' ', '\t', '\r', '\n', ',', ':':
			r.pos++
		default:
			return c
		}
	}
	return 0
}

// value passes over the next value and gives its text, a string with its quotes.
func (r *reader) value() []byte {
	if r.err != nil {
		return nil
	}
	first := r.peek()
	start := r.pos
	switch first {
	case '"':
		r.passString()
	case '{', '[':
		r.passNested()
	default:
		r.passScalar()
	}
	return r.b[start:r.pos]
}

// passScalar passes over a number, true, false or null.
func (r *reader) passScalar() {
	for ; r.pos < len(r.b); r.pos++ {
		switch r.b[r.pos] {
		case ',', ']', '}', ' ', '\t', '\r', '\n':
			return
		}
	}
}

// passString passes over a string.
func (r *reader) passString() {
	for r.pos++; r.b[r.pos] != '"'; r.pos++ {
		if r.b[r.pos] == '\\' {
			r.pos++
		}
	}
	r.pos++
}

// passNested passes over an object or array.
func (r *reader) passNested() {
	for depth := 0; ; {
		switch r.b[r.pos] {
		case '"':
			r.passString()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		r.pos++
		if depth == 0 {
			return
		}
	}
}

// open enters an object or array.
func (r *reader) open(bracket byte, what string) bool {
	if r.err != nil {
		return false
	}
	if r.peek() != bracket {
		r.fail("%s is %s, expected %c", what, clip(r.value()), bracket)
		return false
	}
	r.pos++
	return true
}

// more tells whether an element comes before the closing bracket, and passes over that if none does.
func (r *reader) more(bracket byte) bool {
	if r.err != nil {
		return false
	}
	if r.peek() == bracket {
		r.pos++
		return false
	}
	return true
}

// array calls read at each element of the next value.
func (r *reader) array(what string, read func()) {
	if !r.open('[', what) {
		return
	}
	for r.more(']') {
		read()
	}
}

// object calls read at the value of each key of the next value. A key that comes twice is an error: parsers disagree on
// which one counts.
func (r *reader) object(what string, read func(key []byte)) {
	if !r.open('{', what) {
		return
	}
	var room [8][]byte
	seen := room[:0]
	for r.more('}') {
		key := r.key()
		if slices.ContainsFunc(seen, func(k []byte) bool { return bytes.Equal(k, key) }) {
			r.fail("%s has the key %q twice", what, clip(key))
			return
		}
		if len(seen) < maxKeys {
			seen = append(seen, key)
		}
		read(key)
	}
}

// maxKeys bounds how many keys of an object are compared with each other: no form has as many.
const maxKeys = 16

// key reads a key. Escapes are not resolved: no key of the form has any.
func (r *reader) key() []byte {
	text := r.value()
	return text[1 : len(text)-1]
}

func (r *reader) null() bool {
	if r.err != nil || r.peek() != 'n' {
		return false
	}
	r.value()
	return true
}

// uint reads an integer from 0 to maximum.
func (r *reader) uint(what string, maximum uint64) uint64 {
	text := r.value()
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil || n > maximum {
		r.fail("%s is %s, expected an integer from 0 to %d", what, clip(text), maximum)
	}
	return n
}

// hash reads an integer from -2^63 to 2^64-1 as 64 bits.
func (r *reader) hash(what string) uint64 {
	text := r.value()
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err == nil {
		return n
	}
	signed, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		r.fail("%s is %s, expected an integer from -2^63 to 2^64-1", what, clip(text))
	}
	return uint64(signed)
}
