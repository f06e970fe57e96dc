// Package model is the literal truth about a log: everything that was ever recorded, and answers worked out from it.
package model

import (
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	truth "github.com/dynamo-go/dynamo-go/core/index/model"
)

// Log keeps all events, of the device only.
type Log struct {
	limit   int
	history []event.Event
}

// New returns a model that answers as if only the last limit events were kept.
func New(limit int) *Log { return &Log{limit: limit} }

// Held gives an index of what is held after all events.
func (l *Log) Held() index.Index {
	x := truth.New()
	for i := range l.history {
		if _, err := x.Apply(0, &l.history[i], index.Set); err != nil {
			panic(err) // it would not have been recorded
		}
	}
	return x
}

// Record remembers an event if it is neither stale nor refused, and tells whether.
func (l *Log) Record(ev event.Event) bool {
	if n := len(l.history); n > 0 && ev.ID <= l.history[n-1].ID {
		return false
	}
	if _, err := l.Held().Apply(0, &ev, index.Set); err != nil {
		return false
	}
	l.history = append(l.history, ev)
	return true
}

// Range gives the answer, of a dump only its kind and LastID.
func (l *Log) Range(q *event.RangeQuery) event.RangeAnswer {
	kept := l.history[max(0, len(l.history)-l.limit):]
	if q.HasStart && q.HasEnd && q.End < q.Start {
		return event.RangeAnswer{Kind: event.RangeInvalid, HasStart: true, Start: q.Start, HasEnd: true, End: q.End}
	}
	if len(kept) == 0 {
		return event.RangeAnswer{Kind: event.RangeDump}
	}
	first, last := kept[0].ID, kept[len(kept)-1].ID
	if !q.HasStart {
		return event.RangeAnswer{Kind: event.RangeDump, LastID: last}
	}
	if q.Start > last {
		end := last
		if q.HasEnd {
			end = q.End
		}
		return event.RangeAnswer{Kind: event.RangeTooNew, HasStart: true, Start: q.Start, HasEnd: true, End: end, Newest: last}
	}
	if q.Start < first {
		return event.RangeAnswer{Kind: event.RangeDump, LastID: last}
	}
	a := event.RangeAnswer{Kind: event.RangeEvents, LastID: last}
	for _, ev := range kept {
		if ev.ID < q.Start {
			continue
		}
		if ev.Kind == event.Cleared {
			a.Events = nil
		}
		a.Events = append(a.Events, ev)
	}
	return a
}
