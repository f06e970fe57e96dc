package wire

import (
	"encoding/binary"
	"errors"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// class is what kind of MessagePack value a first byte announces.
type class uint8

const (
	classInvalid class = iota
	classNil
	classBool
	classUint
	classInt
	classFloat
	classString
	classBytes
	classArray
	classMap
	classExt
)

// form is how a value with a given first byte is laid out: head bytes, then body bytes. If width is not 0, that many
// bytes after the first give the body's length instead: in bytes, or for arrays and maps in elements.
type form struct {
	class       class
	head, width uint8
	body        uint8
}

// forms has the layout of every first byte.
var forms = func() (t [256]form) {
	for c := range 0x80 {
		t[c] = form{class: classUint, head: 1}
		t[msgpcode.FixedMapLow|byte(c&0x0f)] = form{class: classMap, head: 1, body: uint8(c & 0x0f)}
		t[msgpcode.FixedArrayLow|byte(c&0x0f)] = form{class: classArray, head: 1, body: uint8(c & 0x0f)}
		t[msgpcode.FixedStrLow|byte(c&0x1f)] = form{class: classString, head: 1, body: uint8(c & 0x1f)}
		t[msgpcode.NegFixedNumLow|byte(c&0x1f)] = form{class: classInt, head: 1}
	}
	t[msgpcode.Nil] = form{class: classNil, head: 1}
	t[msgpcode.False] = form{class: classBool, head: 1}
	t[msgpcode.True] = form{class: classBool, head: 1}
	t[msgpcode.Float] = form{class: classFloat, head: 5}
	t[msgpcode.Double] = form{class: classFloat, head: 9}
	for i := range uint8(4) {
		t[msgpcode.Uint8+i] = form{class: classUint, head: 1 + 1<<i}
		t[msgpcode.Int8+i] = form{class: classInt, head: 1 + 1<<i}
	}
	for i := range uint8(5) {
		t[msgpcode.FixExt1+i] = form{class: classExt, head: 2, body: 1 << i}
	}
	for i := range uint8(3) {
		w := uint8(1) << i
		t[msgpcode.Bin8+i] = form{class: classBytes, head: 1 + w, width: w}
		t[msgpcode.Str8+i] = form{class: classString, head: 1 + w, width: w}
		t[msgpcode.Ext8+i] = form{class: classExt, head: 2 + w, width: w}
	}
	for i := range uint8(2) {
		w := uint8(2) << i
		t[msgpcode.Array16+i] = form{class: classArray, head: 1 + w, width: w}
		t[msgpcode.Map16+i] = form{class: classMap, head: 1 + w, width: w}
	}
	return t
}()

// fixed is the whole size of a value with a given first byte, where that byte tells it and nothing is nested.
var fixed = func() (t [256]uint8) {
	for c, f := range forms {
		if f.width == 0 && f.class != classInvalid && f.class != classArray && f.class != classMap {
			t[c] = f.head + f.body
		}
	}
	return t
}()

var (
	errTruncated = errors.New("ends inside a value, or announces more than there is")
	errCode      = errors.New("holds a byte that starts no value")
)

// skip finds the end of the value at pos, whatever is nested in it, without recursion: it counts the values still to
// come, each of which needs a byte, so the count never exceeds the bytes left. b[pos:end] of a success is well-formed.
func skip(b []byte, pos int) (end int, err error) {
	for pending := 1; pending > 0; pending-- {
		if pending > len(b)-pos {
			return 0, errTruncated
		}
		if size := fixed[b[pos]]; size != 0 {
			pos += int(size)
			continue
		}
		f := &forms[b[pos]]
		if f.class == classInvalid {
			return 0, errCode
		}
		n := uint64(f.body)
		if f.width != 0 {
			if len(b)-pos < int(f.head) {
				return 0, errTruncated
			}
			n = length(b[pos+1:], f.width)
		}
		pos += int(f.head)
		if pos > len(b) || n > uint64(len(b)-pos) {
			return 0, errTruncated
		}
		switch f.class {
		case classArray:
			pending += int(n)
		case classMap:
			pending += 2 * int(n)
		default:
			pos += int(n)
		}
	}
	if pos > len(b) {
		return 0, errTruncated
	}
	return pos, nil
}

// length reads the length that follows a first byte.
func length(b []byte, width uint8) uint64 {
	switch width {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	}
	return uint64(binary.BigEndian.Uint32(b))
}
