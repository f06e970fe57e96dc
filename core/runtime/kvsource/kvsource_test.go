package kvsource

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/internal/leaktest"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// The local indexer answers queries, whatever they are, by Dynamo's numbers: events from 1, a state of nothing after 0.
func TestQueries(t *testing.T) {
	r := runtime.New(discovery.NewMemory(), runtime.Options{RequestHost: "127.0.0.1", ResponseHost: "127.0.0.1", EventHost: "127.0.0.1"})
	defer r.Close()
	e, err := r.Endpoint("ns.comp.generate")
	require.NoError(t, err)
	_, err = New(e, Config{BlockSize: 0})
	require.ErrorIs(t, err, publish.ErrConfig)
	_, err = New(e, Config{BlockSize: 4, BufferSteps: -1})
	require.ErrorIs(t, err, publish.ErrConfig)
	s, err := New(e, Config{DPRank: 2, BlockSize: 4, BufferSteps: 2})
	require.NoError(t, err)

	sources, err := r.Store().Watch(discovery.EventSources, "")
	require.NoError(t, err)
	defer sources.Close()
	var record discovery.Source
	for path, value := range sources.Entries() {
		record, err = discovery.DecodeSource(path, value)
		require.NoError(t, err)
	}
	require.Equal(t, s.ID(), record.Publisher)
	require.Equal(t, worker.Rank{ID: r.ID(), DPRank: 2}, worker.Rank{ID: record.WorkerID, DPRank: record.DPRank})
	rank := worker.Rank{ID: r.ID(), DPRank: 2}
	ask := func(query []byte) *event.RangeAnswer {
		stream, err := r.Call(context.Background(), record.Recovery, &runtime.Request{ID: "x", Body: query, Plain: true})
		require.NoError(t, err)
		defer stream.Close()
		it, err := stream.Recv()
		require.NoError(t, err)
		a, err := wire.DecodeRangeAnswer(it.Data, rank)
		require.NoError(t, err)
		return a
	}
	from := func(start uint64) []byte {
		return wire.AppendRangeQuery(nil, &event.RangeQuery{WorkerID: rank.ID, DPRank: rank.DPRank, HasStart: true, Start: start})
	}
	all := wire.AppendRangeQuery(nil, &event.RangeQuery{WorkerID: rank.ID, DPRank: rank.DPRank})

	a := ask(all)
	require.Equal(t, event.RangeDump, a.Kind)
	require.Zero(t, a.LastID)
	require.Empty(t, a.Events)
	for i := range block.EngineHash(3) {
		_, err := s.Publish(publish.Stored(nil, []block.EngineHash{10 + i}, []block.Token{uint32(i), 0, 0, 0}, 4))
		require.NoError(t, err)
	}
	require.EqualValues(t, 3, s.Stats().Messages)
	a = ask(from(2))
	require.Equal(t, event.RangeEvents, a.Kind)
	require.Len(t, a.Events, 2)
	require.EqualValues(t, 2, a.Events[0].ID)
	a = ask(from(1)) // no longer kept
	require.Equal(t, event.RangeDump, a.Kind)
	require.EqualValues(t, 3, a.LastID)
	require.Len(t, a.Events, 3)
	require.Equal(t, event.RangeTooNew, ask(from(4)).Kind)
	require.Equal(t, event.RangeError, ask(wire.AppendRangeQuery(nil, &event.RangeQuery{WorkerID: 5, DPRank: 2})).Kind)
	require.Equal(t, event.RangeError, ask([]byte{0x90}).Kind)

	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.Empty(t, sources.Entries())
	_, err = s.Publish(publish.Cleared())
	require.ErrorIs(t, err, publish.ErrClosed)
}
