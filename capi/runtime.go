package main

/*
#include "dynamo_go.h"
*/
import "C"

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/dynamo-go/dynamo-go/core/kvrouter"
	"github.com/dynamo-go/dynamo-go/core/mailbox"
	"github.com/dynamo-go/dynamo-go/core/relay"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/runtime"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/etcd"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/file"
	"github.com/dynamo-go/dynamo-go/core/runtime/kvsource"
	"github.com/dynamo-go/dynamo-go/core/runtime/plane"
	"github.com/dynamo-go/dynamo-go/core/wire"
	"github.com/dynamo-go/dynamo-go/core/worker"
)

var runtimes table[mailbox.Mailbox]

// runtimeCall is call with the runtime of a handle.
func runtimeCall(h C.dgo_runtime, e *C.dgo_error, body func(m *mailbox.Mailbox) error) C.dgo_status {
	return call(e, func() error {
		m, err := runtimes.find(handle(h))
		if err != nil {
			return err
		}
		return body(m)
	})
}

// endpointCall is runtimeCall with an endpoint of its.
func endpointCall(h C.dgo_runtime, p *C.char, n C.size_t, e *C.dgo_error, body func(m *mailbox.Mailbox, at *runtime.Endpoint) error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		path, ok, err := text(p, n, "endpoint")
		if err == nil && !ok {
			err = fmt.Errorf("%w: endpoint is NULL", errArgument)
		}
		if err != nil {
			return err
		}
		at, err := m.Runtime().Endpoint(path)
		if err != nil {
			return err
		}
		return body(m, at)
	})
}

// fields reads a JSON object into a struct that has the defaults; NULL leaves them, if it may be NULL.
func fields(p *C.char, n C.size_t, name string, optional bool, into any) error {
	raw, err := bytesView(p, n, name)
	if err != nil {
		return err
	}
	if raw == nil {
		if optional {
			return nil
		}
		return fmt.Errorf("%w: %s is NULL", errArgument, name)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %s: %w", errArgument, name, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: %s: more than one JSON object", errArgument, name)
	}
	return nil
}

// value copies one MessagePack value.
func value(p *C.char, n C.size_t, name string) ([]byte, error) {
	raw, err := jsonView(p, n, name)
	if err != nil {
		return nil, err
	}
	raw = slices.Clone(raw)
	if err := wire.Valid(raw); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errArgument, name, err)
	}
	return raw, nil
}

// connected calls what is not a fault of the arguments, nor of the library, a place that cannot be listened on.
func connected(err error) error {
	if err != nil && statusOf(err) == C.DGO_INTERNAL {
		return fmt.Errorf("%w: %w", errCannotConnect, err)
	}
	return err
}

// defaultCredit is how many items a call may be ahead of its reader.
const defaultCredit = 100

type runtimeConfig struct {
	Discovery   string            `json:"discovery"`
	Path        string            `json:"path"`
	Request     string            `json:"request_plane"`
	Event       string            `json:"event_plane"`
	Environment map[string]string `json:"environment"`
}

func (c *runtimeConfig) open() (*mailbox.Mailbox, error) {
	getenv := os.Getenv
	if c.Environment != nil {
		getenv = func(name string) string { return c.Environment[name] }
	}
	options, err := runtime.OptionsFromEnv(getenv)
	if err != nil {
		return nil, err
	}
	c.Discovery = cmp.Or(c.Discovery, getenv("DYN_DISCOVERY_BACKEND"), "file")
	var store discovery.Store
	switch c.Discovery {
	case "mem":
		store = discovery.NewMemory()
		// Nobody else is there: neither an address that others reach nor a port that they know is of use.
		const here = "127.0.0.1"
		options.RequestHost, options.ResponseHost, options.EventHost = here, here, here
		options.RequestPort, options.ResponsePort = 0, 0
	case "file":
		if c.Path == "" {
			c.Path = getenv("DYN_FILE_KV")
		}
		if c.Path == "" {
			c.Path = filepath.Join(os.TempDir(), "dynamo_store_kv")
		}
		if store, err = file.Open(c.Path, file.Options{}); err != nil {
			return nil, err
		}
	case "etcd":
		o, err := etcd.OptionsFromEnv(getenv)
		if err != nil {
			return nil, err
		}
		o.Background = true // no call waits for a server
		if store, err = etcd.Open(o); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%w: discovery=%q, expected \"file\", \"etcd\" or \"mem\"", errArgument, c.Discovery)
	}
	if err := planes(c.Request, c.Event, getenv, &options); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return mailbox.New(runtime.New(store, options), func(err error) uint32 { return uint32(statusOf(err)) }), nil
}

