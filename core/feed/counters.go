package feed

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
)

// counter is one of the fixed counters; its name is its key in Status.Counters.
type counter uint8

const (
	countBatches counter = iota
	countEvents
	countStored
	countRemoved
	countCleared
	countDuplicateStores
	countUnknownRemovals
	countUnknownParent
	countBadChain
	countUnknownRank
	countRefused
	countNoRoom
	countOff
	countOtherRank
	countEagle
	countUnknownTag
	countUndecodableEvents
	countUndecodableBatches
	countMalformed
	countDuplicates
	countGaps
	countRecoveries
	countReplayed
	countDumps
	countForeign
	countUnproven
	countReplayFailures
	countGivenUp
	countResets
	countRestarts
	countOverflow
	countProbes
	countConnects
	countDisconnects
	countPanics
	counters
)

var counterNames = [counters]string{
	countBatches:            "batches",             // applied
	countEvents:             "events",              // in them
	countStored:             "stored_blocks",       // newly held
	countRemoved:            "removed_blocks",      // no longer held
	countCleared:            "cleared",             // events
	countDuplicateStores:    "duplicate_stores",    // blocks stored while held
	countUnknownRemovals:    "unknown_removals",    // blocks removed while not held
	countUnknownParent:      "unknown_parent",      // stores refused
	countBadChain:           "bad_chain",           // stores refused
	countUnknownRank:        "unknown_rank",        // events for a rank that is not registered
	countRefused:            "refused",             // events refused for another reason
	countNoRoom:             "no_room",             // blocks left out for max_bytes
	countOff:                "events_off",          // events given to a router without events
	countOtherRank:          "other_rank",          // batches of another rank
	countEagle:              "eagle_windows",       // stores of blocks that take one token more, which prompts are not looked up by
	countUnknownTag:         "unknown_tag",         // events
	countUndecodableEvents:  "undecodable_events",  //
	countUndecodableBatches: "undecodable_batches", //
	countMalformed:          "malformed_messages",  // frames that are no batch, on either socket
	countDuplicates:         "duplicate_batches",   // got live and by replay
	countGaps:               "gaps",                //
	countRecoveries:         "recoveries",          // joins, gaps and reconnects that asked for a replay
	countReplayed:           "replayed_batches",    //
	countDumps:              "dumps",               // whole states got from a local indexer
	countForeign:            "foreign_events",      // of blocks that are not the worker's own, in answers and dumps
	countUnproven:           "unproven_events",     // of a dump, of a rank whose feed knows better
	countReplayFailures:     "replay_failures",     // replays without an end marker
	countGivenUp:            "given_up",            // recoveries whose retries were spent
	countResets:             "resets",              // times the view was emptied
	countRestarts:           "restarts",            // of the engine
	countOverflow:           "overflow",            // live batches that found the buffer full; asked for later
	countProbes:             "probes",              //
	countConnects:           "connects",            // subscriptions made
	countDisconnects:        "disconnects",         // attempts that failed included
	countPanics:             "panics",              //
}

// Refusal gives the counter of an error of Sink.Apply, "" if there is none.
func Refusal(err error) string {
	if c, refused := refusal(err); refused {
		return counterNames[c]
	}
	return ""
}

func refusal(err error) (c counter, refused bool) {
	switch {
	case err == nil:
		return 0, false
	case errors.Is(err, index.ErrUnknownParent):
		return countUnknownParent, true
	case errors.Is(err, index.ErrBadChain):
		return countBadChain, true
	case errors.Is(err, ErrUnknownRank):
		return countUnknownRank, true
	}
	return countRefused, true
}

// Tally counts by fixed counters, and by the names of wire's verdicts. The zero value has counted nothing; it is safe for
// concurrent use.
type Tally struct {
	fixed  [counters]atomic.Uint64
	faults atomic.Uint64 // events and messages that were left out

	mu       sync.Mutex
	verdicts map[string]uint64
}

func (t *Tally) add(c counter, n int) {
	if n != 0 {
		t.fixed[c].Add(uint64(n))
		if leavesOut[c] {
			t.faults.Add(1)
		}
	}
}

// leavesOut: what is counted was not applied, as a verdict of wire's was not.
var leavesOut = [counters]bool{
	countUnknownParent: true, countBadChain: true, countUnknownRank: true, countRefused: true, countOtherRank: true, countUnknownTag: true,
	countUndecodableEvents: true, countUndecodableBatches: true, countMalformed: true,
}

// Applied counts an event that was given to an index or a Sink, and what became of it.
func (t *Tally) Applied(kind event.Kind, done index.Applied, err error) {
	if kind == event.Cleared {
		t.add(countCleared, 1)
	}
	t.add(countStored, done.Stored)
	t.add(countDuplicateStores, done.Duplicate)
	t.add(countRemoved, done.Removed)
	t.add(countUnknownRemovals, done.Unknown)
	if c, refused := refusal(err); refused {
		t.add(c, 1)
	} else {
		t.add(countNoRoom, done.Refused)
	}
}

// Host counts an event that the host gave, not a feed.
func (t *Tally) Host() { t.add(countEvents, 1) }

// Foreign counts an event of a cache that is not the rank's own.
func (t *Tally) Foreign() { t.add(countForeign, 1) }

// Unproven counts an event of a dump that came when the rank's feed knew something already.
func (t *Tally) Unproven() { t.add(countUnproven, 1) }

// Off counts an event of a router that does not use events.
func (t *Tally) Off() { t.add(countOff, 1) }

func (t *Tally) verdict(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.verdicts == nil {
		t.verdicts = make(map[string]uint64)
	}
	t.verdicts[name]++
	t.faults.Add(1)
}

// leftOut gives what was left out, by cause.
func (t *Tally) leftOut() map[string]uint64 {
	m := make(map[string]uint64)
	for c, out := range leavesOut {
		if n := t.fixed[c].Load(); out && n > 0 {
			m[counterNames[c]] = n
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, n := range t.verdicts {
		m[name] += n
	}
	return m
}

// Snapshot gives the counters that are not 0.
func (t *Tally) Snapshot() map[string]uint64 {
	m := make(map[string]uint64)
	for c := range t.fixed {
		if n := t.fixed[c].Load(); n > 0 {
			m[counterNames[c]] = n
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, n := range t.verdicts {
		m[name] += n
	}
	return m
}
