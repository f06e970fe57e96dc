package kvrouter

import (
	"errors"
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// maxScopes bounds the endpoints whose events a router follows. Cards name them, and a deployment has one or two.
const maxScopes = 64

var errScopes = errors.New("too many endpoints of KV state")

// scopes are where the publishers of the workers' events are registered: the endpoint itself, and those that cards name instead
// (kv_state_endpoint). Only the goroutine of members.sync uses it, and whoever closes it after that.
type scopes struct {
	store discovery.Store
	open  map[discovery.Name]*scope
	told  chan struct{} // some scope may have changed
}

// scope shows the records of one. It passes on that they changed.
type scope struct {
	channels, sources *discovery.View
	stop              chan struct{}
	running           owned.Group
}

func newScopes(store discovery.Store) scopes {
	return scopes{store: store, open: make(map[discovery.Name]*scope), told: make(chan struct{}, 1)}
}

// get opens a scope, or gives it again. Errors: errScopes, those of the store.
func (x *scopes) get(name discovery.Name) (*scope, error) {
	if s := x.open[name]; s != nil {
		return s, nil
	}
	if len(x.open) >= maxScopes {
		return nil, fmt.Errorf("%w: %s besides %d others", errScopes, name, maxScopes)
	}
	s := &scope{stop: make(chan struct{})}
	topic := discovery.TopicPrefix(name, wire.TopicKVEvents)
	var err error
	if s.channels, err = x.store.Watch(discovery.EventChannels, topic); err == nil {
		s.sources, err = x.store.Watch(discovery.EventSources, topic)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	x.open[name] = s
	s.running.Keep(s.stop, func() {
		for {
			select {
			case <-s.stop:
				return
			case <-s.channels.Changed():
			case <-s.sources.Changed():
			}
			select {
			case x.told <- struct{}{}:
			default:
			}
		}
	})
	return s, nil
}

// keep closes those that are of no use any more.
func (x *scopes) keep(used func(discovery.Name) bool) {
	for name, s := range x.open {
		if !used(name) {
			s.close()
			delete(x.open, name)
		}
	}
}

func (s *scope) close() {
	close(s.stop)
	s.running.Wait()
	for _, v := range []*discovery.View{s.channels, s.sources} {
		if v != nil {
			v.Close()
		}
	}
}

// publishers are those of a scope, by whose events they publish; nil: there are several, which is one too many.
func (s *scope) publishers() map[worker.Rank]*event.Source {
	channels := event.Channels(s.channels)
	found := make(map[worker.Rank]*event.Source)
	for path, record := range s.sources.Entries() {
		source, err := discovery.DecodeSource(path, record)
		if err != nil {
			continue
		}
		c, ok := channels[source.Publisher]
		if !ok {
			continue
		}
		rank := worker.Rank{ID: source.WorkerID, DPRank: source.DPRank}
		if _, another := found[rank]; another {
			found[rank] = nil
		} else {
			found[rank] = &event.Source{Channel: c, Recovery: source.Recovery}
		}
	}
	return found
}
