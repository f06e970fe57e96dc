package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// errTimeout: nothing came in the time given. Ask again.
var errTimeout = errors.New("nothing came in time")

// chunkBytes is how much text one next may gather before it returns.
const chunkBytes = 1 << 20

// reader shows a person what an engine publishes. It keeps no view of a cache: package feed does.
//
// With a replay endpoint each connection is followed by one replay; live batches wait behind it, and those that it gave
// already are left out. Its goroutines end when ctx does.
type reader struct {
	replay string
	live   *zmq.Subscriber
	ctx    context.Context
	cancel context.CancelFunc
	owned  sync.WaitGroup

	mu       sync.Mutex      // one caller of next at a time; guards what follows
	replayed <-chan numbered // what the replay gives, closed at its end; nil when there is none
	seen     uint64          // batches below it were shown by this connection's replay
	start    uint64          // where the next replay begins
}

// numbered is the text of a batch. Without known, seq means nothing.
type numbered struct {
	seq   uint64
	known bool
	lines []byte
}

func openReader(endpoint, replay, topic string) (*reader, error) {
	if err := checkReadable("endpoint", endpoint); err != nil {
		return nil, err
	}
	if replay != "" {
		if err := checkReadable("replay", replay); err != nil {
			return nil, err
		}
	}
	r := &reader{replay: replay, live: zmq.Subscribe(endpoint, []string{topic}, zmq.Options{})}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

func checkReadable(name, endpoint string) error {
	parsed, err := zmq.ParseEndpoint(endpoint)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errArgument, name, err)
	}
	if parsed.Wildcard() {
		return fmt.Errorf("%w: %s=%q names no host and port to connect to", errArgument, name, endpoint)
	}
	return nil
}

func (r *reader) close() {
	r.cancel()
	r.live.Close()
	r.mu.Lock() // the last next may have started a replay
	defer r.mu.Unlock()
	r.owned.Wait()
}

// next gives the lines of what came, waiting up to timeout for the first.
func (r *reader) next(timeout time.Duration) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var lines []byte
	for len(lines) == 0 || len(lines) < chunkBytes && r.waiting() {
		select {
		case batch, more := <-r.replayed:
			lines = append(lines, r.replayedBatch(batch, more)...)
		case event, more := <-r.liveEvents():
			if !more {
				return nil, errHandleClosed
			}
			lines = append(lines, r.liveEvent(event)...)
		case <-r.ctx.Done():
			return nil, errHandleClosed
		case <-timer.C:
			return lines, noneIsTimeout(lines)
		}
	}
	return lines, nil
}

func noneIsTimeout(lines []byte) error {
	if len(lines) == 0 {
		return errTimeout
	}
	return nil
}

// liveEvents is nil while a replay runs: live batches wait behind it.
func (r *reader) liveEvents() <-chan zmq.Event {
	if r.replayed != nil {
		return nil
	}
	return r.live.Events()
}

// waiting tells whether something can be taken without waiting.
func (r *reader) waiting() bool { return len(r.replayed) > 0 || len(r.liveEvents()) > 0 }

func (r *reader) replayedBatch(batch numbered, more bool) []byte {
	if !more {
		r.replayed = nil
		return nil
	}
	if batch.known {
		r.seen, r.start = batch.seq+1, batch.seq+1
	}
	return batch.lines
}

func (r *reader) liveEvent(event zmq.Event) []byte {
	switch event.Kind {
	case zmq.Connected:
		r.seen = 0
		if r.replay != "" {
			batches, start := make(chan numbered, 64), r.start
			r.replayed = batches
			r.owned.Go(func() { r.follow(start, batches) })
		}
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
func (r *reader) follow(start uint64, batches chan<- numbered) {
	defer close(batches)
	if err := r.ask(start, batches); err != nil {
		r.hand(batches, numbered{lines: wire.AppendJSONError(nil, "replay "+r.replay+": "+err.Error(), "")})
	}
}

func (r *reader) ask(start uint64, batches chan<- numbered) error {
	c, err := zmq.Dial(r.ctx, r.replay, zmq.Dealer, zmq.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(r.ctx, func() { c.Close() })
	defer stop()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
		return err
	}
	for {
		frames, err := c.Recv()
		if err != nil {
			return err
		}
		message, err := wire.ParseReplay(frames)
		switch {
		case err != nil:
			r.hand(batches, numbered{lines: wire.AppendJSONError(nil, err.Error(), "")})
		case message.End:
			return nil
		default:
			r.hand(batches, numbered{message.Seq, true, batchLines(message)})
		}
	}
}

func (r *reader) hand(batches chan<- numbered, batch numbered) {
	select {
	case batches <- batch:
	case <-r.ctx.Done():
	}
}

// batchLines is the text of one batch; one that cannot be decoded is one line, and so is a panic of the decoder.
func batchLines(message wire.Message) (lines []byte) {
	defer func() {
		if cause := recover(); cause != nil {
			lines = wire.AppendJSONError(nil, fmt.Sprintf("%v: %v", errPanic, cause), "")
		}
	}()
	batch, err := wire.DecodeBatch(message.Payload, wire.Limits{})
	if err != nil {
		return wire.AppendJSONError(nil, err.Error(), "")
	}
	return batch.AppendJSONLines(nil, &message.Seq)
}
