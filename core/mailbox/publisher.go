package mailbox

import (
	"fmt"
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/relay"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
)

// Publisher is the worker's side of one rank's KV events in a deployment, as relay.Worker is without one. Publishers of one rank share their source:
// routers follow one publisher of a rank, and none if there are two.
type Publisher struct {
	m      *Mailbox
	key    sourceKey
	shared *source
	relay  *relay.Relay // nil: the host publishes
	closed atomic.Bool
}

// sourceKey names a rank.
type sourceKey struct {
	name discovery.Name
	id   uint64
	rank uint32
}

// source is what the publishers of a rank share. Guard: Mailbox.publishing.
type source struct {
	*kvsource.Source
	size  int
	users int
	alone bool // an engine's events are passed on
}

// Publisher starts publishing. engine, if it is not nil, says whose events to pass on. Errors: publish.ErrConfig, those of kvsource.New, plane.ErrClosed;
// plane.ErrInvalidArgument if a router or a publisher of this process has blocks of another size, or the rank has a publisher and either is an engine's.
func (m *Mailbox) Publisher(e *runtime.Endpoint, c kvsource.Config, engine *relay.EngineConfig) (*Publisher, error) {
	var follow relay.Config
	var err error
	if engine != nil {
		if follow, err = engine.Rank(c.DPRank); err != nil {
			return nil, fmt.Errorf("%w: engine: %w", publish.ErrConfig, err)
		}
	}
	if c.WorkerID == 0 {
		c.WorkerID = m.r.ID()
	}
	for _, k := range m.routersOf(e.Name) {
		if size := k.Router().BlockSize(); size != c.BlockSize {
			return nil, fmt.Errorf("%w: blocks of %d tokens, but a router of %s has blocks of %d", plane.ErrInvalidArgument, c.BlockSize, e.Name, size)
		}
	}
	p := &Publisher{m: m, key: sourceKey{e.Name, c.WorkerID, c.DPRank}}
	if p.shared, err = m.source(e, p.key, c, engine != nil); err != nil {
		return nil, err
	}
	if engine != nil {
		follow.Source = p.shared.Local()
		p.relay = relay.Start(follow)
	}
	_ = m.settle(e.Name, c.WorkerID) // of a worker, not of its events
	return p, nil
}

// source gives the source of a rank, one more user of it.
func (m *Mailbox) source(e *runtime.Endpoint, key sourceKey, c kvsource.Config, alone bool) (*source, error) {
	m.publishing.Lock()
	defer m.publishing.Unlock()
	m.mu.Lock()
	s, closed := m.sources[key], m.sources == nil
	m.mu.Unlock()
	switch {
	case closed:
		return nil, plane.ErrClosed
	case s == nil:
		inner, err := kvsource.New(e, c)
		if err != nil {
			return nil, err
		}
		s = &source{Source: inner, size: c.BlockSize, alone: alone}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.sources == nil {
			_ = inner.Close()
			return nil, plane.ErrClosed
		}
		m.sources[key] = s
	case s.size != c.BlockSize:
		return nil, fmt.Errorf("%w: blocks of %d tokens, but rank %d of worker %d publishes blocks of %d", plane.ErrInvalidArgument, c.BlockSize, key.rank, key.id, s.size)
	case s.alone || alone:
		return nil, fmt.Errorf("%w: rank %d of worker %d has a publisher already, and an engine's events have one source", plane.ErrInvalidArgument, key.rank, key.id)
	}
	s.users++
	return s, nil
}

// Publish tells of the rank's events; see publish.Source.Publish. relay.ErrRank, relay.ErrRelayed, publish.ErrClosed: nothing was published.
func (p *Publisher) Publish(rank uint32, events ...publish.Event) (index.Applied, error) {
	own := p.shared.Local().Rank()
	switch {
	case rank != own.DPRank:
		return index.Applied{}, fmt.Errorf("%w: %d of worker %d", relay.ErrRank, rank, own.ID)
	case p.relay != nil:
		return index.Applied{}, fmt.Errorf("%w: worker %d", relay.ErrRelayed, own.ID)
	case p.closed.Load():
		return index.Applied{}, publish.ErrClosed
	}
	return p.shared.Publish(events...)
}

// Info tells what was published.
func (p *Publisher) Info() []relay.RankInfo {
	info := relay.InfoOf(p.shared.Local())
	if p.relay != nil {
		info.Engine = relay.StateOf(p.relay.Status())
	}
	return []relay.RankInfo{info}
}

// Close stops it. It is idempotent.
func (p *Publisher) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	if p.relay != nil {
		p.relay.Close()
	}
	p.m.publishing.Lock()
	defer p.m.publishing.Unlock()
	if p.shared.users--; p.shared.users > 0 {
		return nil
	}
	p.m.mu.Lock()
	delete(p.m.sources, p.key)
	p.m.mu.Unlock()
	return p.shared.Close()
}
