package replay

import (
	"slices"
	"sort"

	"github.com/dynamo-go/dynamo-go/core/event"
)

// Range answers a query; whose rank it names is not looked at. In this order:
//
//  1. an end below the start: RangeInvalid
//  2. no start: RangeDump, whatever the end
//  3. nothing recorded yet: RangeDump, of nothing, with LastID 0
//  4. a start after the newest event: RangeTooNew, End being the newest if none was given
//  5. a start before the oldest event kept: RangeDump
//  6. else RangeEvents: from the start, or the next id there is, to the newest; but from the last Cleared, if there is one
//
// The answer is the caller's to keep and to change, but for the blocks and names that its events refer to: these are shared with others who
// ask, and never change. Copying them too would cost a collected heap more than all else (measured: 24 us for 100 events of 15.8 blocks, 6 us like this).
func (l *Log) Range(q *event.RangeQuery) event.RangeAnswer {
	a := l.shared(q)
	a.Events = slices.Clone(a.Events)
	return a
}

// shared answers with events that others who ask get too.
func (l *Log) shared(q *event.RangeQuery) event.RangeAnswer {
	if q.HasStart && q.HasEnd && q.End < q.Start {
		return event.RangeAnswer{Kind: event.RangeInvalid, HasStart: true, Start: q.Start, HasEnd: true, End: q.End}
	}
	if q.HasStart {
		if a, ok := l.kept(q); ok {
			return a
		}
	}
	return l.whole()
}

// Kept tells whether a query with a start would be answered without a dump. Dumps cost much more, so who serves queries may
// want to bound how many are on their way at the same time.
func (l *Log) Kept(start uint64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	latest := l.latest()
	return len(latest) > 0 && start >= latest[0].ID
}

// kept answers from the events kept; false if that takes a dump.
func (l *Log) kept(q *event.RangeQuery) (event.RangeAnswer, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	last, any := l.last()
	events := l.latest()
	switch {
	case !any:
		return event.RangeAnswer{}, false
	case q.Start > last:
		a := event.RangeAnswer{Kind: event.RangeTooNew, HasStart: true, Start: q.Start, HasEnd: true, End: last, Newest: last}
		if q.HasEnd {
			a.End = q.End
		}
		return a, true
	case q.Start < events[0].ID:
		return event.RangeAnswer{}, false
	}
	start := max(q.Start, l.clear)
	from := sort.Search(len(events), func(i int) bool { return events[i].ID >= start })
	return event.RangeAnswer{Kind: event.RangeEvents, Events: events[from:], LastID: last}, true
}

// whole answers with everything the rank holds. Who asks while a dump is made waits, and shares it.
func (l *Log) whole() event.RangeAnswer {
	l.build.Lock()
	defer l.build.Unlock()
	l.mu.RLock()
	defer l.mu.RUnlock()
	if a, ok := l.cached(); ok {
		return a
	}
	dump := l.cfg.Index.Dump(slot, 0)
	if l.cfg.Lower != nil {
		for t := event.HostPinned; t <= event.External; t++ {
			dump = append(dump, l.cfg.Lower.Dump(slot, t, uint64(len(dump)))...)
		}
	}
	for i := range dump {
		dump[i].DPRank = l.cfg.DPRank
	}
	last, any := l.last()
	if any {
		l.dump, l.base, l.dumped = dump, last, true
	}
	return event.RangeAnswer{Kind: event.RangeDump, Events: slices.Clip(dump), LastID: last}
}

// cached gives the dump made last and the events since, if these are at most half of what is kept: then all are there.
func (l *Log) cached() (event.RangeAnswer, bool) {
	last, _ := l.last()
	if !l.dumped || last-l.base > uint64(l.cfg.Events/2) {
		return event.RangeAnswer{}, false
	}
	since := l.array[len(l.array)-int(last-l.base):]
	return event.RangeAnswer{Kind: event.RangeDump, Events: append(slices.Clip(l.dump), since...), LastID: last}, true
}
