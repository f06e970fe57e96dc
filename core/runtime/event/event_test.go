package event

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	scope = discovery.Name{Namespace: "ns", Component: "comp", Endpoint: "generate"}
	rank  = worker.Rank{ID: 1<<64 - 1, DPRank: 3}
)

func link(store discovery.Store) plane.Link { return plane.Link{Store: store, Host: "127.0.0.1"} }

func channel(publisher uint64, zmq string) discovery.Channel {
	return discovery.Channel{Scope: scope, Topic: wire.TopicKVEvents, Publisher: publisher, ZMQ: zmq}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

// hostile publishes frames as they are, under the record of a publisher.
func hostile(t *testing.T, store discovery.Store, topic string, id uint64) *zmq.Pub {
	pub, err := zmq.ListenPub("tcp://127.0.0.1:0", zmq.Options{})
	require.NoError(t, err)
	c := discovery.Channel{Scope: scope, Topic: topic, Publisher: id, ZMQ: pub.Addr()}
	require.NoError(t, store.Create(discovery.ChannelKey(scope, topic, id), c.Encode()))
	t.Cleanup(func() { pub.Close() })
	return pub
}

// Publishers are followed as they come and go; what is no message of theirs is counted.
func TestSubscription(t *testing.T) {
	store := discovery.NewMemory()
	defer store.Close()
	var mu sync.Mutex
	got, gone := map[uint64][]string{}, []uint64{}
	s, err := Subscribe(link(store), scope, "topic", Options{
		Take: func(e *wire.Envelope) {
			mu.Lock()
			defer mu.Unlock()
			got[e.Publisher] = append(got[e.Publisher], string(e.Payload))
			if string(e.Payload) == "1" {
				leaktest.Faults(1)
				panic("who takes it fails, and gets the next one all the same")
			}
		},
		Gone: func(id uint64) {
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, id)
		},
	})
	require.NoError(t, err)
	defer s.Close()
	a, err := NewPublisher(link(store), scope, "topic", 0)
	require.NoError(t, err)
	require.Less(t, a.ID(), uint64(1)<<53)
	b, err := NewPublisher(link(store), scope, "topic", 7)
	require.NoError(t, err)
	defer b.Close()
	_, err = NewPublisher(link(store), scope, "topic", 7)
	require.ErrorIs(t, err, discovery.ErrExists)
	other, err := NewPublisher(link(store), scope, "topics", 0)
	require.NoError(t, err)
	defer other.Close()
	await(t, "both are connected", func() bool { return a.Subscribers() == 1 && b.Subscribers() == 1 })
	require.NoError(t, a.Publish([]byte("1")))
	require.NoError(t, a.Publish([]byte("2")))
	require.NoError(t, b.Publish([]byte("3")))
	require.NoError(t, other.Publish([]byte("4")))
	await(t, "all arrive, in order", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(got) == fmt.Sprint(map[uint64][]string{a.ID(): {"1", "2"}, 7: {"3"}})
	})
	a.Close()
	a.Close()
	require.ErrorIs(t, a.Publish(nil), zmq.ErrClosed)
	await(t, "it is gone", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(gone) == 1 && gone[0] == a.ID() && s.Connected() == 1
	})

	bad := hostile(t, store, "topic", 9)
	await(t, "connected", func() bool { return bad.Stats().Subscribers == 1 })
	good := wire.EventFrames(&wire.Envelope{Publisher: 9, Topic: "topic"})
	for _, frames := range [][][]byte{
		{[]byte("topic")}, good[:3], {good[0], good[1], good[2], good[3][:7]}, {good[0], good[1], good[1], good[3], good[3]},
		{good[0], {0, 0, 0, 0, 0, 0, 0, 8}, good[2], good[3]}, wire.EventFrames(&wire.Envelope{Publisher: 8, Topic: "topic"}),
		wire.EventFrames(&wire.Envelope{Publisher: 9, Topic: "topical"}), {good[0], good[1], good[2], append([]byte{2}, good[3][1:]...)},
	} {
		require.NoError(t, bad.Publish(frames...))
	}
	await(t, "all are counted", func() bool { return s.Malformed() == 8 })
	require.Empty(t, got[9])
}

// sink hears what other routers did.
type sink struct {
	mu     sync.Mutex
	events []wire.SequenceEvent
	gone   []uint64
}

func (s *sink) Apply(events []wire.SequenceEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, events...)
	if events[0].RequestID == "panic" {
		leaktest.Faults(1)
		panic("sink")
	}
}

func (s *sink) Gone(router uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = append(s.gone, router)
}

