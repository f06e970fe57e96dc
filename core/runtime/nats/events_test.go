package nats

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/internal/servertest"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

var encoding = base64.RawURLEncoding

func open(t *testing.T, c *Conn, topic string, id uint64) (plane.Outlet, *discovery.Channel) {
	ch := &discovery.Channel{Scope: scope, Topic: topic, Publisher: id}
	o, err := c.Open(ch)
	require.NoError(t, err)
	return o, ch
}

func follow(t *testing.T, c *Conn, ch *discovery.Channel) plane.Inlet {
	in := c.Follow(ch)
	t.Cleanup(in.Close)
	return in
}

func next(t *testing.T, in plane.Inlet) plane.Event {
	t.Helper()
	select {
	case e := <-in.Events():
		return e
	case <-time.After(servertest.Patience):
		require.FailNow(t, "nothing happens")
		return plane.Event{}
	}
}

func expect(t *testing.T, in plane.Inlet, kinds ...plane.EventKind) (last plane.Event) {
	t.Helper()
	for _, kind := range kinds {
		last = next(t, in)
		require.Equal(t, kind, last.Kind, "%+v", last)
	}
	return last
}

func send(t *testing.T, o plane.Outlet, ch *discovery.Channel, n uint64, payload string) {
	t.Helper()
	require.NoError(t, o.Send(&wire.Envelope{Publisher: ch.Publisher, Sequence: n, Topic: ch.Topic, Payload: []byte(payload)}))
}

// Publishers of a topic share a subject, and each is heard by who follows it.
func TestEvents(t *testing.T) {
	server := servertest.StartNATS(t, nil, "")
	ours, theirs := connect(t, to(server.URL)), connect(t, to(server.URL))
	a, chA := open(t, theirs, wire.TopicKVEvents, 1)
	b, chB := open(t, theirs, wire.TopicKVEvents, 2)
	require.Equal(t, "namespace.wire.component.backend.endpoint.generate", chA.NATS)
	inA, inB := follow(t, ours, chA), follow(t, ours, chB)
	expect(t, inA, plane.Connected)
	expect(t, inB, plane.Connected)
	require.Len(t, ours.subjects, 1)
	for i := range 100 {
		send(t, a, chA, uint64(i), fmt.Sprint("a", i))
		send(t, b, chB, uint64(i), fmt.Sprint("b", i))
	}
	for i := range 100 {
		require.Equal(t, fmt.Sprint("a", i), string(expect(t, inA, plane.Arrived).Envelope.Payload))
		require.Equal(t, fmt.Sprint("b", i), string(expect(t, inB, plane.Arrived).Envelope.Payload))
	}
	late := follow(t, ours, chB) // it takes the place of the one before
	expect(t, late, plane.Connected)
	send(t, b, chB, 100, "late")
	require.Equal(t, "late", string(expect(t, late, plane.Arrived).Envelope.Payload))
	inB.Close()
	send(t, b, chB, 101, "later")
	require.Equal(t, "later", string(expect(t, late, plane.Arrived).Envelope.Payload))

	// What is no event of a publisher that is followed.
	raw, err := client.Connect(server.URL)
	require.NoError(t, err)
	defer raw.Close()
	subject := chA.NATS + ".kv-events"
	for _, bad := range [][]byte{nil, []byte("garbage"), {0x85}, wire.AppendEnvelope(nil, &wire.Envelope{Publisher: 9, Topic: wire.TopicKVEvents})} {
		require.NoError(t, raw.Publish(subject, bad))
	}
	require.NoError(t, raw.Publish(subject, wire.AppendEnvelope(nil, &wire.Envelope{Publisher: 1, Topic: "other"})))
	require.ErrorIs(t, expect(t, inA, plane.Arrived).Err, wire.ErrEnvelope)
	require.EqualValues(t, 4, ours.Stats().Strange)
	require.ErrorIs(t, a.Send(&wire.Envelope{Payload: make([]byte, 1<<20)}), plane.ErrTooLarge)
	require.EqualValues(t, 1, a.Stats().Dropped)
	require.Equal(t, -1, a.Stats().Subscribers)

	a.Close()
	a.Close()
	require.ErrorIs(t, a.Send(&wire.Envelope{}), plane.ErrClosed)
	inA.Close()
	late.Close()
	require.Empty(t, ours.subjects)
	again := follow(t, ours, chB)
	expect(t, again, plane.Connected)
	bad := *chA
	bad.NATS = "no subject"
	require.ErrorIs(t, expect(t, follow(t, ours, &bad), plane.Disconnected).Err, plane.ErrInvalidArgument)
	ours.Close()
	require.ErrorIs(t, expect(t, follow(t, ours, chA), plane.Disconnected).Err, plane.ErrClosed)
	for range again.Events() {
	}
}

