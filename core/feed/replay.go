package feed

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// replyQueue is how many replies wait for the owner, at most 16 MiB. The socket must be drained, or the engine drops what
// it replays; TCP's buffers and its own high-water mark come after these.
const replyQueue = 256

// reply is one thing a replay gives: a batch, its end, or its failure. A message that is neither has malformed set.
type reply struct {
	msg       wire.Message
	malformed bool
	err       error
}

// replay is one request on a connection of its own: so no answer can be taken for another request's.
type replay struct {
	id      int
	replies chan reply
	cancel  context.CancelFunc
}

// run asks and hands on the answers until the end marker, a failure, or the end of ctx.
func (r *replay) run(ctx context.Context, endpoint string, start uint64, o zmq.Options) {
	defer r.cancel()
	err := r.receive(ctx, endpoint, start, o)
	if err != nil {
		r.give(ctx, reply{err: err})
	}
}

var errStopped = errors.New("replay is no longer wanted")

func (r *replay) receive(ctx context.Context, endpoint string, start uint64, o zmq.Options) error {
	return Replay(ctx, endpoint, start, o, func(msg wire.Message, err error) bool {
		return r.give(ctx, reply{msg: msg, malformed: err != nil})
	})
}

// Replay asks a replay socket for everything from start on and hands on each answer, the end marker included, as it was
// parsed or with the error of parsing it. It returns nil after the marker; an error if the connection fails, ctx ends, or
// take wants no more.
func Replay(ctx context.Context, endpoint string, start uint64, o zmq.Options, take func(wire.Message, error) bool) error {
	c, err := zmq.Dial(ctx, endpoint, zmq.Dealer, o)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
		return err
	}
	for {
		frames, err := c.Recv()
		if err != nil {
			return err
		}
		msg, err := wire.ParseReplay(frames)
		if !take(msg, err) {
			return errStopped
		}
		if err == nil && msg.End {
			return nil
		}
	}
}

func (r *replay) give(ctx context.Context, x reply) bool {
	return zmq.Offer(ctx, r.replies, x, len(x.msg.Payload)+len(x.msg.Topic))
}
