package zmq

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	greetingBytes = 64
	signature     = 0xff // first byte of every ZMTP greeting

	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	// maxCommand bounds a command: READY with its metadata, SUBSCRIBE with its topic, PING with 16 bytes of context.
	maxCommand = 8 << 10
	// withhold is the frame size from which a body is collected before its header is passed on. The library allocates a
	// frame when it sees the header; so a claimed length costs at most this much before the bytes are here.
	withhold = 256 << 10
)

// guard is the net.Conn the library reads and writes. It passes the greeting, then whole frames, each checked first:
// no flag is unknown, no frame, message or frame count is beyond the limits. Commands after the handshake are not
// passed: they go to onCommand. So all that the library can see is a bounded handshake and bounded messages.
//
// Guards: all fields but out belong to the goroutine that reads; out belongs to whoever holds the Conn's write lock.
type guard struct {
	net.Conn
	in  *bufio.Reader
	src *impatient // what in reads from
	out *bufio.Writer

	maxMessage, maxFrames uint64
	established           bool
	onCommand             func(name string, body []byte) error

	header  []byte // of the current frame, checked, still to pass
	body    []byte // collected body of a withheld frame, still to pass
	left    uint64 // bytes of the greeting or the current frame still to pass, body included
	message uint64 // bytes of the current message, frames passed included
	frames  uint64 // frames of the current message
	first   bool   // nothing read yet
	store   [9]byte
}

func newGuard(raw net.Conn, o *Options) *guard {
	src := &impatient{Conn: raw}
	return &guard{
		Conn: raw, in: bufio.NewReaderSize(src, o.readBuffer), src: src,
		out:        bufio.NewWriterSize(raw, o.writeBuffer),
		maxMessage: uint64(o.MaxMessage), maxFrames: uint64(o.MaxFrames),
		left: greetingBytes, first: true,
	}
}

// impatient gives every read its own deadline, so that only waiting for the peer counts, not what the owner does
// between reads.
type impatient struct {
	net.Conn
	timeout time.Duration // 0 for none
}

func (r *impatient) Read(p []byte) (int, error) {
	if r.timeout > 0 {
		if err := r.SetReadDeadline(time.Now().Add(r.timeout)); err != nil {
			return 0, err
		}
	}
	return r.Conn.Read(p)
}

// Write passes the handshake on at once and buffers afterwards: the library writes headers and bodies one by one, and
// the Conn flushes.
func (g *guard) Write(p []byte) (int, error) {
	if !g.established {
		return g.Conn.Write(p)
	}
	return g.out.Write(p)
}

// Read hands the library the next checked bytes.
func (g *guard) Read(p []byte) (int, error) {
	if g.first {
		if b, err := g.in.Peek(1); err != nil {
			return 0, err
		} else if b[0] != signature {
			return 0, fmt.Errorf("%w: greeting starts with %#02x, expected 0xff", ErrProtocol, b[0])
		}
		g.first = false
	}
	if len(g.header) == 0 && g.left == 0 {
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	if len(g.header) > 0 {
		n := copy(p, g.header)
		g.header = g.header[n:]
		return n, nil
	}
	p = p[:min(uint64(len(p)), g.left)]
	if len(g.body) > 0 {
		n := copy(p, g.body)
		g.body, g.left = g.body[n:], g.left-uint64(n)
		if g.left == 0 {
			g.body = nil
		}
		return n, nil
	}
	n, err := g.in.Read(p)
	g.left -= uint64(n)
	return n, err
}

// next reads headers until one is to be passed on, and sets header, left and perhaps body.
func (g *guard) next() error {
	for {
		flags, size, n, err := g.readHeader()
		if err != nil {
			return err
		}
		if flags&^(flagMore|flagLong|flagCommand) != 0 {
			return fmt.Errorf("%w: unknown frame flags %#02x", ErrProtocol, flags)
		}
		if flags&flagCommand == 0 && g.established {
			return g.checkFrame(flags, size, n)
		}
		if err := g.checkCommand(flags, size); err != nil {
			return err
		}
		if !g.established {
			g.header, g.left = g.store[:n], size
			return nil
		}
		if err := g.command(size); err != nil {
			return err
		}
	}
}

func (g *guard) readHeader() (flags byte, size uint64, n int, err error) {
	if flags, err = g.in.ReadByte(); err != nil {
		return 0, 0, 0, err
	}
	n = 1
	if flags&flagLong != 0 {
		n = 8
	}
	b, err := g.in.Peek(n)
	if err != nil {
		return 0, 0, 0, err
	}
	g.store[0] = flags
	copy(g.store[1:], b)
	if n == 1 {
		size = uint64(b[0])
	} else {
		size = binary.BigEndian.Uint64(b)
	}
	_, err = g.in.Discard(n)
	return flags, size, 1 + n, err
}

func (g *guard) checkFrame(flags byte, size uint64, n int) error {
	if size > g.maxMessage-g.message {
		return fmt.Errorf("%w: frame %d has %d bytes after %d, at most %d in a message", ErrTooLarge, g.frames, size, g.message, g.maxMessage)
	}
	g.message += size
	if g.frames++; g.frames > g.maxFrames {
		return fmt.Errorf("%w: more than %d frames in a message", ErrTooLarge, g.maxFrames)
	}
	if flags&flagMore == 0 {
		g.message, g.frames = 0, 0
	}
	if size > withhold {
		if err := g.collect(size); err != nil {
			return err
		}
	}
	g.header, g.left = g.store[:n], size
	return nil
}

// collect reads a large body before its header is passed on; its buffer at most doubles what has arrived.
func (g *guard) collect(size uint64) error {
	body := make([]byte, 0, withhold)
	for uint64(len(body)) < size {
		if len(body) == cap(body) {
			body = append(make([]byte, 0, min(uint64(2*cap(body)), size)), body...)
		}
		free := body[len(body):min(uint64(cap(body)), size)]
		n, err := io.ReadFull(g.in, free)
		body = body[:len(body)+n]
		if err != nil {
			return err
		}
	}
	g.body = body
	return nil
}

func (g *guard) checkCommand(flags byte, size uint64) error {
	switch {
	case flags&flagCommand == 0:
		return fmt.Errorf("%w: a message before the handshake", ErrProtocol)
	case flags&flagMore != 0 || g.frames > 0:
		return fmt.Errorf("%w: a command inside a message", ErrProtocol)
	case size > maxCommand:
		return fmt.Errorf("%w: command of %d bytes, at most %d", ErrTooLarge, size, maxCommand)
	}
	return nil
}

func (g *guard) command(size uint64) error {
	buf := make([]byte, size)
	if _, err := io.ReadFull(g.in, buf); err != nil {
		return err
	}
	if len(buf) == 0 || int(buf[0]) > len(buf)-1 {
		return fmt.Errorf("%w: command without a name", ErrProtocol)
	}
	name, body := string(buf[1:1+buf[0]]), buf[1+buf[0]:]
	return g.onCommand(name, body)
}
