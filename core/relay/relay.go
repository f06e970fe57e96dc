// Package relay publishes again what an engine publishes, with what the engine's own publisher lacks: one event a message, a local
// indexer that can give everything, and stores counted so that routers hear of the first one and the last removal. It follows the engine
// as a router would (package feed): gaps are filled from its replay socket, a restart and a hole that is given up clear. So
// routers of the relay never hold more than the engine, and what they miss is what the relay missed, which Status tells.
//
// What is no use to a router is not passed on: other cache groups and block sizes, blocks that cannot be named; Status
// counts it. Vetted events go out as vLLM's present form, whatever form they came in.
package relay

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Config says what to relay. The engine's rank and block size are the source's.
type Config struct {
	Endpoint string // of the engine's PUB socket for this rank
	Replay   string // of its replay socket; "" if there is none
	Topic    string // prefix to subscribe to; "" is everything
	Source   *publish.Source
	Tune     func(*feed.Config) // changes to the feed's defaults; nil: none
}

// Relay follows an engine until it is closed.
type Relay struct{ feed *feed.Feed }

// Start begins to follow; it does no I/O itself. Endpoints that cannot be used show in the status. The source stays the caller's, who
// closes it after the relay.
func Start(cfg Config) *Relay {
	f := feed.Config{
		Rank: cfg.Source.Rank(), Endpoint: cfg.Endpoint, Replay: cfg.Replay, Topic: cfg.Topic, BlockSize: cfg.Source.BlockSize(),
		Sink: &sink{source: cfg.Source},
	}
	if cfg.Tune != nil {
		cfg.Tune(&f)
	}
	return &Relay{feed.Start(f)}
}

// Status says how much of the engine's stream is known; see feed.Status.
func (r *Relay) Status() feed.Status { return r.feed.Status() }

// Close stops following. It may be called more than once.
func (r *Relay) Close() { r.feed.Close() }

// sink publishes what a feed gives. It is called by one goroutine.
type sink struct {
	source *publish.Source
	dirty  bool // something was published since the last clear
}

var errRaw = errors.New("relay: an event without its tokens cannot be passed on")

// Apply is for events that did not come from an engine's stream; there are none.
func (s *sink) Apply(worker.Rank, *event.Event) (index.Applied, error) {
	return index.Applied{}, errRaw
}

// ApplyRaw passes an event on.
func (s *sink) ApplyRaw(_ worker.Rank, e *wire.Event, salt string) (index.Applied, error) {
	s.dirty = e.Kind != event.Cleared
	out := publish.Event{
		Kind: e.Kind, BlockHashes: e.BlockHashes, HasParent: e.HasParent, Parent: e.Parent, TokenIDs: e.TokenIDs, Bigram: e.Bigram,
		BlockSize: e.BlockSize, LoRAName: e.LoRAName, Medium: e.Medium, SessionID: e.SessionID,
	}
	switch {
	case e.Kind == event.Cleared:
		out = publish.Cleared()
	case e.Kind == event.Removed && len(e.BlockHashes) == 0:
		return index.Applied{}, nil
	case e.Kind == event.Stored:
		out.CacheSalt = salt
		if e.MM != nil {
			out.MM = make([][]uint64, len(e.BlockHashes))
			copy(out.MM, e.MM)
		}
	}
	return s.source.Publish(out)
}

// Reset tells routers that nothing is known any more.
func (s *sink) Reset(worker.Rank) {
	if s.dirty {
		s.dirty = false
		_, _ = s.source.Publish(publish.Cleared()) // fails only if the source is closed, and then nobody listens
	}
}
