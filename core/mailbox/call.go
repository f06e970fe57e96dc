package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// MaxCredit bounds the items that a call may be ahead of its reader.
const MaxCredit = 1 << 20

// call is one to others. Its goroutine sends a notice for each item that it has credit for.
type call struct {
	ctx    context.Context // ends with it
	cancel context.CancelFunc
	more   chan struct{} // has room for one: there is credit, or the stream

	mu      sync.Mutex // guards the rest
	credit  int
	stop    func() // asks the worker to end; nil before it has begun
	release func() // ends the booking; likewise
	stopped bool
}

// Way says which instance a call goes to.
type Way int

// Ways.
const (
	RoundRobin Way = iota
	Random
	Direct
)

// client follows an endpoint, and says that it changed.
type client struct {
	*runtime.Client
	of   discovery.Name
	stop chan struct{}
	done owned.Group
}

func (c *client) close() {
	close(c.stop)
	c.done.Wait()
	c.Client.Close()
}

// Client follows the instances of an endpoint. Errors: those of runtime.Endpoint.Client.
func (m *Mailbox) Client(e *runtime.Endpoint) (uint64, error) {
	inner, err := e.Client()
	if err != nil {
		return 0, err
	}
	id, c := m.number(), &client{Client: inner, of: e.Name, stop: make(chan struct{})}
	m.mu.Lock()
	closed := m.clients == nil
	if !closed {
		m.clients[id] = c
	}
	m.mu.Unlock()
	if closed {
		inner.Close()
		return 0, plane.ErrClosed
	}
	changed := inner.Changed()
	c.done.Go(func() {
		for {
			select {
			case <-c.stop:
				return
			case <-changed:
			}
			changed = inner.Changed()
			if m.tell(Head{ID: id, Kind: Changed}, nil) != nil {
				return
			}
		}
	})
	return id, nil
}

func (m *Mailbox) client(id uint64) (*client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clients[id]; c != nil {
		return c, nil
	}
	if m.clients == nil {
		return nil, plane.ErrClosed
	}
	return nil, fmt.Errorf("%w: client %d", ErrUnknown, id)
}

// Instances are those that a client sees. Errors: ErrUnknown.
func (m *Mailbox) Instances(id uint64) (*runtime.Client, error) {
	c, err := m.client(id)
	if err != nil {
		return nil, err
	}
	return c.Client, nil
}

// Call calls an instance that a client sees; q is the mailbox's from now on. Errors: ErrUnknown; others are told by Ended.
func (m *Mailbox) Call(client uint64, way Way, instance uint64, q *runtime.Request, credit int) (uint64, error) {
	c, err := m.client(client)
	if err != nil {
		return 0, err
	}
	return m.run(credit, func(ctx context.Context) (receiver, []byte, error) {
		var s *runtime.Stream
		var err error
		switch way {
		case Direct:
			s, err = c.Direct(ctx, instance, q)
		case Random:
			s, err = c.Random(ctx, q)
		default:
			s, err = c.RoundRobin(ctx, q)
		}
		if err != nil {
			return nil, nil, err
		}
		return direct{s}, wire.Pack{}.Nil(), nil
	})
}

// Generate has a router place a request; q is the mailbox's from now on.
func (m *Mailbox) Generate(k *kvrouter.KvRouter, q *kvrouter.Request, credit int) (uint64, error) {
	return m.run(credit, func(ctx context.Context) (receiver, []byte, error) {
		depth := waiting(k)
		s, err := k.Generate(ctx, q)
		if err != nil {
			return nil, nil, err
		}
		c := s.Choice()
		route := wire.Pack{}.Array(6).Uint(c.WorkerID).Uint(uint64(c.DPRank)).Uint(uint64(c.OverlapBlocks)).Uint(uint64(c.PromptBlocks))
		return routed{s}, route.String(c.RequestID).Uint(uint64(depth)), nil
	})
}

// waiting counts the requests that wait.
func waiting(k *kvrouter.KvRouter) (n int) {
	if !k.Router().Queues() {
		return 0
	}
	classes, _ := k.Router().QueueStats() // an error: it is closed
	for _, c := range classes {
		n += int(c.Requests)
	}
	return n
}

// receiver is a stream of either kind.
type receiver interface {
	recv() (flags uint32, payload []byte, err error)
	Stop()
	Release()
	Close()
}

type direct struct{ *runtime.Stream }

func (direct) Release() {}

func (d direct) recv() (uint32, []byte, error) {
	it, err := d.Recv()
	switch {
	case err != nil:
		return 0, nil, err
	case it.Data == nil:
		return Note, wire.Pack{}.Array(2).String(it.Event).Value(it.Comment), nil
	}
	return 0, it.Data, sound(it.Data)
}

// sound: the host's decoder is not to be tried with anything else.
func sound(data []byte) error {
	if err := wire.Valid(data); err != nil {
		return fmt.Errorf("%w: item: %w", plane.ErrProtocol, err)
	}
	return nil
}

type routed struct{ *kvrouter.Stream }

func (r routed) recv() (flags uint32, payload []byte, err error) {
	it, err := r.Recv()
	if err != nil {
		return 0, nil, err
	}
	if err := sound(it.Data); err != nil {
		return 0, nil, err
	}
	if payload = it.Data; it.First {
		flags |= First
	}
	if it.Last {
		flags |= Last
		t := r.Timing()
		ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		timing := wire.Pack{}.Array(4).Float(float64(t.Received.UnixMicro()) / 1e3).Float(ms(t.Wait)).Float(ms(t.Prefill)).Float(ms(t.Total))
		payload = append(payload[:len(payload):len(payload)], timing...)
	}
	return flags, payload, nil
}

