package serve

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/dynamo-go/dynamo-go/core/engine"
	"github.com/dynamo-go/dynamo-go/core/fleet"
	"github.com/dynamo-go/dynamo-go/core/router"
)

// ErrConfig says that a configuration cannot be used; the message names what is wrong. Nothing was started.
var ErrConfig = errors.New("bad configuration")

// Config describes a server. The zero value of a field means its default.
type Config struct {
	Listen    string          `json:"listen"`     // "127.0.0.1:8000"; port 0 takes a free one
	BlockSize int             `json:"block_size"` // of the engines' KV cache, in tokens; 16
	Mode      fleet.Mode      `json:"router_mode"`
	Router    json.RawMessage `json:"router"`       // as router.ParseConfig reads it
	Engines   []string        `json:"engines"`      // as ParseEngine reads them
	File      string          `json:"engines_file"` // watched; see fleet.Parse
	Tokenizer Tokenizer       `json:"tokenizer"`
	Limits    Limits          `json:"limits"`

	Drain float64 `json:"drain_seconds"` // that a stop goes on to serve, while /health says that it ends; 0
}

// Tokenizer says who turns texts into token ids.
type Tokenizer string

// Tokenizers. Messages are always the engines': they have the chat template.
const (
	ByEngine Tokenizer = "engine" // an engine's /tokenize
	ByHost   Tokenizer = "host"   // who reads Texts
	Nobody   Tokenizer = "none"   // texts and messages go by load alone
)

// Limits bound what clients can cost. The zero value of a field means its default.
type Limits struct {
	Connections   int     `json:"connections"`      // more are answered with 503 and closed; 8192
	Requests      int     `json:"requests"`         // in flight, whose bodies are here; more get 503; 4096
	HeadBytes     int     `json:"head_bytes"`       // of a request; more get 431; 16 KiB
	BodyBytes     int     `json:"body_bytes"`       // of a request; more get 413; 16 MiB
	BufferedBytes int64   `json:"buffered_bytes"`   // of all bodies above 64 KiB, as far as they came; more get 503; 512 MiB
	ReadSeconds   float64 `json:"read_seconds"`     // for a request to come in whole; 30
	WriteSeconds  float64 `json:"write_seconds"`    // in which a client takes nothing of what is sent, until it is cut off; 30
	IdleSeconds   float64 `json:"idle_seconds"`     // of a connection between requests; 75
	Tokenize      float64 `json:"tokenize_seconds"` // for text to become token ids; then it is routed by load; 10
}

// requestBytes bounds all that is read for a request: its head, its body, and as much again, or that of a small one, for what frames a body in chunks.
func (l *Limits) requestBytes() int { return l.HeadBytes + l.BodyBytes + max(l.BodyBytes, smallBody) }

// DefaultBlockSize is vLLM's.
const DefaultBlockSize = 16

// smallBody is the size up to which bodies are bounded by the number of connections alone.
const smallBody = 64 << 10

// ParseConfig reads a JSON object. Unknown fields are refused. Errors: ErrConfig.
func ParseConfig(data []byte) (c Config, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("%w: %s", ErrConfig, strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return c, fmt.Errorf("%w: something follows the JSON object", ErrConfig)
	}
	return c, nil
}

