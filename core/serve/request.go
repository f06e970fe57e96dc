package serve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/router"
)

const (
	firstPiece  = 4 << 10   // of an answer, that is read before anything is written
	keptRefusal = 64 << 10  // of an answer that counts as none, while another engine is looked for
	keptBuffer  = 256 << 10 // buffers that are larger are not kept for the next request
)

// A request is one on its way. It belongs to the goroutine of its connection, from serve until finish; abort may be called from any.
type request struct {
	s     *Server
	conn  net.Conn
	path  string
	asked asked
	begun time.Time

	life *lifetime   // ends with the client, or the server
	gone atomic.Bool // the client is

	call, side engine.Call // side: to tokenise
	lease      *fleet.Lease
	counts     *ofModel
	booked     int64 // bytes of Server.buffered
	entered    bool  // it counts among those whose body is here

	// Buffers, kept from request to request.
	body, head, lines, piece, held []byte
	tokens                         []block.Token

	// The answer; see answer.go.
	events  bool   // it is an event stream
	pending []byte // to be written before what comes
	tail    []byte // the latest bytes
	ended   error  // what Read gives once pending is written
	split   bool   // what was written last is not the end of an event
	status  int
	spoke   bool // something of the answer was written

	before, after *request // watch's
}

// abort ends what the request waits for.
func (r *request) abort() {
	r.life.end()
	r.call.Cancel()
	r.side.Cancel()
}

// refusal is an engine's answer that counts as none while another engine may do. Body is its beginning; the rest is read when no other one does.
type refusal struct{ engine.StatusError }

// Unwrap lets it be told for what it is.
func (r *refusal) Unwrap() error { return &r.StatusError }

// serve answers a request for an answer of an engine.
func (s *Server) serve(ctx *fasthttp.RequestCtx, path string) {
	if s.counters.entered.Load() >= int64(s.cfg.Limits.Requests) {
		s.full().write(ctx)
		leave(ctx) // its body was not read
		return
	}
	s.counters.inflight.Add(1)
	r := s.requests.Get().(*request)
	r.counts = &s.counters.nameless
	r.counts.inflight.Add(1)
	r.conn, r.path, r.begun, r.status, r.spoke = ctx.Conn(), path, time.Now(), 0, false
	r.events, r.split, r.pending, r.ended = false, false, nil, nil
	r.tail = r.tail[:0]
	r.gone.Store(false)
	r.life = &lifetime{}
	s.watch.add(r)
	if s.ctx.Err() != nil { // Close may have aborted all others already
		r.abort()
	}
	streaming := false
	defer func() {
		if !streaming {
			r.finish()
		}
	}()
	if err := r.run(ctx); err != nil {
		if r.gone.Load() { // nobody listens
			r.status = 499
			ctx.SetConnectionClose()
			ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
			return
		}
		var no *refusal
		if errors.As(err, &no) { // the engine's own words, all of them
			r.piece, r.events = no.Body, false
			streaming = r.answer(ctx)
			return
		}
		f := faultOf(err)
		if r.status = f.status; f.status >= fasthttp.StatusInternalServerError {
			s.log.Warn("request failed", "path", path, "status", f.status, "error", err.Error()) // clients are not told where engines are
		}
		f.write(ctx)
		if r.body == nil {
			leave(ctx)
		}
		return
	}
	streaming = r.answer(ctx)
}

// run takes the request as far as the first bytes of its answer. Errors: a *fault, a *refusal, those of packages fleet and engine.
func (r *request) run(ctx *fasthttp.RequestCtx) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	// Only now: clients that do not send their bodies to the end are bounded as connections, and keep nobody out.
	r.entered = true
	if r.s.counters.entered.Add(1) > int64(r.s.cfg.Limits.Requests) {
		return r.s.full()
	}
	q := router.Request{UpdateIndexer: true}
	if !r.asked.read(r.body, r.tokens) {
		r.asked = asked{tokens: r.asked.tokens[:0], n: 1} // not JSON, as engines will say
	}
	r.tokens = r.asked.tokens
	if of := r.s.counters.of(r.asked.model, r.s.fleet.Serves); of != r.counts {
		r.counts.inflight.Add(-1)
		r.counts = of
		r.counts.inflight.Add(1)
	}
	if err := r.book(cap(r.body) + tokenBytes*cap(r.tokens)); err != nil {
		return err
	}
	if err := r.place(ctx, &q); err != nil {
		return err
	}
	if !r.asked.hasIDs && r.s.byTokens() {
		r.tokenize()
		if err := r.life.Err(); err != nil {
			return err
		}
	}
	q.Tokens, q.CacheNamespace, q.SessionID = r.tokens, r.asked.salt, r.asked.session
	if r.s.fleet.HasAdapter(r.asked.model) {
		q.LoRAName = r.asked.model
	}
	r.copyHeaders(ctx)
	if r.s.cfg.Mode == fleet.Direct && !q.Constraints.HasWorker {
		return wrong("invalid_value", "router mode direct: the request names no worker: the header X-Worker-Instance-Id has to, by a worker_id of /engines")
	}
	lease, err := r.s.fleet.Route(r.life, &q)
	if err != nil {
		return err
	}
	r.lease = lease
	for {
		if err = r.send(ctx); err == nil {
			return nil
		}
		if err = lease.Next(r.life, err); err != nil {
			return err
		}
		r.call.End()
		r.s.counters.retries.Add(1)
	}
}

