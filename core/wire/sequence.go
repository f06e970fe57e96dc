package wire

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// SequenceKind says what became of a request.
type SequenceKind uint8

// The kinds of SequenceEvent.
const (
	SequenceAdded     SequenceKind = iota + 1 // it was placed
	SequencePrefilled                         // its prefill is complete
	SequenceFreed                             // it ended
)

// SequenceEvent is what a router tells the others of one of its requests: Dynamo's ActiveSequenceEvent.
type SequenceEvent struct {
	Kind      SequenceKind
	RequestID string
	Worker    worker.Rank
	RouterID  uint64 // who tells
	LoRAName  string

	// Of SequenceAdded only. Dynamo tells absent sequences from empty ones: absent when blocks are not tracked.
	HasSequences    bool
	Sequences       []block.SequenceHash // of the prompt's full blocks
	UntrackedTokens bool                 // the router does not track prompt tokens
	HasOutput       bool
	OutputTokens    uint64 // expected
	PrefillTokens   uint64 // to be computed; 0: none, or not tracked
	HasDuration     bool   // PrefillDuration is given; only with PrefillTokens
	PrefillDuration time.Duration
}

// SequenceScope says which requests are meant: those for a model, in a routing group, with a block size.
type SequenceScope struct {
	Model, Group string
	BlockSize    uint32
}

// Bounds of a sequence message. An id is kept as long as its request lives, so it must be short; the prompt of the longest
// context known (ten million tokens) has 625,000 blocks of 16 tokens.
const (
	MaxSequenceBytes  = 8 << 20
	MaxSequenceIDSize = 1024
)

// ErrSequence says that bytes are no sequence message, or one beyond the bounds; or that an event cannot be sent.
var ErrSequence = errors.New("bad sequence message")

// AppendSequence appends the message of an event as Dynamo's routers send it: a map of the scope and the event.
// Errors: ErrSequence.
func AppendSequence(dst []byte, s *SequenceScope, e *SequenceEvent) ([]byte, error) {
	if err := e.check(); err != nil {
		return dst, err
	}
	before := len(dst)
	dst = appendMap(dst, 4)
	dst = appendString(appendString(dst, "model_name"), s.Model)
	dst = appendString(appendString(dst, "routing_group"), s.Group)
	dst = appendUint(appendString(dst, "block_size"), uint64(s.BlockSize))
	dst = appendEvent(appendString(dst, "event"), e)
	if size := len(dst) - before; size > MaxSequenceBytes {
		return dst[:before], fmt.Errorf("%w: %d bytes, at most %d", ErrSequence, size, MaxSequenceBytes)
	}
	return dst, nil
}

// check refuses what others could not read.
func (e *SequenceEvent) check() error {
	if len(e.RequestID) > MaxSequenceIDSize {
		return fmt.Errorf("%w: request id of %d bytes, at most %d", ErrSequence, len(e.RequestID), MaxSequenceIDSize)
	}
	if e.Kind < SequenceAdded || e.Kind > SequenceFreed || e.PrefillDuration < 0 {
		return fmt.Errorf("%w: kind %d, duration %v", ErrSequence, e.Kind, e.PrefillDuration)
	}
	return nil
}

// The names that Dynamo gives the kinds.
const (
	nameAdded     = "AddRequest"
	namePrefilled = "MarkPrefillCompleted"
	nameFreed     = "Free"
)

func appendEvent(dst []byte, e *SequenceEvent) []byte {
	dst = appendMap(dst, 5)
	dst = appendString(appendString(dst, "request_id"), e.RequestID)
	dst = appendMap(appendString(dst, "worker"), 2)
	dst = appendUint(appendString(dst, "worker_id"), e.Worker.ID)
	dst = appendUint(appendString(dst, "dp_rank"), uint64(e.Worker.DPRank))
	dst = appendString(dst, "data")
	switch e.Kind {
	case SequenceAdded:
		dst = appendAdded(appendString(appendMap(dst, 1), nameAdded), e)
	case SequencePrefilled:
		dst = appendString(dst, namePrefilled)
	default:
		dst = appendString(dst, nameFreed)
	}
	dst = appendUint(appendString(dst, "router_id"), e.RouterID)
	dst = appendString(dst, "lora_name")
	if e.LoRAName == "" {
		return appendNil(dst)
	}
	return appendString(dst, e.LoRAName)
}

