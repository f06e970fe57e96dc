package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

// Request is one to hand on. Everything is borrowed until the answer is closed.
type Request struct {
	Method string
	Path   string      // with its query: "/v1/completions"
	Header http.Header // those of one connection (Connection, Transfer-Encoding, ...) and Host are left out
	Body   []byte
	DPRank uint32 // told if the engine has more than one: 0 is the first behind this URL
}

// Response is an answer as it came. Body must be closed.
type Response struct {
	Status int
	Header http.Header // without those of one connection, and Content-Length
	Length int64       // of the body; -1: unknown
	Body   io.ReadCloser
}

// EventStream tells whether the body is one of server-sent events.
func (r *Response) EventStream() bool { return isEventStream(r.Header) }

func isEventStream(h http.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

// rankHeader is understood by vLLM and by SGLang; names of headers have no case.
const rankHeader = "X-Data-Parallel-Rank"

// hop are the headers that are about one connection.
var hop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// handed gives headers without those about one connection.
func handed(from http.Header) http.Header {
	to := make(http.Header, len(from)+4)
	for name, values := range from {
		to[name] = values
	}
	for _, list := range from["Connection"] {
		for _, name := range strings.Split(list, ",") {
			to.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hop {
		delete(to, name)
	}
	return to
}

// request makes the HTTP request.
func (e *Engine) request(ctx context.Context, q *Request) (*http.Request, error) {
	target := *e.url
	path, query, _ := strings.Cut(q.Path, "?")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("%w: path %.200q, expected one that begins with /", ErrInvalid, path)
	}
	target.Path, target.RawQuery = target.Path+path, query
	var body io.Reader
	if len(q.Body) > 0 {
		body = bytes.NewReader(q.Body)
	}
	r, err := http.NewRequestWithContext(ctx, q.Method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	r.Header = handed(q.Header)
	delete(r.Header, "Content-Length")
	delete(r.Header, "Host")
	delete(r.Header, "Expect") // the body is here
	for name, values := range e.cfg.Header {
		r.Header[name] = values
	}
	if _, told := r.Header["User-Agent"]; !told {
		r.Header["User-Agent"] = []string{"dynamo-go"}
	}
	if e.DPSize() > 1 {
		r.Header[rankHeader] = []string{strconv.FormatUint(uint64(q.DPRank), 10)}
	}
	if _, told := r.Header["Idempotency-Key"]; !told {
		// Not sent: it lets the transport try again on a new connection when one that was kept turns out to be closed before anything came back.
		r.Header["Idempotency-Key"] = nil
	}
	return r, nil
}

// Forward sends a request, and returns when the answer begins, whatever its status. Errors: those of this package but ErrStatus, and that of ctx, whose
// end also ends the answer.
func (e *Engine) Forward(ctx context.Context, q *Request) (*Response, error) {
	x := &exchange{e: e, caller: ctx, raw: true}
	if err := x.begin(); err != nil {
		return nil, err
	}
	r, err := x.send(q)
	if err != nil {
		err = x.end(err)
		return nil, err
	}
	header := handed(r.Header)
	delete(header, "Content-Length")
	return &Response{Status: r.StatusCode, Header: header, Length: r.ContentLength, Body: x}, nil
}

// exchange is a request and its answer. Read is for one goroutine at a time, Close for any.
type exchange struct {
	e      *Engine
	caller context.Context
	raw    bool // the end of the body is the end of the exchange, and each byte of it is progress
	ctx    context.Context
	cancel context.CancelCauseFunc
	leave  func() bool // no longer ends with the engine
	timer  *time.Timer
	by     time.Time // when Read must have got something, unless zero
	body   io.ReadCloser
	status int
	first  atomic.Bool // a byte of the body came
	failed error       // what Read gives from now on
	once   sync.Once
	told   error // the first end
	turn   turn
}

// begin counts it. Errors: ErrFull, ErrClosed; else end follows.
func (x *exchange) begin() error {
	x.ctx, x.cancel = context.WithCancelCause(x.caller)
	x.turn.give = func() {
		x.cancel(fmt.Errorf("%w: %s answers no checks any more", ErrTimeout, x.e.cfg.URL))
	}
	err := x.e.begin(&x.turn)
	if err != nil {
		x.cancel(err)
	}
	return err
}

func (x *exchange) send(q *Request) (*http.Response, error) {
	x.leave = owned.After(x.e.ctx, func() { x.cancel(ErrClosed) })
	x.by = time.Now().Add(x.e.cfg.Limits.Begin)
	x.timer = time.AfterFunc(x.e.cfg.Limits.Begin, owned.Guarded(func() {
		x.cancel(fmt.Errorf("%w: %s did not go on", ErrTimeout, x.e.cfg.URL))
	}))
	hr, err := x.e.request(x.ctx, q)
	if err != nil {
		return nil, err
	}
	r, err := x.e.http.RoundTrip(hr)
	if err != nil {
		return nil, sending(err)
	}
	if r.StatusCode < 100 { // net/http takes it for one: 000 is no status that could be handed on
		r.Body.Close()
		return nil, fmt.Errorf("%w: status %03d", ErrProtocol, r.StatusCode)
	}
	if r.StatusCode == http.StatusSwitchingProtocols {
		r.Body.Close()
		return nil, fmt.Errorf("%w: it answers with another protocol", ErrProtocol)
	}
	x.timer.Stop() // time that the caller does not read is not the engine's
	x.body, x.status = r.Body, r.StatusCode
	return r, nil
}

// Read gives what comes of the body. Errors: io.EOF, when it is complete; else as those of Forward.
func (x *exchange) Read(p []byte) (int, error) {
	if x.failed != nil {
		return 0, x.failed
	}
	patience := x.e.cfg.Limits.Between
	if !x.by.IsZero() {
		patience = max(time.Until(x.by), 0)
	}
	x.timer.Reset(patience)
	n, err := x.body.Read(p)
	x.timer.Stop()
	if n > 0 && !x.first.Load() {
		x.first.Store(true)
		x.e.began(&x.turn)
		if x.raw {
			x.by = time.Time{}
		}
	}
	switch {
	case err == nil:
		return n, nil
	case err != io.EOF:
		x.failed = x.end(breaking(err))
	case x.raw:
		x.failed = cmp.Or(x.end(nil), io.EOF)
	default:
		x.failed = io.EOF
	}
	return n, x.failed
}

// breaking gives an error of reading a body its kind.
func breaking(err error) error {
	if strings.Contains(err.Error(), "malformed chunk") || strings.Contains(err.Error(), "invalid byte in chunk") || strings.Contains(err.Error(), "header line too long") {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

// Close ends the exchange: what has not come is not waited for, and the engine is told to stop.
func (x *exchange) Close() error {
	x.end(context.Canceled)
	return nil
}

// end ends the exchange, with the reason, and gives the one that counts.
func (x *exchange) end(err error) error {
	x.once.Do(func() {
		x.leave()
		x.timer.Stop()
		if err != nil && x.ctx.Err() != nil {
			err = context.Cause(x.ctx)
			if x.caller.Err() != nil {
				err = context.Cause(x.caller)
			}
		}
		x.told = err
		ours := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || x.caller.Err() != nil
		counted := err
		if err == nil && x.status >= 500 {
			counted = &StatusError{Code: x.status, Message: http.StatusText(x.status)}
		}
		if ours {
			counted = nil
		}
		x.e.began(&x.turn)
		x.e.end(counted, x.status != 0 && (err == nil || x.first.Load()))
		x.cancel(context.Canceled)
		if x.body != nil {
			x.body.Close()
		}
	})
	return cmp.Or(x.told, err)
}
