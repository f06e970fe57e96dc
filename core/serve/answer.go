package serve

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

// keptTail is how much of an answer is kept to find its usage in.
const keptTail = 2 << 10

// errAborted ends the connection to a client whose answer cannot be completed.
var errAborted = errors.New("the engine did not end its answer")

// answer writes the head, and what is there of the body. It tells whether the rest is still to come, for which the server then calls Read and Close.
func (r *request) answer(ctx *fasthttp.RequestCtx) (streaming bool) {
	ctx.SetStatusCode(r.status)
	ctx.Response.Header.SetNoDefaultContentType(true)
	r.call.Headers(func(name, value []byte) { ctx.Response.Header.AddBytesKV(name, value) })
	r.spoke = true
	r.counts.first.add(time.Since(r.begun))
	length := r.call.Length() // of what is left
	if r.call.Complete() && (!r.mustEnd() || r.done(r.piece)) {
		r.see(r.piece)
		r.usage()
		ctx.SetBody(r.piece)
		return false
	}
	r.pending = r.piece
	size := -1
	if length >= 0 && !r.mustEnd() { // an event may be added that says what went wrong
		size = int(length) + len(r.piece)
	}
	ctx.SetBodyStream(body{r}, size)
	return true
}

// body is the answer as the server reads it.
type body struct{ r *request }

// Read gives the next piece, of an event stream as whole events if they are not larger than p.
func (b body) Read(p []byte) (n int, err error) {
	r := b.r
	defer func() {
		if cause := recover(); cause != nil {
			owned.Report(cause)
			err = errAborted
		}
	}()
	for {
		n, err := r.next(p)
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (r *request) next(p []byte) (int, error) {
	if len(r.pending) > 0 {
		n := copy(p, r.pending)
		if r.pending = r.pending[n:]; r.ended != nil || !r.events {
			r.see(p[:n])
			return n, nil
		}
		return r.cut(p, n, len(r.pending) > 0), nil
	}
	if r.ended != nil {
		return 0, r.ended
	}
	h := copy(p, r.held)
	r.held = r.held[:0]
	n, err := r.call.Read(p[h:])
	n += h
	switch {
	case err == nil && !r.events:
		r.see(p[:n])
		return n, nil
	case err == nil:
		return r.cut(p, n, false), nil
	case err == io.EOF && (!r.mustEnd() || r.done(p[:n])):
		r.see(p[:n])
		r.usage()
		r.ended = io.EOF
		return n, nil
	}
	return r.broken(p, n, err)
}

// cut keeps what is behind the last whole event for the next time, and gives the length of what is before. An event that fills p goes in pieces.
func (r *request) cut(p []byte, n int, more bool) int {
	if bytes.HasSuffix(p[:n], []byte("\n\n")) || more {
		r.split = more && !bytes.HasSuffix(p[:n], []byte("\n\n"))
		r.see(p[:n])
		return n
	}
	end := 0
	if i := bytes.LastIndex(p[:n], []byte("\n\n")); i >= 0 {
		end = i + 2
	}
	if i := bytes.LastIndex(p[:n], []byte("\n\r\n")); i >= 0 {
		end = max(end, i+3)
	}
	if end == 0 && n >= len(p)/2 { // what is kept must leave room to read
		r.split = true
		r.see(p[:n])
		return n
	}
	if n-end >= len(p)/2 {
		end = n
	}
	r.held = append(r.held[:0], p[end:n]...)
	if end > 0 {
		r.split = end == n
		r.see(p[:end])
	}
	return end
}

// broken ends an answer that the engine did not end: an event stream with an error event, anything else with the connection.
func (r *request) broken(p []byte, n int, err error) (int, error) {
	switch {
	case r.gone.Load():
		return 0, errAborted
	case r.life.Err() != nil: // the server stops
	default:
		r.s.counters.broken.Add(1)
		r.s.log.Warn("engine broke off", "url", r.lease.Engine().URL(), "error", err.Error())
	}
	if !r.events {
		r.ended = errAborted
		return n, nil
	}
	if err == io.EOF {
		err = errAborted
	}
	f := faultOf(err)
	r.ended, r.pending = io.EOF, f.event(r.split)
	return 0, nil
}

// see takes a look at what is written next.
func (r *request) see(piece []byte) {
	if r.events && r.s.tracksOutput {
		r.lease.Progress(bytes.Count(piece, []byte("\n\n")))
	}
	if len(piece) >= keptTail {
		r.tail = append(r.tail[:0], piece[len(piece)-keptTail:]...)
		return
	}
	if over := len(r.tail) + len(piece) - 2*keptTail; over > 0 {
		r.tail = append(r.tail[:0], r.tail[len(r.tail)-keptTail:]...)
	}
	r.tail = append(r.tail, piece...)
}

// mustEnd tells whether the answer is one that ends with [DONE], in both engines: one that just ends is broken, too.
func (r *request) mustEnd() bool { return r.events && r.status == fasthttp.StatusOK }

// done tells whether an event stream came to its end: among the latest events is one whose data is [DONE]. A text that has the word in it ends nothing.
func (r *request) done(piece []byte) bool {
	if len(piece) >= keptTail {
		return lastWord(piece[len(piece)-keptTail:], false)
	}
	text := append(r.tail, piece...)
	return lastWord(text, len(text) < keptTail) // see cuts nothing off before
}

// lastWord looks for an event whose data is [DONE]. If text does not begin with an event, what comes before the first empty line is left alone. The last
// line, and its event, may lack their ends.
func lastWord(text []byte, whole bool) bool {
	lines, ended := 0, false // of data in this event, unless it is one whose beginning is not here; the only one is [DONE]
	if !whole {
		lines = 1
		_, text, _ = bytes.Cut(text, []byte{'\n'})
	}
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		text = rest
		line = bytes.TrimSuffix(line, []byte{'\r'})
		if len(line) == 0 {
			if ended {
				return true
			}
			lines = 0
			continue
		}
		if data, is := bytes.CutPrefix(line, []byte("data:")); is {
			lines++
			ended = lines == 1 && string(bytes.TrimPrefix(data, []byte{' '})) == "[DONE]"
		}
	}
	return ended
}

// usage counts what the answer says of itself.
func (r *request) usage() {
	text, found := r.tail, false
	for { // bytes.LastIndex would take a nanosecond a byte
		at := bytes.Index(text, []byte(`"usage"`))
		if at < 0 {
			break
		}
		text, found = text[at+1:], true
	}
	if !found {
		return
	}
	output, _ := number(text, `"completion_tokens"`)
	r.counts.output.Add(output)
	if cached, told := number(text, `"cached_tokens"`); told {
		r.counts.cached.Add(cached)
		r.lease.Cached(int64(cached))
	}
}

// number gives the value of a member, false if there is none.
func number(text []byte, name string) (uint64, bool) {
	at := bytes.Index(text, []byte(name))
	if at < 0 {
		return 0, false
	}
	text = bytes.TrimLeft(text[at+len(name):], ": \t")
	end := 0
	for end < len(text) && end < 12 && text[end]-'0' <= 9 {
		end++
	}
	n, err := strconv.ParseUint(string(text[:end]), 10, 64)
	return n, err == nil // or there are no digits: null
}

// Close ends the request. The server calls it when the answer was written, and when it could not be.
func (b body) Close() error {
	if b.r.ended == nil && !b.r.gone.Load() && !b.r.complete() {
		b.r.gone.Store(true) // it could not be written: the client is gone
	}
	b.r.finish()
	return nil
}

// complete tells whether all of the answer was read.
func (r *request) complete() bool { return r.ended == io.EOF || r.call.Complete() }
