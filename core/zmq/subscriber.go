package zmq

import (
	"context"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
)

// EventKind says what a Subscriber tells.
type EventKind uint8

// The kinds of Event. After Connected come Messages, then one Disconnected; a failed attempt is a Disconnected alone.
const (
	Connected EventKind = iota + 1
	Message
	Disconnected
)

// Event is one thing a Subscriber tells its owner.
type Event struct {
	Kind   EventKind
	Frames [][]byte // Message: the owner's to keep
	Err    error    // Disconnected: why

	Incarnation string // Connected: of the publisher, see Options; "" if it tells none
}

// eventQueue is how many events wait for a busy owner. When it is full the socket is not read, TCP pushes back, and
// the publisher drops at its own high-water mark: what waits here is bounded in number and, by Offer, in bytes.
const eventQueue = 256

// Subscriber follows one publisher until it is closed.
//
// Its goroutine dials, subscribes, receives, and dials again, for ever; the wait in between doubles while attempts end
// without a message, so a peer that accepts and closes is not hammered.
type Subscriber struct {
	events chan Event
	cancel context.CancelFunc
	done   owned.Group
}

// Subscribe starts following an endpoint; topics are prefixes, none at all means everything. An endpoint that cannot be
// used shows as Disconnected with ErrEndpoint, again and again.
func Subscribe(endpoint string, topics []string, o Options) *Subscriber {
	if len(topics) == 0 {
		topics = []string{""}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Subscriber{events: make(chan Event, eventQueue), cancel: cancel}
	s.done.Go(func() { s.run(ctx, endpoint, topics, o.dialling()) })
	return s
}

// Events gives what happens, in order; it is closed after Close.
func (s *Subscriber) Events() <-chan Event { return s.events }

// Close stops following. Events not taken yet are lost. It may be called more than once, and returns when the goroutine
// and the connection are gone.
func (s *Subscriber) Close() {
	s.cancel()
	s.done.Wait()
}

func (s *Subscriber) run(ctx context.Context, endpoint string, topics []string, o Options) {
	defer close(s.events)
	for attempt := 0; ; attempt++ {
		start := time.Now()
		messages := 0
		err := owned.Try(func() (err error) {
			messages, err = s.session(ctx, endpoint, topics, o)
			return err
		})
		if !s.emit(ctx, Event{Kind: Disconnected, Err: err}) {
			return
		}
		if messages > 0 || time.Since(start) > o.BackoffMax+o.DialTimeout+o.HandshakeTimeout {
			attempt = 0 // this was a connection that worked
		}
		wait := time.NewTimer(o.backoff(attempt))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
	}
}

// session is one connection from dialling to its end.
func (s *Subscriber) session(ctx context.Context, endpoint string, topics []string, o Options) (messages int, err error) {
	c, err := Dial(ctx, endpoint, Sub, o)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stop := owned.After(ctx, func() { c.Close() })
	defer stop()
	for _, topic := range topics {
		if err := c.Send(append([]byte{1}, topic...)); err != nil {
			return 0, err
		}
	}
	if !s.emit(ctx, Event{Kind: Connected, Incarnation: c.Incarnation()}) {
		return 0, ErrClosed
	}
	for ; ; messages++ {
		frames, err := c.Recv()
		if err != nil {
			return messages, err
		}
		if !s.emit(ctx, Event{Kind: Message, Frames: frames}) {
			return messages, ErrClosed
		}
	}
}

func (s *Subscriber) emit(ctx context.Context, e Event) bool {
	return Offer(ctx, s.events, e, weigh(e.Frames))
}
