package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
)

// A result is a row of results.json. Figures are the best of all rounds; Ratio is the peer's over ours, of rates ours over the
// peer's, so above 1 ours is better. Peer, PeerName and Ratio are null where there is nothing to compare with.
type result struct {
	Name     string   `json:"name"`
	Unit     string   `json:"unit"`
	Ours     float64  `json:"ours"`
	Peer     *float64 `json:"peer"`
	PeerName *string  `json:"peer_name"`
	Ratio    *float64 `json:"ratio"`
	Commit   string   `json:"commit"`
	Date     string   `json:"date"`
}

// figures sums samples up: the best of them, and the median.
type figures struct{ best, median float64 }

func (r *row) sum(samples []float64) figures {
	s := slices.Sorted(slices.Values(samples))
	if r.unit == perSecond {
		slices.Reverse(s)
	}
	return figures{s[0], s[len(s)/2]}
}

// ratio is above 1 if a is better than b.
func (r *row) ratio(a, b float64) float64 {
	if r.unit == perSecond {
		return a / b
	}
	return b / a
}

// judge sums a comparison up: ours, and the better peer of those that could do the work.
func (c *comparison) judge() (mine figures, best *figures, name string) {
	mine = c.sum(c.samples[ours])
	for _, p := range c.peers {
		if len(c.samples[p.name]) == 0 {
			continue
		}
		if f := c.sum(c.samples[p.name]); best == nil || c.ratio(f.best, best.best) > 1 {
			best, name = &f, p.name
		}
	}
	return mine, best, name
}

// result gives the row of results.json. Digits that no run repeats are left out.
func (c *comparison) result(commit, date string) result {
	mine, best, name := c.judge()
	r := result{Name: c.name, Unit: c.unit, Ours: digits(mine.best), Commit: commit, Date: date}
	if best != nil {
		peer, ratio := digits(best.best), digits(c.ratio(mine.best, best.best))
		r.Peer, r.PeerName, r.Ratio = &peer, &name, &ratio
	}
	return r
}

// digits rounds to four of them.
func digits(f float64) float64 {
	if f == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(f)))-3)
	if unit < 1 {
		inverse := math.Round(1 / unit)
		return math.Round(f*inverse) / inverse
	}
	return math.Round(f/unit) * unit
}

// merge puts new rows in the place of those with the same name, or at the end.
func merge(old, added []result) []result {
	merged := slices.Clone(old)
	for _, r := range added {
		if i := slices.IndexFunc(merged, func(o result) bool { return o.Name == r.Name }); i >= 0 {
			merged[i] = r
		} else {
			merged = append(merged, r)
		}
	}
	return merged
}

// mergeFile merges rows into a file, which need not exist.
func mergeFile(path string, added []result) error {
	var old []result
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &old)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, err)
	}
	text, err = json.MarshalIndent(merge(old, added), "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
