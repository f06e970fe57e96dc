package wire

import (
	"encoding/binary"
	"math"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Pack builds MessagePack, value by value. Its methods append one and give the whole.
type Pack []byte

// Array begins an array of n values, which follow.
func (p Pack) Array(n int) Pack { return appendArray(p, n) }

// Map begins a map of n pairs, which follow.
func (p Pack) Map(n int) Pack { return appendMapHead(p, n) }

// Nil appends nil.
func (p Pack) Nil() Pack { return appendNil(p) }

// Uint appends a number.
func (p Pack) Uint(v uint64) Pack { return appendUint(p, v) }

// Float appends a number.
func (p Pack) Float(v float64) Pack {
	return binary.BigEndian.AppendUint64(append(p, msgpcode.Double), math.Float64bits(v))
}

// String appends a text.
func (p Pack) String(s string) Pack { return appendString(p, s) }

// Texts appends a map.
func (p Pack) Texts(m map[string]string) Pack {
	p = appendMapHead(p, len(m))
	for k, v := range m {
		p = appendString(appendString(p, k), v)
	}
	return p
}

// Value appends a value that is MessagePack already; nil if it is empty.
func (p Pack) Value(v []byte) Pack {
	if len(v) == 0 {
		return appendNil(p)
	}
	return append(p, v...)
}
