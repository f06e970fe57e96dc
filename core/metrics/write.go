package metrics

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Format is the content type of what Write writes.
const Format = "text/plain; version=0.0.4; charset=utf-8"

// Write writes all metrics in Prometheus' text format. A router that is closed gives its error, and nothing is written.
func (e *Exporter) Write(w io.Writer) error {
	rows, err := e.gather()
	if err != nil {
		return err
	}
	t := text{constant: e.labels}
	for i, row := range rows {
		if i == 0 || row.Metric != rows[i-1].Metric {
			t.begin(&definitions[row.Metric])
		}
		t.row(&definitions[row.Metric], &row)
	}
	if _, err := w.Write(t.out); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// text writes rows. A row's labels are in the order of their names, but le, which is last.
type text struct {
	constant map[string]string
	names    []string // of the metric that was begun, and constant
	out      []byte
}

var escapeHelp, escapeValue = strings.NewReplacer(`\`, `\\`, "\n", `\n`), strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (t *text) begin(d *Definition) {
	t.names = append(slices.Collect(maps.Keys(t.constant)), d.Labels...)
	slices.Sort(t.names)
	t.out = append(t.out, "# HELP "+d.Name+" "+escapeHelp.Replace(d.Help)+"\n# TYPE "+d.Name+" "+d.Kind.String()+"\n"...)
}

func (t *text) row(d *Definition, r *Row) {
	if d.Kind != Histogram {
		t.line(d, r, "", "", r.Value)
		return
	}
	n := uint64(0)
	for i, bound := range r.Histogram.Bounds {
		n += r.Histogram.Counts[i]
		t.line(d, r, "_bucket", strconv.FormatFloat(bound, 'g', -1, 64), float64(n))
	}
	n = r.Histogram.Total()
	t.line(d, r, "_bucket", "+Inf", float64(n))
	t.line(d, r, "_sum", "", r.Histogram.Sum)
	t.line(d, r, "_count", "", float64(n))
}

// line writes one line; le is "" where there is no such label.
func (t *text) line(d *Definition, r *Row, suffix, le string, value float64) {
	t.out = append(append(t.out, d.Name...), suffix...)
	open := byte('{')
	label := func(name, value string) {
		t.out = append(append(append(append(t.out, open), name...), `="`...), escapeValue.Replace(value)...)
		t.out = append(t.out, '"')
		open = ','
	}
	for _, name := range t.names {
		if i := slices.Index(d.Labels, name); i >= 0 {
			label(name, r.Values[i])
		} else {
			label(name, t.constant[name])
		}
	}
	if le != "" {
		label("le", le)
	}
	if open == ',' {
		t.out = append(t.out, '}')
	}
	t.out = append(strconv.AppendFloat(append(t.out, ' '), value, 'g', -1, 64), '\n')
}
