package load_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/load"
)

// prefill books prompt tokens that should take some seconds; negative seconds: nobody knows.
func prefill(t *testing.T, l *load.Ledger, id string, tokens int, seconds, now int64) {
	t.Helper()
	b := load.Booking{ID: id, PrefillTokens: tokens}
	if seconds >= 0 {
		b.PrefillModeled, b.PrefillNanos = true, seconds*second
	}
	require.NoError(t, l.Book(&b, now*second))
}

// at gives the prefill tokens and the remaining seconds (-1: unknown) of slot 0.
func at(l *load.Ledger, now int64) [2]int64 {
	l.Expire(now * second)
	left, ok := l.RemainingPrefillNanos(0)
	if !ok {
		left = -second
	}
	return [2]int64{l.Loads()[0].ActivePrefillTokens, left / second}
}

func TestPrefillGoesOnAtTheSpeedOfTheOldest(t *testing.T) {
	l := load.New(load.Options{})
	prefill(t, l, "a", 100, 10, 0)
	prefill(t, l, "b", 60, 6, 2)
	require.Equal(t, [2]int64{140, 14}, at(l, 2))
	require.Equal(t, [2]int64{110, 11}, at(l, 5))
	require.Equal(t, [2]int64{40, 4}, at(l, 12), "beyond the oldest, into the next")
	require.Equal(t, [2]int64{0, 0}, at(l, 17), "never below 0")
	require.Equal(t, [2]int64{0, 0}, at(l, 200))
	require.EqualValues(t, 2, l.Load(0).ActiveRequests, "decay ends no request")
}

func TestNothingDecaysWithoutALoadModel(t *testing.T) {
	l := load.New(load.Options{})
	prefill(t, l, "a", 100, -1, 0)
	prefill(t, l, "b", 60, -1, 0)
	require.Equal(t, [2]int64{160, -1}, at(l, 100))
}

func TestOneUnknownDurationBoundsDecayToTheOldest(t *testing.T) {
	l := load.New(load.Options{})
	prefill(t, l, "a", 100, 10, 0)
	prefill(t, l, "b", 60, -1, 0)
	require.Equal(t, [2]int64{130, -1}, at(l, 3))
	require.Equal(t, [2]int64{60, -1}, at(l, 12))
	require.NoError(t, l.PrefillComplete("b", 12*second))
	require.Equal(t, [2]int64{0, 0}, at(l, 12))

	l = load.New(load.Options{})
	prefill(t, l, "a", 100, -1, 0)
	prefill(t, l, "b", 60, 6, 0)
	require.Equal(t, [2]int64{160, -1}, at(l, 12), "only the oldest decays")
}

func TestADurationOfZeroIsDoneAtOnce(t *testing.T) {
	l := load.New(load.Options{})
	prefill(t, l, "a", 100, 0, 0)
	require.Equal(t, [2]int64{0, 0}, at(l, 0))
	prefill(t, l, "b", 60, 6, 0)
	require.Equal(t, [2]int64{60, 6}, at(l, 0))
	require.Equal(t, [2]int64{60, 3}, at(l, 3), "time alone has no speed")
}

func TestTheNextPrefillStartsWhenTheOldestEnds(t *testing.T) {
	for name, end := range map[string]func(l *load.Ledger){
		"complete": func(l *load.Ledger) { require.NoError(t, l.PrefillComplete("a", 3*second)) },
		"free":     func(l *load.Ledger) { require.NoError(t, l.Free("a", 3*second)) },
	} {
		l := load.New(load.Options{})
		prefill(t, l, "a", 100, 10, 0)
		prefill(t, l, "b", 40, 8, 0)
		end(l)
		require.Equal(t, [2]int64{40, 8}, at(l, 3), name)
		require.Equal(t, [2]int64{30, 6}, at(l, 5), name)
	}
}

// What was done in the time of a prefill that ends out of turn was not done for the oldest.
func TestAPrefillThatEndsOutOfTurnTakesItsTime(t *testing.T) {
	l := load.New(load.Options{})
	prefill(t, l, "a", 30, 6, 0)
	prefill(t, l, "b", 20, 4, 0)
	require.Equal(t, [2]int64{25, 5}, at(l, 5))
	require.NoError(t, l.PrefillComplete("b", 5*second))
	require.Equal(t, [2]int64{25, 5}, at(l, 5), "4 of the 5 seconds were spent on b")

	l = load.New(load.Options{})
	prefill(t, l, "a", 30, 6, 0)
	prefill(t, l, "b", 20, 4, 0)
	require.NoError(t, l.PrefillComplete("b", 2*second))
	require.Equal(t, [2]int64{30, 6}, at(l, 2), "no more than there were")
}

func TestDecayOfTheLargestNumbers(t *testing.T) {
	l := load.New(load.Options{})
	const most = 1 << 53
	require.NoError(t, l.Book(&load.Booking{ID: "a", PrefillTokens: most, PrefillModeled: true, PrefillNanos: 1 << 62}, 0))
	require.ErrorIs(t, l.Book(&load.Booking{ID: "b", PrefillTokens: 0, PrefillModeled: true, PrefillNanos: 1}, 0), load.ErrInvalid)
	l.Expire(1 << 61)
	require.Equal(t, 0, int(l.Load(0).ActiveRequests), "an expired prefill is no load")

	l = load.New(load.Options{ExpiryNanos: math.MaxInt64})
	require.NoError(t, l.Book(&load.Booking{ID: "a", PrefillTokens: most, PrefillModeled: true, PrefillNanos: 1 << 62}, 0))
	l.Expire(1 << 61)
	require.EqualValues(t, most/2, l.Load(0).ActivePrefillTokens)
	l.Expire(math.MaxInt64)
	require.Zero(t, l.Load(0).ActivePrefillTokens)
	require.ErrorIs(t, l.Book(&load.Booking{ID: "b", PrefillNanos: -1}, 0), load.ErrInvalid)
}

func TestDecayIsExact(t *testing.T) {
	l := load.New(load.Options{})
	prefill(t, l, "a", 100, 10, 0)
	prefill(t, l, "b", 1, -1, 0)
	require.Equal(t, [2]int64{31, -1}, at(l, 7), "7 tenths of 100 are 70, where floating point says 69")
}
