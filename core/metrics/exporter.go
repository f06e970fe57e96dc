package metrics

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/tally"
)

// Source is what a router can tell of itself; each call stands alone. After the router was closed all give its error.
type Source interface {
	Stats() (router.Stats, error)
	Health() ([]router.RankHealth, error)
	// PotentialLoads of an empty prompt are the present loads.
	PotentialLoads(dst []router.PotentialLoad, p *router.Prompt) ([]router.PotentialLoad, error)
	Tally() (tally.Snapshot, error)
}

// QueueSource is a Source whose requests may wait.
type QueueSource interface {
	// QueueStats gives the counters of each policy class. Classes are those of a configuration, so there are few.
	QueueStats() (map[string]queue.Stats, error)
}

// Options of an Exporter; the zero value is good.
type Options struct {
	// Labels are added to every row, e.g. router_id, model, dynamo_namespace and dynamo_component where several routers are
	// scraped. Names are [a-zA-Z_][a-zA-Z0-9_]*, and not those that metrics have themselves.
	Labels map[string]string
	// WorkerType is the worker_type of Dynamo's labels: "prefill" or "decode", which also stands for aggregated workers;
	// "" is "decode".
	WorkerType string
	// MaxRanks bounds the rows of a metric that has one per rank; <= 0 is DefaultMaxRanks.
	MaxRanks int
}

// DefaultMaxRanks keeps a page below a megabyte.
const DefaultMaxRanks = 1000

// Exporter reads one router. It is safe for concurrent use.
type Exporter struct {
	source     Source
	labels     map[string]string
	workerType string
	maxRanks   int

	mu    sync.Mutex
	feeds feeds
}

// New makes an Exporter. Errors: ErrInvalidArgument of package router, for a label.
func New(source Source, options Options) (*Exporter, error) {
	e := &Exporter{
		source: source, labels: maps.Clone(options.Labels), workerType: options.WorkerType, maxRanks: options.MaxRanks, feeds: newFeeds(),
	}
	if e.workerType == "" {
		e.workerType = "decode"
	}
	if e.maxRanks <= 0 {
		e.maxRanks = DefaultMaxRanks
	}
	for name, value := range e.labels {
		if err := checkLabel(name, value); err != nil {
			return nil, err
		}
	}
	if !utf8.ValidString(e.workerType) {
		return nil, fmt.Errorf("%w: worker type %q is not UTF-8", router.ErrInvalidArgument, e.workerType)
	}
	return e, nil
}

var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func checkLabel(name, value string) error {
	taken := name == "le" // of histograms
	for _, d := range definitions {
		taken = taken || slices.Contains(d.Labels, name)
	}
	switch {
	case taken:
		return fmt.Errorf("%w: label %q: a metric has it itself", router.ErrInvalidArgument, name)
	case !labelName.MatchString(name) || len(name) > 1 && name[:2] == "__":
		return fmt.Errorf("%w: label %q: expected [a-zA-Z_][a-zA-Z0-9_]*, and not __ first", router.ErrInvalidArgument, name)
	case !utf8.ValidString(value):
		return fmt.Errorf("%w: label %s=%q is not UTF-8", router.ErrInvalidArgument, name, value)
	}
	return nil
}

// Labels gives the labels of every row.
func (e *Exporter) Labels() map[string]string { return maps.Clone(e.labels) }

// Row is one value of a metric.
type Row struct {
	Metric    int              // position in Definitions
	Values    []string         // of its labels
	Value     float64          // of a gauge or counter
	Histogram *tally.Histogram // of a histogram
}

// reading is what one look at a router tells.
type reading struct {
	stats  router.Stats
	health []router.RankHealth
	loads  []router.PotentialLoad
	tally  tally.Snapshot
	queue  map[string]queue.Stats
}

func (e *Exporter) read() (r reading, err error) {
	if r.stats, err = e.source.Stats(); err != nil {
		return r, err
	}
	if r.health, err = e.source.Health(); err != nil {
		return r, err
	}
	if r.loads, err = e.source.PotentialLoads(nil, &router.Prompt{}); err != nil {
		return r, err
	}
	if q, ok := e.source.(QueueSource); ok {
		if r.queue, err = q.QueueStats(); err != nil {
			return r, err
		}
	}
	r.tally, err = e.source.Tally()
	return r, err
}

// Gather reads the router: all rows, by metric and then by the values of their labels. A router that is closed has one row,
// which says so.
func (e *Exporter) Gather() []Row {
	rows, err := e.gather()
	if err != nil {
		return []Row{{Metric: up}}
	}
	return rows
}

func (e *Exporter) gather() ([]Row, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, err := e.read()
	if err != nil {
		return nil, err
	}
	p := page{workerType: e.workerType}
	p.add(up, 1)
	p.add(faults, float64(owned.Faults()))
	p.decisions(&r.tally.Decisions)
	p.hits(&r.tally.Hits)
	p.events(&r.tally.Events, &r.stats)
	p.index(&r.stats)
	p.queue(r.queue)
	p.ranks(r.loads, e.maxRanks)
	p.views(r.health, e.maxRanks)
	e.feeds.add(r.health)
	for name, n := range e.feeds.totals {
		p.add(feedCounts, float64(n), name)
	}
	slices.SortFunc(p.rows, func(a, b Row) int {
		if a.Metric != b.Metric {
			return a.Metric - b.Metric
		}
		return slices.Compare(a.Values, b.Values)
	})
	return p.rows, nil
}
