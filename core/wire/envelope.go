package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// This file is the event plane of Dynamo's runtime: an envelope, and what is in it by topic.

// Topics of the event plane.
const (
	TopicKVEvents  = "kv-events"
	TopicMetrics   = "kv_metrics"
	TopicSequences = "active_sequences_events"
)

// MaxEnvelopeBytes bounds an envelope: a message of KV events has at most 8,192 blocks.
const MaxEnvelopeBytes = 16 << 20

// ErrEnvelope says that bytes are no event of the event plane, or one beyond the bounds.
var ErrEnvelope = errors.New("bad event message")

// Envelope is a message of the event plane.
type Envelope struct {
	Publisher   uint64
	Sequence    uint64 // counts the publisher's messages from 0
	PublishedMS uint64 // Unix time in milliseconds
	Topic       string
	Payload     []byte // decoded from a message: a view of it
}

// AppendEnvelope appends an envelope as a NATS message has it, and the last frame of a ZeroMQ message after five bytes.
func AppendEnvelope(dst []byte, e *Envelope) []byte {
	dst = appendUint(appendString(appendMap(dst, 5), "publisher_id"), e.Publisher)
	dst = appendUint(appendString(dst, "sequence"), e.Sequence)
	dst = appendUint(appendString(dst, "published_at"), e.PublishedMS)
	dst = appendString(appendString(dst, "topic"), e.Topic)
	return appendBytes(appendString(dst, "payload"), e.Payload)
}

// frameVersion begins the last frame of a ZeroMQ message; four bytes with the length of the rest follow.
const frameVersion = 1

// EventFrames gives the frames of a ZeroMQ message: topic, publisher, sequence, envelope.
func EventFrames(e *Envelope) [][]byte {
	const head = 5
	last := AppendEnvelope(make([]byte, head, head+96+len(e.Topic)+len(e.Payload)), e)
	last[0] = frameVersion
	binary.BigEndian.PutUint32(last[1:], uint32(len(last)-head))
	return [][]byte{[]byte(e.Topic), binary.BigEndian.AppendUint64(nil, e.Publisher), binary.BigEndian.AppendUint64(nil, e.Sequence), last}
}

// ParseEventFrames reads the frames of a ZeroMQ message; the ids of the frames and of the envelope must be the same. Errors: ErrEnvelope.
func ParseEventFrames(frames [][]byte) (Envelope, error) {
	if len(frames) != 4 || len(frames[1]) != 8 || len(frames[2]) != 8 || len(frames[3]) < 5 {
		return Envelope{}, fmt.Errorf("%w: %d frames, expected topic, 8 bytes, 8 bytes and a body", ErrEnvelope, len(frames))
	}
	body := frames[3]
	if n := binary.BigEndian.Uint32(body[1:]); body[0] != frameVersion || int64(n) != int64(len(body)-5) {
		return Envelope{}, fmt.Errorf("%w: frame of version %d with %d bytes of %d, expected version %d", ErrEnvelope, body[0], len(body)-5, n, frameVersion)
	}
	e, err := DecodeEnvelope(body[5:])
	if err != nil {
		return e, err
	}
	publisher, sequence := binary.BigEndian.Uint64(frames[1]), binary.BigEndian.Uint64(frames[2])
	if e.Publisher != publisher || e.Sequence != sequence || e.Topic != string(frames[0]) {
		return e, fmt.Errorf("%w: envelope of %d/%d/%.64q in frames of %d/%d/%.64q", ErrEnvelope, e.Publisher, e.Sequence, e.Topic, publisher, sequence, frames[0])
	}
	return e, nil
}

// DecodeEnvelope reads an envelope. Fields that are not known are passed over. Errors: ErrEnvelope.
func DecodeEnvelope(b []byte) (e Envelope, err error) {
	err = decodeMessage(b, func(c *cursor) error {
		return c.fields(func(key string) (_ bool, err error) {
			switch key {
			case "publisher_id":
				e.Publisher, err = c.uint(math.MaxUint64)
			case "sequence":
				e.Sequence, err = c.uint(math.MaxUint64)
			case "published_at":
				e.PublishedMS, err = c.uint(math.MaxUint64)
			case "topic":
				e.Topic, err = c.text(1024)
			case "payload":
				e.Payload, err = c.bytes(classBytes)
			default:
				return false, nil
			}
			return true, err
		}, "publisher_id", "sequence", "topic", "payload")
	})
	return e, err
}

