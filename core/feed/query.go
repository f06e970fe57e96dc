package feed

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// errAnswer says that an indexer's answer cannot be used. It is asked again, a bounded number of times.
var errAnswer = errors.New("answer of the local indexer cannot be used")

// query asks a local indexer.
func (r *request) query(ctx context.Context, t *turn, endpoint string, q *event.RangeQuery, o zmq.Options) error {
	return errAnswer
}

// checkAnswer refuses what does not answer the query, or speaks of another rank: nothing of it is used then.
func checkAnswer(q *event.RangeQuery, a *event.RangeAnswer) error {
	switch a.Kind {
	case event.RangeEvents:
		if !q.HasStart {
			return fmt.Errorf("%w: events to a request for everything", errAnswer)
		}
		for i := range a.Events {
			if i > 0 && a.Events[i].ID <= a.Events[i-1].ID || a.Events[i].ID == math.MaxUint64 {
				return fmt.Errorf("%w: event %d out of order", errAnswer, a.Events[i].ID)
			}
		}
	case event.RangeDump:
		if a.LastID == math.MaxUint64 {
			return fmt.Errorf("%w: a state after event %d", errAnswer, a.LastID)
		}
	case event.RangeTooNew:
		return nil
	case event.RangeInvalid:
		return fmt.Errorf("%w: range from %d to %d is refused", errAnswer, a.Start, a.End)
	default:
		return fmt.Errorf("%w: %s", errAnswer, a.Message)
	}
	for i := range a.Events {
		if a.Events[i].DPRank != q.DPRank {
			return fmt.Errorf("%w: an event of rank %d, not %d", errAnswer, a.Events[i].DPRank, q.DPRank)
		}
	}
	return nil
}

// answered takes an answer that passed checkAnswer.
func (f *Feed) answered(id int, a *event.RangeAnswer) {
	m := f.machine
	switch a.Kind {
	case event.RangeEvents:
		for i := range a.Events {
			ev := a.Events[i : i+1 : i+1]
			m.replayed(f.now(), id, batch{seq: ev[0].ID, queried: true, events: ev, clears: i == 0 && ev[0].Kind == event.Cleared})
		}
		m.replayEnd(f.now(), id)
	case event.RangeDump:
		m.dumped(f.now(), id, batch{seq: a.LastID, queried: true, events: a.Events})
	case event.RangeTooNew:
		m.tooNew(f.now(), id, a.Newest)
	}
}
