package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// This file is what goes over a response stream of Dynamo's request plane, and into its requests, as MessagePack.

// ErrItem says that bytes are no item of a response stream.
var ErrItem = errors.New("bad response item")

// MaxItemBytes bounds an item, like the frame it comes in.
const MaxItemBytes = 32 << 20

const (
	wrapData  = "\x82\xa4data"
	wrapAgain = "\xaecomplete_final\xc2"
	wrapFinal = "\x81\xaecomplete_final\xc3"
	annotated = "\x81\xa4data"
)

// AppendItem appends the frame of an item. plain items, of endpoints that give no annotations, go as they are; others are the data of
// an annotated one.
func AppendItem(dst, item []byte, plain bool) []byte {
	dst = append(dst, wrapData...)
	if !plain {
		dst = append(dst, annotated...)
	}
	return append(append(dst, item...), wrapAgain...)
}

// AppendFailure appends the frame of an item that is an error.
func AppendFailure(dst []byte, f *Failure) []byte {
	dst = appendMap(append(dst, wrapData...), 2)
	dst = appendString(appendString(dst, "event"), "error")
	dst = AppendFailureValue(appendString(dst, "error"), f)
	return append(dst, wrapAgain...)
}

// AppendFinal appends the frame that ends a stream.
func AppendFinal(dst []byte) []byte { return append(dst, wrapFinal...) }

// Failure is an error that a worker tells. Types and classes are Dynamo's names; older releases tell Type and Message only.
type Failure struct {
	Type    string // "Unknown", "Disconnected", ..., or that of a backend, such as "InvalidArgument"
	Backend bool   // Type is of the engine, not of the runtime
	Class   string // "Internal", "InvalidRequest", "Unavailable", ...; "" if not told
	Reason  string // "backend.unknown", ...
	Message string
}

// AppendFailureValue appends the error object.
func AppendFailureValue(dst []byte, f *Failure) []byte {
	dst = appendString(appendMap(dst, 4), "error_type")
	if f.Backend {
		dst = appendString(appendMap(dst, 1), "Backend")
	}
	dst = appendString(dst, f.Type)
	dst = appendString(appendString(dst, "class"), f.Class)
	dst = appendString(appendString(dst, "reason"), f.Reason)
	return appendString(appendString(dst, "message"), f.Message)
}

// Item is a frame of a response stream. Data is a view of it.
type Item struct {
	Final   bool     // the stream is complete; nothing else is set
	Data    []byte   // what the worker gave, as MessagePack; nil if it gave an annotation or an error
	Event   string   // name of an annotation
	Comment []byte   // of an annotation, as MessagePack
	Failure *Failure // the stream failed
}

// DecodeItem reads a frame. What is not known is passed over. Errors: ErrItem.
func DecodeItem(b []byte, plain bool) (it Item, err error) {
	if data, ok := commonItem(b, plain); ok {
		return Item{Data: data}, nil
	}
	if string(b) == wrapFinal {
		return Item{Final: true}, nil
	}
	c, err := whole(b, MaxItemBytes)
	if err == nil {
		err = it.wrapper(c, plain)
	}
	if err == nil && it.Event == "error" && it.Failure == nil { // releases before 1.3 tell it as a comment
		message, _ := ToJSON(nil, it.Comment)
		it.Failure = &Failure{Type: "Unknown", Message: string(message[:min(len(message), maxMessage)])}
	}
	if err == nil && !it.Final && it.Data == nil && it.Event == "" && it.Failure == nil && it.Comment == nil {
		err = errors.New("has neither data, nor an event, nor an error")
	}
	if err != nil {
		return Item{}, fmt.Errorf("%w: %w", ErrItem, err)
	}
	return it, nil
}

