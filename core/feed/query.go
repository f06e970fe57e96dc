package feed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// errAnswer says that an indexer's answer cannot be used. It is asked again, a bounded number of times.
var errAnswer = errors.New("answer of the local indexer cannot be used")

// query asks a local indexer.
func (r *request) query(ctx context.Context, t *turn, endpoint string, q *event.RangeQuery, o zmq.Options) error {
	a := answerReader{query: q, now: time.Now, reserve: func(bytes int64) error { return t.reserve(ctx, bytes) }}
	o.MaxMessage = max(o.MaxMessage, 2*wire.RangeChunkBytes)
	return converse(ctx, t, endpoint, wire.AppendRangeQuery(nil, q), o, func(frames [][]byte) (more bool) {
		x := a.reply(frames)
		if x.kind == replyAnswer {
			x.free = t.free
			t.given = r.give(ctx, x)
			return false
		}
		return r.give(ctx, x) && x.kind == replyPart
	})
}

// How fast an answer has to come: at least leastRate bytes a second, but for slack.
const (
	slack     = 5 * time.Second
	leastRate = 1 << 20
)

// answerReader puts the messages of an answer together.
type answerReader struct {
	query    *event.RangeQuery
	receiver wire.RangeReceiver
	now      func() time.Time
	reserve  func(bytes int64) error // called once, before anything is kept
	began    time.Time
}

// reply says what the next message is: a part, the whole answer, or that it cannot be used.
func (a *answerReader) reply(frames [][]byte) reply {
	if a.began.IsZero() {
		total, err := wire.RangeAnswerSize(frames)
		if err == nil {
			err = a.reserve(int64(total))
		}
		if err != nil {
			return reply{kind: replyFailed, err: err}
		}
		a.began = a.now()
	}
	done, err := a.receiver.Add(frames)
	if err != nil {
		return reply{kind: replyFailed, err: err}
	}
	if !done {
		due := time.Duration(a.receiver.Len()) * time.Second / leastRate
		if took := a.now().Sub(a.began); took > due+slack {
			return reply{kind: replyFailed, err: fmt.Errorf("%w: %d bytes within %v", errAnswer, a.receiver.Len(), took)}
		}
		return reply{kind: replyPart}
	}
	publisher, bytes := a.receiver.Answer()
	answer, err := wire.DecodeRangeAnswer(bytes, worker.Rank{ID: a.query.WorkerID, DPRank: a.query.DPRank})
	if err == nil {
		err = checkAnswer(a.query, answer)
	}
	if err != nil {
		return reply{kind: replyFailed, err: err}
	}
	return reply{kind: replyAnswer, publisher: publisher, answer: answer}
}

// checkAnswer refuses what does not answer the query: nothing of it is used then.
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
	return nil
}

// answered takes an answer that passed checkAnswer.
func (f *Feed) answered(id int, publisher uint64, a *event.RangeAnswer) {
	m := f.machine
	f.counts.add(countForeign, a.Skipped)
	if !m.answerer(f.now(), id, publisher, a.Kind == event.RangeDump) {
		return
	}
	switch a.Kind {
	case event.RangeEvents:
		for i := range a.Events {
			ev := a.Events[i : i+1 : i+1]
			m.replayed(f.now(), id, batch{seq: ev[0].ID, queried: true, events: ev, clears: i == 0 && ev[0].Kind == event.Cleared,
				content: contents(0, &ev[0], f.applier.seed)})
		}
		m.replayEnd(f.now(), id)
	case event.RangeDump:
		m.dumped(f.now(), id, batch{seq: a.LastID, queried: true, events: a.Events})
	case event.RangeTooNew:
		m.tooNew(f.now(), id, a.Newest)
	}
}
