package event

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// outlet is a PUB socket of a publisher's own.
type outlet struct{ pub *zmq.Pub }

// openZMQ binds to a free port of all addresses, which the channel says is at host.
func openZMQ(host string, c *discovery.Channel) (plane.Outlet, error) {
	pub, err := zmq.ListenPub("tcp://*:0", zmq.Options{})
	if err != nil {
		return nil, err
	}
	bound, err := zmq.ParseEndpoint(pub.Addr())
	if err != nil {
		return nil, errors.Join(err, pub.Close())
	}
	c.ZMQ = "tcp://" + net.JoinHostPort(host, strconv.Itoa(int(bound.Port)))
	return outlet{pub}, nil
}

func (o outlet) Send(e *wire.Envelope) error { return o.pub.Publish(wire.EventFrames(e)...) }

func (o outlet) Stats() plane.OutletStats {
	s := o.pub.Stats()
	return plane.OutletStats{Subscribers: s.Subscribers, Dropped: s.Dropped}
}

func (o outlet) Close() { o.pub.Close() }

// inlet follows a publisher's socket.
type inlet struct {
	sub     *zmq.Subscriber
	events  chan plane.Event
	cancel  context.CancelFunc
	running owned.Group
}

func followZMQ(c *discovery.Channel, o zmq.Options) plane.Inlet {
	if o.MaxMessage == 0 {
		o.MaxMessage = wire.MaxEnvelopeBytes
	}
	ctx, cancel := context.WithCancel(context.Background())
	const ahead = 64 // of the reader; more waits undecoded
	i := &inlet{sub: zmq.Subscribe(c.ZMQ, []string{c.Topic}, o), events: make(chan plane.Event, ahead), cancel: cancel}
	publisher, topic := c.Publisher, c.Topic
	i.running.Go(func() {
		defer close(i.events)
		for e := range i.sub.Events() {
			x := plane.Event{Kind: plane.Arrived}
			x.Err = owned.Try(func() error { x = translate(&e, publisher, topic); return x.Err })
			if !zmq.Offer(ctx, i.events, x, x.Size) {
				return
			}
		}
	})
	return i
}

func translate(e *zmq.Event, publisher uint64, topic string) plane.Event {
	switch e.Kind {
	case zmq.Connected:
		return plane.Event{Kind: plane.Connected}
	case zmq.Disconnected:
		return plane.Event{Kind: plane.Disconnected, Err: e.Err}
	}
	env, err := wire.ParseEventFrames(e.Frames)
	x := plane.Event{Kind: plane.Arrived, Envelope: env, Size: len(e.Frames[len(e.Frames)-1]), Err: err}
	if err == nil && (env.Publisher != publisher || env.Topic != topic) {
		x.Err = fmt.Errorf("%w: %.64q of publisher %d, expected %q of %d", wire.ErrEnvelope, env.Topic, env.Publisher, topic, publisher)
	}
	return x
}

func (i *inlet) Events() <-chan plane.Event { return i.events }

func (i *inlet) Close() {
	i.cancel()
	i.sub.Close()
	i.running.Wait()
}

// follow follows a publisher by whatever it is reached; nil if this process cannot.
func follow(l *plane.Link, c *discovery.Channel, o zmq.Options) plane.Inlet {
	switch {
	case c.ZMQ != "":
		return followZMQ(c, o)
	case l.Bus != nil:
		return l.Bus.Follow(c)
	}
	return nil
}
