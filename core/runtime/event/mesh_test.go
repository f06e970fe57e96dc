package event

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// lossy is an event plane that nobody hears, and its only outlet.
type lossy struct {
	mu       sync.Mutex
	sent     []wire.SequenceEvent
	returned func()
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
	store := discovery.NewMemory()
	defer store.Close()
	bus := &lossy{}
	m, err := NewMesh(plane.Link{Store: store, Bus: bus}, scope, &sink{})
	require.NoError(t, err)
	defer m.Close()
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
