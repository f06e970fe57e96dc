package router_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/replica"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
)

// broken is an event plane from one router to another, which loses what is sent while it is away.
type broken struct {
	to       replica.Sink
	away     bool
	returned func()
}

func (b *broken) Open(*discovery.Channel) (plane.Outlet, error) { return b, nil }
func (b *broken) Follow(*discovery.Channel) plane.Inlet         { return nil }
func (b *broken) OnReturn(tell func())                          { b.returned = tell }
func (b *broken) Stats() plane.OutletStats                      { return plane.OutletStats{} }
func (b *broken) Close()                                        {}

func (b *broken) Send(e *wire.Envelope) error {
	if b.away {
		return nil
	}
	return wire.NewSequenceDecoder().DecodeAll(e.Payload, func(x *wire.SequenceEvent) { b.to.Apply([]wire.SequenceEvent{*x}) })
}

func (b *broken) is(away bool) {
	if b.away = away; !away {
		b.returned()
	}
}

// A request whose id was used before lives at another router as long as it runs, whatever of that the other missed; and no longer.
func TestAnIDThatIsUsedAgainOutlivesAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		worker uint64 // of the second request
		outage string // what happens in it: an end, a placement
		want   [2]int64
	}{
		"after both":           {1, "", [2]int64{1, 0}},
		"the end is lost":      {1, "e", [2]int64{1, 0}}, // what the other has stands for the second one
		"the placement":        {1, "p", [2]int64{0, 0}},
		"both":                 {1, "ep", [2]int64{1, 0}},
		"elsewhere":            {2, "", [2]int64{0, 1}},
		"elsewhere, no end":    {2, "e", [2]int64{1, 0}},
		"elsewhere, neither":   {2, "ep", [2]int64{1, 0}},
		"elsewhere, not there": {2, "p", [2]int64{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newKit(t, 4, router.DefaultConfig()).workers(1, 2), newKit(t, 4, router.DefaultConfig()).workers(1, 2)
			store := discovery.NewMemory()
			defer store.Close()
			bus := &broken{to: listen(t, b).sink}
			require.NoError(t, a.Share(func(sink replica.Sink) (router.Mesh, error) {
				return event.NewMesh(plane.Link{Store: store, Bus: bus}, discovery.Name{Namespace: "n", Component: "c", Endpoint: "e"}, sink)
			}))
			defer a.Close()
			has := func() [2]int64 {
				l := b.loads(nil)
				return [2]int64{l[1].ActiveRequests, l[2].ActiveRequests}
			}
			a.best(pinned(book("x", tokens(1, 40)), 1, 0))
			require.Equal(t, [2]int64{1, 0}, has())
			bus.away = c.outage == "e" || c.outage == "ep"
			require.NoError(t, a.Free("x"))
			bus.away = c.outage == "p" || c.outage == "ep"
			a.best(pinned(book("x", tokens(1, 40)), c.worker, 0))
			bus.is(true)
			bus.is(false)
			require.Equal(t, c.want, has())
			bus.is(true)
			require.NoError(t, a.Free("x"))
			bus.is(false)
			require.Zero(t, has())
		})
	}
}
