package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// whole gives a cursor over a payload that is one value of at most so many bytes. Errors: ErrRange.
func whole(payload []byte, most int) (*cursor, error) {
	if len(payload) > most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrRange, len(payload), most)
	}
	end, err := skip(payload, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: it %w", ErrRange, err)
	}
	if end != len(payload) {
		return nil, fmt.Errorf("%w: %d bytes follow it", ErrRange, len(payload)-end)
	}
	c := newCursor()
	c.reset(payload)
	return c, nil
}

// DecodeRangeQuery reads a query. Fields that are not known are passed over; one that asks for anything but recovery is
// refused. Errors: ErrRange.
func DecodeRangeQuery(payload []byte) (event.RangeQuery, error) {
	c, err := whole(payload, MaxRangeQueryBytes)
	if err != nil {
		return event.RangeQuery{}, err
	}
	var q event.RangeQuery
	err = c.fields(func(key string) (_ bool, err error) {
		switch key {
		case "worker_id":
			q.WorkerID, err = c.uint(math.MaxUint64)
		case "dp_rank":
			var n uint64
			n, err = c.uint(math.MaxUint32)
			q.DPRank = uint32(n)
		case "start_event_id":
			q.Start, q.HasStart, err = c.optional()
		case "end_event_id":
			q.End, q.HasEnd, err = c.optional()
		case "kind":
			var view []byte
			if view, err = c.bytes(classString); err == nil && string(view) != "recovery" {
				err = fmt.Errorf("is %.32q, expected recovery", view)
			}
		default:
			return false, nil
		}
		return true, err
	}, "worker_id", "dp_rank")
	if err != nil {
		return event.RangeQuery{}, fmt.Errorf("%w: %w", ErrRange, err)
	}
	return q, nil
}

func (c *cursor) optional() (v uint64, has bool, err error) {
	if c.null() {
		return 0, false, nil
	}
	v, err = c.uint(math.MaxUint64)
	return v, err == nil, err
}

// DecodeRangeAnswer reads the answer to a query for a rank. It shares no memory with the payload. Fields that are not
// known are passed over. Events whose blocks are not the worker's own are counted in Skipped. A dump that is not to replace
// everything comes out as one that failed, since it cannot be used alone. An answer of a kind that is not known is an error.
// Errors: ErrRange; ErrForeign if an event is of another rank.
func DecodeRangeAnswer(payload []byte, rank worker.Rank) (*event.RangeAnswer, error) {
	c, err := whole(payload, MaxRangeAnswerBytes)
	if err != nil {
		return nil, err
	}
	d := rangeDecoder{cursor: c, rank: rank}
	if err := d.read(); err != nil {
		if !errors.Is(err, ErrForeign) {
			err = fmt.Errorf("%w: %w", ErrRange, err)
		}
		return nil, err
	}
	return &d.answer, nil
}

// rangeDecoder reads one answer.
type rangeDecoder struct {
	*cursor
	rank   worker.Rank
	answer event.RangeAnswer
	room   []event.Block // for blocks to come, so that small events do not allocate each
}

func (d *rangeDecoder) read() error {
	if n, err := d.pairs(); err != nil {
		return err
	} else if n != 1 {
		return fmt.Errorf("%d kinds of answer, expected 1", n)
	}
	view, err := d.bytes(classString)
	if err != nil {
		return fmt.Errorf("the kind of answer %w", err)
	}
	a := &d.answer
	switch string(view) {
	case nameEvents:
		a.Kind = event.RangeEvents
		return d.list("events", "last_event_id")
	case nameDump:
		a.Kind = event.RangeDump
		return d.list("events", "last_event_id")
	case nameDumpFailed:
		a.Kind = event.RangeDumpFailed
		return d.list("last_event_id", "message")
	case nameTooNew:
		a.Kind = event.RangeTooNew
		return d.tooNew()
	case nameInvalid:
		a.Kind = event.RangeInvalid
		return d.invalid()
	case nameError:
		a.Kind = event.RangeError
		a.Message, err = d.message()
		return err
	}
	return fmt.Errorf("an answer of kind %.32q", view)
}

// maxMessage bounds a text meant for people.
const maxMessage = 4 << 10

func (d *rangeDecoder) message() (string, error) {
	s, err := d.text(math.MaxInt)
	return s[:min(len(s), maxMessage)], err
}

