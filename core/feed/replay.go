package feed

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// replyQueue is how many replies wait for the owner, at most 16 MiB. The socket must be drained, or the engine drops what
// it replays; TCP's buffers and its own high-water mark come after these.
const replyQueue = 256

// longest bounds one request from the beginning of its turn: 10 000 batches take 0.4 s, a dump of a million blocks about a
// second. What came until then counts, and the rest is asked for again.
const longest = time.Minute

// replyKind says what a request gives.
type replyKind uint8

const (
	replyBatch     replyKind = iota // msg
	replyEnd                        // everything was given
	replyMalformed                  // a message that is no batch
	replyFailed                     // err
	replyWaits                      // it has to wait for a turn
	replyStarted                    // it has one
	replyPart                       // a part of one has arrived
	replyAnswer                     // answer, of a local indexer's publisher
)

type reply struct {
	kind replyKind
	msg  wire.Message
	err  error

	publisher uint64
	answer    *event.RangeAnswer
	free      func() // called when the answer was used
}

// request is one question to the engine on a connection of its own: so no answer can be taken for another request's.
type request struct {
	id      int
	replies chan reply
	cancel  context.CancelFunc
}

// run asks and hands on the answers until the end, a failure, or the end of ctx.
func (r *request) run(ctx context.Context, limit *Limiter, ask func(context.Context, *turn) error) {
	defer r.cancel()
	t := &turn{limit: limit, tell: func(x reply) bool { return r.give(ctx, x) }}
	defer t.give()
	defer r.unread(ctx, t)
	if err := owned.Try(func() error { return ask(ctx, t) }); err != nil {
		r.give(ctx, reply{kind: replyFailed, err: err})
	}
}

// unread frees an answer that nobody takes: not read to its end, or not wanted any more.
func (r *request) unread(ctx context.Context, t *turn) {
	if !t.given {
		t.free()
		return
	}
	t.give()
	for <-ctx.Done(); len(r.replies) > 0; { // the owner reads none after it ended ctx
		if x := <-r.replies; x.free != nil {
			x.free()
		}
	}
}

func (r *request) give(ctx context.Context, x reply) bool {
	return zmq.Offer(ctx, r.replies, x, len(x.msg.Payload)+len(x.msg.Topic))
}

// replay asks a replay socket.
func (r *request) replay(ctx context.Context, t *turn, endpoint string, start uint64, o zmq.Options) error {
	question := binary.BigEndian.AppendUint64(nil, start)
	return converse(ctx, t, endpoint, question, o, func(frames [][]byte) (more bool) {
		x := replayReply(frames)
		return r.give(ctx, x) && x.kind != replyEnd
	})
}

// replayReply says what a message of a replay socket is.
func replayReply(frames [][]byte) reply {
	msg, err := wire.ParseReplay(frames)
	switch {
	case err != nil:
		return reply{kind: replyMalformed}
	case msg.End:
		return reply{kind: replyEnd}
	}
	return reply{msg: msg}
}

// converse sends one question and hands on what comes back while take wants more.
func converse(ctx context.Context, t *turn, endpoint string, question []byte, o zmq.Options, take func([][]byte) bool) error {
	c, err := zmq.Dial(ctx, endpoint, zmq.Dealer, o)
	if err != nil {
		return err
	}
	defer c.Close()
	if !t.take(ctx) {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("not finished within %v", longest))
	defer cancel()
	stop := owned.After(ctx, func() { c.Close() })
	defer stop()
	if err := c.Send(nil, question); err != nil {
		return err
	}
	silence := time.AfterFunc(quiet, owned.Guarded(t.yield))
	defer silence.Stop()
	for first := true; ; first = false {
		frames, err := c.Recv()
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		if first && !t.keep(ctx) {
			return context.Cause(ctx)
		}
		if !take(frames) {
			return nil
		}
	}
}

var errStopped = errors.New("replay is no longer wanted")

// Replay asks a replay socket for everything from start on and hands on each answer, the end marker included, as it was
// parsed or with the error of parsing it. It returns nil after the marker; an error if the connection fails, ctx ends, it takes
// longer than a minute, or take wants no more.
func Replay(ctx context.Context, endpoint string, start uint64, o zmq.Options, take func(wire.Message, error) bool) (err error) {
	question := binary.BigEndian.AppendUint64(nil, start)
	failed := converse(ctx, &turn{}, endpoint, question, o, func(frames [][]byte) bool {
		msg, fault := wire.ParseReplay(frames)
		if !take(msg, fault) {
			err = errStopped
			return false
		}
		return fault != nil || !msg.End
	})
	return cmp.Or(failed, err)
}
