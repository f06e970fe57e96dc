package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table prints comparisons: the best and, behind the slash, the median of all rounds.
func table(out io.Writer, comparisons []comparison) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\twork\tours\tpeer\tratio\tpeer's name")
	for _, c := range comparisons {
		mine, best, name := c.judge()
		peer, ratio := "-", "-"
		if best != nil {
			peer, ratio = show(*best, c.unit), fmt.Sprintf("%.2f", c.ratio(mine.best, best.best))
		} else {
			name = "-"
		}
		fmt.Fprintln(w, strings.Join([]string{c.name, c.work, show(mine, c.unit), peer, ratio, name}, "\t"))
	}
	_ = w.Flush()
}

func show(f figures, unit string) string {
	best, median := human(f.best, unit), human(f.median, unit)
	return best + " / " + median
}

// human writes a figure with three digits and its unit; long times are in the unit that suits them.
func human(f float64, unit string) string {
	base, per, _ := strings.Cut(unit, "/")
	if base == "ns" {
		for _, u := range []struct {
			name string
			ns   float64
		}{{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}} {
			if f >= u.ns {
				f, base = f/u.ns, u.name
				break
			}
		}
	}
	if per != "" {
		base += "/" + per
	}
	if f >= 100 {
		return fmt.Sprintf("%.0f %s", f, base)
	}
	return fmt.Sprintf("%.3g %s", f, base)
}