// commonItem reads the layout that AppendItem makes, which nearly all have.
func commonItem(b []byte, plain bool) (data []byte, ok bool) {
	head := wrapData
	if !plain {
		head += annotated
	}
	if len(b) <= len(head)+len(wrapAgain) || string(b[:len(head)]) != head || string(b[len(b)-len(wrapAgain):]) != wrapAgain {
		return nil, false
	}
	if end, err := skip(b, len(head)); err != nil || end != len(b)-len(wrapAgain) {
		return nil, false
	}
	return b[len(head) : len(b)-len(wrapAgain)], true
}

func (it *Item) wrapper(c *cursor, plain bool) error {
	return c.fields(func(key string) (_ bool, err error) {
		switch key {
		case "data":
			switch {
			case c.null():
			case plain:
				it.Data, err = c.raw()
			default:
				err = it.annotated(c)
			}
		case "complete_final":
			it.Final, err = c.boolean()
		default:
			return false, nil
		}
		return true, err
	}, "complete_final")
}

func (it *Item) annotated(c *cursor) error {
	return c.fields(func(key string) (_ bool, err error) {
		switch {
		case c.null():
		case key == "data":
			it.Data, err = c.raw()
		case key == "event":
			it.Event, err = c.text(1024)
		case key == "comment":
			it.Comment, err = c.raw()
		case key == "error":
			it.Failure, err = c.failure()
		default:
			return false, nil
		}
		return true, err
	})
}

// raw gives the bytes of the next value.
func (c *cursor) raw() ([]byte, error) {
	start := c.pos()
	err := c.skip()
	return c.b[start:c.pos():c.pos()], err
}

// failure reads an error object, or a text that stands for one.
func (c *cursor) failure() (*Failure, error) {
	f := &Failure{Type: "Unknown"}
	if c.class() == classString {
		var err error
		f.Message, err = c.clipped()
		return f, err
	}
	return f, c.fields(func(key string) (_ bool, err error) {
		switch {
		case c.null():
		case key == "error_type":
			err = c.errorType(f)
		case key == "class":
			f.Class, err = c.text(256)
		case key == "reason":
			f.Reason, err = c.text(1024)
		case key == "message":
			f.Message, err = c.clipped()
		default:
			return false, nil
		}
		return true, err
	})
}

func (c *cursor) errorType(f *Failure) (err error) {
	if c.class() != classMap {
		f.Type, err = c.text(256)
		return err
	}
	return c.fields(func(key string) (bool, error) {
		if c.class() != classString {
			return false, nil
		}
		f.Backend = key == "Backend"
		f.Type, err = c.text(256)
		return true, err
	})
}

// clipped reads a text meant for people.
func (c *cursor) clipped() (string, error) {
	s, err := c.text(math.MaxInt)
	return s[:min(len(s), maxMessage)], err
}

// DecodeFailure reads an error object. Errors: ErrItem.
func DecodeFailure(b []byte) (*Failure, error) {
	c, err := whole(b, MaxItemBytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrItem, err)
	}
	f, err := c.failure()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrItem, err)
	}
	return f, nil
}

// Output is what a router must know of what an engine generated.
type Output struct {
	Tokens int  // generated with this item
	Ends   bool // it has a finish reason

	// Cached is how many tokens of the prompt the engine found in its cache (completion_usage.prompt_tokens_details.cached_tokens), if it says so.
	Cached      int64
	CachedKnown bool
}

// ReadOutput looks at an item's data, a map with token_ids and finish_reason. Errors: ErrItem if it is no map or token_ids no list.
func ReadOutput(data []byte) (o Output, err error) {
	if len(data) == 0 || forms[data[0]].class != classMap {
		return o, fmt.Errorf("%w: expected a map", ErrItem)
	}
	f := &forms[data[0]]
	pairs, pos := int(f.body), int(f.head)
	if f.width != 0 {
		pairs = int(length(data[1:], f.width))
	}
	for range pairs {
		end, err := skip(data, pos)
		if err != nil {
			return o, fmt.Errorf("%w: it %w", ErrItem, err)
		}
		key, value := data[pos:end], end
		if end, err = skip(data, value); err != nil {
			return o, fmt.Errorf("%w: it %w", ErrItem, err)
		}
		switch string(key) {
		case "\xa9token_ids":
			f := &forms[data[value]]
			switch f.class {
			case classNil:
			case classArray:
				if o.Tokens = int(f.body); f.width != 0 {
					o.Tokens = int(length(data[value+1:], f.width))
				}
			default:
				return o, fmt.Errorf("%w: token_ids %w", ErrItem, errType)
			}
		case "\xadfinish_reason":
			o.Ends = forms[data[value]].class != classNil
		case "\xb0completion_usage":
			o.Cached, o.CachedKnown = cachedTokens(data, value)
		}
		pos = end
	}
	return o, nil
}

