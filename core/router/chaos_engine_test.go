package router_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/replay"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// memory says what an engine remembers for routers that missed something.
type memory int

const (
	everything memory = iota // a replay socket that goes back to the start
	little                   // one that does not
	state                    // a local indexer with a short history
	nothing
)

// badEngine is one rank of an engine on a bad network: live messages get lost, and answers are cut, sent twice or late. It
// stores and removes blocks at random, leaves first.
type badEngine struct {
	t      *testing.T
	rank   worker.Rank
	memory memory
	at     string // prefix of the endpoints

	pub   *zmq.Pub
	asked *zmq.RouterSocket

	mu      sync.Mutex // guards the rest
	gone    chan struct{}
	rng     *rand.Rand
	calm    bool // nothing gets lost any more
	process uint64
	next    uint64 // number of the next batch
	batches [][]byte
	log     *replay.Log
	index   index.Index

	held  map[block.EngineHash]holding
	names []block.EngineHash // of held, in no order
}

// holding is a block, as a dump tells of it, and how many blocks hang below it.
type holding struct {
	parent   block.EngineHash // 0: the first of a prompt
	hash     block.Hash
	children int
}

const (
	chaosBlock  = 4  // tokens
	chaosMemory = 64 // batches that engines with a short memory keep
	chaosHeld   = 200
)

func (e *badEngine) live() string  { return e.at + ".live" }
func (e *badEngine) reply() string { return e.at + ".reply" }

// start begins a new process with an empty cache.
func (e *badEngine) start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = make(chan struct{})
	e.process = e.rng.Uint64() | 1
	e.next, e.batches = 0, nil
	e.held, e.names = map[block.EngineHash]holding{}, nil
	var err error
	if e.memory == state {
		e.index = index.New(index.Options{OneShard: true})
		e.log, err = replay.New(replay.Config{DPRank: e.rank.DPRank, Events: chaosMemory, Index: e.index})
		require.NoError(e.t, err)
	}
	e.pub, err = zmq.ListenPub(e.live(), zmq.Options{})
	require.NoError(e.t, err)
	if e.memory != nothing {
		e.asked, err = zmq.ListenRouter(e.reply(), zmq.Options{}, e.answer)
		require.NoError(e.t, err)
	}
}

func (e *badEngine) stop() {
	e.mu.Lock()
	close(e.gone)
	e.mu.Unlock()
	e.pub.Close()
	if e.asked != nil {
		e.asked.Close()
	}
	if e.index != nil {
		e.index.Close()
	}
}

// step publishes one batch, and tells of how many events.
func (e *badEngine) step() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 1
	if e.memory != state {
		n += e.rng.IntN(3)
	}
	var events []wire.Event
	for range n {
		events = append(events, e.change())
	}
	payload, err := wire.EncodeBatch(&wire.Batch{TS: float64(e.next), HasRank: true, DPRank: e.rank.DPRank, Events: events})
	require.NoError(e.t, err)
	seq := e.next
	e.next++
	e.batches = append(e.batches, payload)
	if e.memory != everything && len(e.batches) > chaosMemory {
		e.batches = slices.Delete(e.batches, 0, len(e.batches)-chaosMemory)
	}
	if e.calm || e.rng.IntN(20) > 0 {
		require.NoError(e.t, e.pub.Publish(nil, binary.BigEndian.AppendUint64(nil, seq), payload))
	}
	return n
}

// change stores a chain, removes a leaf, or clears all.
func (e *badEngine) change() wire.Event {
	switch p := e.rng.IntN(1000); {
	case p == 0 || e.next == 0:
		clear(e.held)
		e.names = nil
		return e.recorded(wire.Event{Kind: event.Cleared}, nil)
	case len(e.names) > chaosHeld || len(e.names) > 0 && p < 450:
		at := e.rng.IntN(len(e.names))
		for e.held[e.names[at]].children > 0 {
			at = (at + 1) % len(e.names)
		}
		name := e.names[at]
		if h, below := e.held[e.held[name].parent]; below {
			h.children--
			e.held[e.held[name].parent] = h
		}
		delete(e.held, name)
		e.names[at] = e.names[len(e.names)-1]
		e.names = e.names[:len(e.names)-1]
		return e.recorded(wire.Event{Kind: event.Removed, BlockHashes: []block.EngineHash{name}, Medium: "GPU"}, nil)
	}
	ev := wire.Event{Kind: event.Stored, BlockSize: chaosBlock, Medium: "GPU"}
	if len(e.names) > 0 && e.rng.IntN(4) > 0 {
		ev.HasParent, ev.Parent = true, e.names[e.rng.IntN(len(e.names))]
	}
	for range e.rng.IntN(4) + 1 {
		ev.BlockHashes = append(ev.BlockHashes, block.EngineHash(e.rng.Uint64()|1))
		for range chaosBlock {
			ev.TokenIDs = append(ev.TokenIDs, e.rng.Uint32N(1000))
		}
	}
	hashes := block.Hashes(nil, ev.TokenIDs, chaosBlock, nil)
	parent := ev.Parent
	for i, name := range ev.BlockHashes {
		if h, below := e.held[parent]; below {
			h.children++
			e.held[parent] = h
		}
		e.held[name] = holding{parent: parent, hash: hashes[i]}
		e.names = append(e.names, name)
		parent = name
	}
	return e.recorded(ev, hashes)
}

