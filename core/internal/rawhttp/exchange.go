package rawhttp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"os"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// joined is how large a body may be to be sent in one write with the head: copying it costs less than a second system call up to there.
const joined = 32 << 10

// Exchange is a request and its answer. The zero value is ready for Do; after End it is ready again. Cancel may be called from any goroutine, all else
// is for one goroutine at a time.
type Exchange struct {
	Header fasthttp.ResponseHeader // of the answer, once Do returned nil; names are normalised ("Content-Type")

	// By is when everything must be over, unless it is zero; it holds for one exchange.
	By time.Time

	pool    *Pool
	reader  *bufio.Reader
	left    int64     // bytes of the body; see the kinds below
	chunks  io.Reader // of a body in chunks
	done    bool      // the body was read to its end
	keep    bool      // the connection can be used again then
	began   bool      // a byte of the answer came
	body    bool      // and one of its body
	request []byte    // head and small body together; kept for the next exchange

	mu        sync.Mutex // guards the rest
	conn      *conn
	cancelled bool
}

// maxInterim is how many answers without a result (status 1xx) may come before the one with it.
const maxInterim = 16

// Kinds of bodies, in left.
const (
	inChunks   = -1
	untilClose = -2
)

// Do sends a request, and returns when the head of the answer came, whatever it says. The head is whole: from the request line, with Host and
// Content-Length, to the empty line. A connection that was kept and turns out to be closed before a byte of the answer came is replaced once.
// Errors: all of this package. In any case End follows.
func (x *Exchange) Do(p *Pool, head, body []byte) error {
	x.pool, x.done, x.began, x.body = p, false, false, false
	for fresh := false; ; fresh = true {
		c, err := p.get(fresh)
		if err != nil {
			return err
		}
		if !x.take(c) {
			p.drop(c)
			return ErrCancelled
		}
		err = x.send(c, head, body)
		if err == nil || x.began || !c.used || !errors.Is(err, ErrBroken) {
			return err
		}
		if !x.take(nil) {
			p.drop(c)
			return ErrCancelled
		}
		p.drop(c)
	}
}

// take makes a connection the one that Cancel ends, unless Cancel was called.
func (x *Exchange) take(c *conn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.cancelled {
		x.conn = c
	}
	return !x.cancelled
}

func (x *Exchange) send(c *conn, head, body []byte) error {
	deadline := time.Now().Add(x.pool.limits.Begin)
	if err := x.deadline(c, deadline); err != nil {
		return err
	}
	if len(body) <= joined {
		x.request = append(append(x.request[:0], head...), body...)
		c.ask(x.request)
	} else {
		if c.stale() {
			return x.fault(errStale)
		}
		if _, c.refused = c.Write(head); c.refused == nil {
			_, c.refused = c.Write(body)
		}
		if c.refused != nil && c.used {
			return x.fault(c.refused)
		}
	}
	// A server may answer before it has taken all, and close: what it says counts, if it says anything.
	if err := x.head(c); err != nil {
		return err
	}
	x.keep = x.keep && c.refused == nil
	return nil
}

// head reads the head of the answer.
func (x *Exchange) head(c *conn) error {
	x.reader = c.reader
	if _, err := c.reader.Peek(1); err != nil {
		return x.fault(err)
	}
	x.began = true
	for interim := 0; ; interim++ {
		x.Header.Reset()
		x.Header.SetNoDefaultContentType(true) // what the server does not say is not said
		// The parser tells 000 as 200.
		if line, _ := c.reader.Peek(len("HTTP/1.1 000")); string(line[max(len(line)-4, 0):]) == " 000" {
			return fmt.Errorf("%w: status 000", ErrProtocol)
		}
		if err := x.Header.Read(c.reader); err != nil {
			var small *fasthttp.ErrSmallBuffer
			var op net.Error
			switch {
			case errors.As(err, &small):
				return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, headBytes)
			case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op), errors.Is(err, fasthttp.ErrTimeout):
				return x.fault(err)
			}
			return x.refused(err)
		}
		status := x.Header.StatusCode()
		if status >= 200 {
			break
		}
		if status < 100 || status == fasthttp.StatusSwitchingProtocols || interim == maxInterim {
			return fmt.Errorf("%w: status %d", ErrProtocol, status)
		}
	}
	x.keep = !x.Header.ConnectionClose()
	x.left, x.chunks = int64(x.Header.ContentLength()), nil
	if s := x.Header.StatusCode(); s == fasthttp.StatusNoContent || s == fasthttp.StatusNotModified {
		x.left = 0
	}
	switch {
	case x.left == inChunks:
		x.chunks = httputil.NewChunkedReader(c.reader)
	case x.left < 0:
		x.left, x.keep = untilClose, false
	case x.left == 0:
		x.done = true
	}
	return nil
}

