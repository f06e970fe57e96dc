package queue_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/queue"
)

const second = int64(1_000_000_000)

func ptr[T any](v T) *T { return &v }

func always(*queue.Item[string]) bool { return true }

func profile(t testing.TB, yaml string) *queue.Profile {
	t.Helper()
	c, err := queue.ParseConfig([]byte(yaml))
	require.NoError(t, err)
	return c.Profile("")
}

func push(t testing.TB, q *queue.Queue[string], now int64, r queue.Request, name string) *queue.Item[string] {
	t.Helper()
	it, err := q.Push(now, 1, r, name)
	require.NoError(t, err)
	return it
}

// drain takes all there is, in order.
func drain(q *queue.Queue[string]) []string {
	var names []string
	for it := q.Next(always); it != nil; it = q.Next(always) {
		names = append(names, it.Value)
	}
	return names
}

func single(policy queue.Policy) *queue.Queue[string] {
	return queue.New[string](queue.Single(ptr(0.0), policy), 0)
}

func TestFirstComeFirstServedButAJumpGoesAhead(t *testing.T) {
	q := single(queue.FCFS)
	push(t, q, 0, queue.Request{}, "first")
	push(t, q, 5*second, queue.Request{PriorityJump: 50}, "jumps 50 s")
	push(t, q, 6*second, queue.Request{PriorityJump: 5.5}, "jumps not far enough")
	push(t, q, 6*second, queue.Request{PriorityJump: -100}, "a negative jump is none")
	require.Equal(t, []string{"jumps 50 s", "first", "jumps not far enough", "a negative jump is none"}, drain(q))
}

func TestLastComeFirstServed(t *testing.T) {
	q := single(queue.LCFS)
	push(t, q, 1*second, queue.Request{}, "early")
	push(t, q, 10*second, queue.Request{}, "late")
	push(t, q, 10*second, queue.Request{}, "as late, but pushed after it")
	push(t, q, 2*second, queue.Request{PriorityJump: 100}, "boosted")
	require.Equal(t, []string{"boosted", "late", "as late, but pushed after it", "early"}, drain(q))
}

func TestShortestUncachedPromptPerWeightFirst(t *testing.T) {
	q := single(queue.WSPT)
	push(t, q, 0, queue.Request{ISLTokens: 1024}, "1/1024")
	push(t, q, 0, queue.Request{ISLTokens: 1024, CachedTokens: 960}, "1/64")
	push(t, q, 0, queue.Request{ISLTokens: 512, PriorityJump: 5}, "6/512")
	push(t, q, 0, queue.Request{ISLTokens: 512, CachedTokens: 1024}, "more cached than there is: 1/1")
	require.Equal(t, []string{"more cached than there is: 1/1", "1/64", "6/512", "1/1024"}, drain(q))
}

func TestStrictPriorityThenDeadlineThenScore(t *testing.T) {
	for _, policy := range []queue.Policy{queue.FCFS, queue.LCFS, queue.WSPT} {
		q := single(policy)
		push(t, q, 1*second, queue.Request{PriorityJump: 1000}, "jumps")
		push(t, q, 1*second, queue.Request{Deadline: 90 * second, ISLTokens: 9}, "due at 90")
		push(t, q, 1*second, queue.Request{Deadline: 50 * second, ISLTokens: 99}, "due at 50")
		push(t, q, 9*second, queue.Request{StrictPriority: 1, ISLTokens: 10_000}, "strict")
		require.Equal(t, []string{"strict", "due at 50", "due at 90", "jumps"}, drain(q), policy)
	}
}

func TestBusyAboveAFractionOfTheBatchOrANumber(t *testing.T) {
	c := queue.Class{PrefillBusyFrac: ptr(0.5)}
	require.False(t, c.Busy(50, 100), "not above it")
	require.True(t, c.Busy(51, 100))
	require.False(t, c.Busy(5_000_000, 0), "an unknown batch is ten million tokens")
	require.True(t, c.Busy(5_000_001, 0))
	c = queue.Class{PrefillBusyFrac: ptr(0.0)}
	require.False(t, c.Busy(0, 100))
	require.True(t, c.Busy(1, 100), "zero means: any active token")
	c = queue.Class{PrefillBusyTokens: ptr(int64(10)), PrefillBusyFrac: ptr(2.0)}
	require.False(t, c.Busy(10, 100))
	require.True(t, c.Busy(11, 100), "either is enough")
	require.True(t, c.Busy(3, 1))
	require.False(t, new(queue.Class).Busy(math.MaxInt64, 1))
}

