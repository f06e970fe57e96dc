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
	channels  *Channels // run alone uses it
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
	s := &Subscription{opts: o, link: l, view: view, channels: NewChannels(view), stop: make(chan struct{})}
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
	full := false
	look := func(id uint64) {
		wanted, ok := s.channels.Of(id)
		if f := all[id]; f != nil && (!ok || wanted != f.channel) {
			f.close()
			delete(all, id)
			if s.opts.Gone != nil {
				s.opts.Gone(id)
			}
		}
		if !ok || all[id] != nil {
			return
		}
		if full = full || len(all) >= maxPublishers; full {
			return
		}
		if f := s.follow(wanted); f != nil {
			all[id] = f
		}
	}
	s.channels.Each(look)
	for {
		s.channels.Take(look)
		if full && len(all) < maxPublishers {
			full = false
			s.channels.Each(look)
		}
		select {
		case <-s.stop:
			return
		case <-s.view.Changed():
		}
	}
}

// Channels are the publishers that a view of channels shows. It is for one goroutine at a time.
type Channels struct {
	view  *discovery.View
	known map[uint64]discovery.Channel
	paths map[string]uint64 // to the publisher
}

// NewChannels reads a view, whose owner goes on to close it.
func NewChannels(view *discovery.View) *Channels {
	return &Channels{view: view, known: make(map[uint64]discovery.Channel), paths: make(map[string]uint64)}
}

// Of gives a publisher's channel, if it is registered.
func (c *Channels) Of(publisher uint64) (channel discovery.Channel, ok bool) {
	channel, ok = c.known[publisher]
	return channel, ok
}

// Each tells of each publisher.
func (c *Channels) Each(each func(publisher uint64)) {
	for id := range c.known {
		each(id)
	}
}

// Take looks at what changed, and tells of each publisher that did.
func (c *Channels) Take(each func(publisher uint64)) {
	c.view.Take(func(path string, record []byte) {
		id, known := c.paths[path]
		if found, err := discovery.DecodeChannel(path, record); err == nil {
			id = found.Publisher // a path says which
			c.known[id], c.paths[path] = found, id
		} else if known {
			delete(c.known, id)
			delete(c.paths, path)
		} else {
			return
		}
		each(id)
	})
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
