package metrics_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/diagnose"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/metrics"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/router"
)

var _ metrics.Source = (*router.Router)(nil)

func newRouter(t testing.TB) *router.Router {
	r, err := router.New(4, router.DefaultConfig(), router.Options{Seed: new(uint64)})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

func apply(t *testing.T, r *router.Router, id uint64, kind event.Kind, rank uint32, tokens []block.Token) {
	t.Helper()
	hashes, seqs := block.Both(nil, nil, tokens, r.BlockSize(), &block.Identity{})
	ev := &event.Event{Kind: kind, DPRank: rank}
	for i := range hashes {
		ev.Blocks = append(ev.Blocks, event.Block{Engine: block.EngineHash(seqs[i]), Hash: hashes[i]})
		ev.Removed = append(ev.Removed, block.EngineHash(seqs[i]))
	}
	require.NoError(t, r.ApplyEvent(id, ev, index.Count))
}

func decide(t *testing.T, r *router.Router, id string, tokens []block.Token) error {
	t.Helper()
	_, err := r.BestWorker(&router.Request{Prompt: router.Prompt{Tokens: tokens}, ID: id, Book: true})
	return err
}

func text(t testing.TB, e *metrics.Exporter) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, e.Write(&out))
	return out.String()
}

// values gives the rows of a page.
func values(t testing.TB, page string) map[string]float64 {
	t.Helper()
	rows := map[string]float64{}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		require.NoError(t, err, line)
		_, twice := rows[line[:at]]
		require.False(t, twice, line)
		rows[line[:at]] = v
	}
	return rows
}

func newExporter(t testing.TB, s metrics.Source, o metrics.Options) *metrics.Exporter {
	t.Helper()
	e, err := metrics.New(s, o)
	require.NoError(t, err)
	return e
}

func tokens(n int) []block.Token {
	out := make([]block.Token, n)
	for i := range out {
		out[i] = block.Token(i)
	}
	return out
}

