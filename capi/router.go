package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/mailbox"
	"github.com/dynamo-go/dynamo-go/core/metrics"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// served is a router with what shows it to Prometheus, and with the requests that wait.
type served struct {
	*router.Router
	exporter *metrics.Exporter
	waits    *waits
	kv       *kvrouter.KvRouter // what drives it, or nil if the host does
	box      *mailbox.Mailbox   // tells of its requests, if kv is not nil
}

// addRouter gives a router its handle, or closes it.
func addRouter(s *served, result *C.dgo_router) (err error) {
	if s.exporter, err = metrics.New(s.Router, metrics.Options{}); err == nil {
		var h handle
		if h, err = routers.add(s); err == nil {
			*result = C.dgo_router(h)
			return nil
		}
	}
	s.close()
	return err
}

func (s *served) close() {
	if s.kv != nil {
		s.box.CloseRouter(s.kv)
	}
	s.Close()
	s.waits.close()
}

var routers table[served]

//export dgo_go_router_new
func dgo_go_router_new(blockSize C.int64_t, config *C.char, configSize C.size_t, seed *C.uint64_t, result *C.dgo_router, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := out(result, "router"); err != nil {
			return err
		}
		if int64(blockSize) < math.MinInt || int64(blockSize) > math.MaxInt {
			return fmt.Errorf("%w: block_size is %d", errArgument, int64(blockSize))
		}
		cfg, err := parseConfig(config, configSize)
		if err != nil {
			return err
		}
		options := router.Options{Log: journal}
		if seed != nil {
			if err := out(seed, "seed"); err != nil {
				return err
			}
			value := uint64(*seed)
			options.Seed = &value
		}
		r, err := router.New(int(blockSize), cfg, options)
		if err != nil {
			return err
		}
		return addRouter(&served{Router: r, waits: newWaits()}, result)
	})
}

func parseConfig(config *C.char, size C.size_t) (router.Config, error) {
	raw, err := bytesView(config, size, "config")
	if err != nil {
		return router.Config{}, err
	}
	if raw == nil {
		return router.DefaultConfig(), nil
	}
	return router.ParseConfig(raw)
}

//export dgo_go_router_close
func dgo_go_router_close(h C.dgo_router, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		r, err := routers.remove(handle(h))
		if r != nil {
			r.close()
		}
		return err
	})
}

// routerCall is call with the router of a handle.
func routerCall(h C.dgo_router, e *C.dgo_error, body func(r *router.Router) error) C.dgo_status {
	return call(e, func() error {
		r, err := routers.find(handle(h))
		if err != nil {
			return err
		}
		return body(r.Router)
	})
}

// routerJSON is routerCall with a JSON result.
func routerJSON(h C.dgo_router, b *C.dgo_buffer, name string, e *C.dgo_error, body func(r *router.Router) (any, error)) C.dgo_status {
	return routerCall(h, e, func(r *router.Router) error {
		if err := checkBuffer(b, name); err != nil {
			return err
		}
		value, err := body(r)
		if err != nil {
			return err
		}
		return giveJSON(b, value)
	})
}