// fill checks a configuration and fills in defaults.
func (c *Config) fill() error {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:8000")
	c.BlockSize = cmp.Or(c.BlockSize, DefaultBlockSize)
	c.Mode = cmp.Or(c.Mode, fleet.KV)
	c.Tokenizer = cmp.Or(c.Tokenizer, ByEngine)
	l := &c.Limits
	l.Connections, l.Requests = cmp.Or(l.Connections, 8192), cmp.Or(l.Requests, 4096)
	l.HeadBytes, l.BodyBytes = cmp.Or(l.HeadBytes, 16<<10), cmp.Or(l.BodyBytes, 16<<20)
	l.BufferedBytes = cmp.Or(l.BufferedBytes, 512<<20)
	l.ReadSeconds, l.WriteSeconds = cmp.Or(l.ReadSeconds, 30), cmp.Or(l.WriteSeconds, 30)
	l.IdleSeconds, l.Tokenize = cmp.Or(l.IdleSeconds, 75), cmp.Or(l.Tokenize, 10)
	var faults []error
	within := func(name string, v, low, high float64) {
		if !(v >= low && v <= high) {
			faults = append(faults, fmt.Errorf("%s is %v, expected %v .. %v", name, v, low, high))
		}
	}
	switch c.Tokenizer {
	case ByEngine, ByHost, Nobody:
	default:
		faults = append(faults, fmt.Errorf("tokenizer is %.50q, expected engine, host or none", c.Tokenizer))
	}
	within("connections", float64(l.Connections), 1, 1<<20)
	within("requests", float64(l.Requests), 1, 1<<20)
	within("head_bytes", float64(l.HeadBytes), 1<<10, 1<<20)
	within("body_bytes", float64(l.BodyBytes), 1<<10, 1<<30)
	within("buffered_bytes", float64(l.BufferedBytes), float64(l.BodyBytes), 1<<40)
	within("read_seconds", l.ReadSeconds, 0.01, 86400)
	within("write_seconds", l.WriteSeconds, 0.01, 86400)
	within("idle_seconds", l.IdleSeconds, 0.01, 86400)
	within("drain_seconds", c.Drain, 0, 86400)
	within("tokenize_seconds", l.Tokenize, 0.01, 86400)
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(faults...))
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// ParseEngine reads an engine as commands give it: a URL; then, after commas, the endpoints of its events and of its replays ("tcp://..."), "none" for an
// engine without events, and fields by name: kind, model, topic, dp_start, dp_size, worker_id, total_kv_blocks, max_num_batched_tokens, health_path.
// What is not said is asked of the engine, as far as it tells. Errors: ErrConfig.
func ParseEngine(text string) (s fleet.Spec, err error) {
	bad := func(format string, args ...any) (fleet.Spec, error) {
		return s, fmt.Errorf("%w: engine %.200q: %w; expected URL[,EVENTS[,REPLAY]][,FIELD=VALUE...]", ErrConfig, text, fmt.Errorf(format, args...))
	}
	parts := strings.Split(text, ",")
	if _, err := engine.ParseURL(parts[0]); err != nil {
		return bad("%w", err)
	}
	s.URL = parts[0]
	for _, part := range parts[1:] {
		name, value, named := strings.Cut(part, "=")
		switch {
		case strings.Contains(part, "://") && s.KVEvents.Base == "":
			s.KVEvents.Base = part
		case strings.Contains(part, "://") && s.Replay.Base == "":
			s.Replay.Base = part
		case part == "none":
			s.NoEvents = true
		case !named:
			return bad("%.100q is neither an endpoint nor a field", part)
		default:
			if err := field(&s, name, value); err != nil {
				return bad("%w", err)
			}
		}
	}
	return s, nil
}

func field(s *fleet.Spec, name, value string) (err error) {
	number := func(bits int) (n uint64) {
		if n, err = strconv.ParseUint(value, 10, bits); err != nil {
			err = fmt.Errorf("%s=%.50q, expected a whole number below 2^%d", name, value, bits)
		}
		return n
	}
	switch name {
	case "kind":
		s.Kind = engine.Kind(value)
	case "model":
		s.Model = value
	case "topic":
		s.Topic = value
	case "health_path":
		s.HealthPath = value
	case "worker_id":
		s.ID = number(64)
	case "dp_start":
		s.DPStart = uint32(number(32))
	case "dp_size":
		s.DPSize = uint32(number(32))
	case "total_kv_blocks":
		s.TotalKVBlocks = number(63)
	case "max_num_batched_tokens":
		s.MaxNumBatchedTokens = number(63)
	default:
		return fmt.Errorf("there is no field %.50q", name)
	}
	return err
}

// routerConfig reads the router's part.
func (c *Config) routerConfig() (router.Config, error) {
	if len(c.Router) == 0 {
		return router.DefaultConfig(), nil
	}
	return router.ParseConfig(c.Router)
}
