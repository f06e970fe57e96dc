// Package tail shows a person what an engine publishes, as JSON lines. It keeps no view of a cache: package feed does.
//
// With a replay endpoint each connection is followed by one replay; live batches wait behind it, and those that it gave
// already are left out. What cannot be decoded is a line of its own.
package tail

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Errors of a Reader; a bad endpoint is zmq.ErrEndpoint.
var (
	// ErrTimeout: nothing came in the time given. Ask again. The text after it is the state of the connection: "connecting",
	// "connected", "cannot connect: why", or "connection lost: why"; the last two are tried again.
	ErrTimeout = errors.New("nothing came in time")
	// ErrClosed: the reader was closed.
	ErrClosed = errors.New("reader is closed")
)

// connected is the state of a connection that stands.
const connected = "connected"

// chunkBytes is how much text one Next may gather before it returns.
const chunkBytes = 1 << 20

// Reader follows one engine. Its methods are safe for concurrent use; its goroutines end when ctx does.
type Reader struct {
	replay string
	live   *zmq.Subscriber
	ctx    context.Context
	cancel context.CancelFunc
	owned  sync.WaitGroup

	mu       sync.Mutex      // one caller of Next at a time; guards what follows
	replayed <-chan numbered // what the replay gives, closed at its end; nil when there is none
	seen     uint64          // batches below it were shown by this connection's replay
	start    uint64          // where the next replay begins
	state    string          // of the live connection, as ErrTimeout tells it
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
	r := &Reader{replay: replay, live: zmq.Subscribe(endpoint, []string{topic}, zmq.Options{}), state: "connecting"}
	r.ctx, r.cancel = context.WithCancel(context.Background())
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
	r.cancel()
	r.live.Close()
	r.mu.Lock() // the last Next may have started a replay
	defer r.mu.Unlock()
	r.owned.Wait()
}

// Next gives the lines of what came, waiting up to timeout for the first. Errors: ErrTimeout, ErrClosed.
func (r *Reader) Next(timeout time.Duration) ([]byte, error) {
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
				return nil, ErrClosed
			}
			lines = append(lines, r.liveEvent(event)...)
		case <-r.ctx.Done():
			return nil, ErrClosed
		case <-timer.C:
			if len(lines) == 0 {
				return nil, fmt.Errorf("%w: %s", ErrTimeout, r.state)
			}
			return lines, nil
		}
	}
	return lines, nil
}

// liveEvents is nil while a replay runs: live batches wait behind it.
func (r *Reader) liveEvents() <-chan zmq.Event {
	if r.replayed != nil {
		return nil
	}
	return r.live.Events()
}

// waiting tells whether something can be taken without waiting.
func (r *Reader) waiting() bool { return len(r.replayed) > 0 || len(r.liveEvents()) > 0 }

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
		r.seen, r.state = 0, connected
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
		r.state = lost + event.Err.Error()
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
	defer func() {
		if cause := recover(); cause != nil {
			lines = wire.AppendJSONError(nil, fmt.Sprintf("internal fault: %v", cause), "")
		}
	}()
	batch, err := wire.DecodeBatch(message.Payload, wire.Limits{})
	if err != nil {
		return wire.AppendJSONError(nil, err.Error(), "")
	}
	return batch.AppendJSONLines(nil, &message.Seq)
}
