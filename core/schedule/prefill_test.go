package schedule_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/schedule"
)

const ms = time.Millisecond

func TestPrefillTable(t *testing.T) {
	table, err := schedule.NewPrefillTable([]int{0, 1000, 3000}, []int{0, 10_000}, [][]time.Duration{{10 * ms, 110 * ms, 510 * ms}, {10 * ms, 210 * ms, 1010 * ms}})
	require.NoError(t, err)
	for _, tc := range []struct {
		newTokens, cached int
		want              time.Duration
	}{
		{0, 0, 0}, {-1, 0, 0},
		{1000, 0, 110 * ms}, {500, 0, 60 * ms}, {2000, 0, 310 * ms}, {3000, 0, 510 * ms},
		{5000, 0, 910 * ms},      // the last slope goes on
		{1000, 10_000, 210 * ms}, // a row of the table
		{1000, 5000, 160 * ms}, {2000, 5000, 460 * ms},
		{1000, 90_000, 210 * ms},                   // the last row stays
		{1000, -5, 110 * ms},                       // as is none cached
		{math.MaxInt, math.MaxInt, 24 * time.Hour}, // bounded
	} {
		require.InDelta(t, tc.want, table.Duration(tc.newTokens, tc.cached), 1, "%d new, %d cached", tc.newTokens, tc.cached)
	}
	var model schedule.PrefillModel = schedule.PrefillFunc(func(n, cached int) time.Duration { return time.Duration(n - cached) })
	require.EqualValues(t, 3, model.Duration(5, 2))
}

func TestPrefillTableOfOneLength(t *testing.T) {
	table, err := schedule.NewPrefillTable([]int{1000}, []int{0}, [][]time.Duration{{7 * ms}})
	require.NoError(t, err)
	for _, n := range []int{1, 1000, 5000} {
		require.Equal(t, 7*ms, table.Duration(n, n), "%d", n)
	}
}

// A falling slope ends at 0, and lengths before the first count as the first.
func TestPrefillTableOutsideItsLengths(t *testing.T) {
	table, err := schedule.NewPrefillTable([]int{100, 200}, []int{50}, [][]time.Duration{{20 * ms, 10 * ms}})
	require.NoError(t, err)
	require.Equal(t, 20*ms, table.Duration(1, 0))
	require.Zero(t, table.Duration(1000, 0))
}

func TestPrefillTableRefuses(t *testing.T) {
	row := [][]time.Duration{{ms, ms}}
	for message, f := range map[string]func() (*schedule.PrefillTable, error){
		"no new tokens":    func() (*schedule.PrefillTable, error) { return schedule.NewPrefillTable(nil, []int{0}, row) },
		"no cached tokens": func() (*schedule.PrefillTable, error) { return schedule.NewPrefillTable([]int{1, 2}, nil, row) },
		"[2 2]":            func() (*schedule.PrefillTable, error) { return schedule.NewPrefillTable([]int{2, 2}, []int{0}, row) },
		"[-1 2]":           func() (*schedule.PrefillTable, error) { return schedule.NewPrefillTable([]int{-1, 2}, []int{0}, row) },
		"[0 1099511627776]": func() (*schedule.PrefillTable, error) {
			return schedule.NewPrefillTable([]int{0, 1 << 40}, []int{0}, row)
		},
		"1 rows for 2":      func() (*schedule.PrefillTable, error) { return schedule.NewPrefillTable([]int{1, 2}, []int{0, 1}, row) },
		"2 durations for 3": func() (*schedule.PrefillTable, error) { return schedule.NewPrefillTable([]int{1, 2, 3}, []int{0}, row) },
		"duration -1": func() (*schedule.PrefillTable, error) {
			return schedule.NewPrefillTable([]int{1}, []int{0}, [][]time.Duration{{-1}})
		},
		"duration 25h": func() (*schedule.PrefillTable, error) {
			return schedule.NewPrefillTable([]int{1}, []int{0}, [][]time.Duration{{25 * time.Hour}})
		},
	} {
		_, err := f()
		require.ErrorIs(t, err, schedule.ErrInvalid, message)
		require.ErrorContains(t, err, message)
	}
}
