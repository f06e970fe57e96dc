package replay

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/tier"
)

// Errors of New and Record. After an error of Record nothing changed.
var (
	// ErrConfig says that a field of Config is out of its range.
	ErrConfig = errors.New("replay: bad configuration")
	// ErrStale says that an event's id is not above that of the event before it. Number events upwards.
	ErrStale = errors.New("replay: event id is not above the last one")
)

// MaxEvents bounds Config.Events.
const MaxEvents = 1_000_000

// slot is the only one of the index and the tiers.
const slot = 0

// Config says what to keep, and where.
type Config struct {
	DPRank uint32      // of every event in an answer
	Events int         // how many of the latest are kept; 1..MaxEvents
	Index  index.Index // of the rank alone, in slot 0; empty. The log's from now on: nothing else applies events to it
	Lower  *tier.Tiers // the same for lower tiers; nil: events of these are refused
}

// A Log remembers one rank's events. All methods are safe for concurrent use.
//
// Invariants:
//
//	I1  array ends with the latest events recorded, ids ascending; nothing below its length is ever written again.
//	I2  the index, with Set, has had every recorded event applied, and nothing else.
//	I3  dump, if dumped, is what the index held after the event base; the events recorded since have consecutive ids, clear
//	    nothing, and are in the ring unless dump is out of date (see cached).
//
// Locks: build before mu. mu is held for writing while an event is applied, for reading while a dump is made: events wait for
// a dump, range queries do not.
type Log struct {
	cfg   Config
	build sync.Mutex // one dump at a time is made, and who waits for it looks at it first

	mu    sync.RWMutex
	array []event.Event
	room  []event.Block // for the blocks of events to come
	clear uint64        // id of the last Cleared, 0 if there was none
	gaps  uint64

	// The dump made last. Who holds build and mu for reading may write these, too.
	dumped bool
	dump   []event.Event
	base   uint64
}

// New returns a log of no events. Errors: ErrConfig.
func New(cfg Config) (*Log, error) {
	if cfg.Events < 1 || cfg.Events > MaxEvents {
		return nil, fmt.Errorf("%w: Events is %d, must be in 1..%d", ErrConfig, cfg.Events, MaxEvents)
	}
	if cfg.Index == nil {
		return nil, fmt.Errorf("%w: no Index", ErrConfig)
	}
	return &Log{cfg: cfg}, nil
}

// Record applies an event, with Set, and remembers it. Its id must be above the last one's (ErrStale); if it is not the next one, that
// is counted as a gap. Other errors are the index's or the tiers'. Nothing of ev is kept: what is remembered is a copy.
func (l *Log) Record(ev *event.Event) (index.Applied, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, any := l.last()
	if any && ev.ID <= last {
		return index.Applied{}, fmt.Errorf("%w: %d after %d", ErrStale, ev.ID, last)
	}
	done, err := l.apply(ev)
	if err != nil {
		return done, err
	}
	gap := any && ev.ID != last+1
	if gap {
		l.gaps++
	}
	if ev.Kind == event.Cleared {
		l.clear = ev.ID
	}
	if gap || ev.Kind == event.Cleared {
		l.dumped, l.dump = false, nil
	}
	l.push(ev)
	return done, nil
}

func (l *Log) apply(ev *event.Event) (done index.Applied, err error) {
	if ev.Kind == event.Cleared && l.cfg.Lower != nil {
		if _, err := l.cfg.Lower.Apply(slot, ev, index.Set); err != nil {
			return index.Applied{}, err
		}
	}
	if ev.Kind == event.Cleared || ev.Tier == event.Device {
		return l.cfg.Index.Apply(slot, ev, index.Set)
	}
	if l.cfg.Lower == nil {
		return index.Applied{}, fmt.Errorf("%w: %s, and there are no lower tiers", tier.ErrTier, ev.Tier)
	}
	return l.cfg.Lower.Apply(slot, ev, index.Set)
}

// push keeps a copy of an event. What was kept stays where it is, so that answers may share it: when the array is full the latest
// events move to another one.
func (l *Log) push(ev *event.Event) {
	kept := *ev
	kept.DPRank = l.cfg.DPRank
	kept.Blocks, kept.Removed = l.keep(ev.Blocks), slices.Clone(ev.Removed)
	if len(l.array) == cap(l.array) {
		latest := l.latest()
		// A quarter more than is kept: an event is copied four times in its life, and a quarter of them lives on for nothing.
		room := min(l.cfg.Events+l.cfg.Events/4+1, 2*len(latest)+16)
		l.array = append(make([]event.Event, 0, room), latest...)
	}
	l.array = append(l.array, kept)
}

// slab is how many blocks share an allocation: 4 KiB.
const slab = 256

// keep copies blocks into memory that small events share: as long as one of them is kept, all of it is.
func (l *Log) keep(blocks []event.Block) []event.Block {
	n := len(blocks)
	if n == 0 || n > slab/4 {
		return slices.Clone(blocks)
	}
	if n > len(l.room) {
		l.room = make([]event.Block, slab)
	}
	kept := l.room[:n:n]
	l.room = l.room[n:]
	copy(kept, blocks)
	return kept
}

// latest gives the events that are kept, the oldest first. They never change.
func (l *Log) latest() []event.Event {
	n := len(l.array)
	return l.array[max(0, n-l.cfg.Events):n:n]
}

func (l *Log) last() (id uint64, any bool) {
	if n := len(l.array); n > 0 {
		return l.array[n-1].ID, true
	}
	return 0, false
}

// Stats counts.
type Stats struct {
	Events int    // kept
	First  uint64 // id of the oldest of them, 0 if there is none
	Last   uint64 // of the newest
	Gaps   uint64 // events whose id was not the next one, since the start
}

// Stats counts what is kept.
func (l *Log) Stats() Stats {
	l.mu.RLock()
	defer l.mu.RUnlock()
	latest := l.latest()
	s := Stats{Events: len(latest), Gaps: l.gaps}
	if s.Events > 0 {
		s.First, s.Last = latest[0].ID, latest[s.Events-1].ID
	}
	return s
}
