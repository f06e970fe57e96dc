package wire

import (
	"errors"
	"fmt"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
)

// Event is one event as the engine sent it. A string that is absent, nil or empty is "".
type Event struct {
	Tag  string     // the engine's name for the kind of event; "" if that cannot be read
	Kind event.Kind // 0 for a tag this package does not know, which is no error
	// Err says why the event could not be decoded. Tag and Kind still tell what it was, where that is known, and the
	// other fields are zero. Missing a stored event costs matches; missing any other may leave blocks that are gone.
	Err error

	BlockHashes []block.EngineHash
	HasParent   bool
	Parent      block.EngineHash
	TokenIDs    []uint32
	Bigram      bool // TokenIDs came as overlapping pairs, one per position: there is one token more than pairs
	BlockSize   uint32

	HasLoRAID bool
	LoRAID    int64
	LoRAName  string
	CacheSalt string
	// SaltRoot says that CacheSalt stood in the extra keys of a prompt's first block, where vLLM puts it: the blocks below
	// carry it without saying so. A salt that stands in the event itself is on every event that has one.
	SaltRoot bool
	MM       [][]uint64 // by block, up to the last one that has any, the hashes of its multimodal objects
	Opaque   bool       // something else names the blocks too, which this library has no means to hash

	Medium    string
	HasGroup  bool
	GroupIdx  uint32
	SpecKind  string
	Locality  string
	Ownership string
	SessionID string
}

// ErrEvent says that an event cannot be decoded: it wraps the field at fault.
var ErrEvent = errors.New("undecodable event")

var (
	errNoEvent = fmt.Errorf("%w: neither an array nor a map", ErrEvent)
	errNoTag   = fmt.Errorf("%w: no tag", ErrEvent)
)

// The tags of the engines.
const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
)

// decoder decodes one payload at a time.
type decoder struct {
	*cursor
	hashRoom  slab[block.EngineHash]
	tokenRoom slab[uint32]
	recent    [numFields]string // the last string of each field: most events repeat it
	last      bool              // the present event is the last of its batch: nobody shares its slabs
	extraKeys int               // where the extra keys of the present event are, 0 if it has none
}

// release drops what belongs to the caller.
func (d *decoder) release() {
	d.reset(nil)
	d.hashRoom, d.tokenRoom = slab[block.EngineHash]{}, slab[uint32]{}
}

// event decodes the next event, or says in the event why that cannot be done, and moves behind it. Its own error means
// that the payload is not what skip accepted.
func (d *decoder) event(e *Event) error {
	start := d.pos()
	var got fieldSet
	var err error
	switch d.extraKeys = 0; d.class() {
	case classArray:
		got, err = d.eventArray(e)
	case classMap:
		got, err = d.eventMap(e)
	default:
		err = errNoEvent
	}
	if err == nil {
		err = d.finish(e, got)
	}
	if err == nil {
		return nil
	}
	*e = Event{Tag: e.Tag, Kind: e.Kind, Err: err}
	d.seek(start)
	return d.skip()
}

func (d *decoder) eventArray(e *Event) (got fieldSet, err error) {
	n, err := d.array()
	if err != nil || n == 0 {
		return 0, errNoTag
	}
	if err := d.tag(e); err != nil {
		return 0, err
	}
	layout, optional := arrayLayout(e.Kind)
	for i := 1; i < n; i++ {
		if len(layout) == 0 {
			if err := d.skip(); err != nil {
				return 0, err
			}
			continue
		}
		f, class := layout[0], d.class()
		if e.Kind == event.Stored && f >= fieldGroup && class == classArray {
			f = fieldMMInfos // Dynamo's own publisher puts them before these fields, which are never arrays
		} else {
			layout = layout[1:]
		}
		if i >= optional && !accepts[f].has(class) {
			f = fieldUnknown // a later release's field in this place
		}
		if err := d.field(e, f); err != nil {
			return 0, err
		}
		got |= f.set()
	}
	return got, nil
}

// eventMap goes on after a field at fault as long as it has not seen the tag: what kind of event is lost matters.
func (d *decoder) eventMap(e *Event) (got fieldSet, fault error) {
	n, err := d.pairs()
	if err != nil {
		return 0, err
	}
	tagged := false
	for range n {
		if fault != nil && tagged {
			return 0, fault
		}
		if d.class() != classString {
			if err := d.skipPair(); err != nil {
				return 0, err
			}
			continue
		}
		key, err := d.bytes(classString)
		if err != nil {
			return 0, err
		}
		start, f := d.pos(), fieldOf(key)
		if f == fieldTag {
			tagged = true
			err = d.tag(e)
		} else {
			err = d.field(e, f)
		}
		got |= f.set()
		if err == nil {
			continue
		}
		if fault == nil {
			fault = err
		}
		d.seek(start)
		if err := d.skip(); err != nil {
			return 0, err
		}
	}
	if fault == nil && !tagged {
		return 0, errNoTag
	}
	return got, fault
}

func (d *decoder) tag(e *Event) error {
	view, err := d.bytes(classString)
	if err != nil {
		return errNoTag
	}
	switch string(view) {
	case tagStored:
		e.Tag, e.Kind = tagStored, event.Stored
	case tagRemoved:
		e.Tag, e.Kind = tagRemoved, event.Removed
	case tagCleared:
		e.Tag, e.Kind = tagCleared, event.Cleared
	default:
		e.Tag, e.Kind = d.intern(fieldTag, view), 0
	}
	return nil
}

// finish checks that nothing an event needs is missing, reads what needs the other fields, and drops those that mean
// nothing for its kind.
func (d *decoder) finish(e *Event, got fieldSet) error {
	for f := fieldBlockHashes; f <= fieldBlockSize; f++ {
		if needs(e.Kind).hasField(f) && !got.hasField(f) {
			return fmt.Errorf("%w: %s is missing", ErrEvent, f)
		}
	}
	switch e.Kind {
	case event.Stored:
		if d.extraKeys == 0 {
			return nil
		}
		end := d.pos()
		d.seek(d.extraKeys)
		if err := d.readExtraKeys(e); err != nil {
			return fmt.Errorf("%w: %s %w", ErrEvent, fieldExtraKeys, err)
		}
		d.seek(end)
	case event.Removed:
		*e = Event{
			Tag: e.Tag, Kind: e.Kind, BlockHashes: e.BlockHashes, Medium: e.Medium, HasGroup: e.HasGroup, GroupIdx: e.GroupIdx,
			SpecKind: e.SpecKind, Locality: e.Locality, Ownership: e.Ownership, SessionID: e.SessionID,
		}
	default:
		*e = Event{Tag: e.Tag, Kind: e.Kind, Locality: e.Locality, Ownership: e.Ownership}
	}
	return nil
}

func (d *decoder) skipPair() error {
	if err := d.skip(); err != nil {
		return err
	}
	return d.skip()
}

// intern gives a view as a string, the last one of the field if it is equal.
func (d *decoder) intern(f field, view []byte) string {
	if d.recent[f] == string(view) {
		return d.recent[f]
	}
	s := string(view)
	if len(s) <= 256 { // decoders are kept: they hold no large strings
		d.recent[f] = s
	}
	return s
}
