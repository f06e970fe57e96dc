package tally

import (
	"errors"
	"sync/atomic"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
)

// Status is what became of an event.
type Status uint8

// Statuses.
const (
	OK Status = iota
	ParentNotFound
	BlockNotFound // a removal named a block that the rank does not hold; the rest of it was applied
	InvalidBlocks // blocks do not form a chain
	Refused       // for another reason
	Statuses
)

// eventKinds is one more than the last kind of event.
const eventKinds = int(event.Cleared) + 1

// Events counts events applied to an index. The zero value is empty; it is safe for concurrent use.
type Events struct {
	ends                                          [eventKinds][Statuses]atomic.Uint64
	warnings                                      atomic.Uint64
	stored, duplicate, removed, unknown, rejected atomic.Uint64
}

// Count counts one event and what the index made of it.
func (e *Events) Count(kind event.Kind, applied index.Applied, err error) {
	if int(kind) < eventKinds {
		e.ends[kind][status(applied, err)].Add(1)
	}
	if applied.Duplicate > 0 && applied.Stored == 0 {
		e.warnings.Add(1)
	}
	for _, c := range [...]struct {
		n  int
		to *atomic.Uint64
	}{
		{applied.Stored, &e.stored}, {applied.Duplicate, &e.duplicate}, {applied.Removed, &e.removed},
		{applied.Unknown, &e.unknown}, {applied.Refused, &e.rejected},
	} {
		if c.n > 0 {
			c.to.Add(uint64(c.n))
		}
	}
}

func status(applied index.Applied, err error) Status {
	switch {
	case err == nil && applied.Unknown > 0:
		return BlockNotFound
	case err == nil:
		return OK
	case errors.Is(err, index.ErrUnknownParent):
		return ParentNotFound
	case errors.Is(err, index.ErrBadChain):
		return InvalidBlocks
	}
	return Refused
}

// EventCounts is what Events counted.
type EventCounts struct {
	Ends            [eventKinds][Statuses]uint64 // events, by event.Kind and Status
	DuplicateStores uint64                       // stores that only named blocks the rank held

	// Blocks: newly held; stored while held; no longer held; removed while not held; in stores that were refused.
	Stored, Duplicate, Removed, Unknown, Rejected uint64
}

// Counts tells what was counted so far.
func (e *Events) Counts() EventCounts {
	out := EventCounts{
		DuplicateStores: e.warnings.Load(), Stored: e.stored.Load(), Duplicate: e.duplicate.Load(), Removed: e.removed.Load(),
		Unknown: e.unknown.Load(), Rejected: e.rejected.Load(),
	}
	for kind := range e.ends {
		for s := range e.ends[kind] {
			out.Ends[kind][s] = e.ends[kind][s].Load()
		}
	}
	return out
}
