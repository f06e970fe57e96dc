package mailbox

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Router makes a router of an endpoint's workers, whose requests Generate places; CloseRouter closes it. Errors: those of kvrouter.New;
// plane.ErrInvalidArgument if a publisher of this process, or in memory a worker, has blocks of another size.
func (m *Mailbox) Router(e *runtime.Endpoint, blockSize int, c router.Config, o router.Options) (*kvrouter.KvRouter, error) {
	if size, other := m.otherSize(e.Name, blockSize); other {
		return nil, fmt.Errorf("%w: block_size=%d, but a worker of %s publishes blocks of %d tokens", plane.ErrInvalidArgument, blockSize, e.Name, size)
	}
	k, err := kvrouter.New(e, blockSize, c, o)
	if err != nil {
		return nil, err
	}
	if m.local {
		for _, err := range k.Unfit() {
			k.Close()
			return nil, fmt.Errorf("%w: block_size=%d: %w", plane.ErrInvalidArgument, blockSize, err)
		}
	}
	m.mu.Lock()
	closed := m.routers == nil
	if !closed {
		m.routers[k] = e.Name
		m.running.Go(func() { m.follow(k, e.Name) })
	}
	m.mu.Unlock()
	if closed {
		k.Close()
		return nil, plane.ErrClosed
	}
	return k, nil
}

// follow has Changed tell the clients of an endpoint when the workers of a router of it change, too: that they have model cards, clients do not see.
func (m *Mailbox) follow(k *kvrouter.KvRouter, of discovery.Name) {
	for changed := k.Changed(); ; {
		select {
		case <-changed:
		case <-k.Closed():
			return
		case <-m.ctx.Done():
			return
		}
		changed = k.Changed()
		m.mu.Lock()
		var ids []uint64
		for id, c := range m.clients {
			if c.of == of {
				ids = append(ids, id)
			}
		}
		m.mu.Unlock()
		for _, id := range ids {
			if m.tell(Head{ID: id, Kind: Changed}, nil) != nil {
				return
			}
		}
	}
}

// Discovered tells whether the store is within reach, and if not, why, as discovery.Remote does. When it is, clients and routers have seen what it showed.
func (m *Mailbox) Discovered() (yes bool, err error) {
	if remote, ok := m.r.Store().(discovery.Remote); ok {
		if yes, err = remote.Reach(); !yes {
			return false, err
		}
	}
	m.mu.Lock()
	clients, routers := slices.Collect(maps.Values(m.clients)), slices.Collect(maps.Keys(m.routers))
	m.mu.Unlock()
	for _, c := range clients {
		c.Refresh()
	}
	for _, k := range routers {
		k.Sync()
	}
	return true, err
}

// CloseRouter closes a router. It is idempotent.
func (m *Mailbox) CloseRouter(k *kvrouter.KvRouter) {
	m.mu.Lock()
	delete(m.routers, k)
	m.mu.Unlock()
	k.Close()
}

// otherSize finds a publisher of an endpoint whose blocks have another size.
func (m *Mailbox) otherSize(n discovery.Name, size int) (int, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, s := range m.sources {
		if key.name == n && s.size != size {
			return s.size, true
		}
	}
	return 0, false
}

// routersOf gives the routers of an endpoint, or, without one, all there are.
func (m *Mailbox) routersOf(n discovery.Name) (found []*kvrouter.KvRouter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, of := range m.routers {
		if of == n {
			found = append(found, k)
		}
	}
	return found
}

// settle has the clients and routers of an endpoint take what was just stored, if the store is this process's memory: nothing is seen later there than
// the call returns that said it. It tells why a router cannot take the instance id. With other stores it does nothing.
func (m *Mailbox) settle(n discovery.Name, id uint64) error {
	if !m.local {
		return nil
	}
	m.mu.Lock()
	clients := slices.Collect(maps.Values(m.clients))
	m.mu.Unlock()
	for _, c := range clients {
		c.Refresh()
	}
	var refused error
	for _, k := range m.routersOf(n) {
		k.Sync()
		if err := k.Unfit()[id]; err != nil {
			refused = fmt.Errorf("%w: a router of %s refuses worker %d: %w", plane.ErrInvalidArgument, n, id, err)
		}
	}
	return refused
}

// List lets clients and routers find a service, or find it no more, while it goes on serving. Errors: ErrUnknown, those of the store, and in memory
// plane.ErrInvalidArgument if a router cannot take it: then it is not found.
func (m *Mailbox) List(id uint64, listed bool) error {
	s, err := m.Service(id)
	if err != nil {
		return err
	}
	return m.list(s, listed)
}

func (m *Mailbox) list(s *runtime.Service, listed bool) error {
	at := s.Instance()
	if listed {
		if err := s.Register(); err != nil {
			return err
		}
		refused := m.settle(at.Name, at.ID)
		if refused == nil {
			return nil
		}
		_ = s.Unregister() // it is in memory
		_ = m.settle(at.Name, at.ID)
		return refused
	}
	err := s.Unregister()
	_ = m.settle(at.Name, at.ID) // nobody refuses what is not there
	return err
}