func TestWhoMustWait(t *testing.T) {
	busy, idle := func() bool { return true }, func() bool { return false }
	unasked := func() bool { panic("not needed") }
	q := queue.New[string](queue.Single(nil, queue.FCFS), 0)
	require.False(t, q.MustWait(0, 1, unasked), "no threshold: never")
	q = single(queue.FCFS)
	require.True(t, q.MustWait(0, 1, busy))
	require.False(t, q.MustWait(0, 1, idle))
	require.False(t, q.MustWait(0, 0, unasked), "without workers the caller is told so at once")
	it := push(t, q, 0, queue.Request{}, "waits")
	require.True(t, q.MustWait(0, 1, unasked), "nobody overtakes those who wait")
	q.Remove(it)
	require.False(t, q.MustWait(0, 1, idle))
}

// engine is a set of workers that take one request each.
type engine struct{ running, workers int }

func (e *engine) fits(*queue.Item[string]) bool { return e.running < e.workers }

// turn lets go what fits.
func (e *engine) turn(q *queue.Queue[string]) []string {
	var names []string
	q.Wake()
	for it := q.Next(e.fits); it != nil; it = q.Next(e.fits) {
		e.running++
		names = append(names, it.Value)
	}
	return names
}

func TestEachReleaseLetsExactlyOneGo(t *testing.T) {
	e, q := &engine{workers: 2}, single(queue.FCFS)
	items := map[string]*queue.Item[string]{}
	for i, name := range []string{"1", "2", "3", "4", "5", "6"} {
		full := e.running == e.workers
		require.Equal(t, i >= 2, q.MustWait(0, e.workers, func() bool { return full }))
		if i < 2 {
			e.running++
			continue
		}
		items[name] = push(t, q, int64(i)*second, queue.Request{}, name)
		require.Empty(t, e.turn(q))
	}
	e.running--
	require.Equal(t, []string{"3"}, e.turn(q))
	require.True(t, q.Remove(items["4"]), "the first that waits is cancelled")
	require.False(t, q.Remove(items["4"]))
	require.False(t, q.Remove(items["3"]), "it is gone already")
	e.running--
	require.Equal(t, []string{"5"}, e.turn(q))
	e.workers++
	require.Equal(t, []string{"6"}, e.turn(q), "a worker joined")
	require.Zero(t, q.Len())
}

func TestALaneThatDoesNotFitHoldsUpNoOther(t *testing.T) {
	q := single(queue.FCFS)
	push(t, q, 1, queue.Request{Lane: "w1"}, "w1 first")
	push(t, q, 2, queue.Request{Lane: "w1"}, "w1 second")
	push(t, q, 3, queue.Request{Lane: "w2"}, "w2")
	push(t, q, 4, queue.Request{}, "anywhere")
	q.Wake()
	asked := 0
	notW1 := func(it *queue.Item[string]) bool {
		asked++
		return it.Lane != "w1"
	}
	require.Equal(t, "w2", q.Next(notW1).Value)
	require.Equal(t, "anywhere", q.Next(notW1).Value)
	require.Nil(t, q.Next(notW1))
	require.Equal(t, 3, asked, "w1 is asked once")
	require.Nil(t, q.Next(always), "and not again before it is woken")
	q.WakeLane("w2")
	require.Nil(t, q.Next(always))
	q.WakeLane("w1")
	require.Equal(t, "w1 first", q.Next(always).Value)
	require.Nil(t, q.Next(notW1))
	push(t, q, 5, queue.Request{Lane: "w1", StrictPriority: 1}, "w1 urgent")
	require.Equal(t, "w1 urgent", q.Next(always).Value, "another head is asked")
	require.Equal(t, "w1 second", q.Next(always).Value)
}

