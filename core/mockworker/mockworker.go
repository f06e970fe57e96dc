// Package mockworker is a worker of a deployment without a GPU: the engine of package mocker behind an endpoint, with its model card, its KV events and
// what it says of its load, as a worker with a real engine has them. Dynamo's routers and ours take it for one.
package mockworker

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/owned"
	"github.com/dynamo-go/dynamo-go/core/mocker"
	"github.com/dynamo-go/dynamo-go/core/publish"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/event"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/stream"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

// metricsEvery is how often it looks whether its load is another, to say so.
const metricsEvery = 100 * time.Millisecond

// Worker is one that serves.
type Worker struct {
	engine  *mocker.Mocker
	source  *kvsource.Source
	metrics *event.Publisher
	service *runtime.Service
	rank    worker.Rank
	stop    chan struct{}
	leave   sync.Once
	once    sync.Once
	running owned.Group
}

// Start serves an endpoint. id is the worker's; 0: the runtime's. What cfg says of event sockets does not matter. Errors: mocker.ErrConfig and those of
// runtime.Endpoint.Serve.
func Start(e *runtime.Endpoint, id uint64, cfg mocker.Config) (*Worker, error) {
	r := e.Runtime()
	if id == 0 {
		id = r.ID()
	}
	w := &Worker{rank: worker.Rank{ID: id, DPRank: cfg.DPRank}, stop: make(chan struct{})}
	if err := w.start(e, cfg); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Worker) start(e *runtime.Endpoint, cfg mocker.Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	r := e.Runtime()
	w.source, err = kvsource.New(e, kvsource.Config{WorkerID: w.rank.ID, DPRank: cfg.DPRank, BlockSize: cfg.BlockSize, BufferSteps: cfg.BufferSteps})
	if err != nil {
		return err
	}
	cfg.Sink = func(events ...publish.Event) error {
		_, err := w.source.Publish(events...)
		return err
	}
	if w.engine, err = mocker.New(cfg); err != nil {
		return err
	}
	if w.metrics, err = event.NewPublisher(r.Link(), e.Name, wire.TopicMetrics, 0); err != nil {
		return err
	}
	w.running.Keep(w.stop, w.tell)
	// A router takes an instance as a worker when it has seen its card: so that comes last.
	if w.service, err = e.Serve(w.generate, runtime.ServeOptions{ID: w.rank.ID}); err != nil {
		return err
	}
	return w.service.RegisterModel(card(&cfg))
}

// card is the model card, as Dynamo's workers register one.
func card(cfg *mocker.Config) json.RawMessage {
	b, _ := json.Marshal(map[string]any{
		"display_name": cfg.Model, "slug": cfg.Model, "model_info": nil, "tokenizer": nil, "context_length": cfg.MaxModelLen,
		"kv_cache_block_size": cfg.BlockSize, "migration_limit": 0, "model_type": "Completions", "model_input": "Tokens",
		"worker_type": "aggregated", "needs": []string{}, "media_decoder": nil, "media_fetcher": nil,
		"runtime_config": map[string]any{
			"total_kv_blocks": cfg.Blocks, "max_num_seqs": cfg.MaxRunning, "max_num_batched_tokens": cfg.MaxBatchedTokens,
			"tool_call_parser": nil, "reasoning_parser": nil, "tool_call_arguments_format": "json_string", "structural_tag_mode": "off",
			"structural_tag_scope": "auto", "structural_tag_schema": "auto", "exclude_tools_when_tool_choice_none": true,
			"data_parallel_start_rank": cfg.DPRank, "data_parallel_size": 1, "enable_local_indexer": true, "enable_eagle": false,
		},
	}) // texts and numbers only
	return b
}

// Rank is whose it is.
func (w *Worker) Rank() worker.Rank { return w.rank }

// Engine is the one behind it.
func (w *Worker) Engine() *mocker.Mocker { return w.engine }

// Leave lets routers find the worker no more; it goes on serving what it has, and what still comes. Again, it does nothing. Errors: those of the store.
func (w *Worker) Leave() (err error) {
	w.leave.Do(func() { err = errors.Join(w.service.Unregister(), w.service.UnregisterModel()) })
	return err
}

// Close stops serving; requests that run are cut off. It is idempotent.
func (w *Worker) Close() {
	w.once.Do(func() {
		close(w.stop)
		if w.service != nil {
			_ = w.service.UnregisterModel() // it may not be registered
			w.service.Close(false)
		}
		w.running.Wait()
		if w.metrics != nil {
			w.metrics.Close()
		}
		if w.engine != nil {
			_ = w.engine.Close()
		}
		if w.source != nil {
			_ = w.source.Close()
		}
	})
}

// generate answers one request: token_ids and stop_conditions.max_tokens of it count.
func (w *Worker) generate(c *runtime.Call) error {
	text, err := wire.ToJSON(nil, c.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	}
	var q struct {
		Tokens []block.Token `json:"token_ids"`
		Stop   struct {
			MaxTokens *int `json:"max_tokens"`
		} `json:"stop_conditions"`
	}
	if err := json.Unmarshal(text, &q); err != nil {
		return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	}
	o := mocker.DefaultGenerateOptions()
	if q.Stop.MaxTokens != nil {
		o.MaxTokens = *q.Stop.MaxTokens
	}
	s, err := w.engine.Generate(q.Tokens, o)
	switch {
	case errors.Is(err, mocker.ErrRequest):
		return fmt.Errorf("%w: %w", plane.ErrInvalidArgument, err)
	case errors.Is(err, mocker.ErrBusy):
		return fmt.Errorf("%w: %w", plane.ErrOverloaded, err)
	case err != nil:
		return err
	}
	defer s.Close()
	stopped := owned.After(c.Stopped(), s.Stop)
	defer stopped()
	return forward(c, s)
}

// forward hands on what the engine generates.
func forward(c *runtime.Call, s *stream.Stream) error {
	var batch stream.Batch
	var item []byte
	for {
		err := s.Next(c.Killed(), &batch, 64)
		if errors.Is(err, stream.ErrEnded) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, j := range batch.Items() {
			if item, err = wire.FromJSON(item[:0], j); err == nil {
				err = c.Send(item)
			}
			if err != nil {
				return err
			}
		}
		batch.Reset()
	}
}

// tell says what the engine is busy with, when that changes.
func (w *Worker) tell() {
	var told [2]uint64
	ticker := time.NewTicker(metricsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-ticker.C:
		}
		st := w.engine.Stats()
		now := [2]uint64{uint64(st.Blocks - st.IdleBlocks), uint64(st.CachedBlocks)}
		if now == told {
			continue
		}
		told = now
		_ = w.metrics.Publish(wire.AppendActiveLoad(nil, &wire.ActiveLoad{Worker: w.rank, DecodeBlocks: &now[0], KVUsedBlocks: &now[1]})) // or it is closed
	}
}