// giveJSON copies a value as JSON into the caller's buffer; bytes are JSON already.
func giveJSON(b *C.dgo_buffer, value any) error {
	if raw, ok := value.([]byte); ok {
		return give(b, raw)
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	return give(b, bytes.TrimSuffix(text.Bytes(), []byte("\n")))
}

//export dgo_go_router_add_worker
func dgo_go_router_add_worker(h C.dgo_router, w *C.dgo_worker, e *C.dgo_error) C.dgo_status {
	return routerCall(h, e, func(r *router.Router) error {
		if w == nil {
			return out(w, "worker")
		}
		if err := sized(w, &w.struct_size, "worker"); err != nil {
			return err
		}
		spec, err := workerSpec(w)
		if err != nil {
			return err
		}
		return r.AddWorker(spec)
	})
}

func workerSpec(w *C.dgo_worker) (router.Worker, error) {
	spec := router.Worker{
		ID: uint64(w.worker_id), DPStart: uint32(w.dp_start), DPSize: uint32(w.dp_size),
		MaxNumBatchedTokens: uint64(w.max_num_batched_tokens), TotalKVBlocks: uint64(w.total_kv_blocks),
	}
	if w.has_block_size != 0 {
		if w.block_size < 1 || w.block_size > math.MaxInt32 {
			return spec, fmt.Errorf("%w: worker %d has block_size=%d, expected a positive number", errArgument, spec.ID, int64(w.block_size))
		}
		spec.BlockSize = int(w.block_size)
	}
	var err error
	if spec.KVEvents, err = endpoints(&w.kv_events, "kv_events"); err != nil {
		return spec, err
	}
	if spec.Replay, err = endpoints(&w.replay, "replay"); err != nil {
		return spec, err
	}
	if spec.Query, err = endpoints(&w.query, "query"); err != nil {
		return spec, err
	}
	if spec.Topic, _, err = textOf(&w.topic, "topic"); err != nil {
		return spec, err
	}
	if spec.Host, _, err = textOf(&w.host, "host"); err != nil {
		return spec, err
	}
	if spec.Taints, err = texts(member(&w.taints, w.n_taints), w.n_taints, "taints"); err != nil {
		return spec, err
	}
	spec.Adapters, err = texts(member(&w.adapters, w.n_adapters), w.n_adapters, "adapters")
	return spec, err
}

// texts copies an array of strings that must all be there.
func texts(p *C.dgo_string, n C.size_t, name string) (list []string, err error) {
	strings, err := view[C.dgo_string](p, n, C.DGO_WORKER_IDS_MAX, name)
	if err != nil {
		return nil, err
	}
	for i := range strings {
		s, ok, err := textOf(&strings[i], name)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("%w: %s[%d] is NULL", errArgument, name, i)
		}
		list = append(list, s)
	}
	return list, nil
}

// endpoints reads a base endpoint, or a JSON object from rank to endpoint.
func endpoints(s *C.dgo_string, name string) (router.Endpoints, error) {
	value, given, err := textOf(s, name)
	if err != nil || !given {
		return router.Endpoints{}, err
	}
	if value == "" {
		return router.Endpoints{}, fmt.Errorf("%w: %s is empty, expected an endpoint", errArgument, name)
	}
	if value[0] != '{' {
		return router.Endpoints{Base: value}, nil
	}
	var byRank map[uint32]string
	if err := json.Unmarshal([]byte(value), &byRank); err != nil {
		return router.Endpoints{}, fmt.Errorf("%w: %s=%s is not an object from rank to endpoint: %w", errArgument, name, value, err)
	}
	return router.Endpoints{ByRank: byRank}, nil
}

//export dgo_go_router_remove_worker
func dgo_go_router_remove_worker(h C.dgo_router, id C.uint64_t, e *C.dgo_error) C.dgo_status {
	return routerCall(h, e, func(r *router.Router) error { return r.RemoveWorker(uint64(id)) })
}

//export dgo_go_router_workers
func dgo_go_router_workers(h C.dgo_router, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return routerJSON(h, b, "workers", e, func(r *router.Router) (any, error) { return r.Workers() })
}

//export dgo_go_router_apply_event
func dgo_go_router_apply_event(h C.dgo_router, id C.uint64_t, p *C.char, n C.size_t, flags C.uint32_t, e *C.dgo_error) C.dgo_status {
	return routerCall(h, e, func(r *router.Router) error {
		if flags&^C.DGO_APPLY_SET != 0 {
			return fmt.Errorf("%w: flags=%#x, expected 0 or DGO_APPLY_SET", errArgument, uint32(flags))
		}
		raw, err := jsonView(p, n, "event")
		if err != nil {
			return err
		}
		ev, err := event.ParseKvCacheEvent(raw)
		if err != nil {
			return fmt.Errorf("%w: %w", errArgument, err)
		}
		counting := index.Count
		if flags&C.DGO_APPLY_SET != 0 {
			counting = index.Set
		}
		return r.ApplyEvent(uint64(id), &ev, counting)
	})
}

