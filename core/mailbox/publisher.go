package mailbox

import (
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/relay"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
)

// Publisher is the worker's side of one rank's KV events in a deployment, as relay.Worker is without one.
type Publisher struct {
	source *kvsource.Source
	relay  *relay.Relay // nil: the host publishes
}

// NewPublisher starts publishing. engine, if it is not nil, says whose events to pass on. Errors: publish.ErrConfig, and those of kvsource.New.
func NewPublisher(e *runtime.Endpoint, c kvsource.Config, engine *relay.EngineConfig) (*Publisher, error) {
	var follow relay.Config
	var err error
	if engine != nil {
		if follow, err = engine.Rank(c.DPRank); err != nil {
			return nil, fmt.Errorf("%w: engine: %w", publish.ErrConfig, err)
		}
	}
	p := &Publisher{}
	if p.source, err = kvsource.New(e, c); err != nil {
		return nil, err
	}
	if engine != nil {
		follow.Source = p.source.Local()
		p.relay = relay.Start(follow)
	}
	return p, nil
}

// Publish tells of the rank's events; see publish.Source.Publish. relay.ErrRank, relay.ErrRelayed: nothing was published.
func (p *Publisher) Publish(rank uint32, events ...publish.Event) (index.Applied, error) {
	own := p.source.Local().Rank()
	switch {
	case rank != own.DPRank:
		return index.Applied{}, fmt.Errorf("%w: %d of worker %d", relay.ErrRank, rank, own.ID)
	case p.relay != nil:
		return index.Applied{}, fmt.Errorf("%w: worker %d", relay.ErrRelayed, own.ID)
	}
	return p.source.Publish(events...)
}

// Info tells what was published.
func (p *Publisher) Info() []relay.RankInfo {
	info := relay.InfoOf(p.source.Local())
	if p.relay != nil {
		info.Engine = relay.StateOf(p.relay.Status())
	}
	return []relay.RankInfo{info}
}

// Close stops it. It is idempotent.
func (p *Publisher) Close() error {
	if p.relay != nil {
		p.relay.Close()
	}
	return p.source.Close()
}
