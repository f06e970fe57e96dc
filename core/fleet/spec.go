package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Errors of this package; others are those of packages engine and router.
var (
	// ErrInvalid: a description or a file cannot be used. Nothing changed.
	ErrInvalid = engine.ErrInvalid
	// ErrNotFound: there is no such engine.
	ErrNotFound = errors.New("engine not found")
	// ErrDuplicate: there is an engine with this id.
	ErrDuplicate = errors.New("duplicate engine")
	// ErrClosed: the fleet was closed.
	ErrClosed = engine.ErrClosed
)

// MaxEngines bounds a fleet.
const MaxEngines = 4096

// Spec describes an engine. Only URL is required; what is not given is asked of the engine, as far as it tells (engine.Description).
type Spec struct {
	ID       uint64 // 0: one that the URL and DPStart give
	URL      string // "http://host:8000"
	Kind     engine.Kind
	Model    string
	KVEvents router.Endpoints // "*" stands for the host of URL
	Replay   router.Endpoints
	NoEvents bool // it publishes none, whatever it says
	Topic    string
	DPStart  uint32
	DPSize   uint32 // 0: what the engine says, or 1

	BlockSize           int // tokens of a KV block; 0: what the engine says, or, in a fleet, the router's
	MaxNumBatchedTokens uint64
	TotalKVBlocks       uint64
	Taints, Adapters    []string
	Header              http.Header // sent with every request
	HealthPath          string      // "": /health
	Draining            bool        // it should get no requests
}

// Normal checks a description, and fills in its id. Errors: ErrInvalid.
func (s *Spec) Normal() error {
	u, err := engine.ParseURL(s.URL)
	if err != nil {
		return err
	}
	s.URL = u.String()
	if s.DPSize > router.MaxRanks {
		return fmt.Errorf("%w: engine %s: dp_size=%d, expected at most %d", ErrInvalid, s.URL, s.DPSize, router.MaxRanks)
	}
	if s.BlockSize < 0 || s.BlockSize > 1<<20 {
		return fmt.Errorf("%w: engine %s: block_size=%d, expected 1 to 2^20", ErrInvalid, s.URL, s.BlockSize)
	}
	if s.NoEvents && (given(s.KVEvents) || given(s.Replay)) {
		return fmt.Errorf("%w: engine %s: kv_events are both given and said to be none", ErrInvalid, s.URL)
	}
	if given(s.Replay) && !given(s.KVEvents) {
		return fmt.Errorf("%w: engine %s: replay without kv_events", ErrInvalid, s.URL)
	}
	for _, e := range []router.Endpoints{s.KVEvents, s.Replay} {
		for _, at := range append(slices.Collect(maps.Values(e.ByRank)), e.Base) {
			if at == "" {
				continue
			}
			if _, err := zmq.RankEndpoint(at, u.Hostname(), 0); err != nil {
				return fmt.Errorf("%w: engine %s: %w", ErrInvalid, s.URL, err)
			}
		}
	}
	s.ID = cmp.Or(s.ID, IDOf(s.URL, s.DPStart))
	s.KVEvents.ByRank, s.Replay.ByRank = maps.Clone(s.KVEvents.ByRank), maps.Clone(s.Replay.ByRank)
	s.Taints, s.Adapters, s.Header = slices.Clone(s.Taints), slices.Clone(s.Adapters), s.Header.Clone()
	return nil
}

func given(e router.Endpoints) bool { return e.Base != "" || len(e.ByRank) > 0 }

// IDOf is the worker id of an engine that was given none: the same in every process, and after every restart. It has at most 48 bits.
func IDOf(url string, dpStart uint32) uint64 {
	sum := sha256.Sum256([]byte(url + " " + strconv.FormatUint(uint64(dpStart), 10)))
	return max(binary.BigEndian.Uint64(sum[:])>>16, 1)
}

// Sources gives where an engine that said d of itself publishes, the number of its ranks, and, if that is nowhere of use, why. blockSize is what its
// events must have; 0: any.
func (s *Spec) Sources(d *engine.Description, blockSize int) (kvEvents, replay router.Endpoints, topic string, size uint32, lacks string) {
	size = cmp.Or(s.DPSize, d.DPSize, 1)
	kvEvents, replay, topic = s.KVEvents, s.Replay, s.Topic
	if s.NoEvents {
		return router.Endpoints{}, router.Endpoints{}, "", size, ""
	}
	if !given(kvEvents) {
		kvEvents, replay = ranksOf(d.KVEvents, s.DPStart, size), ranksOf(d.Replay, s.DPStart, size)
		topic = cmp.Or(topic, d.Topic)
		if uint32(len(kvEvents.ByRank)) != size {
			kvEvents = router.Endpoints{}
		}
	}
	own := cmp.Or(s.BlockSize, d.BlockSize)
	switch {
	case !given(kvEvents):
		lacks = "it does not tell where it publishes KV events, and kv_events is not given: prompts never hit"
	case own != 0 && blockSize != 0 && own != blockSize:
		lacks = fmt.Sprintf("its block size is %d, the router's is %d: its KV events are left out, and prompts never hit", own, blockSize)
	default:
		return kvEvents, replay, topic, size, ""
	}
	return router.Endpoints{}, router.Endpoints{}, "", size, lacks
}

// worker gives the router's description of an engine that said d of itself. What it publishes is left out, and why is said, if it could never be of use.
func (s *Spec) worker(d *engine.Description, host string, blockSize int) (router.Worker, string) {
	kvEvents, replay, topic, size, lacks := s.Sources(d, blockSize)
	return router.Worker{
		ID: s.ID, DPStart: s.DPStart, DPSize: size, KVEvents: kvEvents, Replay: replay, Topic: topic, Host: host,
		MaxNumBatchedTokens: cmp.Or(s.MaxNumBatchedTokens, d.MaxBatched), TotalKVBlocks: cmp.Or(s.TotalKVBlocks, d.TotalBlocks),
		Taints: s.Taints, Adapters: slices.Concat(s.Adapters, d.Adapters),
	}, lacks
}

// ranksOf takes the endpoints of some ranks. An engine counts its ranks from 0 if there are others elsewhere, too.
func ranksOf(all map[uint32]string, start, size uint32) router.Endpoints {
	some := make(map[uint32]string)
	for i := range size {
		if at, ok := all[start+i]; ok {
			some[start+i] = at
		} else if at, ok := all[i]; ok && uint32(len(all)) == size {
			some[start+i] = at
		}
	}
	if len(some) == 0 {
		return router.Endpoints{}
	}
	return router.Endpoints{ByRank: some}
}
