package tally

import (
	"errors"
)

// Decision is one request that a router chose a rank for, or failed to.
type Decision struct {
	Booked       bool
	PromptTokens int // >= 0
	CachedTokens int // of them, what the chosen rank need not compute; >= 0

	// Nanoseconds of each phase, hashing and matching before the router's lock; 0: not measured.
	Hashing, Matching, Scheduling, Total int64
}

// Kind is one way in which decisions fail.
type Kind struct {
	Name string
	Err  error // what errors.Is finds in the error
}

// Names of outcomes that every router has.
const (
	Chosen = "chosen"
	Other  = "other" // an error of no kind
)

// Decisions counts decisions. It is not safe for concurrent use: the router's mutex guards it.
type Decisions struct {
	kinds    []Kind
	chosen   uint64
	failed   []uint64 // by kind, then Other
	booked   uint64
	prompts  histogram // tokens
	hitRates histogram // billionths
	phases   [phases]histogram
}

const (
	hashing = iota
	matching
	scheduling
	total
	phases
)

// Buckets. Phases of this router take microseconds where those that the metrics were made for take milliseconds, so bounds
// begin at 250 ns; they end at half a second. Hit rates have a bucket for 0 and one for every twentieth.
const (
	firstNanos  = 250
	phaseBounds = 22
	firstTokens = 64
	tokenBounds = 15 // to 1,048,576
	hitParts    = 20
	billion     = 1_000_000_000
)

// NewDecisions counts failures by kind: an error is of the first kind it is.
func NewDecisions(kinds ...Kind) *Decisions {
	return &Decisions{kinds: kinds, failed: make([]uint64, len(kinds)+1)}
}

// Count counts a decision, or why there is none: then the rest of it is not looked at.
func (d *Decisions) Count(q *Decision, err error) {
	if err != nil {
		d.failed[d.kind(err)]++
		return
	}
	d.chosen++
	if q.Booked {
		d.booked++
	}
	d.prompts.add(doubling(int64(q.PromptTokens), firstTokens, tokenBounds), int64(q.PromptTokens))
	if q.PromptTokens > 0 {
		prompt, cached := int64(q.PromptTokens), int64(min(q.CachedTokens, q.PromptTokens))
		d.hitRates.add(int((cached*hitParts+prompt-1)/prompt), (cached*billion+prompt/2)/prompt)
	}
	for phase, nanos := range [phases]int64{q.Hashing, q.Matching, q.Scheduling, q.Total} {
		if nanos > 0 {
			d.phases[phase].add(doubling(nanos, firstNanos, phaseBounds), nanos)
		}
	}
}

func (d *Decisions) kind(err error) int {
	for i, k := range d.kinds {
		if errors.Is(err, k.Err) {
			return i
		}
	}
	return len(d.kinds)
}

// Outcome is how often decisions ended in one way.
type Outcome struct {
	Name  string
	Count uint64
}

// DecisionCounts is what Decisions counted.
type DecisionCounts struct {
	Outcomes []Outcome // Chosen, the kinds, Other
	Booked   uint64    // of those chosen

	PromptTokens Histogram // of those chosen
	HitRate      Histogram // the part of the prompt that the chosen rank need not compute; of prompts that are not empty

	// Milliseconds of each phase, of decisions for which it was measured.
	Hashing, Matching, Scheduling, Total Histogram
}

// Counts tells what was counted so far.
func (d *Decisions) Counts() DecisionCounts {
	out := DecisionCounts{
		Outcomes:     make([]Outcome, 0, len(d.failed)+1),
		Booked:       d.booked,
		PromptTokens: d.prompts.show(tokenBounds, func(i int) float64 { return float64(int64(firstTokens) << i) }, 1),
		HitRate:      d.hitRates.show(hitParts+1, func(i int) float64 { return float64(i) / hitParts }, billion),
	}
	out.Outcomes = append(out.Outcomes, Outcome{Chosen, d.chosen})
	for i, k := range d.kinds {
		out.Outcomes = append(out.Outcomes, Outcome{k.Name, d.failed[i]})
	}
	out.Outcomes = append(out.Outcomes, Outcome{Other, d.failed[len(d.kinds)]})
	for phase, to := range [phases]*Histogram{&out.Hashing, &out.Matching, &out.Scheduling, &out.Total} {
		*to = d.phases[phase].show(phaseBounds, func(i int) float64 { return float64(int64(firstNanos)<<i) / 1e6 }, 1e6)
	}
	return out
}