// run starts a call.
func (m *Mailbox) run(credit int, begin func(ctx context.Context) (receiver, []byte, error)) (uint64, error) {
	if credit < 0 || credit > MaxCredit {
		return 0, fmt.Errorf("%w: credit=%d, expected 0 .. %d", plane.ErrInvalidArgument, credit, MaxCredit)
	}
	c := &call{credit: credit, more: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(m.ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		c.cancel()
		return 0, plane.ErrClosed
	}
	m.last++
	id := m.last
	m.calls[id] = c
	m.running.Go(func() { m.pump(id, c, begin) })
	return id, nil
}

// pump is the goroutine of a call.
func (m *Mailbox) pump(id uint64, c *call, begin func(ctx context.Context) (receiver, []byte, error)) {
	err := owned.Try(func() error { return m.transfer(id, c, begin) })
	c.cancel()
	m.mu.Lock()
	delete(m.calls, id)
	m.mu.Unlock()
	text := ""
	if err == io.EOF {
		err = nil
	} else {
		text = err.Error()
	}
	_ = m.tell(Head{ID: id, Kind: Ended, Flags: m.status(err)}, wire.Pack{}.String(text)) // an error: nobody listens any more
}

// transfer hands on what there is of a call; io.EOF: all of it.
func (m *Mailbox) transfer(id uint64, c *call, begin func(ctx context.Context) (receiver, []byte, error)) error {
	s, how, err := begin(c.ctx)
	switch {
	case err != nil && c.ctx.Err() != nil:
		return plane.ErrCancelled
	case err != nil:
		return err
	}
	defer s.Close()
	c.begun(s)
	leave := owned.After(c.ctx, s.Close)
	defer leave()
	err = m.tell(Head{ID: id, Kind: Begun}, how)
	for err == nil {
		if err = c.wait(); err == nil {
			err = m.pass(id, s)
		}
	}
	return err
}

// pass hands on one item.
func (m *Mailbox) pass(id uint64, s receiver) error {
	flags, payload, err := s.recv()
	if err != nil {
		return err
	}
	return m.tell(Head{ID: id, Kind: Items, Flags: flags}, payload)
}

// begun takes the stream; a call that was stopped before stops it.
func (c *call) begun(s receiver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop, c.release = s.Stop, s.Release
	if c.stopped {
		s.Stop()
	}
}

// wait waits for credit for one item, and takes it. A stopped call needs none: what still comes is little, and its end must be seen.
func (c *call) wait() error {
	for {
		c.mu.Lock()
		if c.credit > 0 || c.stopped {
			c.credit--
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		select {
		case <-c.more:
		case <-c.ctx.Done():
			return plane.ErrCancelled
		}
	}
}

func (c *call) wake() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (m *Mailbox) call(id uint64) (*call, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.calls[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%w: call %d", ErrUnknown, id)
}

// More lets a call send n more items. Errors: ErrUnknown, plane.ErrInvalidArgument.
func (m *Mailbox) More(id uint64, n int) error {
	c, err := m.call(id)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if n < 0 || c.credit+n > MaxCredit {
		err = fmt.Errorf("%w: %d more items, expected a credit of 0 .. %d", plane.ErrInvalidArgument, n, MaxCredit)
	} else {
		c.credit += n
	}
	c.mu.Unlock()
	c.wake()
	return err
}

// Cancel ends a call: with kill at once, otherwise the worker is asked to end it, and what it still sends comes. Errors: ErrUnknown.
func (m *Mailbox) Cancel(id uint64, kill bool) error {
	c, err := m.call(id)
	if err != nil {
		return err
	}
	c.mu.Lock()
	release := c.release
	if kill {
		c.mu.Unlock()
		c.cancel()
		if release != nil {
			release() // what is decided next does not count it any more
		}
		return nil
	}
	if !c.stopped {
		c.stopped = true
		if c.stop != nil {
			c.stop()
		}
	}
	c.mu.Unlock()
	c.wake()
	return nil
}

// End ends a service, of which Closed tells, or a client. With kill a service's calls end at once, otherwise they are waited for. Errors: ErrUnknown.
func (m *Mailbox) End(id uint64, kill bool) error {
	if s, err := m.Service(id); err == nil {
		s.Withdraw()                                     // now: its instance may be served anew
		_ = m.settle(s.Instance().Name, s.Instance().ID) // nobody refuses what is not there
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c, s := m.clients[id], m.services[id]
	delete(m.clients, id)
	switch {
	case m.ctx.Err() != nil:
		return plane.ErrClosed
	case c != nil:
		m.running.Go(c.close)
	case s != nil:
		m.running.Go(func() {
			s.Close(!kill)
			m.mu.Lock()
			_, first := m.services[id]
			delete(m.services, id)
			m.mu.Unlock()
			if first {
				_ = m.tell(Head{ID: id, Kind: Closed}, nil)
			}
		})
	default:
		return fmt.Errorf("%w: service or client %d", ErrUnknown, id)
	}
	return nil
}

// errAborted ends an answer that its host gave up without a word.
var errAborted = errors.New("the worker gave the request up")
