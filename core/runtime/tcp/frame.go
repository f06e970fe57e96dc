package tcp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// AppendRequest appends a request: path, headers (a JSON object) and payload, each after its length. Errors: plane.ErrTooLarge.
func AppendRequest(dst []byte, path string, headers, payload []byte) ([]byte, error) {
	if len(path) > math.MaxUint16 || len(headers) > math.MaxUint16 || len(payload) > math.MaxUint32 {
		return dst, fmt.Errorf("%w: path of %d, headers of %d, payload of %d bytes", plane.ErrTooLarge, len(path), len(headers), len(payload))
	}
	dst = append(binary.BigEndian.AppendUint16(dst, uint16(len(path))), path...)
	dst = append(binary.BigEndian.AppendUint16(dst, uint16(len(headers))), headers...)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(payload))), payload...), nil
}

// Request is one that was read.
type Request struct {
	Path    string
	Headers []byte
	Payload []byte
}

// ReadRequest reads a request with a payload of at most limit bytes; room is told how many that is before they are read. io.EOF: the stream ended
// between requests. Errors: plane.ErrTooLarge, plane.ErrProtocol (it ended inside one), and the stream's.
func ReadRequest(r *bufio.Reader, limit int, room func(int) error) (q Request, err error) {
	if _, err := r.Peek(1); err != nil {
		return q, err
	}
	defer func() {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			err = fmt.Errorf("%w: the stream ended inside a request", plane.ErrProtocol)
		}
	}()
	var n [4]byte
	part := func() ([]byte, error) {
		if _, err := io.ReadFull(r, n[:2]); err != nil {
			return nil, err
		}
		return plane.ReadBytes(r, int(binary.BigEndian.Uint16(n[:])))
	}
	path, err := part()
	if err != nil {
		return q, err
	}
	q.Path = string(path)
	if q.Headers, err = part(); err != nil {
		return q, err
	}
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return q, err
	}
	size := binary.BigEndian.Uint32(n[:])
	if uint64(size) > uint64(limit) {
		return q, fmt.Errorf("%w: payload of %d bytes, at most %d", plane.ErrTooLarge, size, limit)
	}
	if err := room(int(size)); err != nil {
		return q, err
	}
	q.Payload, err = plane.ReadBytes(r, int(size))
	return q, err
}

// maxRefusal bounds the text of a refusal.
const maxRefusal = 64 << 10

// appendAck appends an acknowledgement: the text of a refusal, or nothing.
func appendAck(dst []byte, refusal string) []byte {
	refusal = refusal[:min(len(refusal), maxRefusal)]
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(refusal))), refusal...)
}

// readAck reads an acknowledgement: the text of a refusal, or nothing.
func readAck(r io.Reader) (refusal string, err error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return "", err
	}
	size := binary.BigEndian.Uint32(n[:])
	if size > maxRefusal {
		return "", fmt.Errorf("%w: acknowledgement of %d bytes, at most %d", plane.ErrTooLarge, size, maxRefusal)
	}
	b, err := plane.ReadBytes(r, int(size))
	return string(b), err
}
