package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/load"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// Target is a registered worker rank, as constraints see it.
type Target struct {
	Rank     worker.Rank
	Slot     worker.Slot
	Taints   []string // no duplicates
	Adapters []string // LoRA adapters that are loaded

	TotalBlocks      uint64 // KV blocks of the rank; 0 if unknown
	MaxBatchedTokens uint64 // tokens the rank computes in one step at most; 0 if unknown
}

// Preference draws a request to workers with a taint (positive) or away from them (negative).
type Preference struct {
	Taint  string
	Weight float64 // not NaN
}

// Home is where a session was served before.
type Home struct {
	Worker    uint64
	HasDPRank bool // else any rank of the worker
	DPRank    uint32
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

	// Wishes narrow the ranks that fit to those that also fulfil the wish, if there are any. Pinned requests have none.
	Adapter string // LoRA adapter that should be loaded; "" is none
	Home    *Home  // after Adapter; nil is none
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

// Free tells that every rank fits, however busy, and none is wished for.
func (c *Constraints) Free() bool {
	return !c.HasWorker && !c.HasDPRank && c.Allowed == nil && len(c.RequiredTaints) == 0 && c.Adapter == "" && c.Home == nil
}

// Verdict says why a rank is not eligible, in the words that explanations use; empty if it is.
type Verdict string

// Verdicts, in the order in which they are tried. The last two are those of the wishes.
const (
	Fits         Verdict = ""
	OtherWorker  Verdict = "other_worker"
	NotAllowed   Verdict = "not_allowed"
	OtherRank    Verdict = "other_rank"
	MissingTaint Verdict = "missing_taint"
	Overloaded   Verdict = "overloaded"
	Busy         Verdict = "busy"       // for a class of requests that wait (package queue), and another rank is not
	NoAdapter    Verdict = "no_adapter" // another rank has loaded it
	NotHome      Verdict = "not_home"   // the session's own rank fits
)

// Judge tells whether a rank fits the constraints; wishes are not looked at.
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

// JudgeWishes tells which wish kept out a rank that fits.
func (c *Constraints) JudgeWishes(t *Target) Verdict {
	if c.Adapter != "" && !slices.Contains(t.Adapters, c.Adapter) {
		return NoAdapter
	}
	return NotHome
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

// Eligible appends the slots of the targets that fit and are not overloaded, in their order, narrowed by the request's
// wishes, and returns the extended slice. Targets are sorted by rank; loads are by slot, as in View.
//
// If there is none, the error is, for a pinned worker, the first that holds of ErrNotAllowed, ErrUnknownWorker,
// ErrUnknownRank, ErrMissingTaint and ErrOverloaded; otherwise ErrOverloaded if any rank fits, and ErrNoWorkers if none.
//
// A wish that only overloaded ranks could fulfil is dropped: better a cold rank than a refusal.
func Eligible(dst []worker.Slot, targets []Target, c *Constraints, loads []load.Load, limits *Limits) ([]worker.Slot, error) {
	before, unlimited := len(dst), limits.Off()
	if c.HasWorker {
		targets = ofWorker(targets, c.Worker)
	}
	for i := range targets {
		t := &targets[i]
		if c.Judge(t) == Fits && (unlimited || !limits.Exceeded(t, loadOf(loads, t.Slot))) {
			dst = append(dst, t.Slot)
		}
	}
	if len(dst) == before {
		if c.HasWorker {
			return dst, c.whyNotPinned(targets)
		}
		return dst, c.whyNone(targets)
	}
	if c.Adapter != "" && !c.HasWorker {
		dst = narrow(dst, before, targets, func(t *Target) bool { return slices.Contains(t.Adapters, c.Adapter) })
	}
	if h := c.Home; h != nil && !c.HasWorker {
		dst = narrow(dst, before, targets, func(t *Target) bool {
			return t.Rank.ID == h.Worker && (!h.HasDPRank || t.Rank.DPRank == h.DPRank)
		})
	}
	return dst, nil
}

// ofWorker gives the part of the sorted targets that belongs to a worker.
func ofWorker(targets []Target, id uint64) []Target {
	from, _ := slices.BinarySearchFunc(targets, id, func(t Target, id uint64) int { return cmp.Compare(t.Rank.ID, id) })
	to := from
	for to < len(targets) && targets[to].Rank.ID == id {
		to++
	}
	return targets[from:to]
}

// narrow keeps of the slots from position from on those whose target fulfils a wish, or all if none does. The slots are
// in the order of the targets.
func narrow(slots []worker.Slot, from int, targets []Target, fulfils func(*Target) bool) []worker.Slot {
	kept, next := from, from
	for i := range targets {
		if next == len(slots) {
			break
		}
		if targets[i].Slot != slots[next] {
			continue
		}
		if fulfils(&targets[i]) {
			slots[kept] = slots[next]
			kept++
		}
		next++
	}
	if kept == from {
		return slots
	}
	return slots[:kept]
}

func loadOf(loads []load.Load, slot worker.Slot) load.Load {
	if int(slot) < len(loads) {
		return loads[slot]
	}
	return load.Load{}
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

// whyNotPinned finds the error for a pinned worker of which no rank can be taken. Targets are its ranks.
func (c *Constraints) whyNotPinned(targets []Target) error {
	if !c.allows(c.Worker) {
		return fmt.Errorf("%w: worker %d is not one of the %d allowed", ErrNotAllowed, c.Worker, len(c.Allowed))
	}
	if len(targets) == 0 {
		return fmt.Errorf("%w: worker %d", ErrUnknownWorker, c.Worker)
	}
	err := fmt.Errorf("%w: worker %d, dp_rank %d; it has %d ranks from %d on", ErrUnknownRank, c.Worker, c.DPRank, len(targets), targets[0].Rank.DPRank)
	for i := range targets {
		t := &targets[i]
		switch c.Judge(t) {
		case MissingTaint:
			taint, _ := c.missingTaint(t)
			err = fmt.Errorf("%w: worker %v lacks %q", ErrMissingTaint, t.Rank, taint)
		case Fits:
			return fmt.Errorf("%w: worker %v is the pinned one", ErrOverloaded, t.Rank)
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
	if n := count[Fits]; n > 0 {
		return fmt.Errorf("%w: all %d eligible ranks of %d", ErrOverloaded, n, len(targets))
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
