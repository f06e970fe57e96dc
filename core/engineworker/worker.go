// Package engineworker makes an HTTP engine, vLLM or SGLang as they are, a worker of a deployment: an instance of an endpoint, served by this process,
// whose handler asks the engine, and whose KV events are the engine's own, relayed. Routers of the deployment, Dynamo's too, take it for one of theirs.
//
// The instance is registered while the engine is healthy (package engine), and withdrawn while it is ejected or draining; what it publishes stays, so
// that a router which sees it again has all that it holds at once. A request that the engine did not begin to answer fails before its response has
// begun, so that the router asks another worker.
package engineworker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/relay"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// Options of a Worker. The zero value of a field means its default.
type Options struct {
	Limits engine.Limits
	Health engine.Health
	Log    *slog.Logger
}

// Worker is an engine that serves an endpoint. All methods are safe for concurrent use.
type Worker struct {
	at      *runtime.Endpoint
	spec    fleet.Spec
	engine  *engine.Engine
	service *runtime.Service
	log     *slog.Logger
	ctx     context.Context
	cancel  context.CancelFunc
	running owned.Group
	once    sync.Once

	// Of follow.
	ranks  []rank
	placed string // where the ranks publish
	card   string // that is registered; "": none

	mu     sync.Mutex // guards the rest
	about  engine.Description
	size   uint32
	listed bool
	err    string // why it is not listed, or lacks what it should have
}

// rank is what one rank of the engine publishes, and where it goes.
type rank struct {
	source *kvsource.Source
	relay  *relay.Relay
}

