package feed

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"
)

// repeat is how long the log says nothing of events that are left out after it has.
const repeat = time.Minute

// journal tells an operator what happens to a rank: every change of its state with the reason; that events are left out, once
// and then at most once a minute, with how many for which cause; faults of our own.
type journal struct {
	log    *slog.Logger
	events string            // where they are, and
	asked  slog.Attr         // who is asked for those that are missing; "": nobody whom an operator named
	faults uint64            // those of the tally that were seen
	told   map[string]uint64 // of each cause
	silent time.Time         // until then nothing is said of what is left out
}

func newJournal(cfg *Config) *journal {
	if cfg.Log == nil {
		return nil
	}
	j := &journal{log: cfg.Log.With("worker_id", cfg.Rank.ID, "dp_rank", cfg.Rank.DPRank), events: cfg.Endpoint}
	switch {
	case cfg.Query != "":
		j.asked = slog.String("query", cfg.Query)
	case cfg.Replay != "":
		j.asked = slog.String("replay", cfg.Replay)
	}
	return j
}

// state tells of a change; from is "" at the beginning.
func (j *journal) state(from, to State, reason string) {
	if j == nil {
		return
	}
	level := slog.LevelInfo
	if from != "" && (to == Partial || to == Disconnected) {
		level = slog.LevelWarn
	}
	facts := []any{"was", string(from), "reason", reason}
	if to == Disconnected && j.events != "" {
		facts = append(facts, "kv_events", j.events)
	}
	if strings.HasPrefix(reason, reasonNoAnswer) && j.asked.Key != "" {
		facts = append(facts, j.asked)
	}
	j.log.Log(context.Background(), level, "rank is "+string(to), facts...)
}

// leftOut looks whether events were left out since it last said so.
func (j *journal) leftOut(t *Tally) {
	if j == nil {
		return
	}
	faults := t.faults.Load()
	if faults == j.faults || !j.log.Enabled(context.Background(), slog.LevelWarn) {
		return
	}
	now := time.Now()
	if now.Before(j.silent) {
		return
	}
	j.faults, j.silent = faults, now.Add(repeat)
	causes := t.leftOut()
	var more []any
	for name, n := range causes {
		if n > j.told[name] {
			more = append(more, slog.Uint64(name, n-j.told[name]))
		}
	}
	j.told = causes
	j.log.Warn("events are left out; health and docs/troubleshooting.md tell why", slog.Group("causes", more...))
}

// panicked tells of a panic that was recovered from.
func (j *journal) panicked(cause any) {
	if j == nil {
		return
	}
	j.log.Error("fault of the library: recovered, the rank starts anew", "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
}
