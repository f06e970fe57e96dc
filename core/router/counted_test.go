package router_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/tally"
)

func TestDecisionsAndEventsAreCounted(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig())
	_, err := k.BestWorker(ask(tokens(1, 40)))
	require.ErrorIs(t, err, router.ErrNoWorkers)
	k.workers(1)
	k.store(1, 0, tokens(1, 20))
	require.Error(t, k.ApplyEvent(1, &event.Event{Kind: event.Stored, HasParent: true, Parent: 9, Blocks: []event.Block{{Engine: 1, Hash: 1}}}, index.Count))
	for range 64 {
		k.best(ask(tokens(1, 40)))
	}
	k.best(book("a", tokens(1, 40)))
	_, err = k.BestWorker(book("a", tokens(1, 40)))
	require.ErrorIs(t, err, router.ErrDuplicateRequest)
	_, err = k.BestWorker(pinned(ask(nil), 7, 0))
	require.ErrorIs(t, err, router.ErrWorkerNotFound)

	got, err := k.Tally()
	require.NoError(t, err)
	d := got.Decisions
	require.Equal(t, []tally.Outcome{{Name: tally.Chosen, Count: 65}, {Name: "no_workers", Count: 1}, {Name: "overloaded"}, {Name: "worker_not_found", Count: 1},
		{Name: "duplicate_request", Count: 1}, {Name: "invalid_argument"}, {Name: "session_moved"}, {Name: "queue_limit"}, {Name: "timeout"},
		{Name: "cancelled"}, {Name: tally.Other}}, d.Outcomes)
	require.EqualValues(t, 1, d.Booked)
	require.EqualValues(t, 65*40, d.PromptTokens.Sum)
	require.InDelta(t, 65*0.5, d.HitRate.Sum, 0.001)
	for name, phase := range map[string]tally.Histogram{"hashing": d.Hashing, "matching": d.Matching, "scheduling": d.Scheduling, "total": d.Total} {
		require.True(t, raceEnabled || phase.Total() > 0, name) // the race detector takes the buffers that count to 16
		require.Less(t, phase.Total(), uint64(65), "%s: some decisions are measured", name)
	}
	require.EqualValues(t, 1, got.Events.Ends[event.Stored][tally.OK])
	require.EqualValues(t, 1, got.Events.Ends[event.Stored][tally.ParentNotFound])
	require.EqualValues(t, 5, got.Events.Stored)
	k.Close()
	_, err = k.Tally()
	require.ErrorIs(t, err, router.ErrClosed)
}