// list reads the fields of answers with events.
func (d *rangeDecoder) list(needed ...string) error {
	a := &d.answer
	return d.fields(func(key string) (_ bool, err error) {
		switch key {
		case "events":
			err = d.events()
		case "last_event_id":
			a.LastID, err = d.uint(math.MaxUint64)
		case "message":
			a.Message, err = d.message()
		case "reset_scope":
			err = d.scope()
		default:
			return false, nil
		}
		return true, err
	}, needed...)
}

// scope reads what a dump replaces: the text "all", or anything else for a part.
func (d *rangeDecoder) scope() error {
	if d.class() == classString {
		if view, err := d.bytes(classString); err != nil || string(view) == "all" {
			return err
		}
	} else if err := d.skip(); err != nil {
		return err
	}
	d.answer.Kind, d.answer.Message = event.RangeDumpFailed, "the dump is of one residency domain only"
	return nil
}

func (d *rangeDecoder) tooNew() error {
	a := &d.answer
	return d.fields(func(key string) (_ bool, err error) {
		switch key {
		case "requested_start":
			a.Start, a.HasStart, err = d.optional()
		case "requested_end":
			a.End, a.HasEnd, err = d.optional()
		case "newest_available":
			a.Newest, err = d.uint(math.MaxUint64)
		default:
			return false, nil
		}
		return true, err
	}, "newest_available")
}

func (d *rangeDecoder) invalid() error {
	a := &d.answer
	a.HasStart, a.HasEnd = true, true
	return d.fields(func(key string) (_ bool, err error) {
		switch key {
		case "start_id":
			a.Start, err = d.uint(math.MaxUint64)
		case "end_id":
			a.End, err = d.uint(math.MaxUint64)
		default:
			return false, nil
		}
		return true, err
	}, "start_id", "end_id")
}

// events reads a list of events. It grows with what was read: an element may claim to be there in one byte.
func (d *rangeDecoder) events() error {
	n, err := d.array()
	if err != nil {
		return err
	}
	for i := range n {
		ev, own, err := d.routerEvent()
		switch {
		case err != nil:
			return fmt.Errorf("[%d] %w", i, err)
		case own:
			d.answer.Events = append(d.answer.Events, ev)
		default:
			d.answer.Skipped++
		}
	}
	return nil
}

// routerEvent reads an event, and tells whether its blocks are the worker's own.
func (d *rangeDecoder) routerEvent() (ev event.Event, own bool, err error) {
	own, tier := true, event.Device
	err = d.fields(func(key string) (_ bool, err error) {
		switch key {
		case "worker_id":
			var id uint64
			if id, err = d.uint(math.MaxUint64); err == nil && id != d.rank.ID {
				err = fmt.Errorf("%w: worker %d, expected %d", ErrForeign, id, d.rank.ID)
			}
		case "storage_tier":
			tier, err = d.tier()
		case "residency_domain":
			own, err = d.domain()
		case "event":
			ev, err = d.event()
		default:
			return false, nil
		}
		return true, err
	}, "worker_id", "event")
	ev.Tier = tier
	return ev, own || ev.Kind == event.Cleared, err
}

func (d *rangeDecoder) tier() (event.Tier, error) {
	view, err := d.bytes(classString)
	if err != nil {
		return 0, err
	}
	for t := event.Device; t <= event.External; t++ {
		if string(view) == t.String() {
			return t, nil
		}
	}
	return 0, fmt.Errorf("is %.32q, expected device, host_pinned, disk or external", view)
}

// domain tells whether a residency domain is the worker. Anything else, nil and numbers too, is one that is not supported.
func (d *rangeDecoder) domain() (bool, error) {
	if d.class() != classString {
		return false, d.skip()
	}
	view, err := d.bytes(classString)
	return string(view) == "worker", err
}

func (d *rangeDecoder) event() (ev event.Event, err error) {
	err = d.fields(func(key string) (_ bool, err error) {
		switch key {
		case "event_id":
			ev.ID, err = d.uint(math.MaxUint64)
		case "data":
			err = d.data(&ev)
		case "dp_rank":
			var n uint64
			n, err = d.uint(math.MaxUint32)
			ev.DPRank = uint32(n)
		default:
			return false, nil
		}
		return true, err
	}, "event_id", "data")
	if err == nil && ev.DPRank != d.rank.DPRank {
		err = fmt.Errorf("%w: rank %d, expected %d", ErrForeign, ev.DPRank, d.rank.DPRank)
	}
	return ev, err
}