// place reads where the request wants to go, if it says so: Dynamo's headers, which the mode "direct" needs.
func (r *request) place(ctx *fasthttp.RequestCtx, q *router.Request) error {
	id := ctx.Request.Header.Peek("X-Worker-Instance-Id")
	if len(id) > 0 {
		v, err := strconv.ParseUint(string(id), 10, 64)
		if err != nil {
			return wrong("invalid_value", "header X-Worker-Instance-Id is %.50q, expected a worker id", id)
		}
		q.Constraints.Worker, q.Constraints.HasWorker = v, true
	}
	if rank := ctx.Request.Header.Peek("X-Dp-Rank"); len(rank) > 0 {
		v, err := strconv.ParseUint(string(rank), 10, 32)
		if err != nil {
			return wrong("invalid_value", "header X-Dp-Rank is %.50q, expected a data-parallel rank", rank)
		}
		if q.Constraints.DPRank, q.Constraints.HasDPRank = uint32(v), true; !r.s.fleet.HasRank(uint32(v)) {
			return fail(fasthttp.StatusNotFound, "invalid_request_error", "worker_not_found", "no engine has the data-parallel rank %d", v)
		}
	}
	if r.asked.session == "" {
		r.asked.session = string(ctx.Request.Header.Peek("X-Dynamo-Session-Id"))
	}
	return nil
}

// read reads the body. r.body is nil if it could not be read in whole.
func (r *request) read(ctx *fasthttp.RequestCtx) error {
	buf := r.body[:0]
	r.body = nil
	in, l := ctx.RequestBodyStream(), &r.s.cfg.Limits
	size := ctx.Request.Header.ContentLength() // -1: unknown, -2: there is none
	if in == nil {
		r.body = append(buf, ctx.Request.Body()...)
		return nil
	}
	most := l.BodyBytes + 1
	if size >= 0 {
		most = size + 1
	}
	buf = grown(buf, min(most, 4<<10))
	for {
		if len(buf) == cap(buf) {
			// Never much more than what came: what a client promises costs nothing.
			room := min(max(2*len(buf), min(most, smallBody)), most)
			if err := r.book(room); err != nil {
				return err
			}
			buf = grown(buf, room)
		}
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if len(buf) > l.BodyBytes {
			return r.s.tooLarge()
		}
		if len(buf) > smallBody { // of a buffer that was there already
			if err := r.book(cap(buf)); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF && size >= 0 && len(buf) < size:
			return wrong("bad_body", "the body ended after %d bytes of %d", len(buf), size)
		case err == io.EOF:
			r.body = buf
			return nil
		case err != nil:
			return r.s.unread(ctx.Conn())
		}
	}
}

// unread says why the body could not be read. What the connection gave last tells: the server that reads chunks from it has words of its own for that.
func (s *Server) unread(c net.Conn) *fault {
	v, ok := c.(*visitor)
	switch {
	case ok && errors.Is(v.failed, os.ErrDeadlineExceeded):
		return s.late("body")
	case ok && errors.Is(v.failed, errLong):
		return fail(fasthttp.StatusRequestEntityTooLarge, "invalid_request_error", "body_too_large", "the request, with what frames the chunks of its body, has more than %d bytes", s.cfg.Limits.requestBytes())
	case ok && v.failed != nil:
		return wrong("bad_body", "the body could not be read: the connection ended within it")
	}
	return wrong("bad_body", "the body could not be read: its chunks are not those of HTTP/1.1")
}

// book counts what this request has in memory, if it is more than before. Errors: a *fault, there is no room.
func (r *request) book(size int) error {
	if r.reserve(size) {
		return nil
	}
	r.s.counters.refused.Add(1)
	return overloaded("%d bytes of requests are in memory, there is no room for more than %d", r.s.buffered.Load(), r.s.cfg.Limits.BufferedBytes)
}

// reserve counts it, if there is room. What is less than that of a small body is not counted.
func (r *request) reserve(size int) bool {
	more := int64(size) - r.booked
	if more <= 0 || size <= smallBody {
		return true
	}
	if r.s.buffered.Add(more) > r.s.cfg.Limits.BufferedBytes {
		r.s.buffered.Add(-more)
		return false
	}
	r.booked += more
	return true
}

