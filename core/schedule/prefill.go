package schedule

import (
	"fmt"
	"slices"
	"time"
)

// PrefillModel expects how long a rank computes a prompt, so that its prefill load can fade while it does. Models are
// called by the router's callers, several at a time.
type PrefillModel interface {
	// Duration is for newTokens to compute behind cachedTokens that need not be; neither is negative. A result <= 0 says
	// that nothing is expected.
	Duration(newTokens, cachedTokens int) time.Duration
}

// PrefillFunc is a function as a PrefillModel.
type PrefillFunc func(newTokens, cachedTokens int) time.Duration

// Duration implements PrefillModel.
func (f PrefillFunc) Duration(newTokens, cachedTokens int) time.Duration {
	return f(newTokens, cachedTokens)
}

// PrefillTable is a PrefillModel of measured durations, linear between them. Beyond the last length it continues the
// last slope; beyond the last cached length it keeps the last row.
type PrefillTable struct {
	newTokens []int
	cached    []int
	durations [][]time.Duration // by cached, newTokens
}

// Bounds of a table: lengths keep sums exact, durations keep an extrapolation in range.
const (
	maxTableLength   = 1 << 32
	maxTableDuration = 24 * time.Hour
)

// NewPrefillTable makes a table: durations[i][j] for computing newTokens[j] tokens behind cached[i]. Both lengths
// increase strictly, from 0 on at least. cached may be just {0}. Errors: ErrInvalid.
func NewPrefillTable(newTokens, cached []int, durations [][]time.Duration) (*PrefillTable, error) {
	if err := checkLengths("new tokens", newTokens); err != nil {
		return nil, err
	}
	if err := checkLengths("cached tokens", cached); err != nil {
		return nil, err
	}
	if len(durations) != len(cached) {
		return nil, fmt.Errorf("%w: prefill table has %d rows for %d cached lengths", ErrInvalid, len(durations), len(cached))
	}
	t := &PrefillTable{newTokens: slices.Clone(newTokens), cached: slices.Clone(cached)}
	for i, row := range durations {
		if len(row) != len(newTokens) {
			return nil, fmt.Errorf("%w: prefill table row %d has %d durations for %d lengths", ErrInvalid, i, len(row), len(newTokens))
		}
		for j, d := range row {
			if d < 0 || d > maxTableDuration {
				return nil, fmt.Errorf("%w: prefill table row %d: duration %v for %d tokens must be in [0, %v]", ErrInvalid, i, d, newTokens[j], maxTableDuration)
			}
		}
		t.durations = append(t.durations, slices.Clone(row))
	}
	return t, nil
}

func checkLengths(name string, lengths []int) error {
	if len(lengths) == 0 {
		return fmt.Errorf("%w: prefill table has no %s", ErrInvalid, name)
	}
	for i, n := range lengths {
		if n < 0 || n > maxTableLength || i > 0 && n <= lengths[i-1] {
			return fmt.Errorf("%w: prefill table: %s %v must increase strictly from 0 on, up to %d", ErrInvalid, name, lengths, maxTableLength)
		}
	}
	return nil
}

// Duration implements PrefillModel.
func (t *PrefillTable) Duration(newTokens, cachedTokens int) time.Duration {
	if newTokens <= 0 {
		return 0
	}
	newTokens = min(newTokens, maxTableLength)
	i, share := place(t.cached, min(cachedTokens, t.cached[len(t.cached)-1]))
	d := t.row(i, newTokens)
	if share > 0 {
		d += share * (t.row(i+1, newTokens) - d)
	}
	return time.Duration(max(0, min(d, float64(maxTableDuration))))
}

// row interpolates one row, in nanoseconds.
func (t *PrefillTable) row(i, newTokens int) float64 {
	row := t.durations[i]
	j, share := place(t.newTokens, newTokens)
	d := float64(row[j])
	if share != 0 {
		d += share * (float64(row[j+1]) - d)
	}
	return d
}

// place finds i and share such that x is lengths[i] + share*(lengths[i+1]-lengths[i]). Beyond the end share is above 1;
// before the start, and if there is but one length, x counts as the first.
func place(lengths []int, x int) (i int, share float64) {
	i, found := slices.BinarySearch(lengths, x)
	if found {
		return i, 0
	}
	i = min(i-1, len(lengths)-2)
	if i < 0 {
		return 0, 0
	}
	return i, float64(x-lengths[i]) / float64(lengths[i+1]-lengths[i])
}
