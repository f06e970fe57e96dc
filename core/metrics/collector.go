package metrics

import (
	"fmt"
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"

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

// Options of a Collector; the zero value is good.
type Options struct {
	// Labels are added to every row, e.g. router_id, dynamo_namespace and dynamo_component where several routers are scraped.
	// Names that metrics have themselves are refused.
	Labels map[string]string
	// WorkerType is the worker_type of Dynamo's labels: "prefill" or "decode", which also stands for aggregated workers;
	// "" is "decode".
	WorkerType string
	// MaxRanks bounds the rows of a metric that has one per rank; <= 0 is DefaultMaxRanks.
	MaxRanks int
}

// DefaultMaxRanks keeps a page below a megabyte.
const DefaultMaxRanks = 1000

// Collector is a prometheus.Collector for one router. It is safe for concurrent use.
type Collector struct {
	source     Source
	workerType string
	maxRanks   int
	descs      descs
	registry   *prometheus.Registry // of Write

	mu    sync.Mutex
	feeds feeds
}

// New makes a Collector. The error says which label is wrong.
func New(source Source, options Options) (*Collector, error) {
	c := &Collector{
		source: source, workerType: options.WorkerType, maxRanks: options.MaxRanks,
		descs: newDescs(prometheus.Labels(maps.Clone(options.Labels))), registry: prometheus.NewPedanticRegistry(), feeds: newFeeds(),
	}
	if c.workerType == "" {
		c.workerType = "decode"
	}
	if c.maxRanks <= 0 {
		c.maxRanks = DefaultMaxRanks
	}
	for name := range options.Labels {
		// Neither is the library's concern: it takes any text for a name, and lets a histogram's own label pass.
		if !model.LegacyValidation.IsValidLabelName(name) || name == model.BucketLabel {
			return nil, fmt.Errorf("%w: label %q: expected a name [a-zA-Z_][a-zA-Z0-9_]* that no metric has", router.ErrInvalidArgument, name)
		}
	}
	if err := c.registry.Register(c); err != nil {
		return nil, fmt.Errorf("%w: labels %v: %w", router.ErrInvalidArgument, options.Labels, err)
	}
	return c, nil
}

// reading is what one collection knows.
type reading struct {
	stats  router.Stats
	health []router.RankHealth
	loads  []router.PotentialLoad
	tally  tally.Snapshot
	queue  map[string]queue.Stats
}

func (c *Collector) read() (r reading, err error) {
	if r.stats, err = c.source.Stats(); err != nil {
		return r, err
	}
	if r.health, err = c.source.Health(); err != nil {
		return r, err
	}
	if r.loads, err = c.source.PotentialLoads(nil, &router.Prompt{}); err != nil {
		return r, err
	}
	if q, ok := c.source.(QueueSource); ok {
		if r.queue, err = q.QueueStats(); err != nil {
			return r, err
		}
	}
	r.tally, err = c.source.Tally()
	return r, err
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs.all {
		to <- d
	}
}

// Collect implements prometheus.Collector. A router that is closed has no metrics but that it is not up.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.read()
	if err != nil {
		gauge(to, c.descs.up, 0)
		return
	}
	gauge(to, c.descs.up, 1)
	c.decisions(to, &r.tally.Decisions)
	c.events(to, &r.tally.Events, &r.stats)
	c.index(to, &r.stats)
	c.ranks(to, &r)
	c.views(to, r.health)
	c.queue(to, r.queue)
}

func gauge[N int | int64 | uint64 | float64](to chan<- prometheus.Metric, d *prometheus.Desc, value N, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
}

func counter(to chan<- prometheus.Metric, d *prometheus.Desc, value uint64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

func histogram(to chan<- prometheus.Metric, d *prometheus.Desc, h *tally.Histogram) {
	cumulative, n := make(map[float64]uint64, len(h.Bounds)), uint64(0)
	for i, bound := range h.Bounds {
		n += h.Counts[i]
		cumulative[bound] = n
	}
	to <- prometheus.MustNewConstHistogram(d, h.Total(), h.Sum, cumulative)
}
