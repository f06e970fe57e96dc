package replica

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

type silent struct{}

func (silent) Apply([]wire.SequenceEvent) {}
func (silent) Gone(uint64)                {}

func testPeer(t *testing.T) *peer {
	m := &Mesh{
		id: 1, timeout: time.Hour, sink: Teller{To: silent{}}, known: map[uint64]int{},
		scope: wire.SequenceScope{Model: "m", Group: "g", BlockSize: 16},
	}
	p := newPeer(m, nil, nil)
	t.Cleanup(func() { p.lost.Stop() })
	return p
}

// message gives the frames of a placement by a router.
func message(t *testing.T, p *peer, router uint64, blocks int) [][]byte {
	e := wire.SequenceEvent{Kind: wire.SequenceAdded, RouterID: router, HasSequences: true, Sequences: make([]block.SequenceHash, blocks)}
	payload, err := wire.AppendSequence(nil, &p.mesh.scope, &e)
	require.NoError(t, err)
	return [][]byte{[]byte(Topic), payload}
}

func TestWhoComesBackInTimeIsNotForgotten(t *testing.T) {
	p := testPeer(t)
	p.connection(true)
	p.connection(false)
	require.False(t, p.lost.Stop(), "nobody was heard: nobody is lost")
	p.connection(true)
	p.message(message(t, p, 7, 0))
	require.Equal(t, uint64(7), p.router)
	p.connection(false)
	require.True(t, p.lost.Reset(time.Hour), "the time runs")
	p.connection(false) // an attempt that failed
	p.connection(true)
	require.False(t, p.lost.Stop(), "it does not run any more")
	require.Equal(t, uint64(7), p.router)
}

// A router that is reached by two endpoints is gone when both are.
func TestARouterOfTwoEndpoints(t *testing.T) {
	a := testPeer(t)
	b := newPeer(a.mesh, nil, nil)
	for _, p := range []*peer{a, b} {
		p.connection(true)
		p.message(message(t, p, 7, 0))
	}
	a.forget()
	require.Zero(t, a.mesh.Stats().Gone)
	b.forget()
	require.EqualValues(t, 1, a.mesh.Stats().Gone)
	b.forget()
	require.EqualValues(t, 1, a.mesh.Stats().Gone)
}

func TestNobodyIsNoRouter(t *testing.T) {
	p := testPeer(t)
	p.connection(true)
	p.message(message(t, p, 0, 0))
	require.Empty(t, p.batch)
	require.Equal(t, uint64(1), p.mesh.otherRouter.Load())
	p.message(message(t, p, 7, 0))
	require.Len(t, p.batch, 1)
}

func TestTheMemoryOfALongPromptIsNotKept(t *testing.T) {
	p := testPeer(t)
	p.connection(true)
	p.message(message(t, p, 7, 100))
	p.flush()
	require.GreaterOrEqual(t, cap(p.batch[:1][0].Sequences), 100, "that of short ones is")
	p.message(message(t, p, 7, keepBlocks+1))
	require.Len(t, p.batch, 1)
	p.flush()
	require.Nil(t, p.batch)
}

// TestABatchIsBounded: in events, and in the bytes of their messages, however many wait.
func TestABatchIsBounded(t *testing.T) {
	const wait = 600
	p := testPeer(t)
	p.connection(true)
	for name, c := range map[string]struct {
		frames [][]byte
		taken  int
	}{
		"of small messages": {message(t, p, 7, 0), 256},
		"at its bytes":      {[][]byte{make([]byte, 1<<17)}, 8},
		"before its bytes":  {[][]byte{make([]byte, 1<<17-1)}, 9},
	} {
		events := make(chan zmq.Event, wait)
		for range wait {
			events <- zmq.Event{Kind: zmq.Message, Frames: c.frames}
		}
		p.events = events
		p.take(<-events)
		require.Equal(t, c.taken, wait-len(events), name)
	}
}
