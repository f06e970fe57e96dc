package snapshot

import (
	"encoding/binary"
	"fmt"
)

// cursor reads a payload. Once bad says what is wrong, everything it gives is 0 or empty.
type cursor struct {
	rest []byte
	bad  string
}

func (c *cursor) fail(format string, args ...any) {
	if c.bad == "" {
		c.bad, c.rest = fmt.Sprintf(format, args...), nil
	}
}

// take gives the next n bytes, of the payload's memory; nil if they are not there.
func (c *cursor) take(n int) []byte {
	if n > len(c.rest) {
		c.fail("%d bytes are missing", n-len(c.rest))
		return nil
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cursor) byte() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) uint64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// uvarint reads a number of at most most.
func (c *cursor) uvarint(most uint64) uint64 {
	v, size := binary.Uvarint(c.rest)
	switch {
	case size <= 0:
		c.fail("a number is missing")
		return 0
	case v > most:
		c.fail("%d, expected at most %d", v, most)
		return 0
	}
	c.rest = c.rest[size:]
	return v
}

func (c *cursor) string(most int) []byte { return c.take(int(c.uvarint(uint64(most)))) }
