package schedule

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Target is a registered worker rank, as constraints see it.
type Target struct {
	Rank   worker.Rank
	Taints []string // no duplicates
}

// Preference draws a request to workers with a taint (positive) or away from them (negative).
type Preference struct {
	Taint  string
	Weight float64 // not NaN
}

// Constraints say which workers a request may go to. The zero value allows all.
type Constraints struct {
	HasWorker bool // pinned to Worker
	Worker    uint64
	HasDPRank bool // restricted to rank DPRank: of the pinned worker, or of every worker
	DPRank    uint32

	Allowed         map[uint64]struct{} // worker ids; nil allows all, empty none
	RequiredTaints  []string
	PreferredTaints []Preference
}

// Validate refuses preferences that are not numbers. Errors: ErrInvalid.
func (c *Constraints) Validate() error {
	for _, p := range c.PreferredTaints {
		if math.IsNaN(p.Weight) {
			return fmt.Errorf("%w: preferred taint %q = NaN must be a number", ErrInvalid, p.Taint)
		}
	}
	return nil
}

// Verdict says why a rank is not eligible, in the words that explanations use; empty if it is.
type Verdict string

// Verdicts, in the order in which they are tried.
const (
	Fits         Verdict = ""
	OtherWorker  Verdict = "other_worker"
	NotAllowed   Verdict = "not_allowed"
	OtherRank    Verdict = "other_rank"
	MissingTaint Verdict = "missing_taint"
)

// Judge tells whether a rank fits the constraints.
func (c *Constraints) Judge(t *Target) Verdict {
	if c.HasWorker && t.Rank.ID != c.Worker {
		return OtherWorker
	}
	if !c.allows(t.Rank.ID) {
		return NotAllowed
	}
	if c.HasDPRank && t.Rank.DPRank != c.DPRank {
		return OtherRank
	}
	if _, missing := c.missingTaint(t); missing {
		return MissingTaint
	}
	return Fits
}

// TaintWeight sums the preferences for a rank's taints; infinities of both signs cancel.
func (c *Constraints) TaintWeight(t *Target) float64 {
	var sum float64
	for _, p := range c.PreferredTaints {
		if slices.Contains(t.Taints, p.Taint) {
			sum += p.Weight
		}
	}
	if math.IsNaN(sum) {
		return 0
	}
	return sum
}

// Eligible appends the positions of the targets that fit and returns the extended slice. If none does, the error is, for
// a pinned worker, the first that holds of ErrNotAllowed, ErrUnknownWorker, ErrUnknownRank and ErrMissingTaint, and
// ErrNoWorkers otherwise.
func Eligible(dst []int, targets []Target, c *Constraints) ([]int, error) {
	before := len(dst)
	for i := range targets {
		if c.Judge(&targets[i]) == Fits {
			dst = append(dst, i)
		}
	}
	if len(dst) > before {
		return dst, nil
	}
	if c.HasWorker {
		return dst, c.whyNotPinned(targets)
	}
	return dst, c.whyNone(targets)
}

func (c *Constraints) allows(id uint64) bool {
	if c.Allowed == nil {
		return true
	}
	_, ok := c.Allowed[id]
	return ok
}

func (c *Constraints) missingTaint(t *Target) (string, bool) {
	for _, taint := range c.RequiredTaints {
		if !slices.Contains(t.Taints, taint) {
			return taint, true
		}
	}
	return "", false
}

// whyNotPinned finds the error for a pinned worker of which no rank fits.
func (c *Constraints) whyNotPinned(targets []Target) error {
	if !c.allows(c.Worker) {
		return fmt.Errorf("%w: worker %d is not one of the %d allowed", ErrNotAllowed, c.Worker, len(c.Allowed))
	}
	known := false
	err := fmt.Errorf("%w: worker %d is not one of the %d registered ranks", ErrUnknownWorker, c.Worker, len(targets))
	for i := range targets {
		t := &targets[i]
		switch {
		case t.Rank.ID != c.Worker:
		case c.HasDPRank && t.Rank.DPRank != c.DPRank:
			if !known {
				err = fmt.Errorf("%w: worker %d, dp_rank %d", ErrUnknownRank, c.Worker, c.DPRank)
			}
		default:
			known = true
			taint, _ := c.missingTaint(t)
			err = fmt.Errorf("%w: worker %v lacks %q", ErrMissingTaint, t.Rank, taint)
		}
	}
	return err
}

// whyNone counts what kept each registered rank out.
func (c *Constraints) whyNone(targets []Target) error {
	count := map[Verdict]int{}
	for i := range targets {
		count[c.Judge(&targets[i])]++
	}
	why := ""
	for _, reason := range []struct {
		verdict Verdict
		text    string
	}{{NotAllowed, "are not allowed"}, {OtherRank, "have another dp_rank"}, {MissingTaint, "lack a required taint"}} {
		if n := count[reason.verdict]; n > 0 {
			why += fmt.Sprintf(", %d %s", n, reason.text)
		}
	}
	if why == "" {
		return fmt.Errorf("%w: no worker is registered", ErrNoWorkers)
	}
	return fmt.Errorf("%w: of %d ranks%s", ErrNoWorkers, len(targets), strings.Replace(why, ",", "", 1))
}
