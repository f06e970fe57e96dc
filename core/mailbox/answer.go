package mailbox

import (
	"errors"
	"fmt"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// Items of one answer that wait for its caller's socket: from enough on the host should wait for Drained, and more than most are refused.
const (
	enough = 64
	most   = 4096
)

// ErrAhead: more items wait for the caller's socket than may.
var ErrAhead = errors.New("too many items wait for the caller")

// answer is what the host answers to one call. Its goroutine, the service's handler, sends it.
type answer struct {
	more chan struct{} // has room for one: there is something to send

	mu     sync.Mutex // guards the rest
	queue  [][]byte
	tell   bool // Drained when the queue is empty
	ended  bool
	err    error // to tell the caller, if ended
	closed bool  // the caller is gone
}

// Serve makes this process an instance of an endpoint: Request tells of each call, which Answer and Finish are for. Errors: those of
// runtime.Endpoint.Serve, and of List.
func (m *Mailbox) Serve(e *runtime.Endpoint, o runtime.ServeOptions) (uint64, *runtime.Service, error) {
	id := m.number()
	unlisted := o.Unlisted
	o.Unlisted = true
	s, err := e.Serve(func(c *runtime.Call) error { return m.handle(id, c) }, o)
	if err == nil && !unlisted {
		if err = m.list(s, true); err != nil {
			s.Close(false)
		}
	}
	if err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	m.services[id] = s
	m.mu.Unlock()
	return id, s, nil
}

// Service is the one of a number. Errors: ErrUnknown.
func (m *Mailbox) Service(id uint64) (*runtime.Service, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.services[id]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%w: service %d", ErrUnknown, id)
}

// handle serves one call, until the host ends it.
func (m *Mailbox) handle(service uint64, c *runtime.Call) error {
	a := &answer{more: make(chan struct{}, 1)}
	m.mu.Lock()
	m.last++
	id := m.last
	m.answers[id] = a
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.answers, id)
		m.mu.Unlock()
	}()
	if m.tell(Head{ID: id, Kind: Request}, wire.Pack{}.Array(4).Uint(service).String(c.ID).Texts(c.Metadata).Value(c.Body)) != nil {
		return errAborted
	}
	stopping := owned.After(c.Stopped(), func() {
		if c.Killed().Err() == nil {
			_ = m.tell(Head{ID: id, Kind: Cancelled}, nil)
		}
	})
	defer stopping()
	killing := owned.After(c.Killed(), func() { _ = m.tell(Head{ID: id, Kind: Cancelled, Flags: Kill}, nil) })
	defer killing()
	for {
		queue, drained, ended, err := a.take()
		for _, item := range queue {
			if sent := c.Send(item); sent != nil {
				return m.giveUp(id, a, c, sent)
			}
		}
		switch {
		case ended:
			return err
		case drained:
			_ = m.tell(Head{ID: id, Kind: Drained}, nil)
		case len(queue) == 0:
			select {
			case <-a.more:
			case <-c.Killed().Done():
				return m.giveUp(id, a, c, plane.ErrCancelled)
			case <-m.ctx.Done():
				return errAborted
			}
		}
	}
}

// giveUp waits until the host has ended an answer that nobody takes any more, so that a service which is closed has no handlers left.
func (m *Mailbox) giveUp(id uint64, a *answer, c *runtime.Call, err error) error {
	a.mu.Lock()
	a.closed, a.queue = true, nil
	tell := a.tell
	a.tell = false
	a.mu.Unlock()
	if tell {
		_ = m.tell(Head{ID: id, Kind: Drained}, nil)
	}
	for {
		if _, _, ended, _ := a.take(); ended {
			return err
		}
		select {
		case <-a.more:
		case <-m.ctx.Done():
			return err
		}
	}
}

// take takes all that waits.
func (a *answer) take() (queue [][]byte, drained, ended bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	queue, a.queue = a.queue, nil
	if len(queue) == 0 && a.tell {
		drained, a.tell = true, false
	}
	return queue, drained, a.ended, a.err
}

func (m *Mailbox) answer(id uint64) (*answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.answers[id]; a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("%w: request %d", ErrUnknown, id)
}

// Answer sends an item, MessagePack, which is the mailbox's from now on. If it tells to wait, the caller reads more slowly than the host writes: Drained
// comes. Errors: ErrUnknown, plane.ErrCancelled (the caller is gone), plane.ErrInvalidArgument (not MessagePack), ErrAhead.
func (m *Mailbox) Answer(id uint64, item []byte) (wait bool, err error) {
	a, err := m.answer(id)
	if err != nil {
		return false, err
	}
	if err := wire.Valid(item); err != nil {
		return false, fmt.Errorf("%w: item: %w", plane.ErrInvalidArgument, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ended:
		return false, fmt.Errorf("%w: request %d", ErrUnknown, id)
	case a.closed:
		return false, plane.ErrCancelled
	case len(a.queue) >= most:
		return false, fmt.Errorf("%w: %d", ErrAhead, len(a.queue))
	}
	a.queue = append(a.queue, item)
	a.wake()
	a.tell = a.tell || len(a.queue) >= enough
	return a.tell, nil
}

// Finish ends an answer: it is complete, or failed with err, which the caller is told. Errors: ErrUnknown.
func (m *Mailbox) Finish(id uint64, err error) error {
	a, unknown := m.answer(id)
	if unknown != nil {
		return unknown
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return fmt.Errorf("%w: request %d", ErrUnknown, id)
	}
	a.ended, a.err = true, err
	a.wake()
	return nil
}

func (a *answer) wake() {
	select {
	case a.more <- struct{}{}:
	default:
	}
}
