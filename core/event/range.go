package event

// RangeQuery asks what happened to one rank. Ids are those of Event.ID.
type RangeQuery struct {
	WorkerID uint64
	DPRank   uint32

	HasStart bool   // Start is the first event wanted; without it everything is, as a dump
	Start    uint64 //
	HasEnd   bool   // End is the last event wanted. It does not shorten an answer, which goes on to the newest event
	End      uint64 //
}

// RangeKind says what a RangeAnswer is.
type RangeKind uint8

// The kinds of answers; the zero RangeKind is none. Fields that a kind does not name mean nothing for it.
const (
	// RangeEvents: Events are those asked for, in the order of their ids, up to LastID. They add to what the asker has. Where
	// one of them clears the rank, what came before the last such one is left out: the first may have an id above Start.
	RangeEvents RangeKind = iota + 1
	// RangeDump: what the asker has is to be replaced by what Events store. It is the state after the event LastID. Ids of
	// Events say nothing.
	RangeDump
	// RangeDumpFailed: a dump was due and could not be made; Message says why. Ask again later.
	RangeDumpFailed
	// RangeTooNew: the query, repeated in HasStart, Start and End, begins after the newest event, which is Newest.
	RangeTooNew
	// RangeInvalid: the query, repeated in Start and End, ends before it begins.
	RangeInvalid
	// RangeError: the query cannot be answered; Message says why.
	RangeError
)

// RangeAnswer answers a RangeQuery.
type RangeAnswer struct {
	Kind   RangeKind
	Events []Event
	LastID uint64

	HasStart, HasEnd bool
	Start, End       uint64
	Newest           uint64
	Message          string

	// Skipped counts events that stood in a message and are not in Events, because their blocks are not the worker's own.
	Skipped int
}
