package event

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Publisher sends the messages of a topic. All methods are safe for concurrent use.
type Publisher struct {
	store discovery.Store
	key   discovery.Key
	topic string
	id    uint64
	out   plane.Outlet

	mu       sync.Mutex // guards that messages leave in the order of their numbers
	sequence uint64
}

// RandomPublisher draws an id, of 53 bits as Dynamo's are.
func RandomPublisher() uint64 { return rand.Uint64()&(1<<53-1) | 1 }

// NewPublisher opens a way out for a topic, and tells of it. id 0: one is drawn. Errors: those of the event plane and of the store.
func NewPublisher(l plane.Link, scope discovery.Name, topic string, id uint64) (*Publisher, error) {
	if id == 0 {
		id = RandomPublisher()
	}
	c := discovery.Channel{Scope: scope, Topic: topic, Publisher: id}
	var out plane.Outlet
	var err error
	if l.Bus != nil {
		out, err = l.Bus.Open(&c)
	} else {
		out, err = openZMQ(l.Host, &c)
	}
	if err != nil {
		return nil, fmt.Errorf("event plane: %w", err)
	}
	p := &Publisher{store: l.Store, key: discovery.ChannelKey(scope, topic, id), topic: topic, id: id, out: out}
	if err := l.Store.Create(p.key, c.Encode()); err != nil {
		out.Close()
		return nil, err
	}
	return p, nil
}

// ID is the publisher's.
func (p *Publisher) ID() uint64 { return p.id }

// Publish sends a message. It does not wait: a subscriber that is too slow loses it.
func (p *Publisher) Publish(payload []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := wire.Envelope{Publisher: p.id, Sequence: p.sequence, PublishedMS: uint64(time.Now().UnixMilli()), Topic: p.topic, Payload: payload}
	p.sequence++
	return p.out.Send(&e)
}

// Subscribers are those that are connected now; -1: the event plane does not tell.
func (p *Publisher) Subscribers() int { return p.out.Stats().Subscribers }

// Close ends it, in discovery too. It is idempotent.
func (p *Publisher) Close() {
	_ = p.store.Delete(p.key) // it may be deleted, or the store closed
	p.out.Close()
}
