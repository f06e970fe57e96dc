package engine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/rawhttp"
)

// Call is a request that is handed on for as little CPU as it can be: Forward without net/http, and without a context. The zero value is ready for
// Send; after End it is ready again. Cancel may be called from any goroutine, all else is for one goroutine at a time.
type Call struct {
	// Aside says that what is asked is not what the engine is for. An engine can be well whose /tokenize hangs, and ill whose /tokenize answers: what
	// becomes of the call counts neither for nor against it, unless there is nobody to connect to.
	Aside bool

	x      rawhttp.Exchange
	e      *Engine // nil: nothing runs
	status int
	read   bool  // a byte of the body
	failed error // the first error
	turn   turn
	given  atomic.Bool // up: see Engine.GiveUp
}

// Head begins the head of a request, up to the engine's own headers; Finish ends it. In between the caller puts headers of its own, each a line that
// ends in CRLF, none of them about one connection, and neither Host nor Content-Length.
func (e *Engine) Head(to []byte, method, path string) []byte {
	to = append(append(to, method...), ' ')
	to = append(append(to, e.url.EscapedPath()...), path...)
	to = append(append(to, " HTTP/1.1\r\nHost: "...), e.url.Host...)
	to = append(to, "\r\n"...)
	return append(to, e.lines...)
}

// Finish ends the head of a request with a body of so many bytes, for a rank as the engine counts them.
func (e *Engine) Finish(to []byte, length int, rank uint32) []byte {
	if e.DPSize() > 1 {
		to = strconv.AppendUint(append(to, rankHeader+": "...), uint64(rank), 10)
		to = append(to, "\r\n"...)
	}
	to = strconv.AppendInt(append(to, "Content-Length: "...), int64(length), 10)
	return append(to, "\r\n\r\n"...)
}

// own are the headers of the configuration, as they are sent.
func (c *Config) own() (lines []byte) {
	for _, name := range slices.Sorted(maps.Keys(c.Header)) {
		for _, v := range c.Header[name] {
			lines = append(append(append(append(lines, name...), ": "...), v...), "\r\n"...)
		}
	}
	return lines
}

// Own adds a caller's headers, lines as above, but for those that the configuration has, and the rank's. Names are in canonical form.
func (e *Engine) Own(to, lines []byte) []byte {
	for len(lines) > 0 {
		end := bytes.IndexByte(lines, '\n') + 1
		if end == 0 {
			end = len(lines)
		}
		name, _, _ := bytes.Cut(lines[:end], []byte{':'})
		if _, ours := e.cfg.Header[string(name)]; !ours && string(name) != rankHeader {
			to = append(to, lines[:end]...)
		}
		lines = lines[end:]
	}
	return to
}

// OfConnection tells whether a header is about one connection: by its name, or because the header Connection names it.
func OfConnection(name, named []byte) bool {
	switch string(name) {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length":
		return true
	}
	for len(named) > 0 {
		one, rest, _ := bytes.Cut(named, []byte{','})
		if bytes.EqualFold(bytes.TrimSpace(one), name) {
			return true
		}
		named = rest
	}
	return false
}

// newPool makes what Calls go by.
func (e *Engine) newPool() *rawhttp.Pool {
	var t *tls.Config
	port := e.url.Port()
	if e.url.Scheme == "https" {
		if t = e.cfg.TLS.Clone(); t == nil {
			t = &tls.Config{}
		}
		t.NextProtos = nil
	}
	port = cmp.Or(port, map[bool]string{false: "80", true: "443"}[t != nil])
	l := &e.cfg.Limits
	return rawhttp.NewPool(net.JoinHostPort(e.url.Hostname(), port), t, rawhttp.Limits{
		Idle: l.IdleConns, IdleFor: idleConn, Connect: l.Connect, Begin: l.Begin, Between: l.Between,
	})
}

