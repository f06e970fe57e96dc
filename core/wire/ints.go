package wire

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/dynamo-go/dynamo-go/core/block"
)

var (
	errRange  = errors.New("is out of range")
	errBigram = errors.New("mixes tokens and token pairs, or pairs that do not overlap")
	errShort  = errors.New("is a byte string shorter than 8 bytes")
)

// Token lists are most of every payload. These loops read them, and lists of hashes, from the bytes themselves: 1,024
// tokens take 2.4 us, and 17 us with a call of the library's decoder for each.

// tokens reads len(dst) token ids at pos.
func tokens(dst []uint32, b []byte, pos int) (int, error) {
	for i := range dst {
		switch c := b[pos]; {
		case c <= msgpcode.PosFixedNumHigh:
			dst[i] = uint32(c)
			pos++
		case c == msgpcode.Uint16:
			dst[i] = uint32(binary.BigEndian.Uint16(b[pos+1:]))
			pos += 3
		case c == msgpcode.Uint32:
			dst[i] = binary.BigEndian.Uint32(b[pos+1:])
			pos += 5
		default:
			n, next, err := number(b, pos)
			if err != nil {
				return pos, err
			}
			if n > math.MaxUint32 {
				return pos, errRange
			}
			dst[i], pos = uint32(n), next
		}
	}
	return pos, nil
}

// bigrams reads len(dst)-1 pairs of tokens at pos, each of which begins with the token the one before ended with, as the
// tokens they run through.
func bigrams(dst []uint32, b []byte, pos int) (int, error) {
	for i := range dst[1:] {
		if b[pos] != msgpcode.FixedArrayLow|2 {
			return pos, errBigram
		}
		var pair [2]uint32
		next, err := tokens(pair[:], b, pos+1)
		if err != nil {
			return pos, err
		}
		if i > 0 && dst[i] != pair[0] {
			return pos, errBigram
		}
		dst[i], dst[i+1], pos = pair[0], pair[1], next
	}
	return pos, nil
}

// hashes reads len(dst) engine hashes at pos.
func hashes(dst []block.EngineHash, b []byte, pos int) (int, error) {
	for i := range dst {
		h, next, err := hash(b, pos)
		if err != nil {
			return pos, err
		}
		dst[i], pos = h, next
	}
	return pos, nil
}

// hash reads one engine hash: an integer of any width and sign, or a byte string whose last 8 bytes count.
func hash(b []byte, pos int) (block.EngineHash, int, error) {
	f := &forms[b[pos]]
	if f.class != classBytes {
		n, next, err := number(b, pos)
		return block.EngineHash(n), next, err
	}
	end := pos + int(f.head) + int(length(b[pos+1:], f.width))
	if end-pos-int(f.head) < 8 {
		return 0, pos, errShort
	}
	return block.EngineHash(binary.BigEndian.Uint64(b[end-8:])), end, nil
}

// number reads an integer as 64 bits in two's complement: negative numbers come out above MaxInt64.
func number(b []byte, pos int) (uint64, int, error) {
	c := b[pos]
	switch {
	case c <= msgpcode.PosFixedNumHigh:
		return uint64(c), pos + 1, nil
	case c >= msgpcode.NegFixedNumLow:
		return uint64(int8(c)), pos + 1, nil
	}
	at := b[pos+1:]
	switch c {
	case msgpcode.Uint8:
		return uint64(at[0]), pos + 2, nil
	case msgpcode.Uint16:
		return uint64(binary.BigEndian.Uint16(at)), pos + 3, nil
	case msgpcode.Uint32:
		return uint64(binary.BigEndian.Uint32(at)), pos + 5, nil
	case msgpcode.Uint64, msgpcode.Int64:
		return binary.BigEndian.Uint64(at), pos + 9, nil
	case msgpcode.Int8:
		return uint64(int8(at[0])), pos + 2, nil
	case msgpcode.Int16:
		return uint64(int16(binary.BigEndian.Uint16(at))), pos + 3, nil
	case msgpcode.Int32:
		return uint64(int32(binary.BigEndian.Uint32(at))), pos + 5, nil
	}
	return 0, pos, errType
}