func appendAdded(dst []byte, e *SequenceEvent) []byte {
	dst = appendString(appendMap(dst, 4), "token_sequence")
	if e.HasSequences {
		dst = appendArray(dst, len(e.Sequences))
		for _, h := range e.Sequences {
			dst = appendUint(dst, uint64(h))
		}
	} else {
		dst = appendNil(dst)
	}
	dst = appendBool(appendString(dst, "track_prefill_tokens"), !e.UntrackedTokens)
	dst = appendString(dst, "expected_output_tokens")
	if e.HasOutput {
		dst = appendUint(dst, e.OutputTokens)
	} else {
		dst = appendNil(dst)
	}
	dst = appendString(dst, "prefill_load_hint")
	if e.PrefillTokens == 0 {
		return appendNil(dst)
	}
	dst = appendUint(appendString(appendMap(dst, 2), "initial_effective_prefill_tokens"), e.PrefillTokens)
	dst = appendString(dst, "expected_prefill_duration")
	if !e.HasDuration {
		return appendNil(dst)
	}
	dst = appendUint(appendString(appendMap(dst, 2), "secs"), uint64(e.PrefillDuration/time.Second))
	return appendUint(appendString(dst, "nanos"), uint64(e.PrefillDuration%time.Second))
}

// SequenceDecoder decodes sequence messages, one at a time, and uses its memory again.
type SequenceDecoder struct {
	c *cursor
}

// NewSequenceDecoder returns a decoder. It is not safe for concurrent use.
func NewSequenceDecoder() *SequenceDecoder { return &SequenceDecoder{newCursor()} }

// Decode reads a message into s and e. Fields that are not known are passed over. e.Sequences is appended to its present
// memory from the start; nothing aliases the payload. After an error s and e are in no particular state. Errors: ErrSequence.
func (d *SequenceDecoder) Decode(payload []byte, s *SequenceScope, e *SequenceEvent) error {
	*s, *e = SequenceScope{}, SequenceEvent{Sequences: e.Sequences[:0]}
	if len(payload) > MaxSequenceBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrSequence, len(payload), MaxSequenceBytes)
	}
	end, err := skip(payload, 0)
	if err != nil {
		return fmt.Errorf("%w: it %w", ErrSequence, err)
	}
	if end != len(payload) {
		return fmt.Errorf("%w: %d bytes follow it", ErrSequence, len(payload)-end)
	}
	d.c.reset(payload)
	defer d.c.reset(nil)
	if err := d.message(s, e); err != nil {
		return fmt.Errorf("%w: %w", ErrSequence, err)
	}
	return nil
}

func (d *SequenceDecoder) message(s *SequenceScope, e *SequenceEvent) error {
	return d.c.fields(func(key string) (_ bool, err error) {
		switch key {
		case "model_name":
			s.Model, err = d.c.text(math.MaxInt)
		case "routing_group":
			s.Group, err = d.c.text(math.MaxInt)
		case "block_size":
			var n uint64
			n, err = d.c.uint(math.MaxUint32)
			s.BlockSize = uint32(n)
		case "event":
			err = d.event(e)
		default:
			return false, nil
		}
		return true, err
	}, "model_name", "routing_group", "block_size", "event")
}

func (d *SequenceDecoder) event(e *SequenceEvent) error {
	return d.c.fields(func(key string) (_ bool, err error) {
		switch key {
		case "request_id":
			e.RequestID, err = d.c.text(MaxSequenceIDSize)
		case "worker":
			err = d.worker(&e.Worker)
		case "data":
			err = d.data(e)
		case "router_id":
			e.RouterID, err = d.c.uint(math.MaxUint64)
		case "lora_name":
			if !d.c.null() {
				e.LoRAName, err = d.c.text(math.MaxInt)
			}
		default:
			return false, nil
		}
		return true, err
	}, "request_id", "worker", "data", "router_id")
}

