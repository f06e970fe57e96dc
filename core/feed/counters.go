package feed

import (
	"errors"
	"sync"
	"sync/atomic"

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
	countOtherRank
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
	countOtherRank:          "other_rank",          // batches of another rank
	countUnknownTag:         "unknown_tag",         // events
	countUndecodableEvents:  "undecodable_events",  //
	countUndecodableBatches: "undecodable_batches", //
	countMalformed:          "malformed_messages",  // frames that are no batch, on either socket
	countDuplicates:         "duplicate_batches",   // got live and by replay
	countGaps:               "gaps",                //
	countRecoveries:         "recoveries",          // joins, gaps and reconnects that asked for a replay
	countReplayed:           "replayed_batches",    //
	countDumps:              "dumps",               // whole states got from a local indexer
	countForeign:            "foreign_events",      // in answers, of blocks that are not the worker's own
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

// tally counts by fixed counters, and by the names of wire's verdicts.
type tally struct {
	fixed [counters]atomic.Uint64

	mu       sync.Mutex
	verdicts map[string]uint64
}

func (t *tally) add(c counter, n int) { t.fixed[c].Add(uint64(n)) }

func (t *tally) verdict(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.verdicts == nil {
		t.verdicts = make(map[string]uint64)
	}
	t.verdicts[name]++
}

// snapshot gives the counters that are not 0.
func (t *tally) snapshot() map[string]uint64 {
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
