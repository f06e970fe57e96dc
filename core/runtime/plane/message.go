package plane

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
)

// Bounds of messages.
const (
	MaxMessageBytes = 32 << 20  // of a header and a body together; Dynamo's DYN_TCP_MAX_MESSAGE_SIZE
	MaxHeaderBytes  = 128 << 10 // of a header
)

// headBytes of a two-part message: the lengths of header and body, and a checksum that nobody checks.
const headBytes = 24

// BeginMessage begins a two-part message whose body is appended by the caller; EndMessage must follow.
func BeginMessage(dst, header []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(header)))
	dst = append(dst, make([]byte, 16)...)
	return append(dst, header...)
}

// EndMessage sets the length of the body of the message that begins at start and has a header of so many bytes.
func EndMessage(dst []byte, start, header int) {
	binary.BigEndian.PutUint64(dst[start+8:], uint64(len(dst)-start-headBytes-header))
}

// AppendMessage appends a two-part message.
func AppendMessage(dst, header, body []byte) []byte {
	start := len(dst)
	dst = append(BeginMessage(dst, header), body...)
	EndMessage(dst, start, len(header))
	return dst
}

// SplitMessage takes a two-part message apart. Errors: ErrProtocol, ErrTooLarge.
func SplitMessage(b []byte) (header, body []byte, err error) {
	if len(b) < headBytes {
		return nil, nil, fmt.Errorf("%w: message of %d bytes, expected %d or more", ErrProtocol, len(b), headBytes)
	}
	h, n, err := lengths(b, len(b))
	if err != nil {
		return nil, nil, err
	}
	if headBytes+h+n != len(b) {
		return nil, nil, fmt.Errorf("%w: message of %d bytes says it has %d", ErrProtocol, len(b), headBytes+h+n)
	}
	return b[headBytes : headBytes+h], b[headBytes+h:], nil
}

func lengths(head []byte, limit int) (header, body int, err error) {
	h, n := binary.BigEndian.Uint64(head), binary.BigEndian.Uint64(head[8:])
	if h > MaxHeaderBytes || n > uint64(limit) || h+n > uint64(limit) {
		return 0, 0, fmt.Errorf("%w: header of %d and body of %d bytes, at most %d and %d", ErrTooLarge, h, n, MaxHeaderBytes, limit)
	}
	return int(h), int(n), nil
}

// A Reader reads two-part messages from a stream. Memory grows with what arrives, not with what is announced.
type Reader struct {
	r     io.Reader
	limit int
	head  [headBytes]byte
	room  []byte // the rest of a chunk that small messages share
}

// NewReader reads messages of at most limit bytes.
func NewReader(r io.Reader, limit int) *Reader { return &Reader{r: r, limit: limit} }

// chunk is how much room small messages share, so that not each is allocated.
const chunk = 4 << 10

// Read gives the next message; its bytes are the caller's. io.EOF: the stream ended between messages. Errors: ErrProtocol (it ended inside
// one), ErrTooLarge, and the stream's.
func (r *Reader) Read() (header, body []byte, err error) {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = fmt.Errorf("%w: the stream ended inside a message", ErrProtocol)
		}
		return nil, nil, err
	}
	h, n, err := lengths(r.head[:], r.limit)
	if err != nil {
		return nil, nil, err
	}
	b, err := r.bytes(h + n)
	if err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			err = fmt.Errorf("%w: the stream ended inside a message", ErrProtocol)
		}
		return nil, nil, err
	}
	return b[:h:h], b[h:], nil
}

func (r *Reader) bytes(n int) ([]byte, error) {
	if n <= chunk/4 {
		if len(r.room) < n {
			r.room = make([]byte, chunk)
		}
		b := r.room[:n:n]
		r.room = r.room[n:]
		_, err := io.ReadFull(r.r, b)
		return b, err
	}
	return ReadBytes(r.r, n)
}

// ReadBytes reads n bytes, into memory that grows with what arrives.
func ReadBytes(r io.Reader, n int) ([]byte, error) {
	const step = 64 << 10
	b := make([]byte, 0, min(n, step))
	for len(b) < n {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(n, 2*cap(b))), b...)
		}
		part := b[len(b):cap(b)]
		m, err := io.ReadFull(r, part)
		b = b[:len(b)+m]
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Control is the header of a request: what it is and where the response goes.
type Control struct {
	ID       string
	Codec    string // of the body and of the items of the response
	Response Response
	Metadata map[string]string
}

// Response is where a worker connects to.
type Response struct {
	Address string // "ip:port" of the asking side
	Subject string // names the stream there
}

type controlJSON struct {
	ID           string `json:"id"`
	RequestType  string `json:"request_type"`
	ResponseType string `json:"response_type"`
	Codec        string `json:"payload_codec,omitempty"`
	Connection   struct {
		Transport string `json:"transport"`
		Info      string `json:"info"`
	} `json:"connection_info"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

type infoJSON struct {
	Address    string `json:"address"`
	Subject    string `json:"subject"`
	Context    string `json:"context"`
	StreamType string `json:"stream_type"`
}

// Encode gives the header.
func (c *Control) Encode() []byte {
	info, _ := json.Marshal(infoJSON{c.Response.Address, c.Response.Subject, c.ID, "response"})
	j := controlJSON{ID: c.ID, RequestType: "single_in", ResponseType: "many_out", Codec: c.Codec, Metadata: c.Metadata}
	j.Connection.Transport, j.Connection.Info = "tcp_server", string(info)
	b, _ := json.Marshal(&j) // texts only
	return b
}

// MaxIDBytes bounds the id of a request.
const MaxIDBytes = 1024

// DecodeControl reads a header. Fields that are not known are passed over. Errors: ErrProtocol.
func DecodeControl(b []byte) (Control, error) {
	var j controlJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return Control{}, fmt.Errorf("%w: control message: %w", ErrProtocol, err)
	}
	var info infoJSON
	if j.Connection.Transport != "tcp_server" {
		return Control{}, fmt.Errorf("%w: response transport %.32q, expected tcp_server", ErrProtocol, j.Connection.Transport)
	}
	if err := json.Unmarshal([]byte(j.Connection.Info), &info); err != nil {
		return Control{}, fmt.Errorf("%w: connection info: %w", ErrProtocol, err)
	}
	c := Control{ID: j.ID, Codec: j.Codec, Response: Response{info.Address, info.Subject}, Metadata: j.Metadata}
	if c.Codec == "" {
		c.Codec = discovery.CodecJSON
	}
	switch {
	case j.RequestType != "single_in":
		return c, fmt.Errorf("%w: request type %.32q, expected single_in", ErrProtocol, j.RequestType)
	case c.ID == "" || len(c.ID) > MaxIDBytes:
		return c, fmt.Errorf("%w: request id of %d bytes, expected 1 to %d", ErrProtocol, len(c.ID), MaxIDBytes)
	case info.Context != j.ID:
		return c, fmt.Errorf("%w: connection info is of request %.64q, the message of %.64q", ErrProtocol, info.Context, j.ID)
	case c.Codec != discovery.CodecJSON && c.Codec != discovery.CodecMsgpack:
		return c, fmt.Errorf("%w: codec %.32q, expected msgpack or json", ErrProtocol, c.Codec)
	}
	return c, nil
}
