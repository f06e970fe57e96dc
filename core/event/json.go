package event

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/block"
)

// ErrJSON says that a text is not an event in Dynamo's JSON form. The error names what was found and what was expected;
// nothing of the text can be used.
var ErrJSON = errors.New("invalid event JSON")

// ErrResidency marks a RouterEvent whose blocks are not the worker's own: count it and leave it out.
var ErrResidency = errors.New("unsupported residency domain")

// RouterEvent is an event with the worker it came from, an element of a dump.
type RouterEvent struct {
	WorkerID uint64
	Event    Event
	Err      error // ErrResidency, or nil
}

// ParseKvCacheEvent reads an event:
//
//	{"event_id": 1, "data": {"stored": {"parent_hash": null, "start_position": null, "blocks":
//	  [{"block_hash": 11, "tokens_hash": 22, "mm_extra_info": null}]}}, "dp_rank": 0}
//
// with {"removed": {"block_hashes": [11]}} or "cleared" as other data. A "storage_tier", which Dynamo has in a RouterEvent
// only, is read if it is there. event_id and dp_rank default to 0, and what may be
// null may be missing. Hashes are integers from -2^63 to 2^64-1, negative ones reinterpreted as unsigned. Unknown keys
// are ignored; start_position and mm_extra_info are not kept.
func ParseKvCacheEvent(text []byte) (Event, error) {
	r, err := newReader(text)
	if err != nil {
		return Event{}, err
	}
	ev := r.event()
	if r.err != nil {
		return Event{}, r.err
	}
	return ev, nil
}

// ParseRouterEvents reads a list of events with their workers, as AppendRouterEvent writes them.
func ParseRouterEvents(text []byte) ([]RouterEvent, error) {
	r, err := newReader(text)
	if err != nil {
		return nil, err
	}
	var list []RouterEvent
	r.array("list of events", func() { list = append(list, r.routerEvent()) })
	if r.err != nil {
		return nil, r.err
	}
	return list, nil
}

func (r *reader) routerEvent() (re RouterEvent) {
	var tier Tier
	var got struct{ worker, event, tier bool }
	r.object("router event", func(key []byte) {
		switch string(key) {
		case "worker_id":
			got.worker = true
			re.WorkerID = r.uint("worker_id", math.MaxUint64)
		case "storage_tier":
			got.tier = true
			tier = r.tier()
		case "residency_domain":
			if domain := r.value(); string(domain) != `"worker"` {
				re.Err = fmt.Errorf("%w: %s", ErrResidency, clip(domain))
			}
		case "event":
			got.event = true
			re.Event = r.event()
		default:
			r.value()
		}
	})
	if !got.worker || !got.event {
		r.fail("router event without worker_id or event")
	}
	if got.tier {
		re.Event.Tier = tier
	}
	return re
}

func (r *reader) tier() Tier {
	text := r.value()
	for t := Device; t <= External; t++ {
		if string(text) == `"`+t.String()+`"` {
			return t
		}
	}
	r.fail("storage_tier is %s, expected device, host_pinned, disk or external", clip(text))
	return Device
}

func (r *reader) event() (ev Event) {
	hasData := false
	r.object("event", func(key []byte) {
		switch string(key) {
		case "event_id":
			ev.ID = r.uint("event_id", math.MaxUint64)
		case "dp_rank":
			ev.DPRank = uint32(r.uint("dp_rank", math.MaxUint32))
		case "storage_tier":
			ev.Tier = r.tier()
		case "data":
			hasData = true
			r.data(&ev)
		default:
			r.value()
		}
	})
	if !hasData {
		r.fail("event without data")
	}
	return ev
}

// data reads what happened: "cleared", or an object with the one key that says it.
func (r *reader) data(ev *Event) {
	if r.peek() == '"' {
		if text := r.value(); string(text) != `"cleared"` {
			r.fail("data is %s, expected stored, removed or cleared", clip(text))
		}
		ev.Kind = Cleared
		return
	}
	r.object("data", func(key []byte) {
		if ev.Kind != 0 {
			r.fail("data says %s besides %s", clip(key), ev.Kind)
		}
		switch string(key) {
		case "stored":
			ev.Kind = Stored
			r.stored(ev)
		case "removed":
			ev.Kind = Removed
			r.removed(ev)
		case "cleared":
			ev.Kind = Cleared
			r.value()
		default:
			r.fail("data is %s, expected stored, removed or cleared", clip(key))
		}
	})
	if ev.Kind == 0 {
		r.fail("data is empty, expected stored, removed or cleared")
	}
}