func (s *sink) count() (events, gone int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events), len(s.gone)
}

// Routers hear each other and not themselves; nobody speaks for two, or for them.
func TestMesh(t *testing.T) {
	store := discovery.NewMemory()
	defer store.Close()
	var sinks [2]sink
	a, err := NewMesh(link(store), scope, &sinks[0])
	require.NoError(t, err)
	defer a.Close()
	b, err := NewMesh(link(store), scope, &sinks[1])
	require.NoError(t, err)
	await(t, "they hear each other", func() bool { return a.Stats().Listeners == 2 && b.Stats().Listeners == 2 })
	added := wire.SequenceEvent{Kind: wire.SequenceAdded, RequestID: "x", Worker: rank, HasSequences: true, Sequences: []block.SequenceHash{1, 1 << 63}, PrefillTokens: 5}
	a.Publish(&added)
	a.Publish(&wire.SequenceEvent{Kind: wire.SequenceFreed, RequestID: "x", Worker: rank})
	await(t, "b hears", func() bool { n, _ := sinks[1].count(); return n == 2 })
	added.RouterID = a.ID()
	require.Equal(t, added, sinks[1].events[0])
	await(t, "a hears itself", func() bool { return a.Stats().Echoes == 2 })
	n, _ := sinks[0].count()
	require.Zero(t, n)
	a.Publish(&wire.SequenceEvent{RequestID: "no kind"})
	require.EqualValues(t, 1, a.Stats().Unsent)

	pub := hostile(t, store, wire.TopicSequences, 99)
	await(t, "connected", func() bool { return pub.Stats().Subscribers == 2 })
	sequence := uint64(0)
	send := func(payload []byte) {
		require.NoError(t, pub.Publish(wire.EventFrames(&wire.Envelope{Publisher: 99, Sequence: sequence, Topic: wire.TopicSequences, Payload: payload})...))
		sequence++
	}
	speak := func(router uint64, id string) {
		payload, err := wire.AppendSequences(nil, []wire.SequenceEvent{{Kind: wire.SequenceFreed, RequestID: id, RouterID: router}})
		require.NoError(t, err)
		send(payload)
	}
	speak(a.ID(), "for a")
	speak(0, "for nobody")
	speak(5, "mine")
	speak(6, "for another")
	speak(5, "panic")
	send([]byte{0x81})
	send(nil)
	await(t, "a takes one", func() bool {
		s := a.Stats()
		return s.OtherRouter == 3 && s.Malformed == 2 && s.Panics == 1
	})
	require.EqualValues(t, 1, a.Stats().Applied)
	b.Close()
	b.Close()
	require.NoError(t, store.Delete(discovery.ChannelKey(scope, wire.TopicSequences, 99)))
	await(t, "who said something is gone", func() bool { _, gone := sinks[0].count(); return gone == 1 })
	require.Equal(t, []uint64{5}, sinks[0].gone)
}

func kv(id uint64) event.Event {
	return event.Event{ID: id, DPRank: rank.DPRank, Kind: event.Stored, Blocks: []event.Block{{Engine: block.EngineHash(id), Hash: 1}}}
}

