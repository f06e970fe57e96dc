package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Description is what an engine tells of itself. The zero value of a field means that it does not tell.
type Description struct {
	Kind        Kind
	Version     string
	Model       string   // the first that is served
	Models      []string // all, adapters included
	Adapters    []string // LoRA adapters that are loaded, sorted
	MaxModelLen int
	DPSize      uint32
	BlockSize   int
	TotalBlocks uint64            // of KV cache
	MaxBatched  uint64            // tokens of one step
	KVEvents    map[uint32]string // by rank, where its events are published; the engine's host stands for a wildcard
	Replay      map[uint32]string
	Topic       string
}

const maxRanks = 4096

// Model is what completions ask for if they do not say; "" if it is not known.
func (e *Engine) Model() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.model
}

// Kind is whose server it is, as far as it is known.
func (e *Engine) Kind() Kind {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kind
}

// Describe asks the engine what it is: /v1/models; SGLang's /server_info (/get_server_info before 0.5); vLLM's /version, /kv_event_sources (0.33) and
// the cache's gauge in /metrics. It also remembers kind and model, if the configuration does not say. Errors: those of this package, if not even its
// models can be asked for, and that of ctx.
func (e *Engine) Describe(ctx context.Context) (Description, error) {
	d := Description{Kind: e.cfg.Kind}
	if err := e.models(ctx, &d); err != nil {
		return Description{}, fmt.Errorf("GET /v1/models: %w", err)
	}
	for _, ask := range []func(context.Context, *Description) error{e.serverInfo, e.version, e.sources, e.gauges} {
		if err := ask(ctx, &d); err != nil && ctx.Err() != nil {
			return Description{}, context.Cause(ctx)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kind = cmp.Or(e.kind, d.Kind)
	e.model = cmp.Or(e.model, d.Model)
	if d.Kind == VLLM && before(d.Version, 0, 10, 2) {
		e.idsByLog = true
	}
	return d, nil
}

// before tells whether a version is an earlier one; not if it cannot be read.
func before(version string, than ...int) bool {
	parts := strings.SplitN(version, ".", len(than))
	for i, want := range than {
		if i >= len(parts) {
			return false
		}
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil || n > want {
			return false
		}
		if n < want {
			return true
		}
	}
	return false
}

// page asks for a JSON object. ErrStatus: there is none.
func (e *Engine) page(ctx context.Context, path string, v any) error {
	code, body, err := e.get(ctx, path, e.cfg.Limits.BodyBytes)
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return &StatusError{Code: code, Message: clip(string(body), 200)}
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

func (e *Engine) models(ctx context.Context, d *Description) error {
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			OwnedBy     string `json:"owned_by"`
			Parent      string `json:"parent"` // of an adapter: the model that it is for
			MaxModelLen *int   `json:"max_model_len"`
		} `json:"data"`
	}
	if err := e.page(ctx, "/v1/models", &list); err != nil {
		return err
	}
	for _, m := range list.Data {
		if m.Parent != "" {
			d.Adapters = append(d.Adapters, m.ID)
		}
		if d.Models = append(d.Models, m.ID); len(d.Models) == 1 {
			d.Model = m.ID
			if m.MaxModelLen != nil {
				d.MaxModelLen = *m.MaxModelLen
			}
			if k := Kind(m.OwnedBy); d.Kind == Unknown && (k == VLLM || k == SGLang) {
				d.Kind = k
			}
		}
	}
	slices.Sort(d.Adapters)
	return nil
}

// Adapters asks which LoRA adapters are loaded now: both engines load and unload them while they run. Errors: as those of Describe.
func (e *Engine) Adapters(ctx context.Context) ([]string, error) {
	var d Description
	err := e.models(ctx, &d)
	return d.Adapters, err
}

// serverInfo is SGLang's. vLLM has a page of that name too, which is off unless in development, and tells other things.
func (e *Engine) serverInfo(ctx context.Context, d *Description) error {
	if d.Kind == VLLM {
		return nil
	}
	var info struct {
		Version     string  `json:"version"`
		ServedModel string  `json:"served_model_name"`
		PageSize    *int    `json:"page_size"`
		DPSize      *uint32 `json:"dp_size"`
		TotalTokens *uint64 `json:"max_total_num_tokens"`
		ChunkSize   *int64  `json:"chunked_prefill_size"`
		KVEvents    *struct {
			Publisher  string  `json:"publisher"`
			Host       string  `json:"endpoint_host"`
			Port       uint32  `json:"endpoint_port_base"`
			ReplayPort *uint32 `json:"replay_endpoint_port_base"`
			Topic      string  `json:"topic"`
			BlockSize  *int    `json:"block_size"`
			DPSize     *uint32 `json:"dp_size"`
		} `json:"kv_events"`
	}
	err := e.page(ctx, "/server_info", &info)
	if errors.Is(err, ErrStatus) {
		err = e.page(ctx, "/get_server_info", &info)
	}
	if err != nil || info.PageSize == nil && info.KVEvents == nil {
		return err
	}
	d.Kind, d.Version = SGLang, info.Version
	d.Model = cmp.Or(d.Model, info.ServedModel)
	if info.PageSize != nil && *info.PageSize > 0 {
		d.BlockSize = *info.PageSize
		if info.TotalTokens != nil {
			d.TotalBlocks = *info.TotalTokens / uint64(*info.PageSize)
		}
	}
	if info.DPSize != nil && *info.DPSize <= maxRanks {
		d.DPSize = *info.DPSize
	}
	if info.ChunkSize != nil && *info.ChunkSize > 0 {
		d.MaxBatched = uint64(*info.ChunkSize)
	}
	k := info.KVEvents
	if k == nil || k.Publisher != "zmq" {
		return nil
	}
	if k.BlockSize != nil && *k.BlockSize > 0 {
		d.BlockSize = *k.BlockSize
	}
	if k.DPSize != nil && *k.DPSize <= maxRanks {
		d.DPSize = *k.DPSize
	}
	d.Topic = k.Topic
	host := e.reachable(k.Host)
	for r := range max(d.DPSize, 1) {
		d.put(&d.KVEvents, r, host, k.Port+r)
		if k.ReplayPort != nil {
			d.put(&d.Replay, r, host, *k.ReplayPort+r)
		}
	}
	return nil
}

func (d *Description) put(into *map[uint32]string, rank uint32, host string, port uint32) {
	if port == 0 || port > 65535 {
		return
	}
	if *into == nil {
		*into = make(map[uint32]string)
	}
	(*into)[rank] = "tcp://" + net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// reachable gives the engine's own host for one that stands for all.
func (e *Engine) reachable(host string) string {
	switch host = strings.Trim(host, "[]"); host {
	case "", "*", "0.0.0.0", "::":
		return e.Host()
	}
	return host
}

func (e *Engine) version(ctx context.Context, d *Description) error {
	if d.Kind == SGLang {
		return nil
	}
	var v struct {
		Version string `json:"version"`
	}
	err := e.page(ctx, "/version", &v)
	if err == nil && d.Kind == VLLM {
		d.Version = clip(v.Version, 100)
	}
	return err
}

// sources is where vLLM 0.33 publishes, by rank; the ports are those of each rank already.
func (e *Engine) sources(ctx context.Context, d *Description) error {
	if d.Kind == SGLang {
		return nil
	}
	var ranks map[string]struct {
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
		Topic     string `json:"topic"`
	}
	if err := e.page(ctx, "/kv_event_sources", &ranks); err != nil {
		return err
	}
	for name, s := range ranks {
		rank, err := strconv.ParseUint(name, 10, 32)
		if err != nil || rank >= maxRanks || s.Publisher != "zmq" {
			continue
		}
		d.Topic = s.Topic
		d.DPSize = max(d.DPSize, uint32(rank)+1)
		for _, at := range []struct {
			endpoint string
			into     *map[uint32]string
		}{{s.Endpoint, &d.KVEvents}, {s.Replay, &d.Replay}} {
			host, port, err := net.SplitHostPort(strings.TrimPrefix(at.endpoint, "tcp://"))
			if n, bad := strconv.ParseUint(port, 10, 16); err == nil && bad == nil {
				d.put(at.into, uint32(rank), e.reachable(host), uint32(n))
			}
		}
	}
	return nil
}

// gauges reads the size of the cache from vLLM's metrics: vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",...} 1.0.
func (e *Engine) gauges(ctx context.Context, d *Description) error {
	if d.Kind != VLLM {
		return nil
	}
	code, body, err := e.get(ctx, "/metrics", e.cfg.Limits.BodyBytes)
	if err != nil || code != http.StatusOK {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		labels, is := strings.CutPrefix(lines.Text(), "vllm:cache_config_info{")
		if !is {
			continue
		}
		if n, err := strconv.Atoi(label(labels, "block_size")); err == nil && n > 0 {
			d.BlockSize = n
		}
		if n, err := strconv.ParseUint(label(labels, "num_gpu_blocks"), 10, 64); err == nil {
			d.TotalBlocks = n
		}
		break
	}
	return nil
}

// label gives the value of a label; "" if there is none.
func label(labels, name string) string {
	for rest := labels; rest != ""; {
		key, after, ok := strings.Cut(rest, `="`)
		if !ok {
			return ""
		}
		value, more, ok := strings.Cut(after, `"`)
		if !ok {
			return ""
		}
		if strings.TrimLeft(key, ", ") == name {
			return value
		}
		rest = more
	}
	return ""
}

// SetDPSize says how many ranks there are, if the configuration did not.
func (e *Engine) SetDPSize(n uint32) { e.ranks.Store(max(n, 1)) }
