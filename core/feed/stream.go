package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Stream is where a rank's events come from if not from an engine: a publisher whose messages carry single events, numbered from 0 without
// gaps, and which may be asked for them again (Config.Stream). One at a time is followed; after Disconnected it may be another one.
type Stream interface {
	// Events gives what happens, in order; it is closed after Close.
	Events() <-chan StreamEvent
	// Queries tells whether Query may be asked. It does not change.
	Queries() bool
	// Query asks the publisher that is followed now, and tells who it is: another process is another number.
	Query(ctx context.Context, q *event.RangeQuery) (publisher uint64, a *event.RangeAnswer, err error)
	// Close ends it. It is idempotent.
	Close()
}

// StreamEvent is one thing a Stream tells.
type StreamEvent struct {
	Kind   zmq.EventKind
	Events []event.Event // Message: the feed's to keep. One of Kind 0 has only a number
	Err    error         // Disconnected: why; Message: it could not be decoded, and Events is empty
}

var errNoStream = errors.New("nobody publishes the rank's events")

// streamed takes what a Stream tells.
func (f *Feed) streamed(e StreamEvent) {
	switch e.Kind {
	case zmq.Connected:
		f.counts.add(countConnects, 1)
		f.machine.up(f.now())
	case zmq.Disconnected:
		f.counts.add(countDisconnects, 1)
		why := e.Err
		if why == nil {
			why = errNoStream
		}
		f.machine.down(why.Error())
	case zmq.Message:
		if e.Err != nil {
			f.counts.add(countMalformed, 1)
		}
		for i := range e.Events {
			ev := e.Events[i : i+1 : i+1]
			f.machine.live(f.now(), batch{seq: ev[0].ID, queried: true, events: ev})
		}
	}
}

// ask asks a Stream.
func (r *request) ask(ctx context.Context, t *turn, s Stream, q *event.RangeQuery) error {
	if !t.take(ctx) {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("not finished within %v", longest))
	defer cancel()
	silence := time.AfterFunc(quiet, owned.Guarded(t.yield))
	defer silence.Stop()
	publisher, answer, err := s.Query(ctx, q)
	if err == nil {
		err = checkAnswer(q, answer)
	}
	if err != nil {
		return err
	}
	if !t.keep(ctx) {
		return context.Cause(ctx)
	}
	// It comes whole, so there is no room to reserve before it is here: what waits to be applied is bounded.
	whole := batch{events: answer.Events}
	if err := t.reserve(ctx, int64(whole.size())); err != nil {
		return err
	}
	t.given = r.give(ctx, reply{kind: replyAnswer, publisher: publisher, answer: answer, free: t.free})
	return nil
}
