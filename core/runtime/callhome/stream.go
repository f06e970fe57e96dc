package callhome

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Stream is a response, as it arrives. Recv is for one goroutine at a time, the other methods for any.
type Stream struct {
	l     *Listener
	conn  net.Conn
	r     *plane.Reader
	codec string
	plain bool
	end   error // of Recv; nil: there may be more

	cancelled atomic.Bool
	once      sync.Once
}

// prologue is the second message of a worker.
type prologue struct {
	Error *string         `json:"error"`
	Typed json.RawMessage `json:"typed_error,omitempty"`
}

func (s *Stream) begin(ctx context.Context) error {
	stop := owned.After(ctx, func() { secure.Raw(s.conn).Close() })
	defer stop()
	header, body, err := s.r.Read()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%w: before the stream began: %w", plane.ErrCannotConnect, err)
	case len(body) > 0:
		return fmt.Errorf("%w: a prologue with a body", plane.ErrProtocol)
	}
	var p prologue
	if err := json.Unmarshal(header, &p); err != nil {
		return fmt.Errorf("%w: prologue: %w", plane.ErrProtocol, err)
	}
	if p.Error == nil {
		return nil
	}
	if f := typedFailure(p.Typed); f != nil {
		told := &plane.WorkerError{Failure: *f}
		if told.InvalidRequest() {
			return told
		}
		return fmt.Errorf("%w: %w", plane.ErrCannotConnect, told)
	}
	return fmt.Errorf("%w: the worker says %.1024q", plane.ErrCannotConnect, *p.Error)
}

func typedFailure(raw json.RawMessage) *wire.Failure {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	b, err := wire.FromJSON(nil, raw)
	if err != nil {
		return nil
	}
	f, _ := wire.DecodeFailure(b)
	return f
}

// Recv gives the next item that is data or an annotation. io.EOF: the response is complete. Errors: a *plane.WorkerError (the worker's handler
// failed), plane.ErrDisconnected, plane.ErrCancelled (after Stop, Kill or Close), plane.ErrProtocol. After an error there is nothing more, and
// the connection is closed.
func (s *Stream) Recv() (wire.Item, error) {
	if s.end != nil {
		return wire.Item{}, s.end
	}
	it, err := s.next()
	if err != nil {
		if err != io.EOF && s.cancelled.Load() {
			err = plane.ErrCancelled
		}
		s.end = err
		s.Close()
	}
	return it, err
}

func (s *Stream) next() (wire.Item, error) {
	header, body, err := s.r.Read()
	switch {
	case err != nil:
		return wire.Item{}, fmt.Errorf("%w: %w", plane.ErrDisconnected, cause(err))
	case len(header) > 0:
		return wire.Item{}, fmt.Errorf("%w: %.32q before the end of a stream", plane.ErrProtocol, header)
	}
	if s.codec == discovery.CodecJSON {
		if body, err = wire.FromJSON(nil, body); err != nil {
			return wire.Item{}, fmt.Errorf("%w: item: %w", plane.ErrProtocol, err)
		}
	}
	it, err := wire.DecodeItem(body, s.plain)
	switch {
	case err != nil:
		return it, fmt.Errorf("%w: %w", plane.ErrProtocol, err)
	case it.Failure != nil:
		return it, &plane.WorkerError{Failure: *it.Failure}
	case it.Final:
		s.end = io.EOF
		s.farewell()
		return it, io.EOF
	}
	return it, nil
}

// cause keeps the end of a connection from looking like the end of a response.
func cause(err error) error {
	if err == io.EOF {
		return fmt.Errorf("the worker closed the connection")
	}
	return err
}

// farewell ends a complete stream. The worker's last word need not be waited for.
func (s *Stream) farewell() {
	s.once.Do(func() { s.l.drop(s.conn) })
}

// Stop asks the worker to end the response gracefully. Recv then gives what still comes, and plane.ErrCancelled at the end.
func (s *Stream) Stop() { s.tell(wordStop) }

// Kill asks the worker to end the response at once.
func (s *Stream) Kill() { s.tell(wordKill) }

func (s *Stream) tell(what string) {
	s.cancelled.Store(true)
	_ = word(s.conn, what)
}

// Close ends the stream: a response that is not complete is killed. It is idempotent.
func (s *Stream) Close() {
	s.once.Do(func() {
		s.tell(wordKill)
		// The word must arrive, so the connection is not reset.
		if secure.CloseWrite(s.conn) == nil && s.l.spawn(func() { s.linger(s.conn) }) {
			return
		}
		s.l.drop(s.conn)
	})
}

// linger lets the worker read the last word: it closes the connection then.
func (s *Stream) linger(c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.Copy(io.Discard, io.LimitReader(c, 1<<20))
	s.l.drop(s.conn)
}

// word sends one of the protocol's words.
func word(c net.Conn, what string) error {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, err := c.Write(plane.AppendMessage(nil, []byte(what), nil))
	return cmp.Or(err, c.SetWriteDeadline(time.Time{}))
}
