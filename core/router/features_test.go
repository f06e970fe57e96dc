package router_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// with gives the default configuration, changed by JSON.
func with(t *testing.T, text string, args ...any) router.Config {
	t.Helper()
	c, err := router.ParseConfig([]byte(fmt.Sprintf(text, args...)))
	require.NoError(t, err)
	return c
}

// kindOf says which of the router's errors one is, and that it is no other.
func kindOf(t *testing.T, err, want error) {
	t.Helper()
	for _, e := range []error{router.ErrNoWorkers, router.ErrOverloaded, router.ErrWorkerNotFound, router.ErrTimeout, router.ErrQueueLimitExceeded, router.ErrSessionMoved} {
		require.Equal(t, e == want, errors.Is(err, e), "%v: %v", err, e)
	}
}

func TestOverloadedRanksTakeNothing(t *testing.T) {
	for _, text := range []string{
		`{"active_prefill_tokens_threshold": 63}`,
		`{"active_prefill_tokens_threshold_frac": 0.63}`,
		`{"active_decode_blocks_threshold": 0.3}`,
	} {
		k := newKit(t, 16, with(t, "%s", text))
		for id := range uint64(2) {
			require.NoError(t, k.AddWorker(router.Worker{ID: id, MaxNumBatchedTokens: 100, TotalKVBlocks: 10}))
		}
		k.best(book("a", tokens(1, 64)))
		k.best(book("b", tokens(2, 64)))
		_, err := k.BestWorker(ask(tokens(3, 64)))
		kindOf(t, err, router.ErrOverloaded)
		_, err = k.BestWorker(pinned(ask(nil), 0, 0))
		kindOf(t, err, router.ErrOverloaded)
		_, err = k.BestWorker(pinned(ask(nil), 9, 0))
		kindOf(t, err, router.ErrWorkerNotFound)
		e, err := k.Explain(ask(nil))
		require.NoError(t, err)
		require.Equal(t, string(schedule.Overloaded), e.Workers[1].Excluded)
		require.NoError(t, k.Free("a"))
		k.best(ask(tokens(3, 64)))
	}
	_, err := router.ParseConfig([]byte(`{"active_decode_blocks_threshold": 1.5}`))
	require.ErrorIs(t, err, router.ErrInvalidArgument)
}

func TestAdaptersNarrow(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig())
	require.NoError(t, k.AddWorker(router.Worker{ID: 1}))
	q := ask(tokens(1, 64))
	q.LoRAName = "a"
	k.best(q) // nobody says what is loaded
	require.NoError(t, k.AddWorker(router.Worker{ID: 2, Adapters: []string{"b", "a", "a"}}))
	for range 20 {
		require.EqualValues(t, 2, k.best(q).WorkerID)
	}
	workers, err := k.Workers()
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, workers[1].Adapters)
	e, err := k.Explain(q)
	require.NoError(t, err)
	require.Equal(t, string(schedule.NoAdapter), e.Workers[0].Excluded)
	q.LoRAName = "c" // loaded nowhere: anywhere will do
	seen := map[uint64]bool{}
	for range 50 {
		seen[k.best(q).WorkerID] = true
	}
	require.Len(t, seen, 2)
}

func session(id, name string, prompt []uint32) *router.Request {
	q := book(id, prompt)
	q.SessionID = name
	return q
}

