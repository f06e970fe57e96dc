package event

import (
	"sync"
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// maxPublishers bounds the publishers of a topic that are followed.
const maxPublishers = 65_536

// Options of a Subscription.
type Options struct {
	// Take gets each message; the payload is valid for the call only. It is called by a goroutine for each publisher.
	Take func(e *wire.Envelope)
	// Gone, if not nil, is told of a publisher that is registered no more, after its last message.
	Gone func(publisher uint64)
	ZMQ  zmq.Options
}

// Subscription follows all publishers of a topic.
type Subscription struct {
	opts      Options
	topic     string
	view      *discovery.View
	stop      chan struct{}
	once      sync.Once
	running   sync.WaitGroup
	malformed atomic.Uint64
	connected atomic.Int64
}

// Subscribe begins to follow. Errors: those of the store.
func Subscribe(store discovery.Store, scope discovery.Name, topic string, o Options) (*Subscription, error) {
	view, err := store.Watch(discovery.EventChannels, discovery.TopicPrefix(scope, topic))
	if err != nil {
		return nil, err
	}
	if o.ZMQ.MaxMessage == 0 {
		o.ZMQ.MaxMessage = wire.MaxEnvelopeBytes
	}
	s := &Subscription{opts: o, topic: topic, view: view, stop: make(chan struct{})}
	s.running.Go(s.run)
	return s, nil
}

// Connected counts the publishers within reach now.
func (s *Subscription) Connected() int { return int(s.connected.Load()) }

// Malformed counts the messages that were none, since the start.
func (s *Subscription) Malformed() uint64 { return s.malformed.Load() }

// Close ends it; nothing is told any more when it returns. It is idempotent.
func (s *Subscription) Close() {
	s.once.Do(func() {
		close(s.stop)
		s.running.Wait()
		s.view.Close()
	})
}

// followed is one publisher.
type followed struct {
	sub  *zmq.Subscriber
	zmq  string
	done chan struct{}
}

func (s *Subscription) run() {
	all := make(map[uint64]*followed)
	defer func() {
		for _, f := range all {
			f.sub.Close()
			<-f.done
		}
	}()
	for {
		wanted := Channels(s.view)
		for id, f := range all {
			if c, ok := wanted[id]; !ok || c.ZMQ != f.zmq {
				f.sub.Close()
				<-f.done
				delete(all, id)
				if s.opts.Gone != nil {
					s.opts.Gone(id)
				}
			}
		}
		for id, c := range wanted {
			if all[id] == nil && c.ZMQ != "" && len(all) < maxPublishers {
				all[id] = s.follow(c)
			}
		}
		select {
		case <-s.stop:
			return
		case <-s.view.Changed():
		}
	}
}

// Channels are the publishers that a view of channels shows, by id.
func Channels(view *discovery.View) map[uint64]discovery.Channel {
	channels := make(map[uint64]discovery.Channel)
	for path, record := range view.Entries() {
		if c, err := discovery.DecodeChannel(path, record); err == nil {
			channels[c.Publisher] = c
		}
	}
	return channels
}

func (s *Subscription) follow(c discovery.Channel) *followed {
	f := &followed{sub: zmq.Subscribe(c.ZMQ, []string{s.topic}, s.opts.ZMQ), zmq: c.ZMQ, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		up := false
		for e := range f.sub.Events() {
			switch e.Kind {
			case zmq.Connected:
				up = true
				s.connected.Add(1)
			case zmq.Disconnected:
				if up {
					s.connected.Add(-1)
				}
				up = false
			case zmq.Message:
				env, err := wire.ParseEventFrames(e.Frames)
				if err != nil || env.Publisher != c.Publisher || env.Topic != s.topic {
					s.malformed.Add(1)
					continue
				}
				s.opts.Take(&env)
			}
		}
		if up {
			s.connected.Add(-1)
		}
	}()
	return f
}