//export dgo_go_runtime_new
func dgo_go_runtime_new(p *C.char, n C.size_t, result *C.dgo_runtime, notices *C.dgo_stream, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		if err := out(result, "runtime"); err != nil {
			return err
		}
		if err := out(notices, "notices"); err != nil {
			return err
		}
		c := runtimeConfig{}
		if err := fields(p, n, "config", true, &c); err != nil {
			return err
		}
		m, err := c.open()
		if err != nil {
			return err
		}
		h, err := runtimes.add(m)
		if err != nil {
			return errors.Join(err, m.Close())
		}
		if err := addStream(m.Notices(), m.Notices().Close, notices); err != nil {
			_, _ = runtimes.remove(h)
			return errors.Join(err, m.Close())
		}
		*result = C.dgo_runtime(h)
		return nil
	})
}

type runtimeInfo struct {
	ID        uint64 `json:"id"`
	Connected bool   `json:"connected"`
	Error     string `json:"error,omitempty"`

	Discovered     bool   `json:"discovered"`
	DiscoveryError string `json:"discovery_error,omitempty"`
}

//export dgo_go_runtime_info
func dgo_go_runtime_info(h C.dgo_runtime, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		if err := checkBuffer(b, "info"); err != nil {
			return err
		}
		connected, err := m.Runtime().Reach()
		info := runtimeInfo{ID: m.Runtime().ID(), Connected: connected}
		if err != nil {
			info.Error = err.Error()
		}
		if info.Discovered, err = m.Discovered(); err != nil {
			info.DiscoveryError = err.Error()
		}
		return giveJSON(b, info)
	})
}

//export dgo_go_runtime_close
func dgo_go_runtime_close(h C.dgo_runtime, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		m, err := runtimes.remove(handle(h))
		if m != nil {
			_ = m.Close() // files of ours that cannot be deleted expire
		}
		return err
	})
}

//export dgo_go_runtime_serve
func dgo_go_runtime_serve(h C.dgo_runtime, p *C.char, n C.size_t, options *C.char, size C.size_t, result *C.uint64_t, e *C.dgo_error) C.dgo_status {
	return endpointCall(h, p, n, e, func(m *mailbox.Mailbox, at *runtime.Endpoint) error {
		if err := out(result, "service"); err != nil {
			return err
		}
		o := struct {
			ID         uint64 `json:"id"`
			Listed     bool   `json:"listed"`
			Plain      bool   `json:"plain"`
			DeviceType string `json:"device_type"`
		}{Listed: true}
		if err := fields(options, size, "options", true, &o); err != nil {
			return err
		}
		id, _, err := m.Serve(at, runtime.ServeOptions{ID: o.ID, Plain: o.Plain, Unlisted: !o.Listed, DeviceType: o.DeviceType})
		if err == nil {
			*result = C.uint64_t(id)
		}
		return connected(err)
	})
}

//export dgo_go_runtime_list
func dgo_go_runtime_list(h C.dgo_runtime, service C.uint64_t, listed C.int32_t, e *C.dgo_error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		return m.List(uint64(service), listed != 0)
	})
}

//export dgo_go_runtime_model
func dgo_go_runtime_model(h C.dgo_runtime, p *C.char, n C.size_t, id C.uint64_t, card *C.char, size C.size_t, e *C.dgo_error) C.dgo_status {
	return endpointCall(h, p, n, e, func(m *mailbox.Mailbox, at *runtime.Endpoint) error {
		raw, err := bytesView(card, size, "card")
		if err != nil {
			return err
		}
		return m.Model(at, uint64(id), slices.Clone(raw))
	})
}

