package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/feed"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/worker"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Errors of a Worker.
var (
	// ErrRank: the worker has no such rank here. Publish to one it has.
	ErrRank = errors.New("relay: no such rank")
	// ErrRelayed: the worker passes on what its engine publishes; nothing else can be published.
	ErrRelayed = errors.New("relay: the events are the engine's")
)

// EngineConfig says where an engine publishes.
type EngineConfig struct {
	KVEvents endpoints `json:"kv_events"` // of the PUB sockets
	Replay   endpoints `json:"replay"`    // of the replay sockets; none if there are none
	Topic    string    `json:"topic"`     // prefix to subscribe to; "" is everything
}

// endpoints are those of ranks: a base, to whose port each rank is added, or one by one.
type endpoints struct {
	base   string
	byRank map[uint32]string
}

// UnmarshalJSON reads a string, or an object from rank to string.
func (e *endpoints) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &e.base) == nil {
		return nil
	}
	var named map[string]string
	if err := json.Unmarshal(b, &named); err != nil {
		return errors.New("an endpoint, or an object from rank to endpoint, is expected")
	}
	e.byRank = make(map[uint32]string, len(named))
	for name, endpoint := range named {
		rank, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return fmt.Errorf("rank %.32q, expected 0 .. 2^32-1", name)
		}
		e.byRank[uint32(rank)] = endpoint
	}
	return nil
}

func (e *endpoints) of(rank uint32) (string, error) {
	switch {
	case e.byRank != nil:
		endpoint, ok := e.byRank[rank]
		if !ok {
			return "", fmt.Errorf("no endpoint for rank %d", rank)
		}
		return zmq.RankEndpoint(endpoint, "", 0) // as it is, but a wildcard is no place to connect to
	case e.base == "":
		return "", nil
	}
	return zmq.RankEndpoint(e.base, "", rank)
}

// WorkerConfig says what a Worker publishes, and where.
type WorkerConfig struct {
	WorkerID    uint64        `json:"worker_id"`
	DPStart     uint32        `json:"dp_start"`     // first rank
	DPSize      uint32        `json:"dp_size"`      // ranks
	BlockSize   int           `json:"block_size"`   // tokens per block
	KVEvents    string        `json:"kv_events"`    // base endpoint of the PUB sockets, to whose port each rank is added; port 0: free ones
	Replay      string        `json:"replay"`       // of the replay sockets; "": none
	Query       string        `json:"query"`        // of the query sockets; "": none
	Topic       string        `json:"topic"`        // first frame of every message
	BufferSteps int           `json:"buffer_steps"` // events kept
	Engine      *EngineConfig `json:"engine"`       // nil: the caller publishes
}

// ParseWorkerConfig reads a JSON object with the fields of WorkerConfig, over the defaults: one rank, 10,000 events kept. Unknown
// fields are refused. Errors: publish.ErrConfig.
func ParseWorkerConfig(text []byte) (WorkerConfig, error) {
	cfg := WorkerConfig{DPSize: 1, BufferSteps: 10_000}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&cfg); err != nil {
		return WorkerConfig{}, fmt.Errorf("%w: %w", publish.ErrConfig, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return WorkerConfig{}, fmt.Errorf("%w: more than one JSON object", publish.ErrConfig)
	}
	return cfg, nil
}

// Worker publishes for all ranks of a worker, what its host tells or what its engine publishes. All methods are safe for concurrent use.
type Worker struct {
	id     uint64
	ranks  *publish.Worker
	relays []*Relay // one for each source, or none
}

