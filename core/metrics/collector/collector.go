// Package collector gives the metrics of a router to a registry of Prometheus' Go library, for hosts that have one. It is the
// only package that knows this library: package metrics writes its text format without it, in a third of the binary.
package collector

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dynamo-go/dynamo-go/core/metrics"
	"github.com/dynamo-go/dynamo-go/core/tally"
)

// Collector is a prometheus.Collector for one Exporter. It is safe for concurrent use.
type Collector struct {
	exporter *metrics.Exporter
	descs    []*prometheus.Desc // as in metrics.Definitions
}

// New makes a Collector; register it with a registry.
func New(e *metrics.Exporter) *Collector {
	c := &Collector{exporter: e}
	for _, d := range metrics.Definitions() {
		c.descs = append(c.descs, prometheus.NewDesc(d.Name, d.Help, d.Labels, e.Labels()))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, r := range c.exporter.Gather() {
		desc := c.descs[r.Metric]
		m, err := metric(desc, metrics.Definitions()[r.Metric].Kind, &r)
		if err != nil {
			m = prometheus.NewInvalidMetric(desc, err)
		}
		to <- m
	}
}

func metric(desc *prometheus.Desc, kind metrics.Kind, r *metrics.Row) (prometheus.Metric, error) {
	switch kind {
	case metrics.Histogram:
		return prometheus.NewConstHistogram(desc, r.Histogram.Total(), r.Histogram.Sum, cumulative(r.Histogram))
	case metrics.Counter:
		return prometheus.NewConstMetric(desc, prometheus.CounterValue, r.Value, r.Values...)
	default:
		return prometheus.NewConstMetric(desc, prometheus.GaugeValue, r.Value, r.Values...)
	}
}

func cumulative(h *tally.Histogram) map[float64]uint64 {
	out, n := make(map[float64]uint64, len(h.Bounds)), uint64(0)
	for i, bound := range h.Bounds {
		n += h.Counts[i]
		out[bound] = n
	}
	return out
}
