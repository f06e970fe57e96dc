package wire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
)

// ErrEncode says that an event cannot be sent: it is undecoded, or of no kind.
var ErrEncode = errors.New("event cannot be encoded")

// EncodeBatch encodes a batch in the form of vLLM 0.26 and later: an array of time, events and rank, each event a map
// that begins with its type and leaves out what is absent. Cache salts have SGLang's key, and multimodal hashes
// Dynamo's. Decoding gives the same batch, but for Opaque and SaltRoot, which are not sent.
func EncodeBatch(b *Batch) ([]byte, error) {
	var buf bytes.Buffer
	w := &encoder{msgpack.NewEncoder(&buf)}
	w.UseCompactInts(true)
	err := w.batch(b)
	return buf.Bytes(), err
}

// encoder writes events with the library's encoder.
type encoder struct{ *msgpack.Encoder }

// pair is one entry of a map.
type pair struct {
	key   field
	write func() error
}

func (w *encoder) batch(b *Batch) error {
	rank := w.EncodeNil
	if b.HasRank {
		rank = func() error { return w.EncodeUint(uint64(b.DPRank)) }
	}
	if err := errors.Join(w.EncodeArrayLen(3), w.EncodeFloat64(b.TS), w.EncodeArrayLen(len(b.Events))); err != nil {
		return err
	}
	for i := range b.Events {
		if err := w.event(&b.Events[i]); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return rank()
}

func (w *encoder) event(e *Event) error {
	if e.Err != nil {
		return fmt.Errorf("%w: it was not decoded: %w", ErrEncode, e.Err)
	}
	pairs, err := w.pairs(e)
	if err != nil {
		return err
	}
	if err := w.EncodeMapLen(len(pairs)); err != nil {
		return err
	}
	for _, p := range pairs {
		if err := errors.Join(w.EncodeString(p.key.String()), p.write()); err != nil {
			return err
		}
	}
	return nil
}

func (w *encoder) pairs(e *Event) ([]pair, error) {
	text := func(s string) func() error {
		if s == "" {
			return w.EncodeNil
		}
		return func() error { return w.EncodeString(s) }
	}
	hashes := pair{fieldBlockHashes, func() error { return w.hashes(e.BlockHashes) }}
	var pairs []pair
	switch e.Kind {
	case event.Stored:
		pairs = []pair{
			{fieldTag, text(tagStored)},
			hashes,
			{fieldParent, func() error { return w.parent(e) }},
			{fieldTokenIDs, func() error { return w.tokens(e) }},
			{fieldBlockSize, func() error { return w.EncodeUint(uint64(e.BlockSize)) }},
			{fieldLoRAID, func() error { return w.loraID(e) }},
			{fieldMedium, text(e.Medium)},
			{fieldLoRAName, text(e.LoRAName)},
		}
	case event.Removed:
		pairs = []pair{{fieldTag, text(tagRemoved)}, hashes, {fieldMedium, text(e.Medium)}}
	case event.Cleared:
		pairs = []pair{{fieldTag, text(tagCleared)}}
	default:
		return nil, fmt.Errorf("%w: kind %d of tag %q, expected stored, removed or cleared", ErrEncode, e.Kind, e.Tag)
	}
	if e.HasGroup {
		pairs = append(pairs, pair{fieldGroup, func() error { return w.EncodeUint(uint64(e.GroupIdx)) }})
	}
	for _, o := range []struct {
		key  field
		text string
	}{
		{fieldSpecKind, e.SpecKind}, {fieldLocality, e.Locality}, {fieldOwnership, e.Ownership},
		{fieldSessionID, e.SessionID}, {fieldCacheSalt, e.CacheSalt},
	} {
		if o.text != "" {
			pairs = append(pairs, pair{o.key, text(o.text)})
		}
	}
	if e.MM != nil {
		pairs = append(pairs, pair{fieldMMInfos, func() error { return w.mmInfos(e.MM) }})
	}
	return pairs, nil
}

func (w *encoder) hashes(list []block.EngineHash) error {
	if err := w.EncodeArrayLen(len(list)); err != nil {
		return err
	}
	for _, h := range list {
		if err := w.EncodeUint(uint64(h)); err != nil {
			return err
		}
	}
	return nil
}

func (w *encoder) parent(e *Event) error {
	if !e.HasParent {
		return w.EncodeNil()
	}
	return w.EncodeUint(uint64(e.Parent))
}

func (w *encoder) loraID(e *Event) error {
	if !e.HasLoRAID {
		return w.EncodeNil()
	}
	return w.EncodeInt(e.LoRAID)
}

func (w *encoder) tokens(e *Event) error {
	if e.Bigram {
		return w.bigrams(e.TokenIDs)
	}
	if err := w.EncodeArrayLen(len(e.TokenIDs)); err != nil {
		return err
	}
	for _, t := range e.TokenIDs {
		if err := w.EncodeUint(uint64(t)); err != nil {
			return err
		}
	}
	return nil
}

func (w *encoder) bigrams(tokens []uint32) error {
	if len(tokens) < 2 {
		return fmt.Errorf("%w: %d tokens make no pair", ErrEncode, len(tokens))
	}
	if err := w.EncodeArrayLen(len(tokens) - 1); err != nil {
		return err
	}
	for i, t := range tokens[1:] {
		if err := errors.Join(w.EncodeArrayLen(2), w.EncodeUint(uint64(tokens[i])), w.EncodeUint(uint64(t))); err != nil {
			return err
		}
	}
	return nil
}

func (w *encoder) mmInfos(infos [][]uint64) error {
	if err := w.EncodeArrayLen(len(infos)); err != nil {
		return err
	}
	for _, objects := range infos {
		if len(objects) == 0 {
			if err := w.EncodeNil(); err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(w.EncodeMapLen(1), w.EncodeString("mm_objects"), w.EncodeArrayLen(len(objects))); err != nil {
			return err
		}
		for _, h := range objects {
			err := errors.Join(w.EncodeMapLen(2), w.EncodeString("mm_hash"), w.EncodeUint(h), w.EncodeString("offsets"), w.EncodeArrayLen(0))
			if err != nil {
				return err
			}
		}
	}
	return nil
}