//export dgo_go_runtime_answer
func dgo_go_runtime_answer(h C.dgo_runtime, id C.uint64_t, p *C.char, n C.size_t, flags C.uint32_t, ahead *C.int32_t, e *C.dgo_error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		if ahead != nil {
			if err := out(ahead, "ahead"); err != nil {
				return err
			}
		}
		var wait bool
		var err error
		switch {
		case flags == C.DGO_ANSWER_FAIL:
			var failure error
			if failure, err = failureOf(p, n); err == nil {
				err = m.Finish(uint64(id), failure)
			}
		case flags > C.DGO_ANSWER_END:
			err = fmt.Errorf("%w: flags=%#x, expected one of DGO_ANSWER_*, or 0", errArgument, uint32(flags))
		default:
			if p != nil || flags == 0 {
				var item []byte
				if item, err = jsonView(p, n, "item"); err == nil {
					wait, err = m.Answer(uint64(id), slices.Clone(item))
				}
			}
			if err == nil && flags == C.DGO_ANSWER_END {
				err = m.Finish(uint64(id), nil)
			}
		}
		if err == nil && ahead != nil {
			if *ahead = 0; wait {
				*ahead = 1
			}
		}
		return err
	})
}

// failureOf reads why an answer failed.
func failureOf(p *C.char, n C.size_t) (error, error) {
	raw, err := jsonView(p, n, "item")
	if err != nil {
		return nil, err
	}
	said := struct {
		Message string `json:"message"`
		Invalid bool   `json:"invalid"`
		Gone    bool   `json:"gone"`
	}{}
	if len(raw) == 0 || raw[0] != '{' {
		if said.Message, _, err = text(p, n, "item"); err != nil {
			return nil, err
		}
	} else if err := fields(p, n, "item", false, &said); err != nil {
		return nil, err
	}
	kind := plane.ErrWorker
	switch {
	case said.Invalid:
		kind = plane.ErrInvalidArgument
	case said.Gone:
		kind = plane.ErrUnavailable
	}
	f := *plane.FailureOf(kind)
	f.Message = said.Message
	return &plane.WorkerError{Failure: f}, nil
}

//export dgo_go_runtime_client
func dgo_go_runtime_client(h C.dgo_runtime, p *C.char, n C.size_t, result *C.uint64_t, e *C.dgo_error) C.dgo_status {
	return endpointCall(h, p, n, e, func(m *mailbox.Mailbox, at *runtime.Endpoint) error {
		if err := out(result, "client"); err != nil {
			return err
		}
		id, err := m.Client(at)
		if err == nil {
			*result = C.uint64_t(id)
		}
		return err
	})
}

type instanceInfo struct {
	InstanceID uint64        `json:"instance_id"`
	Namespace  string        `json:"namespace"`
	Component  string        `json:"component"`
	Endpoint   string        `json:"endpoint"`
	Transport  transportInfo `json:"transport"`
	DeviceType string        `json:"device_type"`
}

type transportInfo struct {
	Kind    string `json:"kind"`
	Address string `json:"address"`
}

//export dgo_go_runtime_instances
func dgo_go_runtime_instances(h C.dgo_runtime, client C.uint64_t, b *C.dgo_buffer, e *C.dgo_error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		if err := checkBuffer(b, "instances"); err != nil {
			return err
		}
		c, err := m.Instances(uint64(client))
		if err != nil {
			return err
		}
		all := []instanceInfo{}
		for _, i := range c.Instances() {
			t := transportInfo{"tcp", i.TCP}
			if i.TCP == "" {
				t = transportInfo{"nats_tcp", i.NATS}
			}
			all = append(all, instanceInfo{i.ID, i.Namespace, i.Component, i.Endpoint, t, i.DeviceType})
		}
		return giveJSON(b, all)
	})
}

