package nats

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/nats-io/nats.go"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// prefixOf is what the subjects of an endpoint's topics begin with.
func prefixOf(n *discovery.Name) string {
	return "namespace." + encode(n.Namespace) + ".component." + encode(n.Component) + ".endpoint." + encode(n.Endpoint)
}

func encode(s string) string {
	return discovery.Escape(s, func(c byte) bool { return c == '_' || c == '-' })
}

// outlet is a publisher's way out.
type outlet struct {
	c       *Conn
	subject string
	again   bool // the last message is sent again when a connection was lost
	dropped atomic.Uint64

	mu       sync.Mutex // guards the rest
	closed   bool
	last     []byte
	returned func() // nil: nobody is told
}

// Open implements plane.Events. It waits for the server.
func (c *Conn) Open(ch *discovery.Channel) (plane.Outlet, error) {
	if _, _, err := c.wait(c.ctx, c.opts.ServerWait, nil); err != nil && !(c.opts.Background && errors.Is(err, plane.ErrNoServer)) {
		return nil, err
	}
	ch.NATS = prefixOf(&ch.Scope)
	o := &outlet{c: c, subject: ch.NATS + "." + encode(ch.Topic), again: ch.Topic == wire.TopicKVEvents}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, plane.ErrClosed
	}
	c.outlets[o] = struct{}{}
	return o, nil
}

// Send implements plane.Outlet. While there is no server some MiB wait for it.
func (o *outlet) Send(e *wire.Envelope) error {
	b := wire.AppendEnvelope(make([]byte, 0, 96+len(e.Topic)+len(e.Payload)), e)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return plane.ErrClosed
	}
	err := client.ErrDisconnected
	if nc := o.c.live.Load(); nc != nil {
		err = nc.Publish(o.subject, b)
	}
	if o.again && !errors.Is(err, client.ErrMaxPayload) {
		o.last = b
	}
	if err == nil {
		return nil
	}
	o.dropped.Add(1)
	switch {
	case errors.Is(err, client.ErrMaxPayload):
		return fmt.Errorf("%w: event of %d bytes, more than the NATS server takes", plane.ErrTooLarge, len(b))
	case errors.Is(err, client.ErrConnectionClosed):
		return plane.ErrClosed
	}
	return nil // there was no server yet, or too much waits for it
}

// repeat sends the last message once more: who has it knows its number, who has not learns that there is something to ask for.
func (o *outlet) repeat() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if nc := o.c.live.Load(); nc != nil && o.last != nil && !o.closed {
		_ = nc.Publish(o.subject, o.last)
	}
}

// OnReturn implements plane.Returning.
func (o *outlet) OnReturn(tell func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.returned = tell
}

// tell tells that the server is back.
func (o *outlet) tell() {
	o.mu.Lock()
	tell := o.returned
	o.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// Stats implements plane.Outlet.
func (o *outlet) Stats() plane.OutletStats {
	return plane.OutletStats{Subscribers: -1, Dropped: o.dropped.Load()}
}

// Close implements plane.Outlet.
func (o *outlet) Close() {
	o.mu.Lock()
	o.closed, o.last = true, nil
	o.mu.Unlock()
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	delete(o.c.outlets, o)
}

// subject is one that is subscribed to, for all its publishers that are followed.
//
// Invariant: a follower was told Connected last if and only if confirmed is the connection's session, and not nil.
type subject struct {
	name string

	// Guarded by Conn.mu.
	overrun   bool                 // messages were dropped since the followers were told last
	sub       *client.Subscription // nil: not yet
	confirmed *session             // in which the server knows of the subscription
	followers map[uint64]*follower // by publisher
}

func (s *subject) fall(why error) {
	if s.confirmed == nil {
		return
	}
	s.confirmed = nil
	for _, f := range s.followers {
		f.push(plane.Event{Kind: plane.Disconnected, Err: why})
	}
}

func (s *subject) close() {
	for _, f := range s.followers {
		f.Close()
	}
}

// Follow implements plane.Events. A second follower of a publisher takes the first one's place.
func (c *Conn) Follow(ch *discovery.Channel) plane.Inlet {
	f := &follower{
		c: c, topic: ch.Topic, publisher: ch.Publisher, events: make(chan plane.Event), stop: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	f.running.Go(f.run)
	name := ch.NATS + "." + encode(ch.Topic)
	if !literal(name) {
		f.push(plane.Event{Kind: plane.Disconnected, Err: fmt.Errorf("%w: subject %.256q", plane.ErrInvalidArgument, name)})
		return f
	}
	f.subject = name
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		f.push(plane.Event{Kind: plane.Disconnected, Err: plane.ErrClosed})
		return f
	}
	s := c.subjects[name]
	if s == nil {
		s = &subject{name: name, followers: make(map[uint64]*follower)}
		c.subjects[name] = s
	}
	s.followers[ch.Publisher] = f
	if s.confirmed != nil {
		f.push(plane.Event{Kind: plane.Connected})
	} else {
		c.poke()
	}
	return f
}

// keep has the server know of subscriptions, and tells followers what they cannot know; and repeats what may be lost.
func (c *Conn) keep() {
	var current *session
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		}
		again := c.confess()
		if w := c.work(); w.nc != nil && w.session != nil {
			if current != w.session {
				for _, o := range w.outlets {
					o.repeat()
					o.tell()
				}
				current = w.session
			}
			if len(w.subjects)+len(w.services) > 0 && !c.confirm(&w) {
				again = true // a server that does not answer is found out by the library
			}
		}
		if again {
			select {
			case <-c.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			c.poke()
		}
	}
}

