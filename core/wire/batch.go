package wire

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// ErrPayload says that a payload is not a batch of events, or exceeds a limit: nothing of it can be used, and what it
// said is lost.
var ErrPayload = errors.New("undecodable batch")

// Limits bound what one payload may cost. A zero field means its default.
type Limits struct {
	MaxBytes  int // of payload; default 64 MiB
	MaxEvents int // in a batch; default 131,072
}

// DefaultLimits hold every batch an engine makes, with room. The largest known are SGLang's with a page size of one
// token, where a step that fills or evicts 100,000 tokens makes as many events.
var DefaultLimits = Limits{MaxBytes: 64 << 20, MaxEvents: 1 << 17}

func (l Limits) orDefaults() Limits {
	if l.MaxBytes == 0 {
		l.MaxBytes = DefaultLimits.MaxBytes
	}
	if l.MaxEvents == 0 {
		l.MaxEvents = DefaultLimits.MaxEvents
	}
	return l
}

// Batch is what an engine published in one step.
type Batch struct {
	TS      float64 // the engine's clock, Unix seconds
	HasRank bool    // DPRank is known; otherwise the batch is of the rank that the socket belongs to
	DPRank  uint32
	Events  []Event
}

var decoders = sync.Pool{New: func() any { return &decoder{cursor: newCursor()} }}

// DecodeBatch decodes a payload: an array of time, events and rank, of which vLLM 0.9.0 has no rank, or a map of the
// three. Further elements are ignored. The batch shares no memory with the payload.
func DecodeBatch(payload []byte, lim Limits) (*Batch, error) {
	d := decoders.Get().(*decoder)
	defer decoders.Put(d)
	defer d.release()
	batch := &Batch{}
	if err := d.decode(batch, payload, lim); err != nil {
		return nil, err
	}
	return batch, nil
}

// A Decoder is for the payloads of one stream: it decodes each into memory that it uses again for the next. The zero value
// is ready for use. It is not safe for concurrent use.
type Decoder struct {
	decoder decoder
	batch   Batch
}

// maxKept is how many events a Decoder keeps room for.
const maxKept = 256

// Decode is DecodeBatch. The batch and all it refers to, but for strings, are valid until the next call.
func (d *Decoder) Decode(payload []byte, lim Limits) (*Batch, error) {
	if d.decoder.cursor == nil {
		d.decoder.cursor = newCursor()
	}
	defer d.decoder.reset(nil) // the payload is the caller's
	d.decoder.hashRoom.rewind()
	d.decoder.tokenRoom.rewind()
	d.batch = Batch{Events: d.batch.Events[:0]}
	if cap(d.batch.Events) > maxKept {
		d.batch.Events = nil
	}
	if err := d.decoder.decode(&d.batch, payload, lim); err != nil {
		return nil, err
	}
	return &d.batch, nil
}

// decode decodes a payload into a batch, whose events, if there is room, are overwritten.
func (d *decoder) decode(batch *Batch, payload []byte, lim Limits) error {
	lim = lim.orDefaults()
	if len(payload) > lim.MaxBytes {
		return fmt.Errorf("%w: %d bytes, expected at most %d", ErrPayload, len(payload), lim.MaxBytes)
	}
	end, err := skip(payload, 0)
	if err != nil {
		return fmt.Errorf("%w: it %w", ErrPayload, err)
	}
	if end != len(payload) {
		return fmt.Errorf("%w: %d bytes follow it", ErrPayload, len(payload)-end)
	}
	d.reset(payload)
	if err := d.batch(batch, lim); err != nil {
		return fmt.Errorf("%w: %w", ErrPayload, err)
	}
	return nil
}

func (d *decoder) batch(batch *Batch, lim Limits) error {
	if d.class() == classMap {
		return d.batchMap(batch, lim)
	}
	n, err := d.array()
	if err != nil {
		return fmt.Errorf("it %w", err)
	}
	if n < 2 {
		return fmt.Errorf("%d elements, expected time, events, rank", n)
	}
	if err := d.batchField(batch, "ts", lim); err != nil {
		return err
	}
	if err := d.batchField(batch, "events", lim); err != nil || n == 2 {
		return err
	}
	return d.batchField(batch, "data_parallel_rank", lim)
}

func (d *decoder) batchMap(batch *Batch, lim Limits) error {
	n, err := d.pairs()
	if err != nil {
		return err
	}
	hasEvents := false
	for range n {
		if d.class() != classString {
			if err := d.skipPair(); err != nil {
				return err
			}
			continue
		}
		key, err := d.bytes(classString)
		if err != nil {
			return err
		}
		hasEvents = hasEvents || string(key) == "events"
		if err := d.batchField(batch, string(key), lim); err != nil {
			return err
		}
	}
	if !hasEvents {
		return errors.New("it has no events")
	}
	return nil
}

func (d *decoder) batchField(batch *Batch, name string, lim Limits) (err error) {
	switch name {
	case "ts":
		batch.TS, err = d.float()
	case "events":
		batch.Events, err = d.events(batch.Events, lim.MaxEvents)
	case "data_parallel_rank", "attn_dp_rank":
		batch.DPRank, batch.HasRank, err = d.rank()
	default:
		err = d.skip()
	}
	if err != nil {
		return fmt.Errorf("%s %w", name, err)
	}
	return nil
}

// rank reads a data-parallel rank, which some engines send as a signed number.
func (d *decoder) rank() (rank uint32, known bool, err error) {
	if d.null() {
		return 0, false, nil
	}
	n, negative, err := d.integer()
	if err != nil {
		return 0, false, err
	}
	if negative && int64(n) < math.MinInt32 || !negative && n > math.MaxUint32 {
		return 0, false, errRange
	}
	return uint32(n), true, nil
}

// events reads a list of events into the room of old ones, if that is enough.
func (d *decoder) events(room []Event, limit int) ([]Event, error) {
	n, err := d.array()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("are %d, expected at most %d", n, limit)
	}
	events := room[:0]
	if room == nil || n > cap(room) {
		events = make([]Event, n)
	}
	events = events[:n]
	clear(events)
	for i := range events {
		d.last = i == n-1
		if err := d.event(&events[i]); err != nil {
			return nil, err
		}
	}
	return events, nil
}
