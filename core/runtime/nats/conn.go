package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/nats-io/nats.go"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Conn is a process's connection to a NATS server, and both planes over it: it is a plane.Requests and a plane.Events. All methods are safe for
// concurrent use.
type Conn struct {
	opts    Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running owned.Group
	wake    chan struct{}               // of keep
	live    atomic.Pointer[client.Conn] // nc

	acks acks

	reconnects, slow, strange, lost atomic.Uint64

	mu       sync.Mutex // guards the rest
	closed   bool
	nc       *client.Conn  // nil until the first attempt to connect has ended
	made     chan struct{} // closed then
	fault    error         // nc cannot be made
	last     error         // that kept it from connecting
	session  *session      // nil: no server is within reach
	up       chan struct{} // closed when there is a session, and made anew when it ends
	served   map[string]*served
	subjects map[string]*subject
	outlets  map[*outlet]struct{}
}

// session is the time from a connection to its end.
type session struct {
	since time.Time
	down  chan struct{} // closed at the end
}

var (
	_ plane.Requests = (*Conn)(nil)
	_ plane.Events   = (*Conn)(nil)
)

// Connect begins to connect. Errors: plane.ErrInvalidArgument.
func Connect(o Options) (*Conn, error) {
	o = o.filled()
	c := &Conn{
		opts: o, wake: make(chan struct{}, 1), made: make(chan struct{}), up: make(chan struct{}),
		served: make(map[string]*served), subjects: make(map[string]*subject), outlets: make(map[*outlet]struct{}),
	}
	with, err := o.client()
	if err != nil {
		return nil, err
	}
	with.ConnectedCB = func(*client.Conn) { c.rise() }
	with.ReconnectedCB = func(*client.Conn) {
		c.reconnects.Add(1)
		c.rise()
	}
	with.DisconnectedErrCB = func(_ *client.Conn, err error) { c.fall(err) }
	with.ReconnectErrCB = func(_ *client.Conn, err error) { c.failed(err) }
	with.AsyncErrorCB = func(_ *client.Conn, sub *client.Subscription, err error) {
		if errors.Is(err, client.ErrSlowConsumer) && sub != nil {
			c.overrun(sub)
			return
		}
		c.failed(err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	with.CustomDialer = dialer{c}
	c.acks.init()
	c.running.Go(func() { c.make(with) })
	c.running.Keep(c.ctx.Done(), c.keep)
	return c, nil
}

// maxAcks bounds the bytes of acknowledgements that wait to be looked at: each is a word, or says why not.
const maxAcks = 64 << 20

// dialer is one that Close ends.
type dialer struct{ c *Conn }

// Dial implements client.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	nc, err := (&net.Dialer{Timeout: d.c.opts.ConnectTimeout}).DialContext(d.c.ctx, network, address)
	if err != nil {
		d.c.failed(err)
		return nil, err
	}
	return &guard{Conn: nc}, nil
}

// make connects for the first time.
func (c *Conn) make(with client.Options) {
	nc, err := with.Connect() // a server that is not there is tried again, by the library
	var sub *client.Subscription
	if err == nil {
		if sub, err = nc.Subscribe(c.acks.prefix+"*", c.acks.take); err != nil {
			nc.Close()
		} else {
			_ = sub.SetPendingLimits(-1, maxAcks) // as many as there are callers
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault = err; err == nil {
		c.nc = nc
		c.live.Store(nc)
	}
	close(c.made)
	c.poke()
}

// poke has keep look.
func (c *Conn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Conn) rise() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fallLocked(nil)
	c.session = &session{since: time.Now(), down: make(chan struct{})}
	c.last = nil
	close(c.up)
	c.poke()
}

func (c *Conn) fall(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.last = err
	}
	c.fallLocked(err)
}

func (c *Conn) fallLocked(err error) {
	if c.session == nil {
		return
	}
	close(c.session.down)
	c.session = nil
	c.up = make(chan struct{})
	why := fmt.Errorf("no NATS server: %w", cause(err))
	for _, s := range c.subjects {
		s.fall(why)
	}
}

func cause(err error) error {
	if err == nil {
		return errors.New("the connection ended")
	}
	return err
}

func (c *Conn) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || !errors.Is(err, client.ErrNoServers) { // which tells less
		c.last = err
	}
}

// wait waits for a session, for so long. begun may end it: then there is no session and no error.
func (c *Conn) wait(ctx context.Context, patience time.Duration, begun <-chan struct{}) (*client.Conn, *session, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		c.mu.Lock()
		nc, s, up, fault, closed := c.nc, c.session, c.up, c.fault, c.closed
		c.mu.Unlock()
		switch {
		case closed:
			return nil, nil, plane.ErrClosed
		case fault != nil:
			return nil, nil, fmt.Errorf("%w: NATS server %s: %w", plane.ErrNoServer, c.where(), fault)
		case nc != nil && s != nil:
			return nc, s, nil
		}
		next := up
		if nc == nil {
			next = c.made
		}
		select {
		case <-next:
		case <-begun:
			return nil, nil, nil
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-c.ctx.Done():
			return nil, nil, plane.ErrClosed
		case <-timer.C:
			return nil, nil, c.unreached(patience)
		}
	}
}

func (c *Conn) unreached(patience time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: no NATS server at %s for %v: %w", plane.ErrNoServer, c.where(), patience, cause(c.last))
}

func (c *Conn) where() string {
	names := make([]string, len(c.opts.Servers))
	for i, s := range c.opts.Servers {
		names[i] = redacted(s)
	}
	return strings.Join(names, ", ")
}

// Reach tells whether a server is within reach, and if not, why.
func (c *Conn) Reach() (connected bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return false, plane.ErrClosed
	case c.session != nil:
		return true, nil
	case c.fault == nil && c.last == nil:
		return false, nil
	}
	return false, fmt.Errorf("%w: NATS server %s: %w", plane.ErrNoServer, c.where(), cmp.Or(c.fault, c.last))
}

// Stats count since the start, except the first.
type Stats struct {
	Connected  bool
	Reconnects uint64
	Slow       uint64 // times that a subscription could not keep up, and messages were dropped
	Lost       uint64 // times that a publisher's followers were told that messages were lost
	Strange    uint64 // messages that are no events, or of publishers that nobody follows
}

// Stats counts.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	connected := c.session != nil
	c.mu.Unlock()
	return Stats{connected, c.reconnects.Load(), c.slow.Load(), c.lost.Load(), c.strange.Load()}
}

// Close ends everything. What was published just before is sent, if it can be within a moment. It is idempotent.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closed = true
	nc, connected := c.nc, c.session != nil
	c.mu.Unlock()
	c.cancel()
	if nc != nil && connected {
		_ = nc.FlushTimeout(time.Second)
	}
	<-c.made
	c.mu.Lock()
	nc = c.nc
	c.mu.Unlock()
	if nc != nil {
		nc.Close()
	}
	c.running.Wait()
	c.mu.Lock()
	subjects := c.subjects
	c.subjects = make(map[string]*subject)
	c.mu.Unlock()
	for _, s := range subjects {
		s.close()
	}
}