// recorded tells the local indexer, if there is one.
func (e *badEngine) recorded(w wire.Event, hashes []block.Hash) wire.Event {
	if e.memory != state {
		return w
	}
	ev := event.Event{ID: e.next, DPRank: e.rank.DPRank, Kind: w.Kind, HasParent: w.HasParent, Parent: w.Parent}
	if w.Kind == event.Removed {
		ev.Removed = w.BlockHashes
	} else {
		for i, h := range hashes {
			ev.Blocks = append(ev.Blocks, event.Block{Engine: w.BlockHashes[i], Hash: h})
		}
	}
	_, err := e.log.Record(&ev)
	require.NoError(e.t, err)
	return w
}

// answer serves the replay or the query socket, badly.
func (e *badEngine) answer(request [][]byte, reply func(...[]byte) error) {
	e.mu.Lock()
	fault := e.rng.IntN(20)
	if e.calm {
		fault = -1
	}
	gone, log, process := e.gone, e.log, e.process
	batches, next, cut := slices.Clone(e.batches), e.next, e.rng.IntN(chaosMemory)
	e.mu.Unlock()
	const late, short, twice = 0, 1, 2
	if fault == late {
		select {
		case <-gone:
			return
		case <-time.After(2 * time.Second):
		}
	}
	if log != nil {
		q, err := wire.DecodeRangeQuery(request[1])
		if err != nil {
			return
		}
		a := log.Range(&q)
		answer := wire.AppendRangeAnswer(nil, e.rank.ID, &a)
		if fault == short { // the first half, and then nothing
			head := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, process), uint64(len(answer)-len(answer)/2))
			reply(request[0], head, answer[:len(answer)/2])
			return
		}
		wire.SendRangeAnswer(process, answer, func(head, chunk []byte) error { return reply(request[0], head, chunk) })
		return
	}
	oldest := next - uint64(len(batches))
	for seq := max(binary.BigEndian.Uint64(request[1]), oldest); seq < next; seq++ {
		if fault == short && cut == 0 {
			return
		}
		cut--
		copies := 1
		if fault == twice {
			copies = 2
		}
		for range copies {
			if reply(request[0], nil, binary.BigEndian.AppendUint64(nil, seq), batches[seq-oldest]) != nil {
				return
			}
		}
	}
	reply(request[0], nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
}

// settle makes the network good. The last batch of an engine that remembers nothing gets through: nobody could know of it.
func (e *badEngine) settle(calm bool) {
	e.mu.Lock()
	e.calm = calm
	e.mu.Unlock()
	if calm && e.memory == nothing {
		e.step()
	}
}

// describe adds the rank's endpoints to those of its worker.
func (e *badEngine) describe(w *router.Worker) {
	for _, endpoints := range []*router.Endpoints{&w.KVEvents, &w.Replay, &w.Query} {
		if endpoints.ByRank == nil {
			endpoints.ByRank = map[uint32]string{}
		}
	}
	w.KVEvents.ByRank[e.rank.DPRank] = e.live()
	switch e.memory {
	case everything, little:
		w.Replay.ByRank[e.rank.DPRank] = e.reply()
	case state:
		w.Query.ByRank[e.rank.DPRank] = e.reply()
	}
}

// blocks gives what the rank holds.
func (e *badEngine) blocks() map[block.EngineHash]holding {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[block.EngineHash]holding, len(e.held))
	for name, h := range e.held {
		out[name] = holding{parent: h.parent, hash: h.hash}
	}
	return out
}
