package callhome

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/runtime/secure"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Sender is a response, as the worker sends it. All methods are safe for concurrent use.
type Sender struct {
	conn    net.Conn
	codec   string
	plain   bool
	running owned.Group

	kill    context.CancelFunc
	killed  context.Context
	stop    context.CancelFunc
	stopped context.Context

	mu     sync.Mutex // guards the rest, and that messages are whole
	buffer []byte
	ended  bool
	failed bool // who asked knows that nothing follows, and may be gone already
}

// Dial connects to who asked. Errors: plane.ErrCannotConnect.
func Dial(ctx context.Context, c *plane.Control, plain bool, o Options) (*Sender, error) {
	o = o.filled()
	d := net.Dialer{Timeout: o.ConnectTimeout}
	conn, err := d.DialContext(ctx, "tcp", c.Response.Address)
	if err == nil {
		host, _, _ := net.SplitHostPort(c.Response.Address) // it could be dialled
		conn, err = o.TLS.Client(ctx, conn, host)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: response to %q: %w", plane.ErrCannotConnect, c.Response.Address, err)
	}
	s := &Sender{conn: conn, codec: c.Codec, plain: plain}
	s.killed, s.kill = context.WithCancel(ctx)
	s.stopped, s.stop = context.WithCancel(s.killed)
	owned.After(s.killed, func() { secure.Raw(conn).Close() }) // also one that is being written to
	s.running.Go(s.listen)
	hello, _ := json.Marshal(handshake{c.Response.Subject, "response"})
	if err := s.write(plane.AppendMessage(nil, hello, nil)); err != nil {
		s.Abort()
		return nil, err
	}
	return s, nil
}

// Stopped ends when who asked wants no more: it said stop or kill, or is gone.
func (s *Sender) Stopped() context.Context { return s.stopped }

// Killed ends when it wants the work to end at once.
func (s *Sender) Killed() context.Context { return s.killed }

// listen hears what who asked says.
func (s *Sender) listen() {
	defer s.kill()
	r := plane.NewReader(bufio.NewReaderSize(s.conn, 64), 4<<10)
	for {
		header, body, err := r.Read()
		switch {
		case err != nil || len(body) > 0:
			return
		case string(header) == wordStop:
			s.stop()
		case string(header) == wordKill:
			return
		}
	}
}

func (s *Sender) write(b []byte) error {
	if _, err := s.conn.Write(b); err != nil {
		s.kill()
		return fmt.Errorf("%w: %w", plane.ErrDisconnected, err)
	}
	return nil
}

// Begin says that the response begins; or, with a failure, that there is none, which ends it. It comes first.
func (s *Sender) Begin(failure *wire.Failure) error {
	header := []byte(`{"error":null}`)
	if failure != nil {
		typed, err := wire.ToJSON(nil, wire.AppendFailureValue(nil, failure))
		if err != nil {
			typed = []byte("null")
		}
		header, _ = json.Marshal(prologue{&failure.Message, typed})
	}
	s.mu.Lock()
	err := s.write(plane.AppendMessage(nil, header, nil))
	s.failed = failure != nil
	s.mu.Unlock()
	if failure != nil && err == nil {
		err = s.leave(nil)
	}
	return err
}

// Send sends an item, as MessagePack. It waits while who asked does not read. Errors: plane.ErrCancelled (it wants no more),
// plane.ErrDisconnected, plane.ErrInvalidArgument (the item cannot be sent; nothing was), plane.ErrClosed.
func (s *Sender) Send(item []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sendLocked(func(dst []byte) []byte { return wire.AppendItem(dst, item, s.plain) })
}

// Fail sends an error as the last item; End must follow.
func (s *Sender) Fail(f *wire.Failure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.sendLocked(func(dst []byte) []byte { return wire.AppendFailure(dst, f) })
	s.failed = s.failed || err == nil
	return err
}

func (s *Sender) sendLocked(item func([]byte) []byte) (err error) {
	switch {
	case s.ended:
		return plane.ErrClosed
	case s.killed.Err() != nil || s.stopped.Err() != nil: // killed ends before stopped, which it ends, does
		return plane.ErrCancelled
	}
	b := plane.BeginMessage(s.buffer[:0], nil)
	if s.codec == discovery.CodecJSON {
		if b, err = wire.ToJSON(b, item(nil)); err != nil {
			return fmt.Errorf("%w: item: %w", plane.ErrInvalidArgument, err)
		}
	} else {
		b = item(b)
	}
	plane.EndMessage(b, 0, 0)
	if len(b) > plane.MaxMessageBytes {
		return fmt.Errorf("%w: item of %d bytes, at most %d", plane.ErrInvalidArgument, len(b), plane.MaxMessageBytes)
	}
	const keep = 64 << 10
	if s.buffer = b; cap(b) > keep {
		s.buffer = nil
	}
	return s.write(b)
}

// End ends a complete response. After a cancellation it only closes the connection.
func (s *Sender) End() error { return s.leave(wire.AppendFinal) }

// leave says the last words, and waits until who asked closes the connection, but not for long.
func (s *Sender) leave(final func([]byte) []byte) error {
	s.mu.Lock()
	var err error
	if final != nil {
		err = s.sendLocked(final)
	}
	if err == nil {
		err = s.write(plane.AppendMessage(nil, []byte(wordSentinel), nil))
	}
	s.ended = true
	failed := s.failed
	s.mu.Unlock()
	if err != nil {
		s.Abort()
		if failed {
			return nil
		}
		return err
	}
	_ = secure.CloseWrite(s.conn)
	const patience = 10 * time.Second
	_ = s.conn.SetReadDeadline(time.Now().Add(patience))
	s.running.Wait()
	s.Abort()
	return nil
}

// Abort breaks the connection: the response is not complete. It is idempotent.
func (s *Sender) Abort() {
	s.kill()
	secure.Raw(s.conn).Close()
	s.running.Wait()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
}
