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

	publishers *event.Channels
	of         map[uint64]discovery.Source                 // by publisher
	paths      map[string]uint64                           // of the records of sources, to the publisher
	ranks      map[worker.Rank]map[uint64]discovery.Source // whose publishers they are
	dirty      map[worker.Rank]struct{}                    // ranks whose publisher may be another one
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
	s := &scope{
		stop: make(chan struct{}), of: make(map[uint64]discovery.Source), paths: make(map[string]uint64),
		ranks: make(map[worker.Rank]map[uint64]discovery.Source), dirty: make(map[worker.Rank]struct{}),
	}
	topic := discovery.TopicPrefix(name, wire.TopicKVEvents)
	var err error
	if s.channels, err = x.store.Watch(discovery.EventChannels, topic); err == nil {
		s.sources, err = x.store.Watch(discovery.EventSources, topic)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	s.publishers = event.NewChannels(s.channels)
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

// look takes what changed.
func (s *scope) look() {
	s.sources.Take(func(path string, record []byte) {
		publisher, known := s.paths[path]
		if known {
			rank := rankOf(s.of[publisher])
			s.dirty[rank] = struct{}{}
			if delete(s.ranks[rank], publisher); len(s.ranks[rank]) == 0 {
				delete(s.ranks, rank)
			}
			delete(s.of, publisher)
			delete(s.paths, path)
		}
		source, err := discovery.DecodeSource(path, record)
		if err != nil {
			return
		}
		publisher = source.Publisher // a path says which
		rank := rankOf(source)
		s.dirty[rank] = struct{}{}
		s.of[publisher], s.paths[path] = source, publisher
		if s.ranks[rank] == nil {
			s.ranks[rank] = make(map[uint64]discovery.Source)
		}
		s.ranks[rank][publisher] = source
	})
	s.publishers.Take(func(publisher uint64) {
		if source, ok := s.of[publisher]; ok {
			s.dirty[rankOf(source)] = struct{}{}
		}
	})
}

func rankOf(s discovery.Source) worker.Rank { return worker.Rank{ID: s.WorkerID, DPRank: s.DPRank} }

// publisher is that of a rank's events; nil: there is none, or there are several, which is one too many.
func (s *scope) publisher(rank worker.Rank) (found *event.Source) {
	for publisher, source := range s.ranks[rank] {
		channel, ok := s.publishers.Of(publisher)
		switch {
		case !ok:
		case found != nil:
			return nil
		default:
			found = &event.Source{Channel: channel, Recovery: source.Recovery}
		}
	}
	return found
}
