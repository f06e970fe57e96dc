package block

import (
	"encoding/binary"
	"unsafe"

	"github.com/dynamo-go/dynamo-go/core/internal/xxh3"
)

// littleEndian is constant for a build: the compiler drops the other branch.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// sumTokens hashes tokens as little-endian bytes: on little-endian hosts a view of the tokens themselves, on others a
// copy, which allocates for blocks of more than 64 tokens.
func sumTokens(tokens []Token, seed uint64) uint64 {
	if littleEndian {
		return xxh3.Sum(view(tokens), seed)
	}
	var room [256]byte
	return xxh3.Sum(appendTokens(room[:0], tokens), seed)
}

// appendTokens appends tokens as little-endian bytes.
func appendTokens(dst []byte, tokens []Token) []byte {
	if littleEndian {
		return append(dst, view(tokens)...)
	}
	for _, t := range tokens {
		dst = binary.LittleEndian.AppendUint32(dst, t)
	}
	return dst
}

// view gives the memory of tokens as bytes. It is read before tokens can change, and never kept.
func view(tokens []Token) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
}
