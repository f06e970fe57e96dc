// Package tail shows a person what an engine publishes, as JSON lines. It keeps no view of a cache: package feed does.
//
// With a replay endpoint each connection is followed by one replay; live batches wait behind it, and those that it gave
// already are left out. What cannot be decoded is a line of its own.
package tail

import (
	"context"
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/stream"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// connected is the state of a connection that stands.
const connected = "connected"

// buffered is how many batches may wait for the consumer before the engine's wait in its connection.
const buffered = 1024

// Reader follows one engine: its stream's items are the lines of a batch each. While nothing comes the stream tells the state of
// the connection: "connecting", "connected", "cannot connect: why", or "connection lost: why"; the last two are tried again.
type Reader struct {
	*stream.Stream
	replay string
	live   *zmq.Subscriber
	ctx    context.Context
	cancel context.CancelFunc
	owned  owned.Group // run, and the replays that it starts

	// Of run alone.
	replayed <-chan numbered // what the replay gives, closed at its end; nil when there is none
	seen     uint64          // batches below it were shown by this connection's replay
	start    uint64          // where the next replay begins
	state    string
}

// numbered is the text of a batch. Without known, seq means nothing.
type numbered struct {
	seq   uint64
	known bool
	lines []byte
}

// Open starts following an endpoint, whether it answers or not. replay may be "". Errors: zmq.ErrEndpoint.
func Open(endpoint, replay, topic string) (*Reader, error) {
	if err := checkReadable("endpoint", endpoint); err != nil {
		return nil, err
	}
	if replay != "" {
		if err := checkReadable("replay", replay); err != nil {
			return nil, err
		}
	}
	r := &Reader{Stream: stream.New(buffered), replay: replay, live: zmq.Subscribe(endpoint, []string{topic}, zmq.Options{})}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.setState("connecting")
	r.owned.Go(r.run)
	return r, nil
}

func checkReadable(name, endpoint string) error {
	parsed, err := zmq.ParseEndpoint(endpoint)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if parsed.Wildcard() {
		return fmt.Errorf("%w: %s=%q names no host and port to connect to", zmq.ErrEndpoint, name, endpoint)
	}
	return nil
}

// Close stops following. It is idempotent.
func (r *Reader) Close() {
	r.Stream.Close()
	r.cancel()
	r.live.Close()
	r.owned.Wait()
}

func (r *Reader) setState(text string) {
	r.state = text
	r.SetState(text)
}

// run sends what comes until the consumer wants no more.
func (r *Reader) run() {
	defer r.cancel()
	r.End(owned.Try(func() error { r.pass(); return nil }))
}

func (r *Reader) pass() {
	for {
		var lines []byte
		select {
		case batch, more := <-r.replayed:
			lines = r.replayedBatch(batch, more)
		case event, more := <-r.liveEvents():
			if !more {
				return
			}
			lines = r.liveEvent(event)
		case <-r.Stopping():
			return
		}
		if len(lines) > 0 && r.Send(r.ctx, lines) != nil {
			return
		}
	}
}

// liveEvents is nil while a replay runs: live batches wait behind it.
func (r *Reader) liveEvents() <-chan zmq.Event {
	if r.replayed != nil {
		return nil
	}
	return r.live.Events()
}

func (r *Reader) replayedBatch(batch numbered, more bool) []byte {
	if !more {
		r.replayed = nil
		return nil
	}
	if batch.known {
		r.seen, r.start = batch.seq+1, batch.seq+1
	}
	return batch.lines
}

func (r *Reader) liveEvent(event zmq.Event) []byte {
	switch event.Kind {
	case zmq.Connected:
		r.seen = 0
		r.setState(connected)
		if r.replay != "" {
			batches, start := make(chan numbered, 64), r.start
			r.replayed = batches
			r.owned.Go(func() { r.follow(start, batches) })
		}
	case zmq.Disconnected:
		lost := "cannot connect: "
		if r.state == connected {
			lost = "connection lost: "
		}
		r.setState(lost + event.Err.Error())
	case zmq.Message:
		message, err := wire.ParseLive(event.Frames)
		switch {
		case err != nil:
			return wire.AppendJSONError(nil, err.Error(), "")
		case !message.End && message.Seq >= r.seen:
			r.start = message.Seq + 1
			return batchLines(message)
		}
	}
	return nil
}

// follow asks for a replay and hands on what it gives.
func (r *Reader) follow(start uint64, batches chan<- numbered) {
	defer close(batches)
	if err := r.ask(start, batches); err != nil {
		r.hand(batches, numbered{lines: wire.AppendJSONError(nil, "replay "+r.replay+": "+err.Error(), "")})
	}
}

func (r *Reader) ask(start uint64, batches chan<- numbered) error {
	return feed.Replay(r.ctx, r.replay, start, zmq.Options{}, func(message wire.Message, err error) bool {
		switch {
		case err != nil:
			r.hand(batches, numbered{lines: wire.AppendJSONError(nil, err.Error(), "")})
		case !message.End:
			r.hand(batches, numbered{message.Seq, true, batchLines(message)})
		}
		return r.ctx.Err() == nil
	})
}

func (r *Reader) hand(batches chan<- numbered, batch numbered) {
	select {
	case batches <- batch:
	case <-r.ctx.Done():
	}
}

// batchLines is the text of one batch; one that cannot be decoded is one line, and so is a panic of the decoder.
func batchLines(message wire.Message) (lines []byte) {
	err := owned.Try(func() error {
		batch, err := wire.DecodeBatch(message.Payload, wire.Limits{})
		if err == nil {
			lines = batch.AppendJSONLines(nil, &message.Seq)
		}
		return err
	})
	if err != nil {
		return wire.AppendJSONError(nil, err.Error(), "")
	}
	return lines
}
