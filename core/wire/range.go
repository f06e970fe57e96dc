package wire

import (
	"errors"

	"github.com/dynamo-go/dynamo-go/core/event"
)

// Bounds of range queries and their answers. A block is at most 63 bytes of an answer: 4 million blocks fit.
const (
	MaxRangeQueryBytes  = 4 << 10
	MaxRangeAnswerBytes = 256 << 20
)

var (
	// ErrRange says that bytes are no range query or no answer to one, or one beyond the bounds.
	ErrRange = errors.New("bad range message")
	// ErrForeign says that an answer has an event of another worker or rank than the one asked for: nothing of it can be trusted.
	ErrForeign = errors.New("event of another worker rank in a range answer")
)

// The names that Dynamo gives the kinds of answers.
const (
	nameEvents     = "Events"
	nameDump       = "TreeDump"
	nameDumpFailed = "TreeDumpFailed"
	nameTooNew     = "TooNew"
	nameInvalid    = "InvalidRange"
	nameError      = "Error"
)

// AppendRangeQuery appends a query as Dynamo's routers send it: a map.
func AppendRangeQuery(dst []byte, q *event.RangeQuery) []byte {
	dst = appendUint(appendString(appendMap(dst, 6), "worker_id"), q.WorkerID)
	dst = appendUint(appendString(dst, "dp_rank"), uint64(q.DPRank))
	dst = appendOptional(appendString(dst, "start_event_id"), q.HasStart, q.Start)
	dst = appendOptional(appendString(dst, "end_event_id"), q.HasEnd, q.End)
	dst = appendBool(appendString(dst, "supports_tree_dump_failed"), true)
	return appendString(appendString(dst, "kind"), "recovery")
}

// AppendRangeAnswer appends an answer as Dynamo's workers send it, or nil for an answer of no kind: a map from the kind's name to what belongs to it. The events get the
// worker's id, those of the device and of lower tiers the residency domain "worker"; one that clears has none, and so means all.
func AppendRangeAnswer(dst []byte, workerID uint64, a *event.RangeAnswer) []byte {
	switch a.Kind {
	case event.RangeEvents:
		dst = appendMap(appendString(appendMap(dst, 1), nameEvents), 2)
		dst = appendEvents(dst, workerID, a.Events)
		return appendUint(appendString(dst, "last_event_id"), a.LastID)
	case event.RangeDump:
		dst = appendMap(appendString(appendMap(dst, 1), nameDump), 3)
		dst = appendEvents(dst, workerID, a.Events)
		dst = appendUint(appendString(dst, "last_event_id"), a.LastID)
		return appendString(appendString(dst, "reset_scope"), "all")
	case event.RangeDumpFailed:
		dst = appendMap(appendString(appendMap(dst, 1), nameDumpFailed), 2)
		dst = appendUint(appendString(dst, "last_event_id"), a.LastID)
		return appendString(appendString(dst, "message"), a.Message)
	case event.RangeTooNew:
		dst = appendMap(appendString(appendMap(dst, 1), nameTooNew), 3)
		dst = appendOptional(appendString(dst, "requested_start"), a.HasStart, a.Start)
		dst = appendOptional(appendString(dst, "requested_end"), a.HasEnd, a.End)
		return appendUint(appendString(dst, "newest_available"), a.Newest)
	case event.RangeInvalid:
		dst = appendMap(appendString(appendMap(dst, 1), nameInvalid), 2)
		dst = appendUint(appendString(dst, "start_id"), a.Start)
		return appendUint(appendString(dst, "end_id"), a.End)
	case event.RangeError:
		return appendString(appendString(appendMap(dst, 1), nameError), a.Message)
	}
	return appendNil(dst)
}

func appendOptional(dst []byte, has bool, v uint64) []byte {
	if !has {
		return appendNil(dst)
	}
	return appendUint(dst, v)
}

func appendEvents(dst []byte, workerID uint64, events []event.Event) []byte {
	dst = appendArray(appendString(dst, "events"), len(events))
	for i := range events {
		dst = appendRouterEvent(dst, workerID, &events[i])
	}
	return dst
}

// appendRouterEvent appends what Dynamo calls a RouterEvent.
func appendRouterEvent(dst []byte, workerID uint64, ev *event.Event) []byte {
	entries := 4
	if ev.Kind == event.Cleared {
		entries = 3
	}
	dst = appendUint(appendString(appendMap(dst, entries), "worker_id"), workerID)
	dst = appendString(appendString(dst, "storage_tier"), ev.Tier.String())
	if ev.Kind != event.Cleared {
		dst = appendString(appendString(dst, "residency_domain"), "worker")
	}
	dst = appendMap(appendString(dst, "event"), 3)
	dst = appendUint(appendString(dst, "event_id"), ev.ID)
	dst = appendString(dst, "data")
	switch ev.Kind {
	case event.Stored:
		dst = appendStored(dst, ev)
	case event.Removed:
		dst = appendMap(appendString(appendMap(dst, 1), "removed"), 1)
		dst = appendArray(appendString(dst, "block_hashes"), len(ev.Removed))
		for _, h := range ev.Removed {
			dst = appendUint(dst, uint64(h))
		}
	default:
		dst = appendString(dst, "cleared")
	}
	return appendUint(appendString(dst, "dp_rank"), uint64(ev.DPRank))
}

// A block is a map of three: these go before its engine hash, before its content hash, and after that.
const (
	blockBegins  = "\x83\xaablock_hash"
	blockContent = "\xabtokens_hash"
	blockEnds    = "\xadmm_extra_info\xc0"
)

func appendStored(dst []byte, ev *event.Event) []byte {
	dst = appendMap(appendString(appendMap(dst, 1), "stored"), 3)
	dst = appendOptional(appendString(dst, "parent_hash"), ev.HasParent, uint64(ev.Parent))
	dst = appendNil(appendString(dst, "start_position"))
	dst = appendArray(appendString(dst, "blocks"), len(ev.Blocks))
	for i := range ev.Blocks {
		dst = appendUint(append(dst, blockBegins...), uint64(ev.Blocks[i].Engine))
		dst = appendUint(append(dst, blockContent...), uint64(ev.Blocks[i].Hash))
		dst = append(dst, blockEnds...)
	}
	return dst
}
