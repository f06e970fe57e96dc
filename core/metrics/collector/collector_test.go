package collector_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/metrics"
	"github.com/dynamo-go/dynamo-go/core/metrics/collector"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/tally"
)

// fake is a router with something of everything.
type fake struct{ err error }

func (f *fake) Stats() (router.Stats, error) {
	return router.Stats{Blocks: 1 << 30, Bytes: 6, Memory: router.Memory{Names: 2, Rest: 4}, IgnoredEvents: 1 << 60}, f.err
}

func (f *fake) Health() ([]router.RankHealth, error) {
	return []router.RankHealth{
		{WorkerID: 1<<64 - 1, State: feed.Exact, Counters: map[string]uint64{"gaps": 3, "batches": 9}},
		{WorkerID: 2, DPRank: 7, State: feed.Partial, Counters: map[string]uint64{"gaps": 1, "odd \"name\"\n\\": 1, "\xff": 2}},
		{WorkerID: 3, State: feed.Exact},
	}, f.err
}

func (f *fake) PotentialLoads(dst []router.PotentialLoad, _ *router.Prompt) ([]router.PotentialLoad, error) {
	return append(dst, router.PotentialLoad{WorkerID: 1<<64 - 1, PotentialPrefillTokens: 12345678901, ActiveRequests: 3},
		router.PotentialLoad{WorkerID: 2, DPRank: 7, PotentialDecodeBlocks: 100_000}, router.PotentialLoad{WorkerID: 3, ActiveRequests: 1}), f.err
}

func (f *fake) Tally() (tally.Snapshot, error) {
	d := tally.NewDecisions(tally.Kind{Name: "no_workers", Err: router.ErrNoWorkers})
	for i := range 1000 {
		d.Count(&tally.Decision{Booked: i%2 == 0, PromptTokens: i * i, CachedTokens: i, Hashing: int64(i * 100), Total: int64(i) * 1_000_000}, nil)
	}
	d.Count(nil, router.ErrNoWorkers)
	s := tally.Snapshot{Decisions: d.Counts()}
	s.Events.Ends[event.Removed][tally.BlockNotFound] = 5
	return s, f.err
}

func (f *fake) QueueStats() (map[string]queue.Stats, error) {
	return map[string]queue.Stats{"b": {Requests: 1}, "a": {ISLTokens: 1e15}}, f.err
}

func registered(t *testing.T, source metrics.Source, options metrics.Options) (*metrics.Exporter, *prometheus.Registry) {
	e, err := metrics.New(source, options)
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(collector.New(e)))
	return e, registry
}

func TestTheTextIsWhatTheLibraryWrites(t *testing.T) {
	for _, options := range []metrics.Options{
		{},
		{MaxRanks: 2, WorkerType: "prefill", Labels: map[string]string{"a": "back\\slash", "model": "\"quoted\"\nnew line \u00e9", "zone": ""}},
	} {
		e, registry := registered(t, &fake{}, options)
		var ours, theirs strings.Builder
		require.NoError(t, e.Write(&ours))
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			_, err := expfmt.MetricFamilyToText(&theirs, f)
			require.NoError(t, err)
		}
		require.Equal(t, theirs.String(), ours.String())
		require.Greater(t, len(families), len(metrics.Definitions())-1)
		require.Equal(t, metrics.Format, string(expfmt.NewFormat(expfmt.TypeTextPlain))[:len(metrics.Format)])
	}
}

func TestOtherCollectorsOutliveAClosedRouter(t *testing.T) {
	_, registry := registered(t, &fake{errors.New("closed")}, metrics.Options{})
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Equal(t, "dynamo_go_up", families[0].GetName())
	require.Zero(t, families[0].GetMetric()[0].GetGauge().GetValue())
}
