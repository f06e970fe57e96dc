package tally_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/tally"
)

var errFull, errBad = errors.New("full"), errors.New("bad")

func TestOutcomes(t *testing.T) {
	d := tally.NewDecisions(tally.Kind{Name: "full", Err: errFull}, tally.Kind{Name: "bad", Err: errBad})
	d.Count(&tally.Decision{Booked: true}, nil)
	d.Count(&tally.Decision{}, nil)
	d.Count(nil, fmt.Errorf("worker 7: %w", errFull))
	d.Count(nil, errors.Join(errBad, errFull))
	d.Count(nil, errors.New("something else"))
	c := d.Counts()
	require.Equal(t, []tally.Outcome{{"chosen", 2}, {"full", 2}, {"bad", 0}, {"other", 1}}, c.Outcomes)
	require.EqualValues(t, 1, c.Booked)
}

// Whatever is counted, each histogram says what a list of the values says.
func TestHistogramsAgainstLists(t *testing.T) {
	d := tally.NewDecisions()
	rng := rand.New(rand.NewPCG(1, 2))
	var prompts, hits, totals []float64
	for range 5000 {
		n := rng.IntN(1 << rng.IntN(23))
		q := tally.Decision{PromptTokens: n, CachedTokens: rng.IntN(n + 2), Total: rng.Int64N(1 << rng.IntN(34))}
		switch rng.IntN(4) {
		case 0: // on a bound
			q.PromptTokens, q.Total = 64<<rng.IntN(17), 250<<rng.IntN(24)
			q.CachedTokens = q.PromptTokens / 20 * rng.IntN(21)
		case 1:
			q.PromptTokens, q.Total = 64<<rng.IntN(17)+1, 250<<rng.IntN(24)+1
		}
		d.Count(&q, nil)
		prompts = append(prompts, float64(q.PromptTokens))
		if q.PromptTokens > 0 {
			hits = append(hits, min(float64(q.CachedTokens)/float64(q.PromptTokens), 1))
		}
		if q.Total > 0 {
			totals = append(totals, float64(q.Total)/1e6)
		}
	}
	c := d.Counts()
	for name, pair := range map[string]struct {
		h      tally.Histogram
		values []float64
	}{"prompts": {c.PromptTokens, prompts}, "hits": {c.HitRate, hits}, "totals": {c.Total, totals}} {
		want, sum := make([]uint64, len(pair.h.Bounds)+1), 0.0
		for _, v := range pair.values {
			i := 0
			for i < len(pair.h.Bounds) && v > pair.h.Bounds[i] {
				i++
			}
			want[i]++
			sum += v
		}
		require.Equal(t, want, pair.h.Counts, name)
		require.EqualValues(t, len(pair.values), pair.h.Total(), name)
		require.InEpsilon(t, sum, pair.h.Sum, 1e-6, name)
	}
	require.Zero(t, c.Hashing.Total(), "what is not measured is not counted")
	require.Len(t, c.HitRate.Bounds, 21)
	require.Equal(t, 1.0, c.HitRate.Bounds[20])
	require.Equal(t, 0.00025, c.Total.Bounds[0])
}

func TestPhasesAreApart(t *testing.T) {
	d := tally.NewDecisions()
	d.Count(&tally.Decision{Hashing: 1_000_000, Matching: 2_000_000, Scheduling: 3_000_000, Total: 6_000_000}, nil)
	c := d.Counts()
	require.Equal(t, []float64{1, 2, 3, 6}, []float64{c.Hashing.Sum, c.Matching.Sum, c.Scheduling.Sum, c.Total.Sum})
}

func TestEvents(t *testing.T) {
	var e tally.Events
	e.Count(event.Stored, index.Applied{Stored: 3, Duplicate: 1}, nil)
	e.Count(event.Stored, index.Applied{Duplicate: 2}, nil)
	e.Count(event.Stored, index.Applied{Refused: 4}, fmt.Errorf("event 9: %w", index.ErrUnknownParent))
	e.Count(event.Stored, index.Applied{Refused: 1}, index.ErrBadChain)
	e.Count(event.Stored, index.Applied{}, index.ErrClosed)
	e.Count(event.Removed, index.Applied{Removed: 2}, nil)
	e.Count(event.Removed, index.Applied{Removed: 1, Unknown: 5}, nil)
	e.Count(event.Cleared, index.Applied{Removed: 9}, nil)
	e.Count(200, index.Applied{}, nil)
	want := tally.EventCounts{DuplicateStores: 1, Stored: 3, Duplicate: 3, Removed: 12, Unknown: 5, Rejected: 5}
	want.Ends[event.Stored] = [tally.Statuses]uint64{tally.OK: 2, tally.ParentNotFound: 1, tally.InvalidBlocks: 1, tally.Refused: 1}
	want.Ends[event.Removed] = [tally.Statuses]uint64{tally.OK: 1, tally.BlockNotFound: 1}
	want.Ends[event.Cleared] = [tally.Statuses]uint64{tally.OK: 1}
	require.Equal(t, want, e.Counts())
}

func TestEventsAreCountedByManyAtOnce(t *testing.T) {
	var e tally.Events
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				e.Count(event.Stored, index.Applied{Stored: 2}, nil)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 8000, e.Counts().Ends[event.Stored][tally.OK])
	require.EqualValues(t, 16000, e.Counts().Stored)
}

func TestCountingAllocatesNothing(t *testing.T) {
	d := tally.NewDecisions(tally.Kind{Name: "full", Err: errFull})
	var e tally.Events
	q := tally.Decision{Booked: true, PromptTokens: 4096, CachedTokens: 1000, Hashing: 1500, Matching: 700, Scheduling: 300, Total: 2500}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		d.Count(&q, nil)
		d.Count(nil, errFull)
		e.Count(event.Stored, index.Applied{Stored: 16}, nil)
	}))
}

func BenchmarkDecision(b *testing.B) {
	d := tally.NewDecisions()
	q := tally.Decision{Booked: true, PromptTokens: 4096, CachedTokens: 1000, Hashing: 1500, Matching: 700, Scheduling: 300, Total: 2500}
	for i := range b.N {
		q.Total = int64(i & 8191)
		d.Count(&q, nil)
	}
}

func BenchmarkEvent(b *testing.B) {
	var e tally.Events
	for range b.N {
		e.Count(event.Stored, index.Applied{Stored: 16}, nil)
	}
}
