package publish

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/replay"
	"github.com/dynamo-go/dynamo-go/core/tier"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// SourceConfig says whose events a Source publishes, and where.
type SourceConfig struct {
	Rank        worker.Rank
	BlockSize   int              // tokens per block; every stored block has it
	Endpoint    string           // ZeroMQ endpoint of the PUB socket, tcp or ipc; tcp port 0 takes a free port
	Replay      string           // of the replay socket (ROUTER), which gives events again; "": none
	Query       string           // of the query socket (ROUTER), which gives events or all the rank holds; "": none
	Topic       string           // first frame of every message
	BufferSteps int              // events kept for replays and queries, the latest ones; 1..MaxBufferSteps
	Clock       func() time.Time // for the messages' time stamps; nil: time.Now

	// Events, if not nil, gets each event instead of sockets, of which there are none then; who asks is answered by Answer. Events are numbered from 1,
	// as in Dynamo, and none clears to begin with. It is called with the Source's lock held: it must not block. The event is borrowed.
	Events func(*event.Event)
}

// A Source publishes what one rank of a worker holds in its KV cache, and knows it too, so that routers can ask for all of
// it. Every message has one event, and its sequence number is the event's id: the same numbers serve replays and queries.
// Message 0 clears: it tells that this is a new process, and that everything before it is over.
//
// All methods are safe for concurrent use.
type Source struct {
	cfg   SourceConfig
	id    uint64            // drawn at random: tells this process from the one before
	out   *Publisher        // nil if Config.Events gets the events
	query *zmq.RouterSocket // nil when there is none
	log   *replay.Log
	index index.Index

	dumps dumps // being sent
	once  sync.Once
	err   error // of the first Close

	mu     sync.Mutex // guards what follows, and that events are recorded and leave in one order
	closed bool
	next   uint64 // id of the next event
	held   counts
	hashes []block.Hash       // scratch
	seen   []block.EngineHash // scratch
	total  index.Applied
}