// Ten thousand lanes, half of which do not fit: each head is asked once.
func TestEveryLaneIsAskedOnce(t *testing.T) {
	const lanes = 10_000
	q := queue.New[int](queue.Single(ptr(0.0), queue.FCFS), 0)
	for i := range lanes {
		_, err := q.Push(int64(i), lanes, queue.Request{Lane: string(rune(i + 1))}, i)
		require.NoError(t, err)
	}
	asked, taken := 0, 0
	for q.Next(func(it *queue.Item[int]) bool { asked++; return it.Value%2 == 1 }) != nil {
		taken++
	}
	require.Equal(t, lanes, asked)
	require.Equal(t, lanes/2, taken)
	require.Equal(t, lanes/2, q.Len())
}

// limited lets Next ask so many questions a call.
func limited[T any](q *queue.Queue[T], most int) func() {
	left := most
	q.More = func() bool { left--; return left >= 0 }
	return func() { left = most }
}

// Whoever has little time for each call, and is woken before each, gets around to every lane.
func TestEveryLaneIsAskedThoughThereIsNoTime(t *testing.T) {
	q := queue.New[int](queue.Single(ptr(0.0), queue.FCFS), 0)
	for i := range 10 {
		_, err := q.Push(int64(i), 1, queue.Request{Lane: string(rune('a' + i))}, i)
		require.NoError(t, err)
	}
	require.Nil(t, q.Next(func(*queue.Item[int]) bool { return false }))
	again := limited(q, 3)
	for calls := 0; ; calls++ {
		require.Less(t, calls, 10)
		q.Wake()
		again()
		if it := q.Next(func(it *queue.Item[int]) bool { return it.Value == 0 }); it != nil {
			break
		}
	}
}

// Items may leave while lanes are still to be asked.
func TestItemsLeaveWhileLanesAreAsked(t *testing.T) {
	for gone := range 5 {
		q := single(queue.FCFS)
		var items []*queue.Item[string]
		for _, name := range []string{"a", "b", "c", "d"} {
			items = append(items, push(t, q, 1, queue.Request{Lane: name}, name))
		}
		require.Nil(t, q.Next(func(*queue.Item[string]) bool { return false }))
		q.Wake()
		limited(q, 1)
		require.Nil(t, q.Next(func(*queue.Item[string]) bool { return false }))
		for _, it := range items[:gone] {
			require.True(t, q.Remove(it))
		}
		queue.Check(t, q)
		q.More = nil
		q.Wake() // one did not fit when it was asked
		require.Len(t, drain(q), 4-gone)
		queue.Check(t, q)
	}
}

const slowAndFast = `
default_policy_family: slow
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: slow, policy_family: slow, cache_bucket: all, quantum: 1}
  - {name: fast, policy_family: fast, cache_bucket: all, quantum: 3}
`

func TestClassesShareByTheirQuantum(t *testing.T) {
	q := queue.New[string](profile(t, slowAndFast), 0)
	for i := range int64(90) {
		push(t, q, i, queue.Request{Class: 0, ISLTokens: 1}, "slow")
		push(t, q, i, queue.Request{Class: 1, ISLTokens: 1}, "fast")
	}
	var first []string
	for range 80 {
		first = append(first, q.Next(always).Value)
	}
	require.Equal(t, []string{"slow", "fast", "fast", "fast", "slow", "fast", "fast", "fast"}, first[:8])
	fast := 0
	for _, name := range first {
		if name == "fast" {
			fast++
		}
	}
	require.Equal(t, 60, fast)

	slow := func(it *queue.Item[string]) bool { return it.Class == 0 }
	for range 10 {
		require.Equal(t, "slow", q.Next(slow).Value, "a class that does not fit costs no other its turn")
	}
	q.Wake()
	require.Equal(t, []string{"fast", "fast", "fast", "slow"}, drain(q)[:4], "and saves up no credit")
}