// refused is an answer that is none.
func (x *Exchange) refused(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cancelled {
		return ErrCancelled
	}
	return fmt.Errorf("%w: %.200s", ErrProtocol, err)
}

// fault gives an error of the connection its kind.
func (x *Exchange) fault(err error) error {
	x.mu.Lock()
	cancelled := x.cancelled
	x.mu.Unlock()
	switch {
	case cancelled:
		return ErrCancelled
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, fasthttp.ErrTimeout):
		return ErrTimeout
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

// deadline bounds what the connection does next. Under the lock, so that it does not undo a Cancel.
func (x *Exchange) deadline(c *conn, t time.Time) error {
	if !x.By.IsZero() && x.By.Before(t) {
		t = x.By
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cancelled {
		return ErrCancelled
	}
	if err := c.within(t); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return nil
}

// Status is that of the answer.
func (x *Exchange) Status() int { return x.Header.StatusCode() }

// Length is that of the body; -1 if only its end tells.
func (x *Exchange) Length() int64 { return max(x.left, -1) }

// Complete tells whether the body was read to its end.
func (x *Exchange) Complete() bool { return x.done }

// Read gives what has come of the body, or waits until something does. Errors: io.EOF when it is complete; ErrBroken, ErrTimeout, ErrProtocol,
// ErrCancelled.
func (x *Exchange) Read(b []byte) (int, error) {
	if x.done {
		return 0, io.EOF
	}
	if len(b) == 0 {
		return 0, nil
	}
	// What there is may be less than a chunk: then this waits for more, too.
	patience := x.pool.limits.Between
	if !x.body { // the head of a stream comes at once, whenever the first event does
		patience = x.pool.limits.Begin
	}
	if err := x.deadline(x.conn, time.Now().Add(patience)); err != nil {
		return 0, err
	}
	var n int
	var err error
	switch {
	case x.chunks != nil:
		n, err = x.readChunks(b)
	case x.left == untilClose:
		n, err = x.reader.Read(b)
		x.done = err == io.EOF
	default:
		n, err = x.reader.Read(b[:min(int64(len(b)), x.left)])
		x.left -= int64(n)
		if x.done = x.left == 0; x.done {
			err = nil
		} else if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	x.body = x.body || n > 0
	switch {
	case n > 0 && err == nil, n > 0 && err == io.EOF:
		return n, nil
	case err == nil || err == io.EOF:
		return n, err
	case errors.Is(err, ErrProtocol):
		return n, err
	}
	return n, x.fault(err)
}

func (x *Exchange) readChunks(b []byte) (int, error) {
	n, err := x.chunks.Read(b)
	var op net.Error
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF:
		if err := x.trailer(); err != nil {
			return n, err
		}
		x.done = true
		return n, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op):
		return n, err
	}
	return n, x.refused(err) // the lengths of chunks are wrong
}

// trailer reads what follows the last chunk, up to the empty line.
func (x *Exchange) trailer() error {
	for room := headBytes; room > 0; {
		line, err := x.reader.ReadSlice('\n')
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err == bufio.ErrBufferFull {
			break
		}
		if err != nil {
			return err
		}
		if room -= len(line); len(line) <= 2 {
			return nil
		}
	}
	return fmt.Errorf("%w: endless trailer", ErrProtocol)
}

// Cancel ends the exchange: what waits returns ErrCancelled soon, and the server sees the connection closed after End.
func (x *Exchange) Cancel() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cancelled = true
	if x.conn != nil {
		x.conn.end()
	}
}

// End ends the exchange. What has not been read is not waited for. The caller has seen to it that Cancel is not called any more, if x is used again.
func (x *Exchange) End() {
	x.mu.Lock()
	c, reusable := x.conn, !x.cancelled && x.done && x.keep
	x.conn, x.cancelled = nil, false
	x.mu.Unlock()
	x.reader, x.chunks, x.By = nil, nil, time.Time{}
	if cap(x.request) > 2*joined {
		x.request = nil
	}
	switch {
	case c == nil:
	case reusable && c.reader.Buffered() == 0:
		x.pool.put(c)
	default:
		x.pool.drop(c)
	}
}