// NewSource starts listening. ErrConfig: a field is out of its range; other errors: an endpoint cannot be listened on.
func NewSource(cfg SourceConfig) (*Source, error) {
	if err := block.CheckSize(int64(cfg.BlockSize)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	s := &Source{cfg: cfg, id: rand.Uint64()}
	var err error
	if cfg.Events != nil {
		s.next = 1
	} else if s.out, err = New(Config{
		Endpoint: cfg.Endpoint, Replay: cfg.Replay, Topic: cfg.Topic, Rank: cfg.Rank.DPRank, BufferSteps: cfg.BufferSteps, Clock: cfg.Clock,
	}); err != nil {
		return nil, err
	}
	s.index = index.New(index.Options{OneShard: true})
	s.log, err = replay.New(replay.Config{DPRank: cfg.Rank.DPRank, Events: cfg.BufferSteps, Index: s.index, Lower: tier.New(0)})
	if errors.Is(err, replay.ErrConfig) {
		err = fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err == nil && s.out != nil {
		_, err = s.Publish(Cleared())
	}
	if err == nil && cfg.Query != "" {
		if s.query, err = zmq.ListenRouter(cfg.Query, zmq.Options{WriteTimeout: patience}, s.answer); err != nil {
			err = fmt.Errorf("publish: query socket: %w", err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Rank is whose events these are.
func (s *Source) Rank() worker.Rank { return s.cfg.Rank }

// BlockSize is how many tokens a block has.
func (s *Source) BlockSize() int { return s.cfg.BlockSize }

// Addr is the endpoint of the PUB socket, with the port that was taken; empty when there is none.
func (s *Source) Addr() string {
	if s.out == nil {
		return ""
	}
	return s.out.Addr()
}

// ReplayAddr is the endpoint of the replay socket; empty when there is none.
func (s *Source) ReplayAddr() string {
	if s.out == nil {
		return ""
	}
	return s.out.ReplayAddr()
}

// QueryAddr is the endpoint of the query socket; empty when there is none.
func (s *Source) QueryAddr() string {
	if s.query == nil {
		return ""
	}
	return s.query.Addr()
}

// Close stops listening and drops subscribers. It is idempotent.
func (s *Source) Close() error {
	s.once.Do(func() {
		s.dumps.close()
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		if s.out != nil {
			s.err = s.out.Close()
		}
		if s.query != nil {
			s.err = errors.Join(s.err, s.query.Close())
		}
		s.index.Close()
	})
	return s.err
}

// SourceStats counts since the start.
type SourceStats struct {
	Messages uint64 // published, the first Cleared included
	Blocks   int    // held now, on the device
	Stored   uint64 // blocks that routers were told of
	// Duplicate: stores of a name that was held already. They are counted, and the name stays until as many removals.
	Duplicate uint64
	Removed   uint64 // blocks that routers were told to be gone
	Unknown   uint64 // removals of names that were not held
	Refused   uint64 // blocks of stores that were refused
}

// Stats counts.
func (s *Source) Stats() SourceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := SourceStats{
		Messages: s.next, Stored: uint64(s.total.Stored), Duplicate: uint64(s.total.Duplicate),
		Removed: uint64(s.total.Removed), Unknown: uint64(s.total.Unknown), Refused: uint64(s.total.Refused),
	}
	if s.out == nil {
		st.Messages-- // they are numbered from 1
	}
	if !s.closed {
		st.Blocks = s.index.Blocks(0)
	}
	return st
}

// Publish tells of events, in order, and says what they did: a block that is stored again while it is held counts as Duplicate, and routers do not
// hear of it until it was removed as often. An event becomes as many messages as there are stretches of blocks that are new, more if they are long.
// It does not wait for subscribers.
//
// Errors: ErrEvent if one is not what an engine of this block size could report; nothing was published then. Otherwise all
// that can be is published, and the first refusal is returned: index.ErrUnknownParent if the block before the first is not
// held, index.ErrBadChain if a block comes twice or is its own parent. A removal of a block that is not held is counted as Unknown, and no error.
func (s *Source) Publish(events ...Event) (index.Applied, error) {
	if len(events) == 0 {
		return index.Applied{}, fmt.Errorf("%w: no events, must be at least one", ErrEvent)
	}
	for i := range events {
		if err := s.check(&events[i]); err != nil {
			return index.Applied{}, fmt.Errorf("events[%d]: %w", i, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return index.Applied{}, ErrClosed
	}
	var all index.Applied
	var refusal error
	for i := range events {
		done, err := s.publish(&events[i])
		if err != nil && refusal == nil {
			refusal = fmt.Errorf("events[%d]: %w", i, err)
		}
		add(&all, done)
	}
	add(&s.total, all)
	return all, refusal
}

func add(to *index.Applied, x index.Applied) {
	to.Stored += x.Stored
	to.Duplicate += x.Duplicate
	to.Removed += x.Removed
	to.Unknown += x.Unknown
	to.Refused += x.Refused
}

// check refuses what routers could not take for what it is.
func (s *Source) check(e *Event) error {
	if err := shape(e); err != nil {
		return err
	}
	_, known := wire.TierOf(e.Medium)
	switch {
	case e.Err != nil:
		return fmt.Errorf("%w: it was not decoded: %w", ErrEvent, e.Err)
	case e.Kind == event.Cleared:
		return nil
	case !known:
		return fmt.Errorf("%w: medium %q is none that routers know", ErrEvent, e.Medium)
	case e.HasGroup || e.SpecKind != "" || e.Locality != "" || e.Ownership != "":
		return fmt.Errorf("%w: cache group, locality or ownership: only the worker's own full attention blocks are published", ErrEvent)
	case e.Kind == event.Removed:
		return nil
	case int64(e.BlockSize) != int64(s.cfg.BlockSize):
		return fmt.Errorf("%w: block size %d, must be %d", ErrEvent, e.BlockSize, s.cfg.BlockSize)
	case e.Opaque || e.SaltRoot:
		return fmt.Errorf("%w: extra keys, only a LoRA name, a cache salt and multimodal hashes can be published", ErrEvent)
	case e.HasLoRAID:
		return fmt.Errorf("%w: LoRA id %d, adapters have names", ErrEvent, e.LoRAID)
	}
	for i := range e.BlockHashes {
		if n := blockBytes(e, i) + len(e.SessionID); n > maxEventBytes {
			return fmt.Errorf("%w: block %d takes up to %d bytes with its identity, a message at most %d", ErrEvent, e.BlockHashes[i], n, maxEventBytes)
		}
	}
	return nil
}

// maxEventBytes bounds the blocks of one message, nearly: subscribers take messages of 64 MiB.
const maxEventBytes = 8 << 20

// nameBytes and tokenBytes are the most that an engine hash, or one of a multimodal object, and a token take.
const nameBytes, tokenBytes = 9, 5

// blockBytes is more than a stored block takes in a message. LoRA name and salt may be in the keys of every block.
func blockBytes(e *Event, i int) int {
	const keys = 64
	n := keys + nameBytes + tokenBytes*int(e.BlockSize) + 2*len(e.LoRAName) + 2*len(e.CacheSalt)
	if e.MM != nil {
		n += 4 * nameBytes * len(e.MM[i]) // the hash may be written in digits
	}
	return n
}

func (s *Source) publish(e *Event) (index.Applied, error) {
	tier, _ := wire.TierOf(e.Medium)
	switch e.Kind {
	case event.Stored:
		return s.store(e, tier)
	case event.Removed:
		return s.remove(e, tier)
	}
	var done index.Applied
	for _, names := range s.held {
		done.Removed += len(names)
	}
	s.held = counts{}
	return done, s.send(Cleared(), &event.Event{Kind: event.Cleared})
}

// store publishes the stretches of a chain that are new, each long one as several.
func (s *Source) store(e *Event, tier event.Tier) (done index.Applied, err error) {
	parent, err := s.chain(e, tier)
	if err != nil {
		return index.Applied{Refused: len(e.BlockHashes)}, err
	}
	id := block.Identity{LoRAName: e.LoRAName, CacheSalt: e.CacheSalt, MM: e.MM, Eagle: e.Bigram}
	s.hashes = block.Hashes(s.hashes[:0], e.TokenIDs, s.cfg.BlockSize, &id)
	from, n, size := 0, len(e.BlockHashes), 0
	for i := range n + 1 {
		var first bool
		if i < n {
			at := block.SequenceHash(s.hashes[i])
			if i > 0 || e.HasParent {
				at = block.Extend(parent, s.hashes[i])
			}
			parent = at
			if tier != event.Device {
				parent = block.SequenceHash(e.BlockHashes[i])
			}
			var moved bool
			if first, moved = s.held.add(tier, e.BlockHashes[i], at); !first {
				done.Duplicate++
			}
			if moved { // a router that does not know the new block's parent must not take the old one for held
				if err := s.gone(e.Medium, tier, e.BlockHashes[i:i+1]); err != nil {
					return done, err
				}
			}
		}
		if i < n {
			size += blockBytes(e, i)
		}
		if first && size <= maxEventBytes {
			continue
		}
		if from < i {
			if err := s.stretch(e, tier, from, i); err != nil {
				return done, err
			}
			done.Stored += i - from
		}
		if from, size = i, 0; i < n {
			size = blockBytes(e, i)
		}
		if !first {
			from, size = i+1, 0
		}
	}
	return done, nil
}

// chain checks that a store's blocks can be a chain below its parent, and gives what Extend needs of that one.
func (s *Source) chain(e *Event, tier event.Tier) (parent block.SequenceHash, err error) {
	s.seen = append(s.seen[:0], e.BlockHashes...)
	slices.Sort(s.seen)
	for i, h := range s.seen[1:] {
		if h == s.seen[i] {
			return 0, fmt.Errorf("%w: block %d comes twice", index.ErrBadChain, h)
		}
	}
	if !e.HasParent {
		return 0, nil
	}
	if slices.Contains(e.BlockHashes, e.Parent) {
		return 0, fmt.Errorf("%w: block %d is its own parent", index.ErrBadChain, e.Parent)
	}
	if tier != event.Device {
		return block.SequenceHash(e.Parent), nil
	}
	h, known := s.held[tier][e.Parent]
	if !known {
		return 0, fmt.Errorf("%w: block %d", index.ErrUnknownParent, e.Parent)
	}
	return h.at, nil
}

// stretch publishes blocks [from,to) of a store.
func (s *Source) stretch(e *Event, tier event.Tier, from, to int) error {
	part := Event{
		Kind: event.Stored, BlockHashes: e.BlockHashes[from:to], HasParent: e.HasParent, Parent: e.Parent, Bigram: e.Bigram, BlockSize: e.BlockSize,
		LoRAName: e.LoRAName, CacheSalt: e.CacheSalt, Medium: e.Medium, SessionID: e.SessionID,
	}
	end := to * s.cfg.BlockSize
	if e.Bigram {
		end++
	}
	part.TokenIDs = e.TokenIDs[from*s.cfg.BlockSize : end]
	if e.MM != nil {
		part.MM = e.MM[from:to]
	}
	if from > 0 {
		part.HasParent, part.Parent = true, e.BlockHashes[from-1]
	}
	ev := event.Event{Kind: event.Stored, Tier: tier, HasParent: part.HasParent, Parent: part.Parent, Blocks: make([]event.Block, to-from)}
	for i := range ev.Blocks {
		ev.Blocks[i] = event.Block{Engine: part.BlockHashes[i], Hash: s.hashes[from+i]}
	}
	return s.send(part, &ev)
}

// remove publishes the names that were removed as often as they were stored.
func (s *Source) remove(e *Event, tier event.Tier) (done index.Applied, err error) {
	var gone []block.EngineHash
	for _, h := range e.BlockHashes {
		last, known := s.held.take(tier, h)
		if last {
			gone = append(gone, h)
		}
		if !known {
			done.Unknown++
		}
	}
	if len(gone) == 0 {
		return done, nil
	}
	done.Removed = len(gone)
	for part := range slices.Chunk(gone, maxEventBytes/nameBytes) {
		if err = s.gone(e.Medium, tier, part); err != nil {
			return done, err
		}
	}
	return done, nil
}

// gone publishes that names are held no more.
func (s *Source) gone(medium string, tier event.Tier, names []block.EngineHash) error {
	return s.send(Event{Kind: event.Removed, BlockHashes: names, Medium: medium}, &event.Event{Kind: event.Removed, Tier: tier, Removed: names})
}

// send records an event and publishes it, in this order: who hears of it may ask for it.
func (s *Source) send(e Event, ev *event.Event) error {
	var payload []byte
	var err error
	if s.out != nil {
		payload, err = s.out.encode([]Event{e})
	}
	if err != nil {
		return err
	}
	ev.ID, ev.DPRank = s.next, s.cfg.Rank.DPRank
	if _, err := s.log.Record(ev); err != nil {
		return fmt.Errorf("publish: the local indexer refuses what was checked: %w", err)
	}
	s.next++
	if s.out == nil {
		s.cfg.Events(ev)
		return nil
	}
	_, err = s.out.send(payload)
	return err
}
