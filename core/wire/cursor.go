package wire

import (
	"bytes"
	"errors"
	"io"

	"github.com/vmihailenco/msgpack/v5"
)

var errType = errors.New("has a type it never has")

// cursor reads a payload that skip has accepted whole, so it is never asked for more than there is. It gives the
// library's decoder the next value only after looking at the value's class: by itself the decoder takes nil for 0, wraps
// negative numbers, and cuts large ones.
type cursor struct {
	b      []byte
	reader bytes.Reader
	dec    *msgpack.Decoder
}

func newCursor() *cursor {
	c := &cursor{}
	c.dec = msgpack.NewDecoder(&c.reader)
	return c
}

func (c *cursor) reset(b []byte) {
	c.b = b
	c.reader.Reset(b)
	c.dec.ResetReader(&c.reader)
}

func (c *cursor) pos() int { return len(c.b) - c.reader.Len() }

// seek moves to a position inside the payload, or to its end: bytes.Reader refuses only negative ones.
func (c *cursor) seek(pos int) { _, _ = c.reader.Seek(int64(pos), io.SeekStart) }

// class tells what the next value is.
func (c *cursor) class() class { return forms[c.b[c.pos()]].class }

// skip passes over the next value.
func (c *cursor) skip() error {
	end, err := skip(c.b, c.pos())
	if err == nil {
		c.seek(end)
	}
	return err
}

// null passes over the next value if it is nil.
func (c *cursor) null() bool {
	if c.class() != classNil {
		return false
	}
	c.seek(c.pos() + 1)
	return true
}

func (c *cursor) array() (int, error) {
	if c.class() != classArray {
		return 0, errType
	}
	return c.dec.DecodeArrayLen()
}

func (c *cursor) pairs() (int, error) {
	if c.class() != classMap {
		return 0, errType
	}
	return c.dec.DecodeMapLen()
}

// bytes gives a string or byte string as a view of the payload.
func (c *cursor) bytes(want class) ([]byte, error) {
	if c.class() != want {
		return nil, errType
	}
	n, err := c.dec.DecodeBytesLen()
	if err != nil {
		return nil, err
	}
	start := c.pos()
	c.seek(start + n)
	return c.b[start : start+n], nil
}

// uint reads an integer that is not negative, however it is encoded, up to a maximum.
func (c *cursor) uint(maximum uint64) (uint64, error) {
	n, negative, err := c.integer()
	if err != nil {
		return 0, err
	}
	if negative || n > maximum {
		return 0, errRange
	}
	return n, nil
}

// integer reads an integer as 64 bits in two's complement, and tells whether it is negative.
func (c *cursor) integer() (bits uint64, negative bool, err error) {
	switch c.class() {
	case classUint:
		bits, err = c.dec.DecodeUint64()
		return bits, false, err
	case classInt:
		n, err := c.dec.DecodeInt64()
		return uint64(n), n < 0, err
	}
	return 0, false, errType
}

// float reads a number.
func (c *cursor) float() (float64, error) {
	switch c.class() {
	case classFloat, classUint, classInt:
		return c.dec.DecodeFloat64()
	}
	return 0, errType
}