func TestSessionsComeBack(t *testing.T) {
	k := newKit(t, 16, with(t, `{"session_affinity_ttl_secs": 10}`)).workers(1, 2, 3)
	home := k.best(session("1", "s", tokens(1, 640)))
	for i := range 20 {
		q := ask(tokens(i, 16)) // asking prefers the session's rank, and ties nothing
		q.SessionID = "s"
		require.Equal(t, home.WorkerID, k.best(q).WorkerID)
	}
	require.Equal(t, home.WorkerID, k.best(session("2", "s", tokens(2, 16))).WorkerID)

	k.at = k.at.Add(time.Minute) // leases keep it
	require.Equal(t, home.WorkerID, k.best(session("3", "s", tokens(3, 16))).WorkerID)
	for _, id := range []string{"1", "2", "3"} {
		require.NoError(t, k.Free(id))
	}
	k.at = k.at.Add(9 * time.Second)
	require.Equal(t, home.WorkerID, k.best(session("4", "s", tokens(1, 16))).WorkerID)
	require.NoError(t, k.Free("4"))
	k.at = k.at.Add(11 * time.Second) // forgotten
	seen := map[uint64]bool{}
	for range 60 {
		q := ask(nil)
		q.SessionID = "s"
		seen[k.best(q).WorkerID] = true
	}
	require.Len(t, seen, 3)

	_, err := k.BestWorker(session("5", string(make([]byte, 257)), nil))
	require.ErrorIs(t, err, router.ErrInvalidArgument)
}

// A session's lease ends with its booking, also when nobody frees that.
func TestSessionOfAnExpiredRequestIsForgotten(t *testing.T) {
	k := newKit(t, 16, with(t, `{"session_affinity_ttl_secs": 10}`)).workers(1, 2)
	home := k.best(session("1", "s", nil)).WorkerID
	k.at = k.at.Add(router.DefaultRequestExpiry + time.Second)
	k.idle() // it expires now
	k.at = k.at.Add(11 * time.Second)
	q := ask(nil)
	q.SessionID = "s"
	for n := 0; k.best(q).WorkerID == home; n++ {
		require.Less(t, n, 100)
	}
}

func TestSessionThatCannotStay(t *testing.T) {
	for mode, hard := range map[string]bool{"hard": true, "soft": false} {
		k := newKit(t, 16, with(t, `{"session_affinity_ttl_secs": 10, "session_affinity_mode": %q, "active_prefill_tokens_threshold": 100}`, mode)).workers(1, 2)
		home := k.best(session("1", "s", tokens(1, 640))).WorkerID // it is overloaded now
		other := 3 - home
		choice, err := k.BestWorker(session("2", "s", tokens(2, 16)))
		if hard {
			kindOf(t, err, router.ErrSessionMoved)
			require.ErrorIs(t, k.Free("2"), router.ErrRequestNotFound, "it is not booked")
			choice = k.best(session("2", "s", tokens(2, 16)))
		}
		require.NoError(t, k.Free("1"))
		require.Equal(t, other, choice.WorkerID)
		for i := range 10 {
			require.Equal(t, other, k.best(session(fmt.Sprint("x", i), "s", nil)).WorkerID, "it moved")
		}
		require.NoError(t, k.RemoveWorker(other))
		require.Equal(t, home, k.best(session("3", "s", nil)).WorkerID, "its worker left")
	}
}

func TestDuplicateDoesNotTieASession(t *testing.T) {
	k := newKit(t, 16, with(t, `{"session_affinity_ttl_secs": 10}`)).workers(1, 2)
	k.best(book("1", nil))
	for range 20 {
		_, err := k.BestWorker(session("1", "s", nil))
		require.ErrorIs(t, err, router.ErrDuplicateRequest)
	}
	seen := map[uint64]bool{}
	for range 50 {
		q := ask(nil)
		q.SessionID = "s"
		seen[k.best(q).WorkerID] = true
	}
	require.Len(t, seen, 2)
}