// Whoever follows is told of a server that is lost, and that it is back; what was published in between comes, and the last of a publisher once more.
func TestEventsAfterRestart(t *testing.T) {
	server := servertest.StartNATS(t, nil, "")
	ours, theirs := connect(t, to(server.URL)), connect(t, to(server.URL))
	kv, chKV := open(t, theirs, wire.TopicKVEvents, 1)
	load, chLoad := open(t, theirs, wire.TopicMetrics, 2)
	inKV, inLoad := follow(t, ours, chKV), follow(t, ours, chLoad)
	expect(t, inKV, plane.Connected)
	expect(t, inLoad, plane.Connected)
	send(t, kv, chKV, 0, "kv")
	send(t, load, chLoad, 0, "load")
	expect(t, inKV, plane.Arrived)
	expect(t, inLoad, plane.Arrived)
	server.Kill()
	require.ErrorContains(t, expect(t, inKV, plane.Disconnected).Err, "no NATS server")
	expect(t, inLoad, plane.Disconnected)
	unborn := *chKV
	unborn.Publisher = 3
	inUnborn := follow(t, ours, &unborn)
	await(t, "the publisher has noticed", func() bool { return !theirs.Stats().Connected })
	send(t, load, chLoad, 1, "load of then")
	server.Start()
	for _, in := range []plane.Inlet{inKV, inUnborn, inLoad} {
		for next(t, in).Kind != plane.Connected { // what was on its way may come before
		}
	}
	// The publisher may be back before who follows is: then this is lost, and another connection.
	await(t, "both are back", func() bool { return theirs.Stats().Connected && ours.Stats().Connected })
	send(t, load, chLoad, 2, "load of now")
	for expect(t, inLoad, plane.Arrived).Envelope.Sequence != 2 {
	}

	// The publisher alone loses its connection: what it repeats tells who follows.
	theirs.mu.Lock()
	nc := theirs.nc
	theirs.mu.Unlock()
	drain(inKV)
	require.NoError(t, nc.ForceReconnect())
	e := expect(t, inKV, plane.Arrived)
	require.Equal(t, "kv", string(e.Envelope.Payload))
	require.Zero(t, e.Envelope.Sequence)
	require.Empty(t, inLoad.Events(), "a message that is not numbered for who follows comes once")
}

// drain takes what is there.
func drain(in plane.Inlet) {
	for {
		select {
		case <-in.Events():
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
}

// Who does not take its events is told that some are lost, and holds nobody up.
func TestEventsThatWait(t *testing.T) {
	server := servertest.StartNATS(t, nil, "")
	o := to(server.URL)
	o.MaxPendingMessages = 10
	ours, theirs := connect(t, o), connect(t, to(server.URL))
	a, chA := open(t, theirs, wire.TopicKVEvents, 1)
	b, chB := open(t, theirs, wire.TopicKVEvents, 2)
	asleep, awake := follow(t, ours, chA), follow(t, ours, chB)
	expect(t, asleep, plane.Connected)
	expect(t, awake, plane.Connected)
	const n = 100
	for i := range uint64(n) {
		send(t, a, chA, i, "x")
		send(t, b, chB, i, "x")
		expect(t, awake, plane.Arrived)
	}
	require.NotZero(t, ours.Stats().Lost)
	lost := false
	for last := uint64(0); last < n-1; {
		e := next(t, asleep)
		lost = lost || e.Kind == plane.Disconnected && e.Err == errFull
		last = e.Envelope.Sequence
	}
	require.True(t, lost)

	// More than the connection itself can hold.
	before := ours.Stats().Lost
	ours.mu.Lock()
	s := ours.subjects[chA.NATS+".kv-events"]
	require.NoError(t, s.sub.SetPendingLimits(5, -1))
	for i := range uint64(1000) { // nothing is taken while this is locked
		send(t, a, chA, n+i, "x")
	}
	require.NoError(t, theirs.nc.Flush())
	await(t, "it is full", func() bool { d, _ := s.sub.Dropped(); return d > 0 })
	ours.mu.Unlock()
	await(t, "both are told", func() bool { return ours.Stats().Lost > before })
	for e := next(t, awake); e.Err != errFull; e = next(t, awake) {
	}
	for e := next(t, asleep); e.Err != errFull; e = next(t, asleep) {
	}
	require.NotZero(t, ours.Stats().Slow)
}
