package feed

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/dynamo-go/dynamo-go/core/worker"
)

// repeat is how long the log says nothing of events that are left out after it has.
const repeat = time.Minute

// journal tells an operator what happens to a rank: every change of its state with the reason; that events are left out, once
// and then at most once a minute, with how many for which cause; faults of our own.
type journal struct {
	log    *slog.Logger
	faults uint64            // those of the tally that were seen
	told   map[string]uint64 // of each cause
	silent time.Time         // until then nothing is said of what is left out
}

func newJournal(log *slog.Logger, rank worker.Rank) *journal {
	if log == nil {
		return nil
	}
	return &journal{log: log.With("worker_id", rank.ID, "dp_rank", rank.DPRank)}
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
	j.log.Log(context.Background(), level, "rank is "+string(to), "was", string(from), "reason", reason)
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
