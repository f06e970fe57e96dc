package wire

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/event"
)

// AppendJSONLines appends one JSON object per event, each on a line of its own: seq (null without one), ts, dp_rank, type
// and the event's fields, null where an event has none. Hashes are unsigned 64-bit integers. token_ids are pairs where
// the engine sent pairs. An event that could not be decoded, or is of an unknown type, gives AppendJSONError's line.
func (b *Batch) AppendJSONLines(dst []byte, seq *uint64) []byte {
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case e.Err != nil && e.Kind != 0:
			dst = AppendJSONError(dst, e.Err.Error(), e.Kind.String())
		case e.Err != nil:
			dst = AppendJSONError(dst, e.Err.Error(), e.Tag)
		case e.Kind == 0:
			dst = AppendJSONError(dst, "unknown event type", e.Tag)
		default:
			dst = b.appendEvent(dst, e, seq)
		}
	}
	return dst
}

// AppendJSONError appends the line of an event, or with kind "" of a payload, that could not be decoded.
func AppendJSONError(dst []byte, message, kind string) []byte {
	dst = appendJSONString(append(dst, `{"error":`...), message)
	dst = appendJSONString(append(dst, `,"type":`...), kind)
	return append(dst, "}\n"...)
}

func (b *Batch) appendEvent(dst []byte, e *Event, seq *uint64) []byte {
	dst = append(dst, `{"seq":`...)
	if seq != nil {
		dst = strconv.AppendUint(dst, *seq, 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = appendJSONFloat(append(dst, `,"ts":`...), b.TS)
	dst = appendUintIf(append(dst, `,"dp_rank":`...), b.HasRank, uint64(b.DPRank))
	dst = appendJSONString(append(dst, `,"type":`...), e.Kind.String())
	stored := e.Kind == event.Stored
	dst = append(dst, `,"block_hashes":`...)
	if e.Kind == event.Cleared {
		dst = append(dst, "null"...)
	} else {
		dst = appendUints(dst, e.BlockHashes)
	}
	dst = appendUintIf(append(dst, `,"parent_hash":`...), e.HasParent, uint64(e.Parent))
	dst = append(dst, `,"token_ids":`...)
	switch {
	case !stored:
		dst = append(dst, "null"...)
	case e.Bigram:
		dst = appendPairs(dst, e.TokenIDs)
	default:
		dst = appendUints(dst, e.TokenIDs)
	}
	dst = appendUintIf(append(dst, `,"block_size":`...), stored, uint64(e.BlockSize))
	dst = appendJSONString(append(dst, `,"medium":`...), e.Medium)
	dst = appendJSONString(append(dst, `,"lora_name":`...), e.LoRAName)
	dst = appendJSONString(append(dst, `,"cache_salt":`...), e.CacheSalt)
	dst = appendUintIf(append(dst, `,"group_idx":`...), e.HasGroup, uint64(e.GroupIdx))
	return append(dst, "}\n"...)
}

func appendUints[N ~uint32 | ~uint64](dst []byte, list []N) []byte {
	dst = append(dst, '[')
	for i, n := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(n), 10)
	}
	return append(dst, ']')
}

// appendPairs appends tokens as the overlapping pairs they came as.
func appendPairs(dst []byte, tokens []uint32) []byte {
	dst = append(dst, '[')
	for i := 1; i < len(tokens); i++ {
		if i > 1 {
			dst = append(dst, ',')
		}
		dst = appendUints(dst, tokens[i-1:i+1])
	}
	return append(dst, ']')
}

func appendUintIf(dst []byte, known bool, n uint64) []byte {
	if !known {
		return append(dst, "null"...)
	}
	return strconv.AppendUint(dst, n, 10)
}

// appendJSONFloat appends a number; JSON has none that is not finite.
func appendJSONFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	form := byte('f')
	if size := math.Abs(f); size >= 1e21 || size < 1e-6 && size > 0 {
		form = 'e'
	}
	return strconv.AppendFloat(dst, f, form, -1, 64)
}

// appendJSONString appends a string, or null for "". Bytes that are not UTF-8 become U+FFFD.
func appendJSONString(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	text, _ := json.Marshal(s) // no string fails
	return append(dst, text...)
}
