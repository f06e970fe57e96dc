package publish

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Sentinel errors. They are wrapped with the value that was refused and what was expected.
var (
	// ErrConfig: the configuration cannot be used; nothing was started. Fix it.
	ErrConfig = errors.New("publish: bad configuration")
	// ErrEvent: an event is not one that an engine could report; nothing of the call was published and no sequence number was used.
	ErrEvent = errors.New("publish: bad event")
	// ErrClosed: the publisher was closed. Make a new one.
	ErrClosed = errors.New("publish: closed")
)

// MaxBufferSteps bounds Config.BufferSteps.
const MaxBufferSteps = 1_000_000

// Config says where a publisher listens and what it says of itself.
type Config struct {
	Endpoint    string           // ZeroMQ endpoint of the PUB socket, tcp or ipc; tcp port 0 takes a free port
	Replay      string           // of the replay socket (ROUTER); empty: no replay
	Topic       string           // first frame of every message
	Rank        uint32           // data-parallel rank in every batch
	BufferSteps int              // batches kept for replay, the latest ones; 1..MaxBufferSteps
	Clock       func() time.Time // for the batches' time stamps; nil: time.Now
}

// A Publisher is one rank's event stream. All methods are safe for concurrent use.
type Publisher struct {
	cfg    Config
	pub    *zmq.Pub
	replay *zmq.RouterSocket // nil when there is none
	once   sync.Once
	err    error // of the first Close

	mu     sync.Mutex // guards what follows, and that batches leave in the order of their numbers
	steps  ring
	closed bool
}

// New starts listening. ErrConfig: a field is out of its range; other errors: an endpoint cannot be listened on.
func New(cfg Config) (*Publisher, error) {
	if cfg.BufferSteps < 1 || cfg.BufferSteps > MaxBufferSteps {
		return nil, fmt.Errorf("%w: BufferSteps is %d, must be in 1..%d", ErrConfig, cfg.BufferSteps, MaxBufferSteps)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	p := &Publisher{cfg: cfg, steps: ring{limit: cfg.BufferSteps}}
	var err error
	if p.pub, err = zmq.ListenPub(cfg.Endpoint, zmq.Options{}); err != nil {
		return nil, fmt.Errorf("publish: event socket: %w", err)
	}
	if cfg.Replay == "" {
		return p, nil
	}
	if p.replay, err = zmq.ListenRouter(cfg.Replay, zmq.Options{}, p.answer); err != nil {
		return nil, errors.Join(fmt.Errorf("publish: replay socket: %w", err), p.pub.Close())
	}
	return p, nil
}

// Addr is the endpoint of the PUB socket, with the port that was taken.
func (p *Publisher) Addr() string { return p.pub.Addr() }

// ReplayAddr is the endpoint of the replay socket; empty when there is none.
func (p *Publisher) ReplayAddr() string {
	if p.replay == nil {
		return ""
	}
	return p.replay.Addr()
}

// Close stops listening and drops subscribers. It is idempotent.
func (p *Publisher) Close() error {
	p.once.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.err = p.pub.Close()
		if p.replay != nil {
			p.err = errors.Join(p.err, p.replay.Close())
		}
	})
	return p.err
}

// Publish sends one batch and returns its sequence number. It does not wait for subscribers: one that does not keep up
// loses batches, and asks for them on the replay socket.
func (p *Publisher) Publish(events ...Event) (uint64, error) {
	payload, err := p.encode(events)
	if err != nil {
		return 0, err
	}
	return p.send(payload)
}

// encode makes the payload of a batch.
func (p *Publisher) encode(events []Event) ([]byte, error) {
	if len(events) == 0 {
		return nil, fmt.Errorf("%w: a batch without events, must have at least one", ErrEvent)
	}
	for i := range events {
		if err := check(&events[i]); err != nil {
			return nil, fmt.Errorf("events[%d]: %w", i, err)
		}
	}
	now := p.cfg.Clock()
	payload, err := wire.EncodeBatch(&wire.Batch{
		TS:      float64(now.UnixNano()) / 1e9,
		HasRank: true,
		DPRank:  p.cfg.Rank,
		Events:  events,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEvent, err)
	}
	return payload, nil
}

// send numbers a payload, keeps it and puts it on the wire.
func (p *Publisher) send(payload []byte) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, ErrClosed
	}
	seq := p.steps.push(payload)
	return seq, p.pub.Publish([]byte(p.cfg.Topic), binary.BigEndian.AppendUint64(nil, seq), payload)
}