// Send sends a request to an engine, and returns when the head of the answer is here, whatever its status. In any case End follows.
// Errors: those of this package but ErrStatus; context.Canceled after Cancel.
func (c *Call) Send(e *Engine, head, body []byte) error {
	c.status, c.read, c.failed = 0, false, nil
	c.given.Store(false)
	if c.turn.give == nil {
		c.turn.give = func() {
			c.given.Store(true)
			c.x.Cancel()
		}
	}
	if err := e.begin(&c.turn); err != nil {
		return err
	}
	c.e = e
	if err := c.x.Do(e.raw, head, body); err != nil {
		return c.fail(err)
	}
	c.status = c.x.Status()
	return nil
}

// Status is that of the answer.
func (c *Call) Status() int { return c.status }

// Length is that of the body; -1: unknown.
func (c *Call) Length() int64 { return c.x.Length() }

// Header gives the value of a header of the answer; valid until End.
func (c *Call) Header(name string) []byte { return c.x.Header.Peek(name) }

// Headers calls f for each header of the answer that is not about one connection. What it is given is valid during the call.
func (c *Call) Headers(f func(name, value []byte)) {
	named := c.x.Header.Peek("Connection")
	for name, value := range c.x.Header.All() {
		if !OfConnection(name, named) {
			f(name, value)
		}
	}
}

// Complete tells whether the body was read to its end.
func (c *Call) Complete() bool { return c.status != 0 && c.x.Complete() }

// Within bounds the whole of the next call.
func (c *Call) Within(d time.Duration) { c.By(time.Now().Add(d)) }

// By says when the whole of the next call must be over.
func (c *Call) By(t time.Time) { c.x.By = t }

// Read gives what has come of the body, or waits until something does. Errors: io.EOF when it is complete, else as those of Send.
func (c *Call) Read(p []byte) (int, error) {
	if c.failed != nil {
		return 0, c.failed
	}
	n, err := c.x.Read(p)
	if n > 0 && !c.read {
		c.read = true
		c.e.began(&c.turn)
	}
	switch err {
	case nil:
	case io.EOF:
		c.failed = io.EOF
	default:
		err = c.fail(err)
	}
	return n, err
}

// Cancel has what waits return soon; the engine sees the connection closed by End. It has no effect before Send and after End.
func (c *Call) Cancel() { c.x.Cancel() }

// End ends the call. What has not come is not waited for: the engine is told to stop.
func (c *Call) End() {
	whole := c.Complete()
	e := c.e
	if e != nil && !c.read {
		e.began(&c.turn)
	}
	c.x.End()
	if e == nil {
		return
	}
	c.e = nil
	err, served := c.failed, whole || c.read
	switch {
	case c.Aside:
		if served = false; !errors.Is(err, ErrUnreachable) {
			err = nil
		}
	case whole:
		if err = nil; c.status >= 500 {
			err = &StatusError{Code: c.status, Message: http.StatusText(c.status)}
		}
	case errors.Is(err, context.Canceled), errors.Is(err, ErrClosed):
		err = nil // no fault of the engine
	}
	e.end(err, served)
}

// fail keeps the first error, and gives it its kind.
func (c *Call) fail(err error) error {
	kind := ErrBroken
	switch {
	case errors.Is(err, rawhttp.ErrCancelled) && c.given.Load():
		kind = ErrTimeout
	case errors.Is(err, rawhttp.ErrCancelled):
		kind = context.Canceled
	case c.e.ctx.Err() != nil:
		kind = ErrClosed
	case local(err):
		kind = ErrLocal
	case errors.Is(err, rawhttp.ErrUnreachable):
		kind = ErrUnreachable
	case errors.Is(err, rawhttp.ErrTimeout):
		kind = ErrTimeout
	case errors.Is(err, rawhttp.ErrProtocol):
		kind = ErrProtocol
	case errors.Is(err, rawhttp.ErrTooLarge):
		kind = ErrTooLarge
	}
	c.failed = fmt.Errorf("%w %s: %w", kind, c.e.cfg.URL, err)
	return c.failed
}