// work is what keep has to do.
type work struct {
	nc       *client.Conn
	session  *session
	subjects []*subject // that are not confirmed
	services []*served  // likewise
	outlets  []*outlet
}

func (c *Conn) work() work {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := work{nc: c.nc, session: c.session}
	for _, s := range c.subjects {
		if s.confirmed == nil {
			w.subjects = append(w.subjects, s)
		}
	}
	for _, v := range c.served {
		if !v.confirmed {
			w.services = append(w.services, v)
		}
	}
	for o := range c.outlets {
		w.outlets = append(w.outlets, o)
	}
	return w
}

// confirm subscribes, and waits until the server knows.
func (c *Conn) confirm(w *work) bool {
	if !c.subscribe(w) || w.nc.FlushTimeout(c.opts.AckTimeout) != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != w.session {
		return true // it begins again
	}
	for _, v := range w.services {
		if !v.confirmed && v.sub != nil {
			v.confirmed = true // the library subscribes again by itself
			close(v.ready)
		}
	}
	for _, s := range w.subjects {
		if s.confirmed != nil || c.subjects[s.name] != s {
			continue
		}
		s.confirmed = w.session
		for _, f := range s.followers {
			f.push(plane.Event{Kind: plane.Connected})
		}
	}
	return true
}

func (c *Conn) subscribe(w *work) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range w.services {
		if c.listen(w.nc, v) != nil {
			return false
		}
	}
	for _, s := range w.subjects {
		if s.sub != nil || c.subjects[s.name] != s {
			continue
		}
		sub, err := w.nc.Subscribe(s.name, func(m *client.Msg) { owned.Do(func() { c.arrived(s, m) }) })
		if err != nil {
			return false
		}
		_ = sub.SetPendingLimits(16*c.opts.MaxPendingMessages, c.opts.MaxPendingBytes)
		s.sub = sub
	}
	return true
}

// arrived hands a message to who follows its publisher.
func (c *Conn) arrived(s *subject, m *client.Msg) {
	e, err := wire.DecodeEnvelope(m.Data)
	if err != nil {
		c.strange.Add(1)
		return
	}
	c.mu.Lock()
	f := s.followers[e.Publisher]
	c.mu.Unlock()
	if f == nil {
		c.strange.Add(1)
		return
	}
	x := plane.Event{Kind: plane.Arrived, Envelope: e, Size: len(m.Data)}
	if e.Topic != f.topic {
		x.Err = fmt.Errorf("%w: topic %.64q, expected %q", wire.ErrEnvelope, e.Topic, f.topic)
	}
	f.push(x)
}

// overrun hears that messages of a subscription are dropped, because they come faster than they are taken.
func (c *Conn) overrun(sub *client.Subscription) {
	c.slow.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.subjects[sub.Subject]; s != nil {
		s.overrun = true
		c.poke()
	}
}

// confess tells the followers of subscriptions that were overrun, once all that was not dropped is taken: none is lost then until they are told.
// It tells whether there are more.
func (c *Conn) confess() (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subjects {
		if !s.overrun {
			continue
		}
		if n, _, err := s.sub.Pending(); n > 0 && err == nil {
			more = true
			continue
		}
		s.overrun = false
		c.lost.Add(1)
		if s.confirmed == nil {
			continue
		}
		for _, f := range s.followers {
			f.push(plane.Event{Kind: plane.Disconnected, Err: errFull})
			f.push(plane.Event{Kind: plane.Connected})
		}
	}
	return more
}

// unfollow takes a follower out, and ends a subscription that nobody needs.
func (c *Conn) unfollow(f *follower) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.subjects[f.subject]
	if s == nil || s.followers[f.publisher] != f {
		return
	}
	delete(s.followers, f.publisher)
	if len(s.followers) > 0 {
		return
	}
	delete(c.subjects, f.subject)
	if s.sub != nil {
		_ = s.sub.Unsubscribe()
	}
}

// follower is the queue of a publisher's events.
type follower struct {
	c         *Conn
	subject   string
	topic     string
	publisher uint64
	events    chan plane.Event
	stop      chan struct{}
	once      sync.Once
	wake      chan struct{}
	running   owned.Group

	mu    sync.Mutex // guards the rest
	queue []plane.Event
	bytes int
}

var errFull = errors.New("too many events wait: some are lost")

// push never waits. A queue that is full is emptied: all that was in it is then asked for together with what did not fit.
func (f *follower) push(e plane.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.Kind == plane.Arrived && (len(f.queue) >= f.c.opts.MaxPendingMessages || f.bytes+e.Size > f.c.opts.MaxPendingBytes) {
		f.c.lost.Add(1)
		clear(f.queue)
		f.queue, f.bytes = append(f.queue[:0], plane.Event{Kind: plane.Disconnected, Err: errFull}, plane.Event{Kind: plane.Connected}), 0
	} else {
		f.queue = append(f.queue, e)
		f.bytes += e.Size
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *follower) take() []plane.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.queue
	f.queue, f.bytes = nil, 0
	return all
}

func (f *follower) run() {
	defer close(f.events)
	for {
		for _, e := range f.take() {
			select {
			case f.events <- e:
			case <-f.stop:
				return
			}
		}
		select {
		case <-f.wake:
		case <-f.stop:
			return
		}
	}
}

// Events implements plane.Inlet.
func (f *follower) Events() <-chan plane.Event { return f.events }

// Close implements plane.Inlet.
func (f *follower) Close() {
	f.once.Do(func() {
		f.c.unfollow(f)
		close(f.stop)
	})
	f.running.Wait()
}
