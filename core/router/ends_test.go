package router_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// many is how many bookings end at one moment, in these tests.
const many = 3*load.MaxEnds + 7

// crowd is a router of two workers with many bookings on the first, and others that hear how many have ended.
func crowd(t *testing.T, config string) (*kit, *told) {
	k := newKit(t, 16, with(t, "%s", config)).workers(1, 2)
	m := listen(t, k)
	for i := range many {
		k.best(pinned(book(fmt.Sprint(i), nil), 1, 0))
	}
	m.events = nil
	return k, m
}

// ended counts what others were told to have ended since the last time.
func (m *told) ended() int {
	n := 0
	for _, e := range m.events {
		if e.Kind == wire.SequenceFreed {
			n++
		}
	}
	m.events = nil
	return n
}

// However many bookings expire at one moment, a decision and a release end a bounded number of them; whoever shows loads shows none, and others
// have the lock meanwhile.
func TestNobodyEndsAllThatExpires(t *testing.T) {
	for name, call := range map[string]func(*kit){
		"best worker": func(k *kit) { k.best(ask(nil)) },
		"output":      func(k *kit) { require.ErrorIs(k.t, k.AddOutputBlock("nobody", 1, nil), router.ErrRequestNotFound) },
		"free":        func(k *kit) { require.ErrorIs(k.t, k.Free("nobody"), router.ErrRequestNotFound) },
		"explain": func(k *kit) {
			_, err := k.Explain(ask(nil))
			require.NoError(k.t, err)
		},
		"another router": func(k *kit) {},
	} {
		t.Run(name, func(t *testing.T) {
			k, m := crowd(t, `{}`)
			if name == "another router" {
				call = func(k *kit) { m.sink.Apply([]wire.SequenceEvent{{Kind: wire.SequenceFreed, RouterID: 9}}) }
			}
			k.at = k.at.Add(router.DefaultRequestExpiry + time.Second)
			for range 3 {
				call(k)
				require.Equal(t, load.MaxEnds, m.ended())
			}
			call(k)
			require.Equal(t, many%load.MaxEnds, m.ended())
		})
	}
	for name, show := range map[string]func(*kit) int64{
		"loads": func(k *kit) int64 { return k.loads(nil)[1].ActiveRequests },
		"stats": func(k *kit) int64 {
			st, err := k.Stats()
			require.NoError(k.t, err)
			return int64(st.ActiveRequests)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, m := crowd(t, `{}`)
			k.at = k.at.Add(router.DefaultRequestExpiry + time.Second)
			k.othersHaveTurns(0)
			require.Zero(t, show(k))
			require.Equal(t, many, m.ended())
		})
	}
}

// parts is in how many parts many bookings end.
const parts = many/load.MaxEnds + 1

// othersHaveTurns checks that the lock is free before each part of what comes, after so many looks at the clock: who asks for the time would wait for
// it for ever.
func (k *kit) othersHaveTurns(looks int) {
	left := parts
	k.asked = func() {
		switch {
		case looks > 0:
			looks--
		case left > 0:
			left--
			_, err := k.Tally()
			require.NoError(k.t, err)
		}
	}
	k.t.Cleanup(func() { require.Zero(k.t, left) })
}

// A worker, or a rank of it, may leave with any number of bookings: they end in parts, and all of them before it has left.
func TestAWorkerLeavesWithItsBookingsInParts(t *testing.T) {
	for name, c := range map[string]struct {
		looks int // at the clock, before
		leave func(*kit)
	}{
		"worker": {0, func(k *kit) { require.NoError(k.t, k.RemoveWorker(1)) }},
		"rank":   {1, func(k *kit) { require.NoError(k.t, k.AddWorker(router.Worker{ID: 1, DPStart: 1})) }}, // when the new one was added
	} {
		t.Run(name, func(t *testing.T) {
			k, m := crowd(t, `{}`)
			k.best(pinned(book("other", nil), 2, 0))
			k.othersHaveTurns(c.looks)
			c.leave(k)
			require.Equal(t, many, m.ended())
			require.EqualValues(t, 1, k.loads(nil)[2].ActiveRequests)
			require.NoError(t, k.Free("7"), "late")
			require.NoError(t, k.RemoveWorker(2))
			require.NoError(t, k.AddWorker(router.Worker{ID: 1}))
			require.NoError(t, k.AddWorker(router.Worker{ID: 2}))
			k.idle()
		})
	}
}

// So do the bookings of a router that is gone.
func TestARouterIsGoneWithAllItPlaced(t *testing.T) {
	k, m := crowd(t, `{}`)
	for i := range many {
		m.sink.Apply([]wire.SequenceEvent{{
			Kind: wire.SequenceAdded, RequestID: fmt.Sprint("theirs", i), Worker: worker.Rank{ID: 2}, RouterID: 9, HasSequences: true,
			Sequences: []block.SequenceHash{1, 2}, PrefillTokens: 3,
		}})
	}
	require.EqualValues(t, many, k.loads(nil)[2].ActiveRequests)
	m.sink.Gone(9)
	require.Equal(t, router.PotentialLoad{WorkerID: 2}, k.loads(nil)[2])
	require.EqualValues(t, many, k.loads(nil)[1].ActiveRequests)
	require.Zero(t, m.ended(), "their router tells of them")
}

// Whoever waits for a rank hears of it at once though more bookings expire than one look ends.
func TestManyExpireForOneWhoWaits(t *testing.T) {
	w := newWaiting(t, `{"router_queue_threshold": 0}`)
	w.workers(1)
	for i := range many {
		w.best(book(fmt.Sprint(i), nil))
	}
	w.best(book("busy", tokens(1, 64)))
	require.NoError(t, w.submit(book("next", tokens(2, 64))))
	w.elapsed.Add(int64(router.DefaultRequestExpiry) + int64(time.Second))
	require.ErrorIs(t, w.Free("nobody"), router.ErrRequestNotFound)
	select {
	case <-w.tickets["next"].Done(): // the last that expires makes room
	case <-time.After(20 * time.Second): // the queue is looked at every minute in any case
		require.Fail(t, "it still waits")
	}
	_, err := w.tickets["next"].Result()
	require.NoError(t, err)
}