func TestPrefillLoadFades(t *testing.T) {
	table := `{"router_prefill_load_model": {"new_tokens": [0, 1000], "cached_tokens": [0], "seconds": [[0, 10]]}}`
	byTable, slow := with(t, "%s", table), func(fresh, cached int) time.Duration { return time.Duration(fresh+cached) * 10 * time.Millisecond }
	raw, err := json.Marshal(byTable)
	require.NoError(t, err)
	again, err := router.ParseConfig(raw)
	require.NoError(t, err)
	require.Equal(t, byTable, again)

	for name, options := range map[string]router.Options{"table": {}, "function": {PrefillModel: schedule.PrefillFunc(slow)}} {
		at := time.Unix(1, 0)
		options.Clock = func() time.Time { return at }
		config := router.DefaultConfig()
		if options.PrefillModel == nil {
			config = byTable
		}
		r, err := router.New(16, config, options)
		require.NoError(t, err)
		defer r.Close()
		k := (&kit{Router: r, t: t, size: 16}).workers(1)
		k.best(book("a", tokens(1, 400)))
		require.EqualValues(t, 400, k.loads(nil)[1].PotentialPrefillTokens, name)
		at = at.Add(time.Second)
		require.EqualValues(t, 300, k.loads(nil)[1].PotentialPrefillTokens, name)
		at = at.Add(10 * time.Second)
		require.Zero(t, k.loads(nil)[1].PotentialPrefillTokens, name)
	}
	for _, text := range []string{`"x"`, `1`, `{}`, `{"new_tokens": [1], "cached_tokens": [0], "seconds": [[-1]]}`, `{"new_tokens": [0, 0], "cached_tokens": [0], "seconds": [[1, 1]]}`, `{"bogus": 1}`} {
		_, err := router.ParseConfig([]byte(`{"router_prefill_load_model": ` + text + `}`))
		require.ErrorIs(t, err, router.ErrInvalidArgument, text)
	}
	_, err = router.ParseConfig([]byte(`{"router_prefill_load_model": "ais"}`))
	require.ErrorIs(t, err, router.ErrNotImplemented)
}

func TestSharedCacheCounts(t *testing.T) {
	k := newKit(t, 16, router.DefaultConfig()).workers(1, 2)
	prompt := tokens(1, 16*10)
	k.store(1, 0, prompt[:16*4])
	q := ask(prompt)
	q.Shared = [][2]uint32{{2, 6}, {8, 100}}
	e, err := k.Explain(q)
	require.NoError(t, err)
	require.InDelta(t, 20-4-0.5*(2+2), float64(*e.Workers[0].Cost), 1e-9)
	require.InDelta(t, 20-0.5*(4+2), float64(*e.Workers[1].Cost), 1e-9)
	q.Overrides.SharedCacheMultiplier = ptr(1.0)
	e, err = k.Explain(q)
	require.NoError(t, err)
	require.InDelta(t, 20-6, float64(*e.Workers[1].Cost), 1e-9)
	scores, err := k.OverlapScores(&q.Prompt)
	require.NoError(t, err)
	require.True(t, scores.SharedCache.Enabled)
	require.Equal(t, 6, scores.SharedCache.TotalHitBlocks)
	require.EqualValues(t, 4, *scores.Workers[0].SharedBeyondDeviceBlocks)
	for _, bad := range [][][2]uint32{{{1, 1}}, {{2, 1}}, {{0, 2}, {1, 3}}, {{4, 5}, {0, 1}}} {
		q.Shared = bad
		_, err := k.BestWorker(q)
		require.ErrorIs(t, err, router.ErrInvalidArgument)
		_, err = k.OverlapScores(&q.Prompt)
		require.ErrorIs(t, err, router.ErrInvalidArgument)
	}
}

func TestRoleOfThePool(t *testing.T) {
	cost := func(role string) float64 {
		k := newKit(t, 16, with(t, `{"worker_type": %q, "router_track_prefill_tokens": false}`, role)).workers(1)
		k.store(1, 0, tokens(1, 32))
		e, err := k.Explain(ask(tokens(1, 64)))
		require.NoError(t, err)
		return float64(*e.Workers[0].Cost)
	}
	require.InDelta(t, 2, cost("decode"), 1e-9)
	require.InDelta(t, 2, cost("aggregated"), 1e-9)
	require.InDelta(t, 4, cost("prefill"), 1e-9, "there prompt blocks are not credited against decode blocks")
	_, err := router.ParseConfig([]byte(`{"worker_type": "x"}`))
	require.ErrorIs(t, err, router.ErrInvalidArgument)
}

func TestPolicyFileIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("nonsense: [")
	_, err := router.ParseConfig([]byte(fmt.Sprintf(`{"router_policy_config": %q}`, path)))
	require.ErrorIs(t, err, router.ErrInvalidArgument)
	write(policy)
	with(t, `{"router_policy_config": %q}`, path)
}
