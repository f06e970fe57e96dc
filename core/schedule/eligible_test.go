package schedule_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

type (
	set   = map[uint64]struct{}
	slots = []worker.Slot
)

var unlimited = &schedule.Limits{}

const big = math.MaxUint64

// fleet is three workers: 1 with ranks 0 and 1, 2 with rank 0, big with ranks 4 and 5.
func fleet() []schedule.Target {
	a100, eu := []string{"gpu=a100"}, []string{"gpu=h100", "zone=eu"}
	return []schedule.Target{
		{Slot: 0, Rank: worker.Rank{ID: 1, DPRank: 0}, Taints: a100, Adapters: []string{"sql"}, MaxBatchedTokens: 1000, TotalBlocks: 100},
		{Slot: 1, Rank: worker.Rank{ID: 1, DPRank: 1}, Taints: a100},
		{Slot: 2, Rank: worker.Rank{ID: 2, DPRank: 0}, Adapters: []string{"de", "sql"}, MaxBatchedTokens: 1000},
		{Slot: 3, Rank: worker.Rank{ID: big, DPRank: 4}, Taints: eu},
		{Slot: 4, Rank: worker.Rank{ID: big, DPRank: 5}, Taints: eu},
	}
}

func TestEligible(t *testing.T) {
	type C = schedule.Constraints
	for name, tc := range map[string]struct {
		c       C
		want    slots
		err     error
		message string
	}{
		"anything":                  {c: C{}, want: slots{0, 1, 2, 3, 4}},
		"pinned worker, all ranks":  {c: C{HasWorker: true, Worker: big}, want: slots{3, 4}},
		"pinned worker and rank":    {c: C{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 1}, want: slots{1}},
		"rank of every worker":      {c: C{HasDPRank: true, DPRank: 0}, want: slots{0, 2}},
		"allowed ids":               {c: C{Allowed: set{2: {}, big: {}, 77: {}}}, want: slots{2, 3, 4}},
		"allowed ids and rank":      {c: C{Allowed: set{1: {}, big: {}}, HasDPRank: true, DPRank: 4}, want: slots{3}},
		"required taints, all":      {c: C{RequiredTaints: []string{"zone=eu", "gpu=h100"}}, want: slots{3, 4}},
		"preferred do not filter":   {c: C{PreferredTaints: []schedule.Preference{{Taint: "x", Weight: 1}}}, want: slots{0, 1, 2, 3, 4}},
		"pinned and allowed":        {c: C{HasWorker: true, Worker: 2, Allowed: set{2: {}}}, want: slots{2}},
		"pinned, no wish for home":  {c: C{HasWorker: true, Worker: 1, Home: &schedule.Home{Worker: 1, HasDPRank: true, DPRank: 1}}, want: slots{0, 1}},
		"pinned, no adapter wished": {c: C{HasWorker: true, Worker: 1, Adapter: "sql"}, want: slots{0, 1}},
		"none allowed":              {c: C{Allowed: set{}}, err: schedule.ErrNoWorkers, message: "5 are not allowed"},
		"a rank nobody has":         {c: C{HasDPRank: true, DPRank: 9}, err: schedule.ErrNoWorkers, message: "5 have another dp_rank"},
		"a taint nobody has":        {c: C{RequiredTaints: []string{"gpu=h100", "zone=us"}}, err: schedule.ErrNoWorkers, message: "5 lack a required taint"},
		"pin outside, and unknown":  {c: C{HasWorker: true, Worker: 9, Allowed: set{2: {}}}, err: schedule.ErrNotAllowed, message: "worker 9"},
		"pin unknown, with rank":    {c: C{HasWorker: true, Worker: 9, HasDPRank: true, DPRank: 9}, err: schedule.ErrUnknownWorker, message: "worker 9"},
		"pin of a rank, and taints": {c: C{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 2, RequiredTaints: []string{"x"}}, err: schedule.ErrUnknownRank, message: "worker 1, dp_rank 2"},
		"pin without the taint":     {c: C{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 0, RequiredTaints: []string{"zone=eu"}}, err: schedule.ErrMissingTaint, message: `worker 1/0 lacks "zone=eu"`},
		"adapter":                   {c: C{Adapter: "sql"}, want: slots{0, 2}},
		"adapter nobody has loaded": {c: C{Adapter: "fr"}, want: slots{0, 1, 2, 3, 4}},
		"adapter, pinned":           {c: C{Adapter: "sql", HasWorker: true, Worker: big}, want: slots{3, 4}},
		"adapter, not allowed":      {c: C{Adapter: "de", Allowed: set{1: {}}}, want: slots{0, 1}},
		"home":                      {c: C{Home: &schedule.Home{Worker: big}}, want: slots{3, 4}},
		"home rank":                 {c: C{Home: &schedule.Home{Worker: big, HasDPRank: true, DPRank: 5}}, want: slots{4}},
		"home that is gone":         {c: C{Home: &schedule.Home{Worker: 9}}, want: slots{0, 1, 2, 3, 4}},
		"home without the adapter":  {c: C{Adapter: "sql", Home: &schedule.Home{Worker: big}}, want: slots{0, 2}},
		"home with the adapter":     {c: C{Adapter: "sql", Home: &schedule.Home{Worker: 2}}, want: slots{2}},
		"home, pinned elsewhere":    {c: C{HasWorker: true, Worker: 2, Home: &schedule.Home{Worker: 1}}, want: slots{2}},
		"pin without the taint, 2":  {c: C{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 1, RequiredTaints: []string{"zone=eu"}}, err: schedule.ErrMissingTaint, message: `worker 1/1 lacks "zone=eu"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := schedule.Eligible(nil, fleet(), &tc.c, nil, unlimited)
			require.Equal(t, tc.want, got)
			if tc.err == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tc.err)
			require.ErrorContains(t, err, tc.message)
			for _, other := range []error{schedule.ErrNoWorkers, schedule.ErrNotAllowed, schedule.ErrUnknownWorker, schedule.ErrUnknownRank, schedule.ErrMissingTaint, schedule.ErrOverloaded} {
				require.Equal(t, other == tc.err, errors.Is(err, other), "%v is %v", err, other)
			}
		})
	}
}

// A limit is passed strictly, by each rank for itself, and only where what it is a fraction of is known.
func TestOverload(t *testing.T) {
	half, none, tokens, some := 0.5, 0.0, uint64(600), uint64(0)
	for name, tc := range map[string]struct {
		limits schedule.Limits
		c      schedule.Constraints
		loads  []load.Load
		want   slots
		err    error
	}{
		"idle":               {limits: schedule.Limits{DecodeBlocksFraction: &none, PrefillTokens: &some, PrefillTokensFraction: &none}, want: slots{0, 1, 2, 3, 4}},
		"decode, at it":      {limits: schedule.Limits{DecodeBlocksFraction: &half}, loads: []load.Load{{ActiveBlocks: 50}}, want: slots{0, 1, 2, 3, 4}},
		"decode, beyond it":  {limits: schedule.Limits{DecodeBlocksFraction: &half}, loads: []load.Load{{ActiveBlocks: 51}, {ActiveBlocks: 51}}, want: slots{1, 2, 3, 4}},
		"prefill, at it":     {limits: schedule.Limits{PrefillTokens: &tokens}, loads: []load.Load{{ActivePrefillTokens: 600}}, want: slots{0, 1, 2, 3, 4}},
		"prefill, beyond it": {limits: schedule.Limits{PrefillTokens: &tokens}, loads: []load.Load{{}, {ActivePrefillTokens: 601}}, want: slots{0, 2, 3, 4}},
		"prefill fraction":   {limits: schedule.Limits{PrefillTokensFraction: &half}, loads: []load.Load{{ActivePrefillTokens: 501}, {ActivePrefillTokens: 501}, {ActivePrefillTokens: 500}}, want: slots{1, 2, 3, 4}},
		"all": {limits: schedule.Limits{PrefillTokens: &some}, loads: slices.Repeat([]load.Load{{ActivePrefillTokens: 1}}, 5),
			err: schedule.ErrOverloaded},
		"all that fit": {limits: schedule.Limits{PrefillTokens: &some}, loads: []load.Load{2: {ActivePrefillTokens: 1}},
			c: schedule.Constraints{Allowed: set{2: {}}}, err: schedule.ErrOverloaded},
		"the pinned one": {limits: schedule.Limits{PrefillTokens: &some}, loads: []load.Load{2: {ActivePrefillTokens: 1}},
			c: schedule.Constraints{HasWorker: true, Worker: 2}, err: schedule.ErrOverloaded},
		"a rank of the pinned one": {limits: schedule.Limits{PrefillTokens: &some}, loads: []load.Load{{ActivePrefillTokens: 1}},
			c: schedule.Constraints{HasWorker: true, Worker: 1}, want: slots{1}},
		"the only adapter": {limits: schedule.Limits{PrefillTokens: &some}, loads: []load.Load{2: {ActivePrefillTokens: 1}},
			c: schedule.Constraints{Adapter: "de"}, want: slots{0, 1, 3, 4}},
		"home": {limits: schedule.Limits{PrefillTokens: &some}, loads: []load.Load{2: {ActivePrefillTokens: 1}},
			c: schedule.Constraints{Home: &schedule.Home{Worker: 2}}, want: slots{0, 1, 3, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, tc.limits.Validate())
			got, err := schedule.Eligible(nil, fleet(), &tc.c, tc.loads, &tc.limits)
			require.Equal(t, tc.want, got)
			require.ErrorIs(t, err, tc.err)
		})
	}
}

func TestLimitsOutOfRangeAreNamed(t *testing.T) {
	beyond, negative := 1.5, -0.5
	limits := schedule.Limits{DecodeBlocksFraction: &beyond, PrefillTokensFraction: &negative}
	require.ErrorIs(t, limits.Validate(), schedule.ErrInvalid)
	require.ErrorContains(t, limits.Validate(), "active_decode_blocks_threshold = 1.5")
	require.ErrorContains(t, limits.Validate(), "active_prefill_tokens_threshold_frac = -0.5")
	require.True(t, (&schedule.Limits{}).Off())
	require.False(t, limits.Off())
}

func TestFree(t *testing.T) {
	type C = schedule.Constraints
	for _, c := range []C{{}, {PreferredTaints: []schedule.Preference{{Taint: "a", Weight: 1}}}} {
		require.True(t, c.Free())
	}
	for _, c := range []C{{HasWorker: true}, {HasDPRank: true}, {Allowed: set{}}, {RequiredTaints: []string{"a"}}, {Adapter: "a"}, {Home: &schedule.Home{}}} {
		require.False(t, c.Free(), "%+v", c)
	}
}

func TestNoWorkersAtAll(t *testing.T) {
	_, err := schedule.Eligible(nil, nil, &schedule.Constraints{}, nil, unlimited)
	require.ErrorIs(t, err, schedule.ErrNoWorkers)
}

func TestEligibleAppends(t *testing.T) {
	got, err := schedule.Eligible([]worker.Slot{7}, fleet(), &schedule.Constraints{HasWorker: true, Worker: 2}, nil, unlimited)
	require.NoError(t, err)
	require.Equal(t, slots{7, 2}, got)
	_, err = schedule.Eligible([]worker.Slot{7}, fleet(), &schedule.Constraints{HasWorker: true, Worker: 3}, nil, unlimited)
	require.ErrorIs(t, err, schedule.ErrUnknownWorker)
}

func TestVerdicts(t *testing.T) {
	c := schedule.Constraints{Allowed: set{1: {}, big: {}}, HasDPRank: true, DPRank: 4, RequiredTaints: []string{"gpu=a100"}}
	var got []schedule.Verdict
	for _, target := range fleet() {
		got = append(got, c.Judge(&target))
	}
	require.Equal(t, []schedule.Verdict{schedule.OtherRank, schedule.OtherRank, schedule.NotAllowed, schedule.MissingTaint, schedule.OtherRank}, got)
	c = schedule.Constraints{HasWorker: true, Worker: 2}
	require.Equal(t, schedule.OtherWorker, c.Judge(&fleet()[0]))
	require.Equal(t, schedule.Fits, c.Judge(&fleet()[2]))
	c = schedule.Constraints{Adapter: "de", Home: &schedule.Home{Worker: 1}}
	require.Equal(t, schedule.NoAdapter, c.JudgeWishes(&fleet()[0]))
	require.Equal(t, schedule.NotHome, c.JudgeWishes(&fleet()[2]))
}

func TestTaintWeight(t *testing.T) {
	inf := math.Inf(1)
	of := func(prefs ...schedule.Preference) float64 {
		return (&schedule.Constraints{PreferredTaints: prefs}).TaintWeight(&fleet()[3])
	}
	require.Zero(t, of())
	require.Zero(t, of(schedule.Preference{Taint: "gpu=a100", Weight: 5}), "another worker's taint")
	require.Equal(t, 0.5, of(schedule.Preference{Taint: "gpu=h100", Weight: 2}, schedule.Preference{Taint: "zone=eu", Weight: -1.5}))
	require.Equal(t, inf, of(schedule.Preference{Taint: "gpu=h100", Weight: inf}))
	require.Zero(t, of(schedule.Preference{Taint: "gpu=h100", Weight: inf}, schedule.Preference{Taint: "zone=eu", Weight: -inf}))
}

func TestPreferenceMustBeANumber(t *testing.T) {
	c := schedule.Constraints{PreferredTaints: []schedule.Preference{{Taint: "a", Weight: math.Inf(-1)}}}
	require.NoError(t, c.Validate())
	c.PreferredTaints = append(c.PreferredTaints, schedule.Preference{Taint: "zone", Weight: math.NaN()})
	require.ErrorIs(t, c.Validate(), schedule.ErrInvalid)
	require.ErrorContains(t, c.Validate(), `"zone" = NaN`)
}

func TestEligibleAllocatesNothing(t *testing.T) {
	targets, dst, loads := fleet(), make(slots, 0, 8), []load.Load{{ActivePrefillTokens: 5}}
	limits := schedule.Limits{PrefillTokens: new(uint64)}
	c := schedule.Constraints{HasDPRank: true, DPRank: 4, Allowed: set{big: {}}, RequiredTaints: []string{"zone=eu"}, Adapter: "sql",
		Home:            &schedule.Home{Worker: big},
		PreferredTaints: []schedule.Preference{{Taint: "gpu=h100", Weight: 1}}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		dst, _ = schedule.Eligible(dst[:0], targets, &c, loads, &limits)
		_ = c.TaintWeight(&targets[0])
	}))
}