func (d *rangeDecoder) data(ev *event.Event) error {
	if d.class() == classString {
		view, err := d.bytes(classString)
		if err == nil && string(view) != "cleared" {
			err = fmt.Errorf("is %.32q, expected cleared", view)
		}
		ev.Kind = event.Cleared
		return err
	}
	if n, err := d.pairs(); err != nil {
		return err
	} else if n != 1 {
		return fmt.Errorf("has %d kinds, expected 1", n)
	}
	view, err := d.bytes(classString)
	if err != nil {
		return err
	}
	switch string(view) {
	case "stored":
		ev.Kind = event.Stored
		return d.stored(ev)
	case "removed":
		ev.Kind = event.Removed
		return d.removed(ev)
	}
	return fmt.Errorf("is of kind %.32q, expected stored, removed or cleared", view)
}

func (d *rangeDecoder) removed(ev *event.Event) error {
	return d.fields(func(key string) (bool, error) {
		if key != "block_hashes" {
			return false, nil
		}
		n, err := d.array()
		if err != nil {
			return true, err
		}
		ev.Removed = make([]block.EngineHash, n) // each is a byte or more of the payload
		pos := d.pos()
		if pos, err = hashes(ev.Removed, d.b, pos); err == nil {
			d.seek(pos)
		}
		return true, err
	}, "block_hashes")
}

func (d *rangeDecoder) stored(ev *event.Event) error {
	return d.fields(func(key string) (_ bool, err error) {
		switch key {
		case "parent_hash":
			if ev.HasParent = !d.null(); ev.HasParent {
				var h uint64
				h, err = d.hash()
				ev.Parent = block.EngineHash(h)
			}
		case "blocks":
			err = d.blocks(ev)
		default:
			return false, nil
		}
		return true, err
	}, "blocks")
}

// hash reads 64 bits, of whatever sign.
func (d *rangeDecoder) hash() (uint64, error) {
	h, _, err := d.integer()
	return h, err
}

// shortestBlock is the bytes of the least block there can be: two hashes, and their names.
const shortestBlock = 1 + 11 + 1 + 12 + 1

func (d *rangeDecoder) blocks(ev *event.Event) error {
	n, err := d.array()
	if err != nil {
		return err
	}
	left := (len(d.b) - d.pos()) / shortestBlock
	if n > left {
		return fmt.Errorf("are said to be %d, and at most %d can follow", n, left)
	}
	if n > len(d.room) {
		d.room = make([]event.Block, max(n, min(left, slabSize)))
	}
	ev.Blocks, d.room = d.room[:n:n], d.room[n:]
	pos := d.pos()
	for i := range ev.Blocks {
		next, ok := plainBlock(d.b, pos, &ev.Blocks[i])
		if !ok {
			d.seek(pos)
			if err := d.block(&ev.Blocks[i]); err != nil {
				return fmt.Errorf("[%d] %w", i, err)
			}
			next = d.pos()
		}
		pos = next
	}
	d.seek(pos)
	return nil
}

// plainBlock reads a block laid out as AppendRangeAnswer does, from the bytes themselves: they are most of a dump.
func plainBlock(b []byte, pos int, to *event.Block) (next int, ok bool) {
	if !bytes.HasPrefix(b[pos:], []byte(blockBegins)) {
		return 0, false
	}
	engine, pos, err := number(b, pos+len(blockBegins))
	if err != nil || !bytes.HasPrefix(b[pos:], []byte(blockContent)) {
		return 0, false
	}
	content, pos, err := number(b, pos+len(blockContent))
	if err != nil || !bytes.HasPrefix(b[pos:], []byte(blockEnds)) {
		return 0, false
	}
	*to = event.Block{Engine: block.EngineHash(engine), Hash: block.Hash(content)}
	return pos + len(blockEnds), true
}

func (d *rangeDecoder) block(to *event.Block) error {
	return d.fields(func(key string) (bool, error) {
		if key != "block_hash" && key != "tokens_hash" {
			return false, nil
		}
		h, err := d.hash()
		if key == "block_hash" {
			to.Engine = block.EngineHash(h)
		} else {
			to.Hash = block.Hash(h)
		}
		return true, err
	}, "block_hash", "tokens_hash")
}