// A rank's stream follows whom it is told of, gives numbers from 0, and passes over what is not that publisher's.
func TestRankStream(t *testing.T) {
	store := discovery.NewMemory()
	defer store.Close()
	s := NewRankStream(plane.Link{}, rank, true, nil)
	next := func() feed.StreamEvent {
		select {
		case e := <-s.Events():
			return e
		case <-time.After(30 * time.Second):
			require.Fail(t, "nothing happens")
			return feed.StreamEvent{}
		}
	}
	require.Equal(t, zmq.Disconnected, next().Kind)
	_, _, err := s.Query(context.Background(), &event.RangeQuery{})
	require.ErrorIs(t, err, errNobody)

	pub := hostile(t, store, wire.TopicKVEvents, 7)
	s.Follow(&Source{Channel: channel(7, pub.Addr())})
	s.Follow(&Source{Channel: channel(7, pub.Addr())})
	for next().Kind != zmq.Connected {
	}
	await(t, "subscribed", func() bool { return pub.Stats().Subscribers == 1 })
	_, _, err = s.Query(context.Background(), &event.RangeQuery{})
	require.ErrorIs(t, err, errNoAsk)
	sequence := uint64(0)
	send := func(publisher uint64, payload []byte) {
		sequence++
		require.NoError(t, pub.Publish(wire.EventFrames(&wire.Envelope{Publisher: publisher, Sequence: sequence, Topic: wire.TopicKVEvents, Payload: payload})...))
	}
	send(7, wire.AppendKVEvents(nil, rank.ID, []event.Event{kv(1), kv(2)}))
	e := next()
	require.NoError(t, e.Err)
	require.Len(t, e.Events, 2)
	require.EqualValues(t, 0, e.Events[0].ID)
	require.EqualValues(t, 1, e.Events[1].ID)
	sequence-- // the same once more
	send(7, wire.AppendKVEvents(nil, rank.ID, []event.Event{kv(1), kv(2)}))
	other := kv(3)
	other.DPRank++
	for _, bad := range []func(){
		func() { send(8, wire.AppendKVEvents(nil, rank.ID, []event.Event{kv(3)})) },
		func() { send(7, wire.AppendKVEvents(nil, rank.ID-1, []event.Event{kv(3)})) },
		func() { send(7, wire.AppendKVEvents(nil, rank.ID, []event.Event{other})) },
		func() { send(7, wire.AppendKVEvents(nil, rank.ID, []event.Event{kv(0)})) },
		func() { send(7, wire.AppendKVEvents(nil, rank.ID, []event.Event{kv(1<<64 - 1)})) },
		func() { send(7, []byte{0x91}) },
		func() { require.NoError(t, pub.Publish([]byte(wire.TopicKVEvents))) },
	} {
		bad()
		e := next()
		require.Equal(t, zmq.Message, e.Kind)
		require.Error(t, e.Err)
		require.Empty(t, e.Events)
	}
	second := hostile(t, store, wire.TopicKVEvents, 9)
	s.Follow(&Source{Channel: channel(9, second.Addr())})
	require.Equal(t, zmq.Disconnected, next().Kind)
	for next().Kind != zmq.Connected {
	}
	s.Follow(nil)
	require.Equal(t, zmq.Disconnected, next().Kind)
	s.Close()
	s.Close()
	for range s.Events() {
	}
}

// Answers get our numbers; what cannot be numbered so is refused.
func TestRankStreamQueries(t *testing.T) {
	var answer []byte
	var asked event.RangeQuery
	failure := errors.New("not reached")
	s := NewRankStream(plane.Link{}, rank, true, func(_ context.Context, to *discovery.Instance, query []byte) ([]byte, error) {
		if to.TCP != "there" {
			return nil, failure
		}
		var err error
		asked, err = wire.DecodeRangeQuery(query)
		return answer, err
	})
	defer s.Close()
	s.Follow(&Source{Channel: channel(7, "tcp://127.0.0.1:1"), Recovery: &discovery.Instance{TCP: "there"}})
	query := func(a *event.RangeAnswer) (*event.RangeAnswer, error) {
		answer = wire.AppendRangeAnswer(nil, rank.ID, a)
		publisher, got, err := s.Query(context.Background(), &event.RangeQuery{WorkerID: rank.ID, DPRank: rank.DPRank, HasStart: true, Start: 4})
		if err == nil {
			require.EqualValues(t, 7, publisher)
		}
		return got, err
	}
	a, err := query(&event.RangeAnswer{Kind: event.RangeEvents, Events: []event.Event{kv(5), kv(6)}, LastID: 6})
	require.NoError(t, err)
	require.EqualValues(t, 5, asked.Start)
	require.EqualValues(t, 4, a.Events[0].ID)
	require.EqualValues(t, 5, a.LastID)
	a, err = query(&event.RangeAnswer{Kind: event.RangeDump, Events: []event.Event{kv(0)}, LastID: 6})
	require.NoError(t, err)
	require.EqualValues(t, 5, a.LastID)
	a, err = query(&event.RangeAnswer{Kind: event.RangeDump})
	require.NoError(t, err)
	require.Zero(t, a.LastID)
	a, err = query(&event.RangeAnswer{Kind: event.RangeTooNew, HasStart: true, Start: 5, Newest: 4})
	require.NoError(t, err)
	require.EqualValues(t, 3, a.Newest)
	_, err = query(&event.RangeAnswer{Kind: event.RangeEvents, Events: []event.Event{kv(0)}})
	require.ErrorIs(t, err, wire.ErrRange)
	_, err = query(&event.RangeAnswer{Kind: event.RangeDump, Events: []event.Event{kv(1)}})
	require.ErrorIs(t, err, wire.ErrRange)
	s.Follow(&Source{Channel: channel(7, "tcp://127.0.0.1:1"), Recovery: &discovery.Instance{TCP: "elsewhere"}})
	_, err = query(&event.RangeAnswer{Kind: event.RangeDump})
	require.ErrorIs(t, err, failure)
}