//export dgo_go_router_dump_events
func dgo_go_router_dump_events(h C.dgo_router, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return routerJSON(h, b, "events", e, func(r *router.Router) (any, error) { return r.DumpEvents() })
}

//export dgo_go_router_load_events
func dgo_go_router_load_events(h C.dgo_router, p *C.char, n C.size_t, e *C.dgo_error) C.dgo_status {
	return routerCall(h, e, func(r *router.Router) error {
		raw, err := jsonView(p, n, "events")
		if err != nil {
			return err
		}
		return r.LoadEvents(raw)
	})
}

// fileCall is routerCall with a path.
func fileCall(h C.dgo_router, p *C.char, n C.size_t, e *C.dgo_error, body func(r *router.Router, path string) error) C.dgo_status {
	return routerCall(h, e, func(r *router.Router) error {
		path, ok, err := text(p, n, "path")
		if err == nil && !ok {
			err = fmt.Errorf("%w: path is NULL", errArgument)
		}
		if err != nil {
			return err
		}
		return body(r, path)
	})
}

//export dgo_go_router_save
func dgo_go_router_save(h C.dgo_router, p *C.char, n C.size_t, e *C.dgo_error) C.dgo_status {
	return fileCall(h, p, n, e, func(r *router.Router, path string) error { return r.Save(path) })
}

//export dgo_go_router_load
func dgo_go_router_load(h C.dgo_router, p *C.char, n C.size_t, ranks *C.size_t, e *C.dgo_error) C.dgo_status {
	return fileCall(h, p, n, e, func(r *router.Router, path string) error {
		if ranks == nil {
			_, err := r.Load(path)
			return err
		}
		if err := out(ranks, "ranks"); err != nil {
			return err
		}
		n, err := r.Load(path)
		if err == nil {
			*ranks = C.size_t(n)
		}
		return err
	})
}

//export dgo_go_router_health
func dgo_go_router_health(h C.dgo_router, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return routerJSON(h, b, "health", e, func(r *router.Router) (any, error) { return r.Health() })
}

//export dgo_go_router_stats
func dgo_go_router_stats(h C.dgo_router, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return routerJSON(h, b, "stats", e, func(r *router.Router) (any, error) { return r.Stats() })
}

//export dgo_go_router_replicate
func dgo_go_router_replicate(h C.dgo_router, p *C.char, n C.size_t, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return routerJSON(h, b, "result", e, func(r *router.Router) (any, error) {
		raw, err := jsonView(p, n, "replicas")
		if err != nil {
			return nil, err
		}
		c, err := router.ParseReplicas(raw)
		if err != nil {
			return nil, err
		}
		return r.Replicate(c)
	})
}

//export dgo_go_router_metrics
func dgo_go_router_metrics(h C.dgo_router, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		r, err := routers.find(handle(h))
		if err != nil {
			return err
		}
		if err := checkBuffer(b, "page"); err != nil {
			return err
		}
		var page bytes.Buffer
		if err := r.exporter.Write(&page); err != nil {
			return err
		}
		return give(b, page.Bytes())
	})
}

//export dgo_go_config_check
func dgo_go_config_check(p *C.char, n C.size_t, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if b != nil {
			if err := checkBuffer(b, "result"); err != nil {
				return err
			}
		}
		raw, err := jsonView(p, n, "config")
		if err != nil {
			return err
		}
		cfg, err := router.ParseConfig(raw)
		if err != nil || b == nil {
			return err
		}
		return giveJSON(b, cfg)
	})
}