// decodeMessage reads a message that is one value.
func decodeMessage(b []byte, read func(*cursor) error) error {
	c, err := whole(b, MaxEnvelopeBytes)
	if err == nil {
		err = read(c)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	return nil
}

// AppendKVEvents appends the payload of a KV event message: a list of events, whose ids and ranks are theirs.
func AppendKVEvents(dst []byte, workerID uint64, events []event.Event) []byte {
	dst = appendArray(dst, len(events))
	for i := range events {
		dst = appendRouterEvent(dst, workerID, &events[i])
	}
	return dst
}

// DecodeKVEvents reads the payload of a KV event message. It shares no memory with the payload. Events whose blocks are not the worker's own are
// kept with Kind 0: their ids count. Errors: ErrEnvelope; ErrForeign if an event is of another rank.
func DecodeKVEvents(payload []byte, rank worker.Rank) (events []event.Event, err error) {
	err = decodeMessage(payload, func(c *cursor) error {
		d := rangeDecoder{cursor: c, rank: rank}
		n, err := d.array()
		if err != nil {
			return err
		}
		for i := range n {
			ev, own, err := d.routerEvent()
			if err != nil {
				return fmt.Errorf("[%d] %w", i, err)
			}
			if !own {
				ev = event.Event{ID: ev.ID, DPRank: ev.DPRank}
			}
			events = append(events, ev)
		}
		return nil
	})
	return events, err
}

// ActiveLoad is what a worker says of its load: Dynamo's kv_metrics.
type ActiveLoad struct {
	Worker        worker.Rank
	DecodeBlocks  *uint64 // active; nil: not told
	PrefillTokens *uint64 // likewise
	KVUsedBlocks  *uint64 // likewise
}

// AppendActiveLoad appends the payload of a metrics message.
func AppendActiveLoad(dst []byte, l *ActiveLoad) []byte {
	dst = appendUint(appendString(appendMap(dst, 5), "worker_id"), l.Worker.ID)
	dst = appendUint(appendString(dst, "dp_rank"), uint64(l.Worker.DPRank))
	for _, f := range []struct {
		name  string
		value *uint64
	}{{"active_decode_blocks", l.DecodeBlocks}, {"active_prefill_tokens", l.PrefillTokens}, {"kv_used_blocks", l.KVUsedBlocks}} {
		if dst = appendString(dst, f.name); f.value == nil {
			dst = appendNil(dst)
		} else {
			dst = appendUint(dst, *f.value)
		}
	}
	return dst
}

// DecodeActiveLoad reads the payload of a metrics message. Errors: ErrEnvelope.
func DecodeActiveLoad(payload []byte) (l ActiveLoad, err error) {
	err = decodeMessage(payload, func(c *cursor) error {
		return c.fields(func(key string) (_ bool, err error) {
			switch key {
			case "worker_id":
				l.Worker.ID, err = c.uint(math.MaxUint64)
			case "dp_rank":
				var n uint64
				n, err = c.uint(math.MaxUint32)
				l.Worker.DPRank = uint32(n)
			case "active_decode_blocks":
				l.DecodeBlocks, err = c.perhaps()
			case "active_prefill_tokens":
				l.PrefillTokens, err = c.perhaps()
			case "kv_used_blocks":
				l.KVUsedBlocks, err = c.perhaps()
			default:
				return false, nil
			}
			return true, err
		}, "worker_id", "dp_rank")
	})
	return l, err
}

func (c *cursor) perhaps() (*uint64, error) {
	v, has, err := c.optional()
	if !has {
		return nil, err
	}
	return &v, err
}

// AppendSequences appends the payload of a replica message of the event plane: a map with a list of events. Errors: ErrSequence.
func AppendSequences(dst []byte, events []SequenceEvent) ([]byte, error) {
	before := len(dst)
	dst = appendArray(appendString(appendMap(dst, 1), "events"), len(events))
	for i := range events {
		if err := events[i].check(); err != nil {
			return dst[:before], err
		}
		dst = appendEvent(dst, &events[i])
	}
	if size := len(dst) - before; size > MaxSequenceBytes {
		return dst[:before], fmt.Errorf("%w: %d bytes, at most %d", ErrSequence, size, MaxSequenceBytes)
	}
	return dst, nil
}

// AppendSequenceEvent appends the payload of a replica message that is a single event, as the event plane has it over NATS. Errors: ErrSequence.
func AppendSequenceEvent(dst []byte, e *SequenceEvent) ([]byte, error) {
	if err := e.check(); err != nil {
		return dst, err
	}
	before := len(dst)
	dst = appendEvent(dst, e)
	if size := len(dst) - before; size > MaxSequenceBytes {
		return dst[:before], fmt.Errorf("%w: %d bytes, at most %d", ErrSequence, size, MaxSequenceBytes)
	}
	return dst, nil
}

// DecodeAll reads a replica message of the event plane, a list of events in a map or a single one, and gives each to take: valid for the call
// only. Those before one that is malformed were given. Errors: ErrSequence.
func (d *SequenceDecoder) DecodeAll(payload []byte, take func(*SequenceEvent)) error {
	if len(payload) > MaxSequenceBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrSequence, len(payload), MaxSequenceBytes)
	}
	c, err := whole(payload, MaxSequenceBytes)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSequence, err)
	}
	d.c = c
	var e SequenceEvent
	one := func() error {
		e = SequenceEvent{Sequences: e.Sequences[:0]}
		err := d.event(&e)
		if err == nil {
			take(&e)
		}
		return err
	}
	listed := false
	err = c.fields(func(key string) (bool, error) {
		if key != "events" {
			return false, nil
		}
		listed = true
		n, err := c.array()
		for i := 0; i < n && err == nil; i++ {
			err = one()
		}
		return true, err
	})
	if err == nil && !listed {
		c.seek(0)
		err = one()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSequence, err)
	}
	return nil
}