// Start makes an engine a worker of an endpoint, once it is healthy. Errors: engine.ErrInvalid, and those of runtime.Endpoint.Serve.
func Start(at *runtime.Endpoint, s fleet.Spec, o Options) (*Worker, error) {
	if err := s.Normal(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h := o.Health
	h.Path = cmp.Or(s.HealthPath, h.Path)
	e, err := engine.New(engine.Config{URL: s.URL, Kind: s.Kind, Model: s.Model, Header: s.Header, DPSize: s.DPSize, Limits: o.Limits, Health: h, Log: o.Log})
	if err != nil {
		return nil, err
	}
	if s.Draining {
		e.Drain()
	}
	w := &Worker{at: at, spec: s, engine: e, log: o.Log, size: max(s.DPSize, 1)}
	if w.service, err = at.Serve(w.generate, runtime.ServeOptions{ID: s.ID, Unlisted: true, Late: true}); err != nil {
		e.Close()
		return nil, err
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.running.Keep(w.ctx.Done(), w.follow)
	return w, nil
}

// ID is the worker's.
func (w *Worker) ID() uint64 { return w.spec.ID }

// Engine is the one behind it.
func (w *Worker) Engine() *engine.Engine { return w.engine }

// Close withdraws the instance and ends it; with grace requests that run are waited for. It is idempotent.
func (w *Worker) Close(grace bool) {
	w.once.Do(func() {
		w.cancel()
		w.running.Wait()
		_ = w.service.Unregister() // the store may be closed
		if w.card != "" {
			_ = w.service.UnregisterModel()
		}
		w.service.Close(grace)
		w.engine.Close()
		w.silence()
	})
}

// Info is what is known of a worker.
type Info struct {
	WorkerID  uint64 `json:"worker_id"`
	Endpoint  string `json:"endpoint"`
	URL       string `json:"url"`
	Listed    bool   `json:"listed"` // routers see it
	Error     string `json:"error"`  // why it is not, or what it lacks; "": nothing
	Kind      string `json:"kind"`
	Version   string `json:"version"`
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"`
	DPStart   uint32 `json:"dp_start"`
	DPSize    uint32 `json:"dp_size"`
	engine.Status
}

// Info tells of it.
func (w *Worker) Info() Info {
	st := w.engine.Status()
	w.mu.Lock()
	defer w.mu.Unlock()
	return Info{
		WorkerID: w.spec.ID, Endpoint: w.at.Name.String(), URL: w.spec.URL, Listed: w.listed, Error: w.err, Kind: string(w.engine.Kind()),
		Version: w.about.Version, Model: cmp.Or(w.spec.Model, w.about.Model), BlockSize: cmp.Or(w.spec.BlockSize, w.about.BlockSize),
		DPStart: w.spec.DPStart, DPSize: w.size, Status: st,
	}
}

// follow keeps discovery in step with the engine.
func (w *Worker) follow() {
	const again = time.Second
	var seen uint64 // returns
	known := false
	for w.ctx.Err() == nil {
		changed := w.engine.Changed()
		st := w.engine.Status()
		up := st.State == engine.Healthy
		if up && (!known || st.Returned != seen) {
			if err := w.learn(); err != nil {
				w.say(err.Error())
			} else {
				known, seen = true, st.Returned
			}
		}
		ok := w.list(up && known)
		var retry <-chan time.Time
		if up && (!known || st.Returned != seen) || !ok {
			retry = time.After(again)
		}
		select {
		case <-changed:
		case <-retry:
		case <-w.ctx.Done():
		}
	}
}

func (w *Worker) say(err string) {
	w.mu.Lock()
	fresh := w.err != err
	w.err = err
	w.mu.Unlock()
	if fresh && err != "" {
		w.log.Warn("engine", "url", w.spec.URL, "worker_id", w.spec.ID, "lacks", err)
	}
}

// list registers the instance, or withdraws it.
func (w *Worker) list(up bool) bool {
	var err error
	if up {
		err = w.service.Register()
	} else {
		err = w.service.Unregister()
	}
	if err != nil {
		w.say(err.Error())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listed = up && err == nil
	return err == nil
}

// learn asks the engine what it is, and says so to the deployment.
func (w *Worker) learn() error {
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	about, err := w.engine.Describe(ctx)
	var told *engine.StatusError
	if err != nil && !errors.As(err, &told) { // a server without /v1/models has nothing to say
		return err
	}
	kvEvents, replay, topic, size, lacks := w.spec.Sources(&about, 0)
	blockSize := cmp.Or(w.spec.BlockSize, about.BlockSize)
	if blockSize == 0 {
		return fmt.Errorf("%w: the engine does not tell its block size: give block_size", engine.ErrInvalid)
	}
	if about.BlockSize != 0 && about.BlockSize != blockSize {
		return fmt.Errorf("%w: block_size=%d, but the engine's is %d", engine.ErrInvalid, blockSize, about.BlockSize)
	}
	w.engine.SetDPSize(size)
	if err := w.relay(kvEvents, replay, topic, size, blockSize); err != nil {
		return err
	}
	w.mu.Lock()
	w.about, w.size = about, size
	w.mu.Unlock()
	w.say(lacks)
	return w.describe(&about, size, blockSize, len(w.ranks) > 0)
}

// relay has the ranks' events relayed from where they are published now.
func (w *Worker) relay(kvEvents, replay router.Endpoints, topic string, size uint32, blockSize int) error {
	from := make([]relay.Config, 0, size)
	for i := range size {
		r := w.spec.DPStart + i
		at, err := endpoint(&kvEvents, w.engine.Host(), r)
		if err != nil {
			return fmt.Errorf("kv_events: %w", err)
		}
		if at == "" {
			from = nil
			break
		}
		again, err := endpoint(&replay, w.engine.Host(), r)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		from = append(from, relay.Config{Endpoint: at, Replay: again, Topic: topic})
	}
	if placed := fmt.Sprint(from, blockSize); placed == w.placed {
		return nil
	} else {
		w.silence()
		w.placed = placed
	}
	for i, c := range from {
		s, err := kvsource.New(w.at, kvsource.Config{WorkerID: w.spec.ID, DPRank: w.spec.DPStart + uint32(i), BlockSize: blockSize})
		if err != nil {
			w.silence()
			return err
		}
		c.Source = s.Local()
		w.ranks = append(w.ranks, rank{s, relay.Start(c)})
	}
	return nil
}

func endpoint(e *router.Endpoints, host string, r uint32) (string, error) {
	if e.Base != "" {
		return zmq.RankEndpoint(e.Base, host, r)
	}
	if at := e.ByRank[r]; at != "" {
		return zmq.RankEndpoint(at, host, 0)
	}
	return "", nil
}

// silence ends what is relayed.
func (w *Worker) silence() {
	for _, r := range w.ranks {
		if r.relay != nil {
			r.relay.Close()
		}
		_ = r.source.Close() // its records expire, if they cannot be deleted
	}
	w.ranks, w.placed = nil, ""
}

// describe registers the model card, as Dynamo's workers have one.
func (w *Worker) describe(d *engine.Description, size uint32, blockSize int, events bool) error {
	name := cmp.Or(w.spec.Model, d.Model, "model")
	config := map[string]any{
		"total_kv_blocks": nil, "max_num_seqs": nil, "max_num_batched_tokens": nil, "tool_call_parser": nil, "reasoning_parser": nil,
		"tool_call_arguments_format": "json_string", "structural_tag_mode": "off", "structural_tag_scope": "auto", "structural_tag_schema": "auto",
		"exclude_tools_when_tool_choice_none": true, "data_parallel_start_rank": w.spec.DPStart, "data_parallel_size": size,
		"enable_local_indexer": events, "enable_eagle": false,
	}
	if n := cmp.Or(w.spec.TotalKVBlocks, d.TotalBlocks); n > 0 {
		config["total_kv_blocks"] = n
	}
	if n := cmp.Or(w.spec.MaxNumBatchedTokens, d.MaxBatched); n > 0 {
		config["max_num_batched_tokens"] = n
	}
	if len(w.spec.Taints) > 0 {
		config["taints"] = w.spec.Taints
	}
	card, err := json.Marshal(map[string]any{
		"display_name": name, "slug": discovery.Slug(name), "model_info": nil, "tokenizer": nil, "context_length": d.MaxModelLen,
		"kv_cache_block_size": blockSize, "migration_limit": 0, "model_type": "Completions", "model_input": "Tokens", "worker_type": "aggregated",
		"needs": []string{}, "media_decoder": nil, "media_fetcher": nil, "runtime_config": config,
	})
	if err != nil || string(card) == w.card {
		return err
	}
	if w.card != "" {
		if err := w.service.UnregisterModel(); err != nil {
			return err
		}
		w.card = ""
	}
	if err := w.service.RegisterModel(card); err != nil {
		return err
	}
	w.card = string(card)
	return nil
}
