package schedule_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/schedule"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

type set = map[uint64]struct{}

const big = math.MaxUint64

// fleet is three workers: 1 with ranks 0 and 1, 2 with rank 0, big with ranks 4 and 5.
func fleet() []schedule.Target {
	a100, eu := []string{"gpu=a100"}, []string{"gpu=h100", "zone=eu"}
	return []schedule.Target{
		{Rank: worker.Rank{ID: 1, DPRank: 0}, Taints: a100},
		{Rank: worker.Rank{ID: 1, DPRank: 1}, Taints: a100},
		{Rank: worker.Rank{ID: 2, DPRank: 0}},
		{Rank: worker.Rank{ID: big, DPRank: 4}, Taints: eu},
		{Rank: worker.Rank{ID: big, DPRank: 5}, Taints: eu},
	}
}

func TestEligible(t *testing.T) {
	type C = schedule.Constraints
	for name, tc := range map[string]struct {
		c       C
		want    []int
		err     error
		message string
	}{
		"anything":                  {c: C{}, want: []int{0, 1, 2, 3, 4}},
		"pinned worker, all ranks":  {c: C{HasWorker: true, Worker: big}, want: []int{3, 4}},
		"pinned worker and rank":    {c: C{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 1}, want: []int{1}},
		"rank of every worker":      {c: C{HasDPRank: true, DPRank: 0}, want: []int{0, 2}},
		"allowed ids":               {c: C{Allowed: set{2: {}, big: {}, 77: {}}}, want: []int{2, 3, 4}},
		"allowed ids and rank":      {c: C{Allowed: set{1: {}, big: {}}, HasDPRank: true, DPRank: 4}, want: []int{3}},
		"required taints, all":      {c: C{RequiredTaints: []string{"zone=eu", "gpu=h100"}}, want: []int{3, 4}},
		"preferred do not filter":   {c: C{PreferredTaints: []schedule.Preference{{Taint: "x", Weight: 1}}}, want: []int{0, 1, 2, 3, 4}},
		"pinned and allowed":        {c: C{HasWorker: true, Worker: 2, Allowed: set{2: {}}}, want: []int{2}},
		"none allowed":              {c: C{Allowed: set{}}, err: schedule.ErrNoWorkers, message: "5 are not allowed"},
		"a rank nobody has":         {c: C{HasDPRank: true, DPRank: 9}, err: schedule.ErrNoWorkers, message: "5 have another dp_rank"},
		"a taint nobody has":        {c: C{RequiredTaints: []string{"gpu=h100", "zone=us"}}, err: schedule.ErrNoWorkers, message: "5 lack a required taint"},
		"pin outside, and unknown":  {c: C{HasWorker: true, Worker: 9, Allowed: set{2: {}}}, err: schedule.ErrNotAllowed, message: "worker 9"},
		"pin unknown, with rank":    {c: C{HasWorker: true, Worker: 9, HasDPRank: true, DPRank: 9}, err: schedule.ErrUnknownWorker, message: "worker 9"},
		"pin of a rank, and taints": {c: C{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 2, RequiredTaints: []string{"x"}}, err: schedule.ErrUnknownRank, message: "worker 1, dp_rank 2"},
		"pin without the taint":     {c: C{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 0, RequiredTaints: []string{"zone=eu"}}, err: schedule.ErrMissingTaint, message: `worker 1/0 lacks "zone=eu"`},
		"pin without the taint, 2":  {c: C{HasWorker: true, Worker: 1, HasDPRank: true, DPRank: 1, RequiredTaints: []string{"zone=eu"}}, err: schedule.ErrMissingTaint, message: `worker 1/1 lacks "zone=eu"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := schedule.Eligible(nil, fleet(), &tc.c)
			require.Equal(t, tc.want, got)
			if tc.err == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tc.err)
			require.ErrorContains(t, err, tc.message)
			for _, other := range []error{schedule.ErrNoWorkers, schedule.ErrNotAllowed, schedule.ErrUnknownWorker, schedule.ErrUnknownRank, schedule.ErrMissingTaint} {
				require.Equal(t, other == tc.err, errors.Is(err, other), "%v is %v", err, other)
			}
		})
	}
}

func TestNoWorkersAtAll(t *testing.T) {
	_, err := schedule.Eligible(nil, nil, &schedule.Constraints{})
	require.ErrorIs(t, err, schedule.ErrNoWorkers)
}

func TestEligibleAppends(t *testing.T) {
	got, err := schedule.Eligible([]int{7}, fleet(), &schedule.Constraints{HasWorker: true, Worker: 2})
	require.NoError(t, err)
	require.Equal(t, []int{7, 2}, got)
	_, err = schedule.Eligible([]int{7}, fleet(), &schedule.Constraints{HasWorker: true, Worker: 3})
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
	targets, dst := fleet(), make([]int, 0, 8)
	c := schedule.Constraints{HasDPRank: true, DPRank: 4, Allowed: set{big: {}}, RequiredTaints: []string{"zone=eu"},
		PreferredTaints: []schedule.Preference{{Taint: "gpu=h100", Weight: 1}}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		dst, _ = schedule.Eligible(dst[:0], targets, &c)
		_ = c.TaintWeight(&targets[dst[0]])
	}))
}
