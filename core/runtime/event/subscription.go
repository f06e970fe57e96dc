package event

import (
	"sync"
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
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
	link      plane.Link
	view      *discovery.View
	stop      chan struct{}
	once      sync.Once
	running   owned.Group
	malformed atomic.Uint64
	connected atomic.Int64
}

// Subscribe begins to follow. Errors: those of the store.
func Subscribe(l plane.Link, scope discovery.Name, topic string, o Options) (*Subscription, error) {
	view, err := l.Store.Watch(discovery.EventChannels, discovery.TopicPrefix(scope, topic))
	if err != nil {
		return nil, err
	}
	s := &Subscription{opts: o, link: l, view: view, stop: make(chan struct{})}
	s.running.Keep(s.stop, s.run)
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
	in      plane.Inlet
	channel discovery.Channel
	running owned.Group
}

func (f *followed) close() {
	f.in.Close()
	f.running.Wait()
}

func (s *Subscription) run() {
	all := make(map[uint64]*followed)
	defer func() {
		for _, f := range all {
			f.close()
		}
	}()
	for {
		wanted := Channels(s.view)
		for id, f := range all {
			if c, ok := wanted[id]; !ok || c != f.channel {
				f.close()
				delete(all, id)
				if s.opts.Gone != nil {
					s.opts.Gone(id)
				}
			}
		}
		for id, c := range wanted {
			if all[id] != nil || len(all) >= maxPublishers {
				continue
			}
			if f := s.follow(c); f != nil {
				all[id] = f
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
	in := follow(&s.link, &c, s.opts.ZMQ)
	if in == nil {
		return nil
	}
	f := &followed{in: in, channel: c}
	f.running.Go(func() {
		up := false
		for e := range f.in.Events() {
			switch e.Kind {
			case plane.Connected:
				up = true
				s.connected.Add(1)
			case plane.Disconnected:
				if up {
					s.connected.Add(-1)
				}
				up = false
			case plane.Arrived:
				if e.Err != nil {
					s.malformed.Add(1)
					continue
				}
				owned.Do(func() { s.opts.Take(&e.Envelope) })
			}
		}
		if up {
			s.connected.Add(-1)
		}
	})
	return f
}
