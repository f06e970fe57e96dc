package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// ahead bounds what is read of an answer before it is given away: a whole one, or the first event of a stream.
const ahead = 1 << 20

// Answer is the answer to Forward. Its Body ends the booking.
type Answer struct {
	engine.Response
	*Lease
}

// Forward sends a request to the engine that Route chooses for q, and to others while nothing of an answer can be given away: until the first event of a
// stream is here, or the whole of another answer, if it is not larger than 1 MiB. An answer that is an error, of an engine that is at fault or
// overloaded, counts as none; if all that were asked give such answers, the last one is the answer. r.DPRank is set. Errors: those of Route and of
// engine.Engine.Forward.
func (f *Fleet) Forward(ctx context.Context, q *router.Request, r *engine.Request) (*Answer, error) {
	l, err := f.Route(ctx, q)
	if err != nil {
		return nil, err
	}
	send := *r
	for {
		send.DPRank = l.DPRank()
		a, err := l.forward(ctx, &send)
		if err == nil {
			return a, nil
		}
		if err = l.Next(ctx, err); err == nil {
			continue
		}
		var no *refusal
		if errors.As(err, &no) { // the engine's own words
			return &Answer{engine.Response{Status: no.status, Header: no.header, Length: int64(len(no.body)), Body: io.NopCloser(bytes.NewReader(no.body))}, l}, nil
		}
		return nil, err
	}
}

// refusal is an answer that counts as none.
type refusal struct {
	*engine.StatusError
	status int
	header http.Header
	body   []byte
}

// Unwrap lets it be told for what it is.
func (r *refusal) Unwrap() error { return r.StatusError }

// forward gives an answer of which something can be given away.
func (l *Lease) forward(ctx context.Context, r *engine.Request) (*Answer, error) {
	got, err := l.Engine().Forward(ctx, r)
	if err != nil {
		return nil, err
	}
	b := &body{l: l, in: got.Body}
	told := &engine.StatusError{Code: got.Status, Message: http.StatusText(got.Status)}
	if got.EventStream() {
		if err = b.event(); err == nil && got.Status == http.StatusOK {
			told = engine.EventError(b.ahead)
		}
	} else {
		err = b.whole(got)
	}
	if err == nil && told != nil && engine.Elsewhere(told) {
		err = &refusal{told, got.Status, got.Header, b.ahead}
	}
	if err != nil {
		got.Body.Close()
		return nil, err
	}
	l.FirstToken()
	if b.ended {
		l.Done()
	}
	got.Body = b
	return &Answer{*got, l}, nil
}

// body is that of an answer, part of which was read ahead.
type body struct {
	l     *Lease
	in    io.ReadCloser
	ahead []byte
	ended bool // nothing follows what was read ahead
}

// event reads until the end of the first event.
func (b *body) event() error {
	return b.read(func() bool {
		return bytes.Contains(b.ahead, []byte("\n\n")) || bytes.Contains(b.ahead, []byte("\n\r\n"))
	}, 4<<10)
}

// whole reads to the end.
func (b *body) whole(r *engine.Response) error {
	step := 4 << 10
	if r.Length > 0 && r.Length <= ahead {
		step = int(r.Length) + 1
	}
	return b.read(func() bool { return false }, step)
}

func (b *body) read(enough func() bool, step int) error {
	buffer := make([]byte, step)
	for !enough() && len(b.ahead) < ahead {
		n, err := b.in.Read(buffer)
		b.ahead = append(b.ahead, buffer[:n]...)
		if err == io.EOF {
			b.ended = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Read gives what was read ahead, and then what comes.
func (b *body) Read(p []byte) (int, error) {
	if len(b.ahead) > 0 {
		n := copy(p, b.ahead)
		b.ahead = b.ahead[n:]
		return n, nil
	}
	if b.ended {
		return 0, io.EOF
	}
	n, err := b.in.Read(p)
	if err != nil {
		b.l.Done()
	}
	return n, err
}

// Close ends the answer and the booking.
func (b *body) Close() error {
	err := b.in.Close()
	b.l.Done()
	return err
}
