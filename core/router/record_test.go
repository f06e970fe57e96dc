package router_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/tally"
)

func (k *kit) recorded(after uint64) []router.Decision {
	rows, err := k.Decisions(after)
	require.NoError(k.t, err)
	return rows
}

// Each decision is recorded with the hits that it expects in all tiers, and with those that its engine reports.
func TestDecisionsAreRecorded(t *testing.T) {
	config := router.DefaultConfig()
	config.RecordDecisions, config.RouterQueueThreshold = 3, ptr(0.0)
	k := newKit(t, 4, config).workers(1)
	prompt := tokens(1, 18)
	k.store(1, 0, prompt[:8])
	hashes := block.Hashes(nil, prompt[:12], 4, nil)
	require.NoError(t, k.ApplyEvent(1, &event.Event{Kind: event.Stored, Tier: event.HostPinned, HasParent: true, Parent: block.EngineHash(hashes[1]),
		Blocks: []event.Block{{Engine: 77, Hash: hashes[2]}}}, index.Count))
	require.Empty(t, k.recorded(0))

	k.best(ask(prompt))
	k.best(book("a", prompt))
	_, ticket, err := k.Submit(book("waits", tokens(2, 9)), nil)
	require.NoError(t, err)
	require.NotNil(t, ticket)
	require.Len(t, k.recorded(0), 2, "it is not decided yet")
	require.NoError(t, k.Free("a"))
	at := float64(k.at.Unix())
	name, waits := "a", "waits"
	want := []router.Decision{
		{Number: 1, At: at, WorkerID: 1, PromptTokens: 18, PredictedCachedTokens: 12},
		{Number: 2, At: at, WorkerID: 1, PromptTokens: 18, PredictedCachedTokens: 12, RequestID: &name},
		{Number: 3, At: at, WorkerID: 1, PromptTokens: 9, RequestID: &waits},
	}
	require.Equal(t, want, k.recorded(0))
	require.Equal(t, want[2:], k.recorded(2))
	require.Empty(t, k.recorded(3))

	require.NoError(t, k.ReportCachedTokens("a", 8), "also when it was freed")
	require.NoError(t, k.ReportCachedTokens("a", 0), "the first report counts")
	require.NoError(t, k.ReportCachedTokens("waits", 1000), "all of it")
	require.ErrorIs(t, k.ReportCachedTokens("nobody", 1), router.ErrRequestNotFound)
	require.ErrorIs(t, k.ReportCachedTokens("a", -1), router.ErrInvalidArgument)
	require.Equal(t, 8, *k.recorded(1)[0].ActualCachedTokens)
	require.Equal(t, 9, *k.recorded(2)[0].ActualCachedTokens)
	counts, err := k.Tally()
	require.NoError(t, err)
	require.Equal(t, tally.Hits{Requests: 2, Blocks: 4 + 2, Predicted: 3, Actual: 2 + 2}, counts.Hits)

	// The oldest go, and what goes by their ids; an id that is used again is the new request's.
	require.NoError(t, k.Free("waits"))
	k.best(book("a", nil))
	k.best(book("b", nil))
	require.NoError(t, k.Free("a"))
	rows := k.recorded(0)
	require.Len(t, rows, 3)
	require.EqualValues(t, 3, rows[0].Number)
	require.NoError(t, k.ReportCachedTokens("a", 0))
	require.Zero(t, *k.recorded(3)[0].ActualCachedTokens)
	k.best(ask(nil))
	k.best(ask(nil))
	require.ErrorIs(t, k.ReportCachedTokens("waits", 1), router.ErrRequestNotFound)
	require.ErrorIs(t, k.ReportCachedTokens("a", 1), router.ErrRequestNotFound)
	require.NoError(t, k.ReportCachedTokens("b", 1))
	k.Close()
	_, err = k.Decisions(0)
	require.ErrorIs(t, err, router.ErrClosed)
	require.ErrorIs(t, k.ReportCachedTokens("b", 1), router.ErrClosed)
}

func TestManyDecisionsAreReadInOrder(t *testing.T) {
	config := router.DefaultConfig()
	config.RecordDecisions = 3000
	k := newKit(t, 4, config).workers(1)
	for i := range 5000 {
		k.best(ask(nil))
		if i%1000 == 0 {
			require.Len(t, k.recorded(uint64(i)), 1)
		}
	}
	rows := k.recorded(0)
	require.Len(t, rows, 3000)
	for i := range rows {
		require.EqualValues(t, 2001+i, rows[i].Number)
	}
	require.Empty(t, k.recorded(1<<63))
}

// Nothing is kept where nobody asked for it, and reports are no error.
func TestDecisionsAreNotRecorded(t *testing.T) {
	k := newKit(t, 4, router.DefaultConfig()).workers(1)
	k.best(book("a", tokens(1, 8)))
	require.NoError(t, k.ReportCachedTokens("a", 8))
	require.Empty(t, k.recorded(0))
	for _, n := range []int{-1, router.MaxDecisions + 1} {
		_, err := router.ParseConfig(fmt.Appendf(nil, `{"record_decisions":%d}`, n))
		require.ErrorIs(t, err, router.ErrInvalidArgument)
	}
}