// cachedTokens finds them in a usage, which skip has accepted; whatever is otherwise tells nothing.
func cachedTokens(data []byte, usage int) (int64, bool) {
	at, ok := member(data, usage, "\xb5prompt_tokens_details")
	if ok {
		at, ok = member(data, at, "\xadcached_tokens")
	}
	if !ok || forms[data[at]].class != classUint && forms[data[at]].class != classInt {
		return 0, false
	}
	n, _, err := number(data, at)
	if err != nil || n > math.MaxInt64 {
		return 0, false
	}
	return int64(n), true
}

// member finds the value of a key, as it is encoded, in a map that skip has accepted; false if it is none, or has none.
func member(data []byte, at int, key string) (int, bool) {
	f := &forms[data[at]]
	if f.class != classMap {
		return 0, false
	}
	pairs, pos := int(f.body), at+int(f.head)
	if f.width != 0 {
		pairs = int(length(data[at+1:], f.width))
	}
	for range pairs {
		value, err := skip(data, pos)
		if err != nil {
			return 0, false
		}
		if string(data[pos:value]) == key {
			return value, true
		}
		if pos, err = skip(data, value); err != nil {
			return 0, false
		}
	}
	return 0, false
}

// AppendRequest appends a request's map with the entries of fields, a map of others, besides token_ids and routing, which is a map
// or nil. Errors: ErrItem if fields is no map or not valid.
func AppendRequest(dst, fields []byte, tokens []uint32, routing []byte) ([]byte, error) {
	pairs, entries, err := mapEntries(fields)
	if err != nil {
		return dst, err
	}
	pairs++
	if routing != nil {
		pairs++
	}
	dst = appendMapHead(dst, pairs)
	dst = append(dst, entries...)
	dst = appendArray(appendString(dst, "token_ids"), len(tokens))
	for _, t := range tokens {
		dst = appendUint(dst, uint64(t))
	}
	if routing != nil {
		dst = append(appendString(dst, "routing"), routing...)
	}
	return dst, nil
}

// mapEntries gives the number of a map's pairs, and their bytes.
func mapEntries(b []byte) (pairs int, entries []byte, err error) {
	if len(b) == 0 {
		return 0, nil, nil
	}
	if end, err := skip(b, 0); err != nil || end != len(b) || forms[b[0]].class != classMap {
		return 0, nil, fmt.Errorf("%w: the fields of a request, expected one map", ErrItem)
	}
	f := &forms[b[0]]
	if pairs = int(f.body); f.width != 0 {
		pairs = int(length(b[1:], f.width))
	}
	return pairs, b[f.head:], nil
}

func appendMapHead(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return appendMap(dst, n)
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, msgpcode.Map16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, msgpcode.Map32), uint32(n))
}

// AppendRouting appends the map routing of a request: the entries of fields, a map or nothing, and where it goes. Malformed fields are left out.
func AppendRouting(dst, fields []byte, workerID uint64, dpRank uint32, pinned bool) []byte {
	pairs, entries, err := mapEntries(fields)
	if err != nil {
		pairs, entries = 0, nil
	}
	pairs++
	if pinned {
		pairs++
	}
	dst = append(appendMapHead(dst, pairs), entries...)
	if pinned {
		dst = appendUint(appendString(dst, "backend_instance_id"), workerID)
	}
	return appendUint(appendString(dst, "dp_rank"), uint64(dpRank))
}