func (d *SequenceDecoder) worker(r *worker.Rank) error {
	return d.c.fields(func(key string) (_ bool, err error) {
		switch key {
		case "worker_id":
			r.ID, err = d.c.uint(math.MaxUint64)
		case "dp_rank":
			var n uint64
			n, err = d.c.uint(math.MaxUint32)
			r.DPRank = uint32(n)
		default:
			return false, nil
		}
		return true, err
	}, "worker_id", "dp_rank")
}

// data reads the kind: a name, or a map from the name to what belongs to it.
func (d *SequenceDecoder) data(e *SequenceEvent) error {
	if d.c.class() == classString {
		name, err := d.c.text(math.MaxInt)
		switch name {
		case namePrefilled:
			e.Kind = SequencePrefilled
		case nameFreed:
			e.Kind = SequenceFreed
		default:
			return errors.Join(err, fmt.Errorf("is an unknown kind %.32q", name))
		}
		return err
	}
	return d.c.fields(func(key string) (bool, error) {
		if key != nameAdded {
			return false, fmt.Errorf("is an unknown kind %.32q", key)
		}
		e.Kind = SequenceAdded
		return true, d.added(e)
	}, nameAdded)
}

func (d *SequenceDecoder) added(e *SequenceEvent) error {
	return d.c.fields(func(key string) (_ bool, err error) {
		switch key {
		case "token_sequence":
			err = d.sequences(e)
		case "track_prefill_tokens":
			var track bool
			track, err = d.c.boolean()
			e.UntrackedTokens = !track
		case "expected_output_tokens":
			if e.HasOutput = !d.c.null(); e.HasOutput {
				e.OutputTokens, err = d.c.uint(math.MaxUint64)
			}
		case "prefill_load_hint":
			if !d.c.null() {
				err = d.hint(e)
			}
		default:
			return false, nil
		}
		return true, err
	})
}

func (d *SequenceDecoder) hint(e *SequenceEvent) error {
	return d.c.fields(func(key string) (_ bool, err error) {
		switch key {
		case "initial_effective_prefill_tokens":
			e.PrefillTokens, err = d.c.uint(math.MaxUint64)
		case "expected_prefill_duration":
			if e.HasDuration = !d.c.null(); e.HasDuration {
				err = d.duration(&e.PrefillDuration)
			}
		default:
			return false, nil
		}
		return true, err
	}, "initial_effective_prefill_tokens")
}

func (d *SequenceDecoder) duration(to *time.Duration) error {
	var secs, nanos uint64
	err := d.c.fields(func(key string) (_ bool, err error) {
		switch key {
		case "secs":
			secs, err = d.c.uint(math.MaxInt64/uint64(time.Second) - 1)
		case "nanos":
			nanos, err = d.c.uint(uint64(time.Second) - 1)
		default:
			return false, nil
		}
		return true, err
	}, "secs", "nanos")
	*to = time.Duration(secs)*time.Second + time.Duration(nanos)
	return err
}

// sequences reads hashes, which are never negative here, from the bytes themselves: they are most of the message.
func (d *SequenceDecoder) sequences(e *SequenceEvent) error {
	if e.HasSequences = !d.c.null(); !e.HasSequences {
		return nil
	}
	n, err := d.c.array()
	if err != nil {
		return err
	}
	pos := d.c.pos()
	e.Sequences = e.Sequences[:0]
	for range n {
		if c := forms[d.c.b[pos]].class; c != classUint {
			return errType
		}
		var h uint64
		if h, pos, err = number(d.c.b, pos); err != nil {
			return err
		}
		e.Sequences = append(e.Sequences, block.SequenceHash(h))
	}
	d.c.seek(pos)
	return nil
}
