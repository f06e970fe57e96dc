// Package kvsource is the worker's side of KV events in a deployment: it publishes what a rank holds on the event plane, and answers the routers that ask
// for what they missed. Counting, validity and the local indexer are those of publish.Source.
//
// In discovery, a source is three records: the channel it publishes on, the rank whose events these are, and the endpoint of its local indexer,
// "worker_kv_query_source_" and the publisher's id. Events of one call of Publish go out one a message, in order, and are recorded first: who hears of
// one may ask for it.
package kvsource

import (
	"errors"
	"fmt"

	kv "github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// DefaultBufferSteps is Dynamo's: the events kept for routers that missed some.
const DefaultBufferSteps = 1024

// Config says whose events a Source publishes.
type Config struct {
	WorkerID    uint64 // 0: the runtime's id
	DPRank      uint32
	BlockSize   int
	BufferSteps int // 0: DefaultBufferSteps
	// State is the endpoint in whose scope the events are published; the zero value: the one that the worker serves. The worker's model card must name it
	// too (kv_state_endpoint).
	State     discovery.Name
	NoIndexer bool // nobody can ask for what was missed; the worker's model card must say so too (enable_local_indexer)
}

// Source publishes one rank's events. All methods are safe for concurrent use.
type Source struct {
	store   discovery.Store
	key     discovery.Key
	out     *event.Publisher
	local   *publish.Source
	service *runtime.Service // nil: NoIndexer
}

// New starts publishing for a worker that serves the endpoint. Errors: publish.ErrConfig, and those of runtime.Endpoint.Serve.
func New(e *runtime.Endpoint, c Config) (*Source, error) {
	r := e.Runtime()
	if c.WorkerID == 0 {
		c.WorkerID = r.ID()
	}
	if c.BufferSteps == 0 {
		c.BufferSteps = DefaultBufferSteps
	}
	rank := worker.Rank{ID: c.WorkerID, DPRank: c.DPRank}
	if c.State == (discovery.Name{}) {
		c.State = e.Name
	}
	id := event.RandomPublisher()
	s := &Source{store: r.Store(), key: discovery.SourceKey(c.State, wire.TopicKVEvents, id)}
	var err error
	s.local, err = publish.NewSource(publish.SourceConfig{Rank: rank, BlockSize: c.BlockSize, BufferSteps: c.BufferSteps, Events: s.send})
	if err != nil {
		return nil, err
	}
	record := discovery.Source{Scope: c.State, Topic: wire.TopicKVEvents, Publisher: id, WorkerID: rank.ID, DPRank: rank.DPRank}
	if !c.NoIndexer {
		query, err := r.Endpoint(e.Namespace + "." + e.Component + ".worker_kv_query_source_" + discovery.Hex(id))
		if err == nil {
			s.service, err = query.Serve(s.answer, runtime.ServeOptions{ID: rank.ID, Plain: true})
		}
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		instance := s.service.Instance()
		record.Recovery = &instance
	}
	if s.out, err = event.NewPublisher(r.Link(), c.State, wire.TopicKVEvents, id); err == nil {
		err = s.store.Create(s.key, record.Encode())
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// ID is the publisher's.
func (s *Source) ID() uint64 { return s.out.ID() }

// Publish tells of events; see publish.Source.Publish.
func (s *Source) Publish(events ...publish.Event) (index.Applied, error) {
	return s.local.Publish(events...)
}

// Local is what counts, checks and answers.
func (s *Source) Local() *publish.Source { return s.local }

// Stats counts.
func (s *Source) Stats() publish.SourceStats { return s.local.Stats() }

// Close ends it, in discovery too. It is idempotent.
func (s *Source) Close() error {
	_ = s.store.Delete(s.key) // it may be deleted, or the store closed
	if s.out != nil {
		s.out.Close()
	}
	err := s.local.Close()
	if s.service != nil {
		s.service.Close(false)
	}
	return err
}

// send publishes an event; the local indexer's lock is held.
func (s *Source) send(ev *kv.Event) {
	_ = s.out.Publish(wire.AppendKVEvents(nil, s.local.Rank().ID, []kv.Event{*ev})) // the error is that it was closed
}

// answer answers one query.
func (s *Source) answer(c *runtime.Call) error {
	return s.local.Answer(c.Body, func(answer []byte) error {
		const frame = 1 << 10 // more than what is around it
		if len(answer) > plane.MaxMessageBytes-frame {
			answer = wire.AppendRangeAnswer(nil, s.local.Rank().ID, &kv.RangeAnswer{
				Kind: kv.RangeDumpFailed, Message: fmt.Sprintf("the answer has %d bytes, at most %d can be sent", len(answer), plane.MaxMessageBytes-frame),
			})
		}
		return c.Send(answer)
	})
}
