package event

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Source is a publisher of a rank's KV events.
type Source struct {
	Publisher uint64
	ZMQ       string              // where it publishes
	Recovery  *discovery.Instance // whom to ask for what was missed; nil: nobody
}

func (s *Source) same(o *Source) bool {
	return s == o || s != nil && o != nil && s.Publisher == o.Publisher && s.ZMQ == o.ZMQ && (s.Recovery == nil) == (o.Recovery == nil) &&
		(s.Recovery == nil || *s.Recovery == *o.Recovery)
}

// Ask sends a query, as wire.AppendRangeQuery makes it, to whoever answers for a publisher, and gives the answer's bytes.
type Ask func(ctx context.Context, to *discovery.Instance, query []byte) ([]byte, error)

var (
	errNobody = errors.New("nobody publishes the rank's events")
	errNoAsk  = errors.New("the rank's publisher has no local indexer")
	errOther  = errors.New("another publisher takes over")
)

// RankStream is the feed.Stream of a rank: it follows whichever publisher it is told of.
//
// Dynamo numbers events from 1, and feeds from 0: so numbers are one less here.
type RankStream struct {
	rank    worker.Rank
	queries bool
	ask     Ask
	events  chan feed.StreamEvent
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{}

	mu     sync.Mutex // guards source
	source *Source
}

var _ feed.Stream = (*RankStream)(nil)

// eventQueue is how many messages wait for a feed.
const eventQueue = 256

// NewRankStream follows nobody yet. queries: the rank's publishers have local indexers.
func NewRankStream(rank worker.Rank, queries bool, ask Ask) *RankStream {
	s := &RankStream{rank: rank, queries: queries, ask: ask, events: make(chan feed.StreamEvent, eventQueue), wake: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.running.Go(s.run)
	return s
}

// Follow tells who publishes the rank's events from now on; nil: nobody.
func (s *RankStream) Follow(source *Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source.same(source) {
		return
	}
	s.source = source
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *RankStream) current() *Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source
}

// Events implements feed.Stream.
func (s *RankStream) Events() <-chan feed.StreamEvent { return s.events }

// Queries implements feed.Stream.
func (s *RankStream) Queries() bool { return s.queries }

// Close implements feed.Stream.
func (s *RankStream) Close() {
	s.cancel()
	s.running.Wait()
}

// Query implements feed.Stream.
func (s *RankStream) Query(ctx context.Context, q *event.RangeQuery) (uint64, *event.RangeAnswer, error) {
	source := s.current()
	switch {
	case source == nil:
		return 0, nil, errNobody
	case source.Recovery == nil:
		return 0, nil, errNoAsk
	}
	theirs := *q
	theirs.Start++
	theirs.End++
	bytes, err := s.ask(ctx, source.Recovery, wire.AppendRangeQuery(nil, &theirs))
	if err != nil {
		return 0, nil, err
	}
	a, err := wire.DecodeRangeAnswer(bytes, s.rank)
	if err != nil {
		return 0, nil, err
	}
	return source.Publisher, a, ours(a)
}

// ours gives an answer our numbers. A publisher without any event says so as a state of nothing after 0.
func ours(a *event.RangeAnswer) error {
	for i := range a.Events {
		if a.Kind == event.RangeEvents && a.Events[i].ID == 0 {
			return fmt.Errorf("%w: event 0 in an answer, they are numbered from 1", wire.ErrRange)
		}
		a.Events[i].ID--
	}
	switch {
	case a.Kind == event.RangeTooNew:
		a.Newest-- // of nothing: then the next of it is 0
	case a.LastID > 0:
		a.LastID--
	case a.Kind == event.RangeDump && len(a.Events) > 0:
		return fmt.Errorf("%w: %d events after event 0", wire.ErrRange, len(a.Events))
	}
	return nil
}

// run follows one publisher after the other.
func (s *RankStream) run() {
	defer close(s.events)
	for s.ctx.Err() == nil {
		source := s.current()
		if source != nil {
			s.follow(source)
			continue
		}
		if !s.emit(feed.StreamEvent{Kind: zmq.Disconnected, Err: errNobody}, 0) {
			return
		}
		select {
		case <-s.wake:
		case <-s.ctx.Done():
		}
	}
}

// follow hands on what a publisher sends, until it is to be another one.
func (s *RankStream) follow(source *Source) {
	sub := zmq.Subscribe(source.ZMQ, []string{wire.TopicKVEvents}, zmq.Options{MaxMessage: wire.MaxEnvelopeBytes})
	defer sub.Close()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
			if source.same(s.current()) {
				continue
			}
			s.emit(feed.StreamEvent{Kind: zmq.Disconnected, Err: errOther}, 0)
			return
		case e, ok := <-sub.Events():
			if !ok {
				return
			}
			x, size := feed.StreamEvent{Kind: e.Kind, Err: e.Err}, 0
			if e.Kind == zmq.Message {
				x.Events, x.Err = s.decode(e.Frames, source.Publisher)
				size = len(e.Frames[len(e.Frames)-1])
			}
			if !s.emit(x, size) {
				return
			}
		}
	}
}

func (s *RankStream) decode(frames [][]byte, publisher uint64) ([]event.Event, error) {
	e, err := wire.ParseEventFrames(frames)
	if err != nil {
		return nil, err
	}
	if e.Publisher != publisher {
		return nil, fmt.Errorf("%w: of publisher %d, expected %d", wire.ErrEnvelope, e.Publisher, publisher)
	}
	events, err := wire.DecodeKVEvents(e.Payload, s.rank)
	if err != nil {
		return nil, err
	}
	for i := range events {
		if events[i].ID == 0 || events[i].ID == math.MaxUint64 {
			return nil, fmt.Errorf("%w: event %d, they are numbered from 1", wire.ErrEnvelope, events[i].ID)
		}
		events[i].ID--
	}
	return events, nil
}

func (s *RankStream) emit(e feed.StreamEvent, size int) bool {
	return zmq.Offer(s.ctx, s.events, e, size)
}
