package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Workers and routers may talk JSON instead of MessagePack. Everything here is MessagePack inside, and becomes JSON at the edge.

// maxDepth bounds nesting where values are converted.
const maxDepth = 64

// ErrConvert says that bytes cannot be converted.
var ErrConvert = errors.New("cannot be converted")

// FromJSON converts one JSON value to MessagePack. Integers of up to 64 bits stay exact. Errors: ErrConvert.
func FromJSON(dst, data []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return dst, fmt.Errorf("%w: %w", ErrConvert, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return dst, fmt.Errorf("%w: data after the JSON value", ErrConvert)
	}
	return appendAny(dst, v, 0)
}

func appendAny(dst []byte, v any, depth int) (_ []byte, err error) {
	if depth > maxDepth {
		return dst, fmt.Errorf("%w: nested deeper than %d", ErrConvert, maxDepth)
	}
	switch v := v.(type) {
	case nil:
		return appendNil(dst), nil
	case bool:
		return appendBool(dst, v), nil
	case string:
		return appendString(dst, v), nil
	case json.Number:
		return appendNumber(dst, v)
	case []any:
		dst = appendArray(dst, len(v))
		for i := 0; i < len(v) && err == nil; i++ {
			dst, err = appendAny(dst, v[i], depth+1)
		}
		return dst, err
	case map[string]any:
		dst = appendMapHead(dst, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if dst, err = appendAny(appendString(dst, key), v[key], depth+1); err != nil {
				return dst, err
			}
		}
		return dst, nil
	}
	return dst, fmt.Errorf("%w: %T", ErrConvert, v)
}

func appendNumber(dst []byte, n json.Number) ([]byte, error) {
	if u, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
		return appendUint(dst, u), nil
	}
	if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
		return appendBits(append(dst, msgpcode.Int64), uint64(i)), nil
	}
	f, err := n.Float64()
	if err != nil {
		return dst, fmt.Errorf("%w: number %.64q", ErrConvert, n)
	}
	return appendBits(append(dst, msgpcode.Double), math.Float64bits(f)), nil
}

func appendBits(dst []byte, v uint64) []byte {
	return append(dst, byte(v>>56), byte(v>>48), byte(v>>40), byte(v>>32), byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// ToJSON converts one MessagePack value to JSON. Byte strings become lists of numbers, keys that are no text become text. Errors: ErrConvert.
func ToJSON(dst, data []byte) ([]byte, error) {
	c, err := whole(data, math.MaxInt)
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrConvert, err)
	}
	return c.json(dst, 0)
}

func (c *cursor) json(dst []byte, depth int) (_ []byte, err error) {
	if depth > maxDepth {
		return dst, fmt.Errorf("%w: nested deeper than %d", ErrConvert, maxDepth)
	}
	switch c.class() {
	case classNil:
		c.null()
		return append(dst, "null"...), nil
	case classBool:
		v, err := c.boolean()
		return strconv.AppendBool(dst, v), err
	case classUint, classInt:
		bits, negative, err := c.integer()
		if negative {
			return strconv.AppendInt(dst, int64(bits), 10), err
		}
		return strconv.AppendUint(dst, bits, 10), err
	case classFloat:
		v, err := c.float()
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return append(dst, "null"...), err
		}
		return strconv.AppendFloat(dst, v, 'g', -1, 64), err
	case classString:
		return c.jsonText(dst)
	case classBytes:
		view, err := c.bytes(classBytes)
		dst = append(dst, '[')
		for i, b := range view {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendUint(dst, uint64(b), 10)
		}
		return append(dst, ']'), err
	case classArray:
		n, err := c.array()
		dst = append(dst, '[')
		for i := 0; i < n && err == nil; i++ {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst, err = c.json(dst, depth+1)
		}
		return append(dst, ']'), err
	case classMap:
		return c.jsonMap(dst, depth)
	}
	return dst, fmt.Errorf("%w: an extension", ErrConvert)
}

func (c *cursor) jsonText(dst []byte) ([]byte, error) {
	view, err := c.bytes(classString)
	if err != nil {
		return dst, err
	}
	if !utf8.Valid(view) {
		return dst, fmt.Errorf("%w: text that is no UTF-8", ErrConvert)
	}
	text, err := json.Marshal(string(view))
	return append(dst, text...), err
}

func (c *cursor) jsonMap(dst []byte, depth int) ([]byte, error) {
	n, err := c.pairs()
	dst = append(dst, '{')
	for i := 0; i < n && err == nil; i++ {
		if i > 0 {
			dst = append(dst, ',')
		}
		switch c.class() {
		case classString:
			dst, err = c.jsonText(dst)
		case classUint, classInt:
			dst, err = c.json(append(dst, '"'), depth+1)
			dst = append(dst, '"')
		default:
			err = fmt.Errorf("%w: a map with a key that is neither text nor a number", ErrConvert)
		}
		if err == nil {
			dst, err = c.json(append(dst, ':'), depth+1)
		}
	}
	return append(dst, '}'), err
}

// Valid tells whether bytes are one MessagePack value. Errors: ErrConvert.
func Valid(data []byte) error {
	if _, err := whole(data, math.MaxInt); err != nil {
		return fmt.Errorf("%w: %w", ErrConvert, err)
	}
	return nil
}