//export dgo_go_runtime_call
func dgo_go_runtime_call(h C.dgo_runtime, client C.uint64_t, p *C.char, n C.size_t, options *C.char, size C.size_t, result *C.uint64_t, e *C.dgo_error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		if err := out(result, "call"); err != nil {
			return err
		}
		body, err := value(p, n, "body")
		if err != nil {
			return err
		}
		o := struct {
			Instance  *uint64           `json:"instance"`
			Random    bool              `json:"random"`
			RequestID string            `json:"request_id"`
			Metadata  map[string]string `json:"metadata"`
			Credit    int               `json:"credit"`
		}{Credit: defaultCredit}
		if err := fields(options, size, "options", true, &o); err != nil {
			return err
		}
		if o.RequestID == "" {
			o.RequestID = discovery.Hex(discovery.RandomID())
		}
		way, instance := mailbox.RoundRobin, uint64(0)
		switch {
		case o.Instance != nil:
			way, instance = mailbox.Direct, *o.Instance
		case o.Random:
			way = mailbox.Random
		}
		id, err := m.Call(uint64(client), way, instance, &runtime.Request{ID: o.RequestID, Body: body, Metadata: o.Metadata}, o.Credit)
		if err == nil {
			*result = C.uint64_t(id)
		}
		return err
	})
}

//export dgo_go_runtime_more
func dgo_go_runtime_more(h C.dgo_runtime, id C.uint64_t, n C.size_t, e *C.dgo_error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		if n > C.DGO_CREDIT_MAX {
			return fmt.Errorf("%w: n=%d, expected 0 .. %d", errArgument, n, C.DGO_CREDIT_MAX)
		}
		return m.More(uint64(id), int(n))
	})
}

// killFlag reads the flags of a cancellation.
func killFlag(flags C.uint32_t) (bool, error) {
	if flags > C.DGO_CANCEL_KILL {
		return false, fmt.Errorf("%w: flags=%#x, expected 0 or DGO_CANCEL_KILL", errArgument, uint32(flags))
	}
	return flags == C.DGO_CANCEL_KILL, nil
}

//export dgo_go_runtime_cancel
func dgo_go_runtime_cancel(h C.dgo_runtime, id C.uint64_t, flags C.uint32_t, e *C.dgo_error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		kill, err := killFlag(flags)
		if err != nil {
			return err
		}
		return m.Cancel(uint64(id), kill)
	})
}

//export dgo_go_runtime_end
func dgo_go_runtime_end(h C.dgo_runtime, id C.uint64_t, flags C.uint32_t, e *C.dgo_error) C.dgo_status {
	return runtimeCall(h, e, func(m *mailbox.Mailbox) error {
		kill, err := killFlag(flags)
		if err != nil {
			return err
		}
		return m.End(uint64(id), kill)
	})
}

//export dgo_go_runtime_router
func dgo_go_runtime_router(h C.dgo_runtime, p *C.char, n C.size_t, blockSize C.int64_t, config *C.char, size C.size_t, result *C.dgo_router, e *C.dgo_error) C.dgo_status {
	return endpointCall(h, p, n, e, func(m *mailbox.Mailbox, at *runtime.Endpoint) error {
		if err := out(result, "router"); err != nil {
			return err
		}
		if int64(blockSize) < math.MinInt || int64(blockSize) > math.MaxInt {
			return fmt.Errorf("%w: block_size is %d", errArgument, int64(blockSize))
		}
		cfg, err := parseConfig(config, size)
		if err != nil {
			return err
		}
		k, err := m.Router(at, int(blockSize), cfg, router.Options{Log: journal})
		if err != nil {
			return connected(err)
		}
		return addRouter(&served{Router: k.Router(), waits: newWaits(), kv: k, box: m}, result)
	})
}

