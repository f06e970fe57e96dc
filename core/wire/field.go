package wire

import (
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
)

// field is a field of an event.
type field uint8

const (
	fieldUnknown field = iota
	fieldTag
	fieldBlockHashes
	fieldTokenIDs
	fieldBlockSize
	fieldParent
	fieldLoRAID
	fieldMedium
	fieldLoRAName
	fieldExtraKeys
	fieldGroup
	fieldSpecKind
	fieldSlidingWindow
	fieldLocality
	fieldOwnership
	fieldSessionID
	fieldCacheSalt
	fieldMMInfos
	fieldMMKeys
	numFields
)

var fieldNames = [numFields]string{
	"", "type", "block_hashes", "token_ids", "block_size", "parent_block_hash", "lora_id", "medium", "lora_name",
	"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership", "session_id",
	"cache_salt", "block_mm_infos", "mm_keys",
}

// String gives the field's key in the map form.
func (f field) String() string { return fieldNames[f] }

var fieldsByName = func() map[string]field {
	m := map[string]field{}
	for f := fieldTag; f < numFields; f++ {
		m[f.String()] = f
	}
	return m
}()

func fieldOf(key []byte) field { return fieldsByName[string(key)] }

type fieldSet uint32

func (f field) set() fieldSet            { return 1 << f }
func (s fieldSet) hasField(f field) bool { return s&f.set() != 0 }
func (c class) set() classSet            { return 1 << c }
func (s classSet) has(c class) bool      { return s&c.set() != 0 }
func classesOf(list ...class) (set classSet) {
	for _, c := range list {
		set |= c.set()
	}
	return set
}

type classSet uint16

// accepts has the types each field comes in.
var accepts = func() (t [numFields]classSet) {
	for f := range t {
		t[f] = classesOf(classNil, classString)
	}
	t[fieldUnknown] = math.MaxUint16
	t[fieldMMKeys] = math.MaxUint16
	t[fieldSlidingWindow] = math.MaxUint16
	t[fieldBlockHashes] = classesOf(classArray)
	t[fieldTokenIDs] = classesOf(classArray)
	t[fieldBlockSize] = classesOf(classUint, classInt)
	t[fieldParent] = classesOf(classNil, classUint, classInt, classBytes)
	t[fieldLoRAID] = classesOf(classNil, classUint, classInt)
	t[fieldLoRAName] = classesOf(classNil, classString, classMap)
	t[fieldExtraKeys] = classesOf(classNil, classArray)
	t[fieldGroup] = classesOf(classNil, classUint, classInt)
	t[fieldMMInfos] = classesOf(classNil, classArray)
	return t
}()

// The array form: fields by position after the tag. Positions have only ever been appended.
var (
	storedLayout = []field{
		fieldBlockHashes, fieldParent, fieldTokenIDs, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRAName, fieldExtraKeys,
		fieldGroup, fieldSpecKind, fieldSlidingWindow, fieldLocality, fieldOwnership,
	}
	removedLayout = []field{
		fieldBlockHashes, fieldMedium, fieldGroup, fieldSpecKind, fieldSlidingWindow, fieldLocality, fieldOwnership,
	}
	clearedLayout = []field{fieldOwnership}
)

// arrayLayout gives the positions of an event's array form, and the first one from which on a value of another type
// belongs to a field that this package does not know.
func arrayLayout(k event.Kind) (layout []field, optional int) {
	switch k {
	case event.Stored:
		return storedLayout, 7
	case event.Removed:
		return removedLayout, 3
	case event.Cleared:
		return clearedLayout, 1
	}
	return nil, 0
}

// needs are the fields without which an event means nothing.
func needs(k event.Kind) fieldSet {
	switch k {
	case event.Stored:
		return fieldBlockHashes.set() | fieldTokenIDs.set() | fieldBlockSize.set()
	case event.Removed:
		return fieldBlockHashes.set()
	}
	return 0
}

// field reads the next value as a field of an event.
func (d *decoder) field(e *Event, f field) error {
	if !accepts[f].has(d.class()) {
		return fmt.Errorf("%w: %s %w", ErrEvent, f, errType)
	}
	if err := d.value(e, f); err != nil {
		return fmt.Errorf("%w: %s %w", ErrEvent, f, err)
	}
	return nil
}

func (d *decoder) value(e *Event, f field) (err error) {
	if d.null() {
		return nil
	}
	switch f {
	case fieldBlockHashes:
		e.BlockHashes, err = d.blockHashes()
	case fieldTokenIDs:
		e.TokenIDs, e.Bigram, err = d.tokenIDs()
	case fieldBlockSize:
		e.BlockSize, err = d.uint32()
	case fieldParent:
		e.HasParent = true
		e.Parent, err = d.hash()
	case fieldLoRAID:
		e.HasLoRAID = true
		var n uint64
		n, _, err = d.integer()
		e.LoRAID = int64(n)
	case fieldLoRAName:
		if d.class() == classMap { // SGLang 0.5.18 and 0.5.19 have a map of the request's cache salt in this place
			return d.metadata(e)
		}
		e.LoRAName, err = d.text(f)
	case fieldMedium:
		e.Medium, err = d.text(f)
	case fieldGroup:
		e.HasGroup = true
		e.GroupIdx, err = d.uint32()
	case fieldSpecKind:
		e.SpecKind, err = d.text(f)
	case fieldLocality:
		e.Locality, err = d.text(f)
	case fieldOwnership:
		e.Ownership, err = d.text(f)
	case fieldSessionID:
		e.SessionID, err = d.text(f)
	case fieldCacheSalt:
		e.CacheSalt, err = d.text(f)
	case fieldExtraKeys:
		d.extraKeys = d.pos()
		err = d.skip()
	case fieldMMInfos:
		e.MM, err = d.mmInfos()
	case fieldMMKeys:
		e.Opaque = e.Opaque || !d.empty()
		err = d.skip()
	default:
		err = d.skip()
	}
	return err
}

func (d *decoder) text(f field) (string, error) {
	view, err := d.bytes(classString)
	return d.intern(f, view), err
}

func (d *decoder) uint32() (uint32, error) {
	n, err := d.uint(math.MaxUint32)
	return uint32(n), err
}

func (d *decoder) hash() (block.EngineHash, error) {
	h, next, err := hash(d.b, d.pos())
	d.seek(next)
	return h, err
}

// more is how many elements later events may have, those of this one included.
func (d *decoder) more(start int) int {
	if d.last {
		return 0
	}
	return len(d.b) - start
}

func (d *decoder) blockHashes() ([]block.EngineHash, error) {
	n, err := d.array()
	if err != nil {
		return nil, err
	}
	start := d.pos()
	out := d.hashRoom.take(n, d.more(start))
	next, err := hashes(out, d.b, start)
	d.seek(next)
	return out, err
}

func (d *decoder) tokenIDs() (ids []uint32, bigram bool, err error) {
	n, err := d.array()
	if err != nil {
		return nil, false, err
	}
	start := d.pos()
	read := tokens
	if bigram = n > 0 && d.class() == classArray; bigram {
		read, n = bigrams, n+1
	}
	ids = d.tokenRoom.take(n, d.more(start))
	next, err := read(ids, d.b, start)
	d.seek(next)
	return ids, bigram, err
}

// empty tells whether the next value is an array or map without elements.
func (d *decoder) empty() bool {
	f := &forms[d.b[d.pos()]]
	return (f.class == classArray || f.class == classMap) && f.width == 0 && f.body == 0
}
