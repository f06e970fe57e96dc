package event

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// lossy is an event plane that nobody hears, and its only outlet.
type lossy struct {
	mu       sync.Mutex
	sent     []wire.SequenceEvent
	returned func()
}

// onLossy is a mesh over it, that nobody else is in.
func onLossy(t *testing.T) (*Mesh, *lossy) {
	store, bus := discovery.NewMemory(), &lossy{}
	m, err := NewMesh(plane.Link{Store: store, Bus: bus}, scope, &sink{})
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	t.Cleanup(m.Close)
	return m, bus
}

func (m *Mesh) say(kind wire.SequenceKind, id string, at worker.Rank) {
	m.Publish(&wire.SequenceEvent{Kind: kind, RequestID: id, Worker: at})
}

func (l *lossy) Open(*discovery.Channel) (plane.Outlet, error) { return l, nil }
func (l *lossy) Follow(*discovery.Channel) plane.Inlet         { return nil }
func (l *lossy) OnReturn(tell func())                          { l.returned = tell }
func (l *lossy) Stats() plane.OutletStats                      { return plane.OutletStats{} }
func (l *lossy) Close()                                        {}

func (l *lossy) Send(e *wire.Envelope) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return wire.NewSequenceDecoder().DecodeAll(e.Payload, func(x *wire.SequenceEvent) { l.sent = append(l.sent, *x) })
}

func (l *lossy) count(id string, kind wire.SequenceKind) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.sent {
		if e.RequestID == id && e.Kind == kind {
			n++
		}
	}
	return n
}

// An end that was said just before an event plane broke is said again when it is back, and once more for those who come back later: a booking whose end
// nobody hears of would count as load for long.
func TestEndsAreSaidAgain(t *testing.T) {
	m, bus := onLossy(t)
	m.Publish(&wire.SequenceEvent{Kind: wire.SequenceAdded, RequestID: "a", Worker: rank})
	for i := range maxEnds + 1 {
		m.Publish(&wire.SequenceEvent{Kind: wire.SequenceFreed, RequestID: fmt.Sprint(i), Worker: rank})
	}
	bus.returned()
	last := fmt.Sprint(maxEnds)
	require.Equal(t, 2, bus.count(last, wire.SequenceFreed))
	require.Equal(t, 2, bus.count("1", wire.SequenceFreed))
	require.Equal(t, 1, bus.count("0", wire.SequenceFreed), "so many are kept")
	require.Equal(t, 1, bus.count("a", wire.SequenceAdded), "it would count twice")
	await(t, "it is said once more", func() bool { return bus.count(last, wire.SequenceFreed) == 3 })
}

// An id may be used again: what ended under it before is not said as long as it runs, neither at once nor later, as others would take it for the end
// of what runs. When that has ended all of it is said, since others may have missed any of it.
func TestNoEndIsSaidAgainOfWhatRunsAgain(t *testing.T) {
	m, bus := onLossy(t)
	other := worker.Rank{ID: rank.ID + 1}
	m.say(wire.SequenceAdded, "x", rank)
	m.say(wire.SequenceFreed, "x", rank)
	m.say(wire.SequenceFreed, "y", rank)
	bus.returned()
	require.Equal(t, 2, bus.count("x", wire.SequenceFreed))
	m.say(wire.SequenceAdded, "x", other)
	bus.returned()
	require.Equal(t, 3, bus.count("y", wire.SequenceFreed))
	await(t, "it is said once more", func() bool { return bus.count("y", wire.SequenceFreed) == 4 })
	require.Equal(t, 2, bus.count("x", wire.SequenceFreed))

	m.say(wire.SequenceFreed, "x", other)
	before := len(bus.sent)
	bus.returned()
	var ends []worker.Rank
	for _, e := range bus.sent[before:] {
		if e.RequestID == "x" {
			ends = append(ends, e.Worker)
		}
	}
	require.Equal(t, []worker.Rank{rank, other}, ends)
}

// Whatever happens at the same time as the event plane's return: who hears all in its order has what runs, and nothing else.
func TestRepeatedEndsKeepTheOrder(t *testing.T) {
	m, bus := onLossy(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				bus.returned()
			}
		}
	}()
	runs := func(id string) (is bool) { // to others
		bus.mu.Lock()
		defer bus.mu.Unlock()
		for _, e := range bus.sent {
			if e.RequestID == id {
				is = e.Kind != wire.SequenceFreed
			}
		}
		bus.sent = bus.sent[:0]
		return is
	}
	for range 500 {
		m.say(wire.SequenceAdded, "x", rank)
		runtime.Gosched()
		require.True(t, runs("x"))
		m.say(wire.SequenceFreed, "x", rank)
		require.False(t, runs("x"))
	}
	close(stop)
	<-stopped
}

// Ends are kept in bounded memory: an id that is too long to be sent is not kept, nor what a short one is a part of; nor are an id's many ranks, or
// the many ids of the past.
func TestEndsAreKeptInBoundedMemory(t *testing.T) {
	m, bus := onLossy(t)
	held := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := held()
	for i := range 64 {
		long := fmt.Sprintf("%04d", i) + strings.Repeat("x", 1<<20)
		m.say(wire.SequenceFreed, long, rank)
		m.say(wire.SequenceFreed, long[:wire.MaxSequenceIDSize+1], rank)
		require.Equal(t, i, m.order.Len())
		m.say(wire.SequenceFreed, long[:4], rank)
	}
	require.Less(t, held(), before+16<<20)
	require.EqualValues(t, 128, m.unsent.Load())
	bus.returned()
	require.EqualValues(t, 128, m.unsent.Load())

	for i := range uint64(3 * maxRanks) {
		m.say(wire.SequenceAdded, "x", worker.Rank{ID: i})
		m.say(wire.SequenceFreed, "x", worker.Rank{ID: i})
	}
	said := bus.count("x", wire.SequenceFreed)
	bus.returned()
	require.Equal(t, said+maxRanks, bus.count("x", wire.SequenceFreed))
	for i := range 2 * maxEnds {
		m.say(wire.SequenceFreed, fmt.Sprint(i), rank)
	}
	require.Equal(t, maxEnds, m.order.Len())
	require.Len(t, m.ends, maxEnds)
	m.say(wire.SequenceAdded, "x", rank)
	require.Equal(t, maxEnds, m.order.Len())
}