//export dgo_go_router_generate
func dgo_go_router_generate(h C.dgo_router, tokens *C.uint32_t, n C.size_t, q *C.dgo_request, p *C.char, size C.size_t, options *C.char, optionsSize C.size_t, result *C.uint64_t, e *C.dgo_error) C.dgo_status {
	return call(e, func() error {
		r, err := routers.find(handle(h))
		if err != nil {
			return err
		}
		if err := out(result, "call"); err != nil {
			return err
		}
		if r.kv == nil {
			return fmt.Errorf("%w: the router has no runtime to send requests by: see dgo_runtime_router", errArgument)
		}
		g := &kvrouter.Request{}
		if err := request(tokens, n, q, &g.Request); err != nil {
			return err
		}
		g.Tokens, g.Shared = slices.Clone(g.Tokens), slices.Clone(g.Shared)
		if p != nil {
			if g.Fields, err = value(p, size, "fields"); err != nil {
				return err
			}
		}
		o := struct {
			Credit   int             `json:"credit"`
			Routing  json.RawMessage `json:"routing"`
			Send     []uint32        `json:"token_ids"`
			Expected int             `json:"expected_output_tokens"`
		}{Credit: defaultCredit}
		if err := fields(options, optionsSize, "options", true, &o); err != nil {
			return err
		}
		g.Send, g.ExpectedOutput = o.Send, o.Expected
		if o.Routing != nil {
			if g.Routing, err = wire.FromJSON(nil, o.Routing); err != nil {
				return fmt.Errorf("%w: routing: %w", errArgument, err)
			}
		}
		id, err := r.box.Generate(r.kv, g, o.Credit)
		if err == nil {
			*result = C.uint64_t(id)
		}
		return err
	})
}

//export dgo_go_runtime_publisher
func dgo_go_runtime_publisher(h C.dgo_runtime, p *C.char, n C.size_t, config *C.char, size C.size_t, result *C.dgo_publisher, e *C.dgo_error) C.dgo_status {
	return endpointCall(h, p, n, e, func(m *mailbox.Mailbox, at *runtime.Endpoint) error {
		if err := out(result, "publisher"); err != nil {
			return err
		}
		c := struct {
			WorkerID    uint64              `json:"worker_id"`
			DPRank      uint32              `json:"dp_rank"`
			BlockSize   int                 `json:"block_size"`
			BufferSteps int                 `json:"buffer_steps"`
			Indexer     bool                `json:"local_indexer"`
			Engine      *relay.EngineConfig `json:"engine"`
		}{Indexer: true}
		if err := fields(config, size, "config", false, &c); err != nil {
			return err
		}
		w, err := m.Publisher(at, kvsource.Config{
			WorkerID: c.WorkerID, DPRank: c.DPRank, BlockSize: c.BlockSize, BufferSteps: c.BufferSteps, NoIndexer: !c.Indexer,
		}, c.Engine)
		if err != nil {
			return connected(err)
		}
		id, err := publishers.add(&outlet{w})
		if err != nil {
			return errors.Join(err, w.Close())
		}
		*result = C.dgo_publisher(id)
		return nil
	})
}

//export dgo_go_runtime_load
func dgo_go_runtime_load(h C.dgo_runtime, p *C.char, n C.size_t, load *C.char, size C.size_t, e *C.dgo_error) C.dgo_status {
	return endpointCall(h, p, n, e, func(m *mailbox.Mailbox, at *runtime.Endpoint) error {
		l := struct {
			WorkerID *uint64 `json:"worker_id"`
			DPRank   uint32  `json:"dp_rank"`
			Decode   *uint64 `json:"active_decode_blocks"`
			Prefill  *uint64 `json:"active_prefill_tokens"`
			Used     *uint64 `json:"kv_used_blocks"`
		}{}
		if err := fields(load, size, "load", false, &l); err != nil {
			return err
		}
		told := &wire.ActiveLoad{Worker: worker.Rank{ID: m.Runtime().ID(), DPRank: l.DPRank}, DecodeBlocks: l.Decode, PrefillTokens: l.Prefill, KVUsedBlocks: l.Used}
		if l.WorkerID != nil {
			told.Worker.ID = *l.WorkerID
		}
		return connected(m.Load(at, told))
	})
}
