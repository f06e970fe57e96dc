package nats

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Bounds of what a server says.
const (
	maxLine    = 1 << 20 // an INFO names the servers of a cluster
	maxControl = 4 << 10 // a line before a message
	maxPayload = plane.MaxMessageBytes + 64<<10
)

var errStrange = errors.New("not a NATS server")

// guard reads along with the client library, which believes a server: it makes room for a message of whatever size is announced, and for a line
// however long. What is beyond a bound breaks the connection. It is read by one goroutine at a time, and written to before the next one reads.
//
// By TLS nothing is seen after the first line: then a certificate says who the server is.
type guard struct {
	net.Conn
	wrote  bool
	secret bool // the first that was written begins a TLS handshake

	line   []byte // of the present line, no more than tells what it is
	length int    // of it
	skip   int    // bytes of a message that are still to come
	tail   bool   // after it, up to the end of the line
}

// Write implements net.Conn.
func (g *guard) Write(b []byte) (int, error) {
	const handshake = 0x16 // the type of a TLS record
	if !g.wrote && len(b) > 0 {
		g.wrote, g.secret = true, b[0] == handshake
	}
	return g.Conn.Write(b)
}

// Read implements net.Conn.
func (g *guard) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if strange := g.look(b[:n]); strange != nil {
		return 0, strange
	}
	return n, err
}

func (g *guard) look(b []byte) error {
	for len(b) > 0 && !g.secret {
		if g.skip > 0 {
			n := min(g.skip, len(b))
			g.skip, b = g.skip-n, b[n:]
			continue
		}
		end := bytes.IndexByte(b, '\n')
		piece := b
		if end >= 0 {
			piece = b[:end]
		}
		if g.length += len(piece); g.length > maxLine {
			return fmt.Errorf("%w: a line of more than %d bytes", errStrange, maxLine)
		}
		if !g.tail && len(g.line) <= maxControl {
			g.line = append(g.line, piece[:min(len(piece), maxControl+1-len(g.line))]...)
		}
		if end < 0 {
			return nil
		}
		b = b[end+1:]
		if err := g.ended(); err != nil {
			return err
		}
	}
	return nil
}

// ended takes a line.
func (g *guard) ended() (err error) {
	if g.tail {
		g.tail = false
	} else if op := bytes.ToUpper(g.line[:min(len(g.line), 4)]); bytes.HasPrefix(op, []byte("MSG")) || string(op) == "HMSG" {
		g.skip, err = announced(g.line)
		g.tail = true
	}
	g.line, g.length = g.line[:0], 0
	return err
}

// announced is the size of the message that follows a line: its last word.
func announced(line []byte) (int, error) {
	words := bytes.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == '\r' })
	if len(line) > maxControl || len(words) == 0 {
		return 0, fmt.Errorf("%w: %.80q before a message", errStrange, line)
	}
	size, err := strconv.ParseUint(string(words[len(words)-1]), 10, 63)
	if err != nil || size > maxPayload {
		return 0, fmt.Errorf("%w: a message of %.80q bytes, at most %d", errStrange, words[len(words)-1], maxPayload)
	}
	return int(size), nil
}
