package feed

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// stopped gives where a feed stops after n batches, and the view it leaves.
func stopped(t *testing.T, e *engine, n int) (*Position, *view) {
	v := new(view)
	f := follow(t, e, v, nil)
	eventually(t, "joined", func() bool { return len(v.ids()) == n && f.Status().State == Exact })
	at, release := f.Freeze()
	release()
	f.Close()
	require.NoError(t, at.Check())
	require.EqualValues(t, n-1, at.Last)
	return at, v
}

func TestResumeAppliesOnlyWhatCameSince(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	for i := range uint64(100) {
		e.add(store(t, i))
	}
	at, v := stopped(t, e, 100)
	for i := range uint64(20) {
		e.add(store(t, 100+i))
	}
	e.mu.Lock()
	e.oldest = 50 // a full restore is no longer possible, and not needed
	e.mu.Unlock()
	f := follow(t, e, v, func(c *Config) { c.Resume = at })
	eventually(t, "caught up", func() bool { return len(v.ids()) == 120 && f.Status().State == Exact })
	require.Equal(t, upTo(120), v.ids(), "nothing twice")
	require.Zero(t, v.resets)
	require.EqualValues(t, 119, f.Status().LastSeq)
}

func TestResumeFindsAnotherEngine(t *testing.T) {
	e := newEngine(t, fixed(t), fixed(t))
	for i := range uint64(100) {
		e.add(store(t, i))
	}
	at, v := stopped(t, e, 100)
	e.close()
	again := newEngine(t, e.pub.Addr(), e.router.Addr())
	for i := range uint64(110) { // it has overtaken the old one
		again.add(store(t, 1000+i))
	}
	f := follow(t, again, v, func(c *Config) { c.Resume = at })
	eventually(t, "exact", func() bool { return len(v.names()) == 110 && f.Status().State == Exact })
	require.EqualValues(t, 1000, slices.Min(v.names()))
	require.EqualValues(t, 1, f.Status().Counters["restarts"])
}

func TestNothingToResume(t *testing.T) {
	e := newEngine(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	var v view
	f := follow(t, e, &v, nil)
	at, release := f.Freeze()
	require.Nil(t, at)
	release()
	eventually(t, "it goes on", f.is(Exact))
}

// What may be of two engine processes is no position; and what was learnt of the stream comes along.
func TestFreezeGivesNoMixtureAndAllThatWasLearnt(t *testing.T) {
	at := &Position{Last: 3, Seed: 7, Prints: []uint64{1, 2}, Streams: []byte{1, 0, 1, 1, 0, 0}, Partial: "why"}
	require.NoError(t, at.Check())
	f := Start(Config{Endpoint: "tcp://127.0.0.1:1", BlockSize: 4, Sink: noSink{}, Resume: at})
	f.Close()
	again, release := f.Freeze()
	release()
	require.Equal(t, at, again)
	for _, change := range []func(){
		func() { f.machine.unproven = true },
		func() { f.machine.unproven, f.machine.restoreAt = false, 1 },
		func() { f.machine.restoreAt, f.machine.hasLast = 0, false },
	} {
		change()
		again, release = f.Freeze()
		release()
		require.Nil(t, again)
	}
}

func TestPositionsNoFeedCanHaveHad(t *testing.T) {
	streams := []byte{0, 0, 0}
	require.NoError(t, (&Position{Last: 3, Prints: make([]uint64, 4), Streams: streams}).Check())
	require.NoError(t, (&Position{Last: 1000, Prints: make([]uint64, window), Streams: streams}).Check())
	for _, at := range []Position{
		{Last: math.MaxUint64, Prints: make([]uint64, 1), Streams: streams},
		{Last: 3, Streams: streams},
		{Last: 3, Prints: make([]uint64, 5), Streams: streams},
		{Last: 1000, Prints: make([]uint64, window+1), Streams: streams},
		{Last: 3, Prints: make([]uint64, 1)},
		{Last: 3, Prints: make([]uint64, 1), Streams: []byte{1, 0, 0}},
	} {
		require.ErrorIs(t, at.Check(), ErrPosition, "%+v", at)
	}
}