func TestLongPromptsAdvanceWholeRounds(t *testing.T) {
	q := queue.New[string](profile(t, slowAndFast), 0)
	push(t, q, 0, queue.Request{Class: 0, ISLTokens: 1000}, "slow")
	for range 4 {
		push(t, q, 0, queue.Request{Class: 1, ISLTokens: 1000}, "fast")
	}
	require.Equal(t, []string{"fast", "fast", "slow", "fast", "fast"}, drain(q), "a third of 1000 rounds each")

	huge := queue.New[string](profile(t, `
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: tiny, policy_family: f, cache_bucket: all, quantum: 1}
  - {name: huge, quantum: 1099511627776}
`), 0)
	push(t, huge, 0, queue.Request{Class: 0, ISLTokens: queue.MaxTokens}, "tiny")
	require.Equal(t, []string{"tiny"}, drain(huge))
	for range 2 {
		push(t, huge, 0, queue.Request{Class: 0, ISLTokens: queue.MaxTokens}, "tiny")
		push(t, huge, 0, queue.Request{Class: 1, ISLTokens: queue.MaxTokens}, "huge")
	}
	require.Equal(t, []string{"huge", "huge", "tiny", "tiny"}, drain(huge))
}

func TestLimitsGrowWithTheWorkersAndCountWhatWasThereBefore(t *testing.T) {
	q := queue.New[string](profile(t, `
default_policy_family: capped
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - name: capped
    policy_family: capped
    cache_bucket: all
    quantum: 10
    request_queue_limit_per_worker: 1
    raw_isl_token_queue_limit_per_worker: 5
    cached_token_queue_limit_per_worker: 3
  - {name: raw, quantum: 1, raw_isl_token_queue_limit_per_worker: 10}
  - {name: cached, quantum: 1, cached_token_queue_limit_per_worker: 5}
  - {name: never, quantum: 1, request_queue_limit_per_worker: 0}
  - {name: plenty, quantum: 1, request_queue_limit_per_worker: 9223372036854775807}
`), 0)
	refused := func(workers int, r queue.Request, kind queue.Limit, current, limit int64) {
		t.Helper()
		_, err := q.Push(0, workers, r, "")
		require.ErrorIs(t, err, queue.ErrQueueLimit)
		var full *queue.LimitError
		require.ErrorAs(t, err, &full)
		require.Equal(t, queue.LimitError{Class: full.Class, Kind: kind, Current: current, Limit: limit}, *full)
	}
	taken := func(workers int, r queue.Request) {
		t.Helper()
		_, err := q.Push(0, workers, r, "")
		require.NoError(t, err)
	}
	taken(2, queue.Request{ISLTokens: 8, CachedTokens: 4})
	taken(2, queue.Request{ISLTokens: 100, CachedTokens: 100})
	refused(2, queue.Request{ISLTokens: 1}, queue.LimitRequests, 2, 2)
	require.Equal(t, queue.Stats{Requests: 2, ISLTokens: 108, CachedTokens: 104, Pushed: 3, LimitRefused: 1}, q.Stats(0))
	require.EqualError(t, func() error { _, err := q.Push(0, 2, queue.Request{}, ""); return err }(),
		`router policy class "capped" queue requests limit reached (current=2, limit=2)`)

	taken(2, queue.Request{Class: 1, ISLTokens: 11})
	refused(1, queue.Request{Class: 1, ISLTokens: 1}, queue.LimitISLTokens, 11, 10)
	taken(2, queue.Request{Class: 1, ISLTokens: 10})
	refused(2, queue.Request{Class: 1, ISLTokens: 1}, queue.LimitISLTokens, 21, 20)
	taken(2, queue.Request{Class: 2, ISLTokens: 8, CachedTokens: 6})
	refused(1, queue.Request{Class: 2}, queue.LimitCachedTokens, 6, 5)
	refused(4, queue.Request{Class: 3}, queue.LimitRequests, 0, 0)
	taken(2, queue.Request{Class: 4})
	refused(0, queue.Request{Class: 4}, queue.LimitRequests, 1, 0)
}