func TestAPageAfterAKnownScenario(t *testing.T) {
	config := router.DefaultConfig()
	config.RecordDecisions = 10
	r, err := router.New(4, config, router.Options{Seed: new(uint64)})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	require.ErrorIs(t, decide(t, r, "too early", tokens(8)), router.ErrNoWorkers)
	require.NoError(t, r.AddWorker(router.Worker{ID: 7, DPSize: 2}))
	require.NoError(t, r.AddWorker(router.Worker{ID: 1<<64 - 1}))
	apply(t, r, 7, event.Stored, 1, tokens(16))
	apply(t, r, 7, event.Stored, 1, tokens(12))
	apply(t, r, 7, event.Removed, 0, tokens(4))
	orphan := &event.Event{Kind: event.Stored, HasParent: true, Parent: 9, Blocks: []event.Block{{Engine: 1}, {Engine: 2}}}
	require.ErrorIs(t, r.ApplyEvent(7, orphan, index.Count), router.ErrEventRefused)
	require.NoError(t, decide(t, r, "a", tokens(20))) // 4 of 5 blocks are held by 7/1
	require.NoError(t, decide(t, r, "b", tokens(2)))  // no full block: the idle ranks are equal
	require.NoError(t, r.MarkPrefillComplete("b"))
	require.NoError(t, r.ReportCachedTokens("a", 13)) // 3 blocks and a part of one

	page := text(t, newExporter(t, r, metrics.Options{Labels: map[string]string{"router_id": "r"}}))
	rows := values(t, page)
	for row, want := range map[string]float64{
		`dynamo_go_up{router_id="r"}`:           1,
		`dynamo_go_faults_total{router_id="r"}`: 0,

		`dynamo_component_router_requests_total{router_id="r"}`:               2,
		`dynamo_component_router_requests_started_total{router_id="r"}`:       2,
		`dynamo_go_decisions_total{outcome="chosen",router_id="r"}`:           2,
		`dynamo_go_decisions_total{outcome="no_workers",router_id="r"}`:       1,
		`dynamo_go_decisions_total{outcome="other",router_id="r"}`:            0,
		`dynamo_component_router_input_sequence_tokens_sum{router_id="r"}`:    22,
		`dynamo_component_router_input_sequence_tokens_count{router_id="r"}`:  2,
		`dynamo_component_router_kv_hit_rate_bucket{router_id="r",le="0"}`:    1,
		`dynamo_component_router_kv_hit_rate_bucket{router_id="r",le="0.75"}`: 1,
		`dynamo_component_router_kv_hit_rate_bucket{router_id="r",le="0.8"}`:  2,
		`dynamo_component_router_kv_hit_rate_bucket{router_id="r",le="+Inf"}`: 2,
		`dynamo_component_router_kv_hit_rate_sum{router_id="r"}`:              0.8,

		`dynamo_go_hit_reports_total{router_id="r"}`:                 1,
		`dynamo_go_hit_blocks_total{router_id="r",what="prompt"}`:    5,
		`dynamo_go_hit_blocks_total{router_id="r",what="predicted"}`: 4,
		`dynamo_go_hit_blocks_total{router_id="r",what="actual"}`:    3,

		`dynamo_frontend_worker_active_decode_blocks{dp_rank="1",router_id="r",worker_id="7",worker_type="decode"}`:                    5,
		`dynamo_frontend_worker_active_prefill_tokens{dp_rank="1",router_id="r",worker_id="7",worker_type="decode"}`:                   4,
		`dynamo_go_worker_active_requests{dp_rank="1",router_id="r",worker_id="7",worker_type="decode"}`:                               1,
		`dynamo_frontend_worker_active_decode_blocks{dp_rank="0",router_id="r",worker_id="18446744073709551615",worker_type="decode"}`: 0,
		`dynamo_component_router_worker_registered{dp_rank="0",router_id="r",router_worker_id="7",worker_type="decode"}`:               1,
		`dynamo_go_worker_view_exact{dp_rank="0",router_id="r",worker_id="7",worker_type="decode"}`:                                    1,
		`dynamo_go_ranks{router_id="r",state="exact"}`:                                                                                 3,
		`dynamo_go_ranks{router_id="r",state="partial"}`:                                                                               0,
		`dynamo_go_ranks{router_id="r",state="recovering"}`:                                                                            0,
		`dynamo_go_ranks{router_id="r",state="disconnected"}`:                                                                          0,
		`dynamo_go_workers{router_id="r"}`:                                                                                             2,

		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",router_id="r",status="ok"}`:                     2,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",router_id="r",status="parent_block_not_found"}`: 1,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="removed",router_id="r",status="block_not_found"}`:       1,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="cleared",router_id="r",status="ok"}`:                    0,
		`dynamo_kvrouter_kv_cache_event_warnings{router_id="r",warning_kind="duplicate_store"}`:                      1,
		`dynamo_go_events_ignored_total{router_id="r"}`:                                                              0,
		`dynamo_go_blocks_total{change="stored",router_id="r"}`:                                                      4,
		`dynamo_go_blocks_total{change="refused",router_id="r"}`:                                                     2,
		`dynamo_go_index_blocks{router_id="r"}`:                                                                      4,
		`dynamo_go_index_pairs{router_id="r"}`:                                                                       4,
	} {
		got, ok := rows[row]
		require.True(t, ok, "no row %s in\n%s", row, page)
		require.InDelta(t, want, got, 1e-12, row)
	}

	stats, err := r.Stats()
	require.NoError(t, err)
	bytes := 0.0
	for row, v := range rows {
		if strings.HasPrefix(row, "dynamo_go_index_bytes{") {
			bytes += v
		}
	}
	require.EqualValues(t, stats.Bytes, bytes, "the parts are the whole")
	require.Contains(t, rows, `dynamo_go_index_bytes{part="names",router_id="r"}`)
	require.NotContains(t, page, "router_queue", "nothing waits here")
}

func TestNamesAndTypesAreGood(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(text(t, newExporter(t, newRouter(t), metrics.Options{})))).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		dynamos := strings.HasPrefix(p.Metric, "dynamo_kvrouter_") || strings.HasPrefix(p.Metric, "dynamo_router_overhead_")
		require.True(t, dynamos, "%s: %s", p.Metric, p.Text)
	}
}

func TestManyRanksMakeFewRows(t *testing.T) {
	for _, workers := range []uint64{10, 10_000} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) { manyRanks(t, workers) })
	}
}

func manyRanks(t *testing.T, workers uint64) {
	const ranks, most = 10_000, 100
	r := newRouter(t)
	for id := range workers {
		require.NoError(t, r.AddWorker(router.Worker{ID: id, DPSize: uint32(ranks / workers)}))
	}
	for i := range 500 {
		require.NoError(t, decide(t, r, fmt.Sprint(i), tokens(8+i)))
	}
	rows := values(t, text(t, newExporter(t, r, metrics.Options{MaxRanks: most})))
	require.Less(t, len(rows), 10*most)
	loads, err := r.PotentialLoads(nil, &router.Prompt{})
	require.NoError(t, err)
	perRank := 0
	for row := range rows {
		if strings.HasPrefix(row, "dynamo_go_worker_active_requests{") {
			perRank++
		}
	}
	require.Equal(t, most+1, perRank)
	want := map[string]int64{"dynamo_component_router_worker_registered": ranks, "dynamo_go_worker_view_exact": ranks}
	for _, l := range loads {
		want["dynamo_frontend_worker_active_decode_blocks"] += l.PotentialDecodeBlocks
		want["dynamo_frontend_worker_active_prefill_tokens"] += l.PotentialPrefillTokens
		want["dynamo_go_worker_active_requests"] += l.ActiveRequests
	}
	got := map[string]int64{}
	for row, v := range rows {
		if name, _, _ := strings.Cut(row, "{"); want[name] > 0 {
			got[name] += int64(v)
		}
	}
	require.Equal(t, want, got, "sums over all rows are those over all ranks")
	require.Contains(t, rows, `dynamo_component_router_worker_registered{dp_rank="",router_worker_id="other",worker_type="decode"}`)
	unasked := values(t, text(t, newExporter(t, r, metrics.Options{})))
	require.Less(t, len(unasked), 10*(metrics.DefaultMaxRanks+1)+200, "without a word of it there is a bound, too")
	exactly := values(t, text(t, newExporter(t, r, metrics.Options{MaxRanks: ranks})))
	require.NotContains(t, strings.Join(slices.Collect(maps.Keys(exactly)), " "), `"other",worker_type`, "as many as fit need no such row")
}

// fake tells what a test wants to be told.
type fake struct {
	*router.Router
	health []router.RankHealth
}

func (f *fake) Health() ([]router.RankHealth, error) { return f.health, nil }

func TestCountersOfFeedsNeverGoBack(t *testing.T) {
	f := &fake{Router: newRouter(t)}
	e := newExporter(t, f, metrics.Options{WorkerType: "prefill"})
	look := func(health ...router.RankHealth) map[string]float64 {
		f.health = health
		return values(t, text(t, e))
	}
	rank := func(id uint64, state feed.State, gaps uint64) router.RankHealth {
		return router.RankHealth{WorkerID: id, State: state, Counters: map[string]uint64{"gaps": gaps}}
	}
	const gaps = `dynamo_go_feed_total{counter="gaps"}`
	rows := look(rank(1, feed.Exact, 10), rank(2, feed.Partial, 5))
	require.EqualValues(t, 15, rows[gaps])
	require.EqualValues(t, 1, rows[`dynamo_go_ranks{state="partial"}`])
	require.EqualValues(t, 0, rows[`dynamo_go_worker_view_exact{dp_rank="0",worker_id="2",worker_type="prefill"}`])
	require.EqualValues(t, 16, look(rank(1, feed.Exact, 11), rank(2, feed.Exact, 5))[gaps])
	require.EqualValues(t, 16, look(rank(2, feed.Exact, 5))[gaps], "a rank that leaves takes nothing with it")
	require.EqualValues(t, 19, look(rank(1, feed.Exact, 3), rank(2, feed.Exact, 5))[gaps], "back again it begins at 0")
	require.EqualValues(t, 20, look(rank(1, feed.Exact, 1), rank(2, feed.Exact, 5))[gaps], "a feed that began anew")

	look()
	require.EqualValues(t, 50, look(rank(1, feed.Exact, 30))[gaps], "nor is a rank taken for one that left")

	many := rank(3, feed.Exact, 0)
	for i := range 10_000 {
		many.Counters[fmt.Sprintf("reason %d", i)] = 1
	}
	require.Less(t, len(look(many)), 600)
}

func TestFindingsAreRanksByCause(t *testing.T) {
	f := &fake{Router: newRouter(t)}
	e := newExporter(t, f, metrics.Options{})
	for id := range uint64(3) {
		f.health = append(f.health, router.RankHealth{WorkerID: id, State: feed.Exact, Findings: []diagnose.Finding{{Cause: diagnose.NoEvents}}})
	}
	f.health[0].Findings = append(f.health[0].Findings, diagnose.Finding{Cause: diagnose.TokensDiffer})
	rows := values(t, text(t, e))
	for _, cause := range diagnose.Causes() {
		want := map[diagnose.Cause]float64{diagnose.NoEvents: 3, diagnose.TokensDiffer: 1}[cause]
		got, there := rows[fmt.Sprintf("dynamo_go_findings{cause=%q}", cause)]
		require.True(t, there, cause)
		require.Equal(t, want, got, cause)
	}
}

type queued struct {
	*router.Router
	classes map[string]queue.Stats
}

func (q *queued) QueueStats() (map[string]queue.Stats, error) { return q.classes, nil }

func TestARowPerPolicyClass(t *testing.T) {
	q := &queued{newRouter(t), map[string]queue.Stats{
		"default": {}, "batch": {Requests: 3, ISLTokens: 900, CachedTokens: 100, Pushed: 10, LimitRefused: 2, DeadlinePassed: 1},
	}}
	rows := values(t, text(t, newExporter(t, q, metrics.Options{Labels: map[string]string{"model": "m"}})))
	for row, want := range map[string]float64{
		`dynamo_frontend_router_queue_pending_requests{model="m",policy_class="batch",worker_type="decode"}`:                     3,
		`dynamo_frontend_router_queue_pending_requests{model="m",policy_class="default",worker_type="decode"}`:                   0,
		`dynamo_frontend_router_queue_pending_isl_tokens{model="m",policy_class="batch",worker_type="decode"}`:                   900,
		`dynamo_frontend_router_queue_pending_cached_tokens{model="m",policy_class="batch",worker_type="decode"}`:                100,
		`dynamo_go_queue_requests_total{model="m",policy_class="batch",worker_type="decode"}`:                                    10,
		`dynamo_frontend_router_queue_backpressure_total{model="m",policy_class="batch",reason="limit",worker_type="decode"}`:    2,
		`dynamo_frontend_router_queue_backpressure_total{model="m",policy_class="batch",reason="deadline",worker_type="decode"}`: 1,
	} {
		got, ok := rows[row]
		require.True(t, ok, row)
		require.Equal(t, want, got, row)
	}
}

func TestExactViewsBeyondTheBoundAreCounted(t *testing.T) {
	f := &fake{Router: newRouter(t)}
	for id, state := range []feed.State{feed.Exact, feed.Partial, feed.Exact, feed.Disconnected, feed.Exact} {
		f.health = append(f.health, router.RankHealth{WorkerID: uint64(id), State: state})
	}
	rows := values(t, text(t, newExporter(t, f, metrics.Options{MaxRanks: 1})))
	require.EqualValues(t, 1, rows[`dynamo_go_worker_view_exact{dp_rank="0",worker_id="0",worker_type="decode"}`])
	require.EqualValues(t, 2, rows[`dynamo_go_worker_view_exact{dp_rank="",worker_id="other",worker_type="decode"}`])
	require.EqualValues(t, 3, rows[`dynamo_go_ranks{state="exact"}`])
}

func TestAClosedRouter(t *testing.T) {
	r := newRouter(t)
	e := newExporter(t, r, metrics.Options{})
	r.Close()
	var out strings.Builder
	require.ErrorIs(t, e.Write(&out), router.ErrClosed)
	require.Empty(t, out.String())
	rows := e.Gather()
	require.Len(t, rows, 1)
	require.Equal(t, "dynamo_go_up", metrics.Definitions()[rows[0].Metric].Name)
	require.Zero(t, rows[0].Value)
}

func TestDefinitionsAreInOrder(t *testing.T) {
	before := ""
	for _, d := range metrics.Definitions() {
		require.Less(t, before, d.Name)
		require.True(t, slices.IsSorted(d.Labels), d.Name)
		require.NotEmpty(t, d.Help, d.Name)
		before = d.Name
	}
}

func TestALabelOfOursIsRefused(t *testing.T) {
	for _, name := range []string{"worker_id", "le", "state", "worker_type", "not a name", "__reserved", "1st", ""} {
		_, err := metrics.New(newRouter(t), metrics.Options{Labels: map[string]string{name: "x"}})
		require.ErrorIs(t, err, router.ErrInvalidArgument, name)
	}
	for _, o := range []metrics.Options{{Labels: map[string]string{"a": "\xff"}}, {WorkerType: "\xff"}} {
		_, err := metrics.New(newRouter(t), o)
		require.ErrorIs(t, err, router.ErrInvalidArgument)
	}
}

func TestWritersAtTheSameTime(t *testing.T) {
	r := newRouter(t)
	require.NoError(t, r.AddWorker(router.Worker{ID: 1}))
	e := newExporter(t, r, metrics.Options{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 20 {
				if err := e.Write(io.Discard); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestAWriterThatFails(t *testing.T) {
	require.ErrorIs(t, newExporter(t, newRouter(t), metrics.Options{}).Write(failing{}), io.ErrShortWrite)
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestTheDocumentListsEveryMetric(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	var want, got []string
	for _, d := range metrics.Definitions() {
		labels := ""
		for _, l := range d.Labels {
			labels += " `" + l + "`"
		}
		want = append(want, fmt.Sprintf("| `%s` | %s |%s |", d.Name, d.Kind, labels))
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `dynamo_") {
			cells := strings.Split(line, "|")
			got = append(got, strings.Join(cells[:4], "|")+"|")
		}
	}
	require.Equal(t, want, got)
}
