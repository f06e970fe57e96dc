package metrics

import (
	"fmt"
	"io"

	"github.com/prometheus/common/expfmt"
)

// Format is the content type of what Write writes.
var Format = string(expfmt.NewFormat(expfmt.TypeTextPlain))

// Write writes all metrics in Prometheus' text format. A router that is closed gives its error, and nothing is written.
func (c *Collector) Write(w io.Writer) error {
	if _, err := c.source.Tally(); err != nil {
		return err
	}
	families, err := c.registry.Gather()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}