func TestTheWholeQueueIsBounded(t *testing.T) {
	q := queue.New[string](queue.Single(ptr(0.0), queue.FCFS), 3)
	for range 3 {
		push(t, q, 0, queue.Request{}, "")
	}
	_, err := q.Push(0, 1, queue.Request{}, "")
	var full *queue.LimitError
	require.ErrorAs(t, err, &full)
	require.Equal(t, queue.LimitTotal, full.Kind)
	require.NotNil(t, q.Next(always))
	push(t, q, 0, queue.Request{}, "")
}

func TestDeadlines(t *testing.T) {
	q := single(queue.FCFS)
	_, err := q.Push(10, 1, queue.Request{Deadline: 10}, "late")
	require.ErrorIs(t, err, queue.ErrDeadline)
	_, any := q.NextDeadline()
	require.False(t, any)
	push(t, q, 10, queue.Request{Deadline: 30}, "30")
	push(t, q, 10, queue.Request{Deadline: 20}, "20")
	gone := push(t, q, 10, queue.Request{Deadline: 15}, "15")
	push(t, q, 10, queue.Request{}, "none")
	q.Remove(gone)
	due, any := q.NextDeadline()
	require.True(t, any)
	require.Equal(t, int64(20), due)
	require.Nil(t, q.Expired(19))
	require.Equal(t, "20", q.Expired(30).Value)
	require.Equal(t, "30", q.Expired(30).Value)
	require.Nil(t, q.Expired(math.MaxInt64))
	require.Equal(t, queue.Stats{Requests: 1, Pushed: 5, DeadlinePassed: 3}, q.Stats(0))
}

func TestBadRequestsAreRefused(t *testing.T) {
	q := single(queue.FCFS)
	for _, r := range []queue.Request{
		{PriorityJump: math.NaN()}, {PriorityJump: math.Inf(1)}, {ISLTokens: -1}, {ISLTokens: queue.MaxTokens + 1},
		{CachedTokens: -1}, {Deadline: -1}, {Class: 1}, {Class: -1},
	} {
		_, err := q.Push(0, 1, r, "")
		require.True(t, errors.Is(err, queue.ErrInvalid), "%+v", r)
	}
	require.Zero(t, q.Len())
}

func TestClearGivesEveryItem(t *testing.T) {
	q := queue.New[string](profile(t, slowAndFast), 0)
	want := map[string]bool{}
	for i, name := range []string{"a", "b", "c", "d", "e", "f"} {
		want[name] = true
		push(t, q, 0, queue.Request{Class: i % 2, Lane: name[:i/3], Deadline: int64(i%3) * 5, ISLTokens: 5}, name)
	}
	got := map[string]bool{q.Next(always).Value: true}
	q.Clear(func(it *queue.Item[string]) {
		require.False(t, it.Waiting())
		got[it.Value] = true
	})
	require.Equal(t, want, got)
	require.Zero(t, q.Len())
	queue.Check(t, q)
	require.Nil(t, q.Next(always))
}

func TestOnlyTheClassServedLastGoesOnWithItsCredit(t *testing.T) {
	q := queue.New[string](profile(t, `
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: a, policy_family: f, cache_bucket: all, quantum: 10}
  - {name: b, quantum: 1}
  - {name: c, quantum: 1}
`), 0)
	push(t, q, 0, queue.Request{Class: 0, ISLTokens: 8}, "a 8")
	long := push(t, q, 1, queue.Request{Class: 0, ISLTokens: 5}, "a 5")
	push(t, q, 2, queue.Request{Class: 1, ISLTokens: 1}, "b")
	push(t, q, 3, queue.Request{Class: 2, ISLTokens: 1}, "c")
	require.Equal(t, "a 8", q.Next(always).Value)
	require.Equal(t, "b", q.Next(always).Value, "a's credit of 2 does not pay for 5")
	push(t, q, 4, queue.Request{Class: 0, ISLTokens: 2}, "a 2")
	q.Remove(long)
	push(t, q, 5, queue.Request{Class: 0, ISLTokens: 3}, "a 3")
	push(t, q, 6, queue.Request{Class: 1, ISLTokens: 1}, "b again")
	require.Equal(t, []string{"c", "a 2", "b again", "a 3"}, drain(q), "what is saved is spent before a quantum is given")
}