func (r *reader) stored(ev *Event) {
	hasBlocks := false
	r.object("stored", func(key []byte) {
		switch string(key) {
		case "parent_hash":
			if !r.null() {
				ev.HasParent, ev.Parent = true, block.EngineHash(r.hash("parent_hash"))
			}
		case "start_position":
			if !r.null() {
				r.uint("start_position", math.MaxUint32)
			}
		case "blocks":
			hasBlocks = true
			r.array("blocks", func() { ev.Blocks = append(ev.Blocks, r.block()) })
		default:
			r.value()
		}
	})
	if !hasBlocks {
		r.fail("stored without blocks")
	}
}

func (r *reader) block() (b Block) {
	var got struct{ engine, hash bool }
	r.object("block", func(key []byte) {
		switch string(key) {
		case "block_hash":
			got.engine = true
			b.Engine = block.EngineHash(r.hash("block_hash"))
		case "tokens_hash":
			got.hash = true
			b.Hash = block.Hash(r.hash("tokens_hash"))
		default:
			r.value()
		}
	})
	if !got.engine || !got.hash {
		r.fail("block without block_hash or tokens_hash")
	}
	return b
}

func (r *reader) removed(ev *Event) {
	hasHashes := false
	r.object("removed", func(key []byte) {
		if string(key) != "block_hashes" {
			r.value()
			return
		}
		hasHashes = true
		r.array("block_hashes", func() { ev.Removed = append(ev.Removed, block.EngineHash(r.hash("block_hashes"))) })
	})
	if !hasHashes {
		r.fail("removed without block_hashes")
	}
}

// AppendKvCacheEvent appends the event as ParseKvCacheEvent reads it, with every key that Dynamo writes, in its order. An
// event of no kind, which none of this library's parsers gives, has null for data.
func AppendKvCacheEvent(dst []byte, ev *Event) []byte {
	dst = strconv.AppendUint(append(dst, `{"event_id":`...), ev.ID, 10)
	dst = append(dst, `,"data":`...)
	switch ev.Kind {
	case Stored:
		dst = appendStored(dst, ev)
	case Removed:
		dst = append(dst, `{"removed":{"block_hashes":[`...)
		for i, h := range ev.Removed {
			dst = strconv.AppendUint(comma(dst, i), uint64(h), 10)
		}
		dst = append(dst, "]}}"...)
	case Cleared:
		dst = append(dst, `"cleared"`...)
	default:
		dst = append(dst, "null"...)
	}
	dst = strconv.AppendUint(append(dst, `,"dp_rank":`...), uint64(ev.DPRank), 10)
	return append(dst, '}')
}

func appendStored(dst []byte, ev *Event) []byte {
	dst = append(dst, `{"stored":{"parent_hash":`...)
	if ev.HasParent {
		dst = strconv.AppendUint(dst, uint64(ev.Parent), 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"start_position":null,"blocks":[`...)
	for i, b := range ev.Blocks {
		dst = strconv.AppendUint(append(comma(dst, i), `{"block_hash":`...), uint64(b.Engine), 10)
		dst = strconv.AppendUint(append(dst, `,"tokens_hash":`...), uint64(b.Hash), 10)
		dst = append(dst, `,"mm_extra_info":null}`...)
	}
	return append(dst, "]}}"...)
}

// AppendRouterEvent appends the event as an element of Dynamo's dump.
func AppendRouterEvent(dst []byte, re *RouterEvent) []byte {
	dst = strconv.AppendUint(append(dst, `{"worker_id":`...), re.WorkerID, 10)
	dst = append(append(dst, `,"storage_tier":"`...), re.Event.Tier.String()...)
	dst = append(dst, `","residency_domain":"worker","event":`...)
	return append(AppendKvCacheEvent(dst, &re.Event), '}')
}

// comma separates all elements but the first.
func comma(dst []byte, i int) []byte {
	if i == 0 {
		return dst
	}
	return append(dst, ',')
}
