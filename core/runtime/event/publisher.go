package event

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Publisher sends the messages of a topic. All methods are safe for concurrent use.
type Publisher struct {
	store discovery.Store
	scope discovery.Name
	topic string
	id    uint64
	pub   *zmq.Pub

	mu       sync.Mutex // guards that messages leave in the order of their numbers
	sequence uint64
}

// RandomPublisher draws an id, of 53 bits as Dynamo's are.
func RandomPublisher() uint64 { return rand.Uint64()&(1<<53-1) | 1 }

// NewPublisher binds to a free port of all addresses, and tells of it under host. id 0: one is drawn. Errors: those of binding and of the store.
func NewPublisher(store discovery.Store, host string, scope discovery.Name, topic string, id uint64) (*Publisher, error) {
	if id == 0 {
		id = RandomPublisher()
	}
	pub, err := zmq.ListenPub("tcp://*:0", zmq.Options{})
	if err != nil {
		return nil, fmt.Errorf("event plane: %w", err)
	}
	p := &Publisher{store: store, scope: scope, topic: topic, id: id, pub: pub}
	bound, err := zmq.ParseEndpoint(pub.Addr())
	if err == nil {
		c := discovery.Channel{Scope: scope, Topic: topic, Publisher: id, ZMQ: "tcp://" + net.JoinHostPort(host, strconv.Itoa(int(bound.Port)))}
		err = store.Create(discovery.ChannelKey(scope, topic, id), c.Encode())
	}
	if err != nil {
		pub.Close()
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
	return p.pub.Publish(wire.EventFrames(&e)...)
}

// Subscribers are those that are connected now.
func (p *Publisher) Subscribers() int { return p.pub.Stats().Subscribers }

// Close ends it, in discovery too. It is idempotent.
func (p *Publisher) Close() {
	_ = p.store.Delete(discovery.ChannelKey(p.scope, p.topic, p.id)) // it may be deleted, or the store closed
	p.pub.Close()
}