// StartWorker starts the sockets. Errors: publish.ErrConfig, and that an address cannot be listened on.
func StartWorker(cfg WorkerConfig) (*Worker, error) {
	var engine []Config // one for each rank
	for i := uint64(0); cfg.Engine != nil && i < uint64(min(cfg.DPSize, publish.MaxRanks)); i++ {
		c, err := cfg.Engine.Rank(cfg.DPStart + uint32(i))
		if err != nil {
			return nil, fmt.Errorf("%w: engine: %w", publish.ErrConfig, err)
		}
		engine = append(engine, c)
	}
	ranks, err := publish.NewWorker(publish.SourceConfig{
		Rank: worker.Rank{ID: cfg.WorkerID, DPRank: cfg.DPStart}, BlockSize: cfg.BlockSize, Endpoint: cfg.KVEvents, Replay: cfg.Replay,
		Query: cfg.Query, Topic: cfg.Topic, BufferSteps: cfg.BufferSteps,
	}, cfg.DPSize)
	if err != nil {
		return nil, err
	}
	w := &Worker{id: cfg.WorkerID, ranks: ranks}
	for i, c := range engine {
		c.Source = ranks.Sources()[i]
		w.relays = append(w.relays, Start(c))
	}
	return w, nil
}

// Rank says where one rank of the engine publishes.
func (e *EngineConfig) Rank(rank uint32) (c Config, err error) {
	if c.Endpoint, err = e.KVEvents.of(rank); err != nil {
		return Config{}, fmt.Errorf("kv_events: %w", err)
	}
	if c.Endpoint == "" {
		return Config{}, errors.New("kv_events is missing")
	}
	if c.Replay, err = e.Replay.of(rank); err != nil {
		return Config{}, fmt.Errorf("replay: %w", err)
	}
	c.Topic = e.Topic
	return c, nil
}

// Publish tells of a rank's events; see publish.Source.Publish. ErrRank, ErrRelayed: nothing was published.
func (w *Worker) Publish(rank uint32, events ...publish.Event) (index.Applied, error) {
	s := w.ranks.Rank(rank)
	if s == nil {
		return index.Applied{}, fmt.Errorf("%w: %d of worker %d", ErrRank, rank, w.id)
	}
	if w.relays != nil {
		return index.Applied{}, fmt.Errorf("%w: worker %d", ErrRelayed, w.id)
	}
	return s.Publish(events...)
}

// RankInfo says where a rank's sockets are, and what was published.
type RankInfo struct {
	DPRank   uint32       `json:"dp_rank"`
	KVEvents string       `json:"kv_events"`
	Replay   string       `json:"replay"` // "" if there is none
	Query    string       `json:"query"`
	Messages uint64       `json:"messages"`
	Blocks   int          `json:"blocks"` // held now, on the device
	Stored   uint64       `json:"stored"`
	Again    uint64       `json:"duplicate_stores"`
	Removed  uint64       `json:"removed"`
	Unknown  uint64       `json:"unknown_removals"`
	Refused  uint64       `json:"refused"`
	Engine   *EngineState `json:"engine"` // nil: the host publishes
}

// EngineState is what is known of an engine's stream.
type EngineState struct {
	State    string            `json:"state"`
	Reason   string            `json:"reason"`
	Counters map[string]uint64 `json:"counters"`
}

// Info tells of every rank.
func (w *Worker) Info() []RankInfo {
	var all []RankInfo
	for i, s := range w.ranks.Sources() {
		info := InfoOf(s)
		if w.relays != nil {
			info.Engine = StateOf(w.relays[i].Status())
		}
		all = append(all, info)
	}
	return all
}

// InfoOf tells of one source.
func InfoOf(s *publish.Source) RankInfo {
	st := s.Stats()
	return RankInfo{
		DPRank: s.Rank().DPRank, KVEvents: s.Addr(), Replay: s.ReplayAddr(), Query: s.QueryAddr(), Messages: st.Messages, Blocks: st.Blocks,
		Stored: st.Stored, Again: st.Duplicate, Removed: st.Removed, Unknown: st.Unknown, Refused: st.Refused,
	}
}

// StateOf tells of one engine's stream.
func StateOf(st feed.Status) *EngineState {
	return &EngineState{State: string(st.State), Reason: st.Reason, Counters: st.Counters}
}

// Close stops everything. It is idempotent.
func (w *Worker) Close() error {
	for _, r := range w.relays {
		r.Close()
	}
	return w.ranks.Close()
}
