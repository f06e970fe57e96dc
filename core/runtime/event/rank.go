package event

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Source is a publisher of a rank's KV events.
type Source struct {
	Channel  discovery.Channel   // of the publisher
	Recovery *discovery.Instance // whom to ask for what was missed; nil: nobody
}

func (s *Source) same(o *Source) bool {
	return s == o || s != nil && o != nil && s.Channel == o.Channel && (s.Recovery == nil) == (o.Recovery == nil) &&
		(s.Recovery == nil || *s.Recovery == *o.Recovery)
}

// Ask sends a query, as wire.AppendRangeQuery makes it, to whoever answers for a publisher, and gives the answer's bytes.
type Ask func(ctx context.Context, to *discovery.Instance, query []byte) ([]byte, error)

var (
	errNobody = errors.New("nobody publishes the rank's events")
	errNoAsk  = errors.New("the rank's publisher has no local indexer")
	errPlane  = errors.New("the rank's publisher is on an event plane that this process is not on")
	errOther  = errors.New("another publisher takes over")
)

// RankStream is the feed.Stream of a rank: it follows whichever publisher it is told of.
//
// Dynamo numbers events from 1, and feeds from 0: so numbers are one less here.
type RankStream struct {
	link    plane.Link
	rank    worker.Rank
	queries bool
	ask     Ask
	events  chan feed.StreamEvent
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running owned.Group
	wake    chan struct{}

	mu     sync.Mutex // guards source
	source *Source
}

var _ feed.Stream = (*RankStream)(nil)

// eventQueue is how many messages wait for a feed.
const eventQueue = 256

// NewRankStream follows nobody yet. queries: the rank's publishers have local indexers.
func NewRankStream(l plane.Link, rank worker.Rank, queries bool, ask Ask) *RankStream {
	s := &RankStream{link: l, rank: rank, queries: queries, ask: ask, events: make(chan feed.StreamEvent, eventQueue), wake: make(chan struct{}, 1)}
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
	return source.Channel.Publisher, a, ours(a)
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
		why := errNobody
		if source := s.current(); source != nil {
			if in := follow(&s.link, &source.Channel, zmq.Options{}); in != nil {
				if err := owned.Try(func() error { s.follow(source, in); return nil }); err != nil {
					s.emit(feed.StreamEvent{Kind: zmq.Disconnected, Err: err}, 0)
				}
				continue
			}
			why = errPlane
		}
		if !s.emit(feed.StreamEvent{Kind: zmq.Disconnected, Err: why}, 0) {
			return
		}
		select {
		case <-s.wake:
		case <-s.ctx.Done():
		}
	}
}

// follow hands on what a publisher sends, until it is to be another one.
func (s *RankStream) follow(source *Source, in plane.Inlet) {
	defer in.Close()
	var last sequence
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
		case e, ok := <-in.Events():
			if !ok {
				return
			}
			if last.passes(&e) && !s.emit(s.told(&e), e.Size) {
				return
			}
		}
	}
}

// sequence is the number of a publisher's last message in a connection.
type sequence struct {
	connected, seen bool
	last            uint64
}

// passes tells whether a feed is to be told of an event: not of messages that come after a connection has ended, which it asks for anyway, nor of one
// that comes again, because its publisher was away, when nothing was lost meanwhile.
func (q *sequence) passes(e *plane.Event) bool {
	switch {
	case e.Kind != plane.Arrived:
		*q = sequence{connected: e.Kind == plane.Connected}
		return true
	case !q.connected:
		return false
	case e.Err != nil:
		return true
	}
	again := q.seen && q.last == e.Envelope.Sequence
	q.seen, q.last = true, e.Envelope.Sequence
	return !again
}

// told is what a feed is told of an event.
func (s *RankStream) told(e *plane.Event) feed.StreamEvent {
	switch e.Kind {
	case plane.Connected:
		return feed.StreamEvent{Kind: zmq.Connected}
	case plane.Disconnected:
		return feed.StreamEvent{Kind: zmq.Disconnected, Err: e.Err}
	}
	x := feed.StreamEvent{Kind: zmq.Message, Err: e.Err}
	if e.Err == nil {
		x.Events, x.Err = s.decode(e.Envelope.Payload)
	}
	return x
}

func (s *RankStream) decode(payload []byte) ([]event.Event, error) {
	events, err := wire.DecodeKVEvents(payload, s.rank)
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