func grown(b []byte, size int) []byte {
	if cap(b) >= size {
		return b
	}
	return append(make([]byte, 0, size), b...)
}

// copyHeaders keeps the lines of the headers that are handed on.
func (r *request) copyHeaders(ctx *fasthttp.RequestCtx) {
	r.lines = r.lines[:0]
	named := ctx.Request.Header.Peek("Connection")
	for name, value := range ctx.Request.Header.All() {
		if engine.OfConnection(name, named) || string(name) == "Host" || string(name) == "Expect" || string(name) == "X-Data-Parallel-Rank" || !plain(name) || !plain(value) {
			continue
		}
		r.lines = append(append(append(append(r.lines, name...), ": "...), value...), "\r\n"...)
	}
}

// plain tells whether nothing in a header could be taken for the end of its line.
func plain(text []byte) bool {
	return bytes.IndexByte(text, '\r') < 0 && bytes.IndexByte(text, '\n') < 0 && bytes.IndexByte(text, 0) < 0
}

// send sends the request to the engine of the lease, and reads the first piece of the answer. Errors: those of engine.Call, and a *refusal.
func (r *request) send(ctx *fasthttp.RequestCtx) error {
	e := r.lease.Engine()
	r.head = e.Head(r.head[:0], "POST", r.path)
	r.head = e.Own(r.head, r.lines)
	r.head = e.Finish(r.head, len(r.body), r.lease.DPRank())
	if err := r.call.Send(e, r.head, r.body); err != nil {
		return err
	}
	r.status = r.call.Status()
	kind, _, _ := bytes.Cut(r.call.Header("Content-Type"), []byte{';'})
	r.events = bytes.EqualFold(bytes.TrimSpace(kind), []byte("text/event-stream"))
	if told := (&engine.StatusError{Code: r.status}); r.status >= 400 && engine.Elsewhere(told) {
		return r.refused(r.status, nil)
	}
	n, err := r.call.Read(r.piece[:firstPiece])
	if err != nil && err != io.EOF {
		return err
	}
	r.piece = r.piece[:n]
	if n == 0 && r.status == http.StatusOK {
		return fmt.Errorf("%w: %s: 200 and nothing", engine.ErrBroken, e.URL())
	}
	if r.events && r.status == http.StatusOK && n > 0 {
		if err := firstError(r.piece); err != nil && engine.Elsewhere(err) {
			return r.refused(r.status, r.piece)
		}
	}
	if n > 0 {
		r.lease.FirstToken()
	}
	return nil
}

// firstError gives the error that an event stream begins with, if it does.
func firstError(piece []byte) error {
	if !bytes.Contains(piece[:min(len(piece), 64)], []byte(`"error"`)) {
		return nil
	}
	if told := engine.EventError(piece); told != nil {
		return told
	}
	return nil
}

// refused keeps the beginning of an answer that counts as none.
func (r *request) refused(status int, begun []byte) error {
	no := &refusal{engine.StatusError{Code: status, Message: http.StatusText(status)}}
	told := engine.EventError(begun)
	body := bytes.Clone(begun)
	for len(body) < keptRefusal {
		n, err := r.call.Read(r.piece[:firstPiece])
		body = append(body, r.piece[:n]...)
		if err != nil {
			break
		}
	}
	if status == http.StatusOK { // an error within a stream, whose event may have ended only now, or not be one any more
		if whole := engine.EventError(body); whole != nil {
			told = whole
		}
		if told != nil {
			no.StatusError = *told
		}
		no.Code = status
	}
	no.Body = body
	return no
}

// finish ends the request, whatever became of it.
func (r *request) finish() {
	s := r.s
	s.watch.remove(r)
	r.call.End()
	r.side.End()
	if r.lease != nil {
		r.lease.Done()
	}
	r.life.end()
	if r.booked > 0 {
		s.buffered.Add(-r.booked)
	}
	if r.gone.Load() || r.status == 499 {
		r.status = 499
		s.counters.disconnected.Add(1)
	}
	r.counts.end(outcome{strings.HasPrefix(r.path, chatPath), r.asked.stream, r.status})
	r.counts.whole.add(time.Since(r.begun))
	r.counts.inflight.Add(-1)
	s.counters.inflight.Add(-1)
	if r.entered {
		s.counters.entered.Add(-1)
	}
	r.entered = false
	r.conn, r.lease, r.life, r.counts, r.booked = nil, nil, nil, nil, 0
	for _, b := range []*[]byte{&r.body, &r.head, &r.lines, &r.piece, &r.held, &r.tail} {
		if cap(*b) > keptBuffer {
			*b = nil
		}
	}
	if cap(r.piece) < firstPiece {
		r.piece = make([]byte, firstPiece)
	}
	if cap(r.tokens) > keptBuffer {
		r.tokens = nil
	}
	r.asked = asked{}
	s.requests.Put(r)
}
