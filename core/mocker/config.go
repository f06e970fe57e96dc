package mocker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/publish"
)

// ErrConfig says that a configuration cannot be used; the message names every field at fault, its value and its range.
// Nothing was started. Fix the configuration.
var ErrConfig = errors.New("bad configuration")

// Config describes one engine. The zero value is not usable: start from DefaultConfig or ParseConfig.
type Config struct {
	Model string `json:"model"` // name the engine serves under

	// Addresses to listen on. Port 0 takes a free one; Info tells which.
	HTTP   string `json:"http"`      // host:port
	Events string `json:"kv_events"` // ZeroMQ endpoint of the event socket (PUB)
	Replay string `json:"replay"`    // ZeroMQ endpoint of the replay socket (ROUTER); empty: no replay
	Topic  string `json:"topic"`     // first frame of every event message
	DPRank uint32 `json:"dp_rank"`   // data-parallel rank told in the events

	// BufferSteps is the number of event batches kept for replay.
	BufferSteps int `json:"buffer_steps"`

	BlockSize int `json:"block_size"` // tokens in a block
	Blocks    int `json:"blocks"`     // blocks in the pool

	// PrefillRate is in prompt tokens a second, InterTokenMS in milliseconds between two tokens of one request.
	// Neither depends on how many requests run.
	PrefillRate  float64 `json:"prefill_tokens_per_second"`
	InterTokenMS float64 `json:"inter_token_ms"`

	MaxBatchedTokens int `json:"max_num_batched_tokens"` // prompt tokens in one prefill step
	MaxRunning       int `json:"max_num_seqs"`           // requests that run at once; others wait
	MaxWaiting       int `json:"max_waiting"`            // requests that wait; others are refused
	MaxModelLen      int `json:"max_model_len"`          // prompt and output tokens of one request

	// Speedup is the number of engine seconds that pass in one second of the host. It scales every duration above.
	Speedup float64 `json:"speedup"`

	// CoalesceMS is how many milliseconds of the host a token that is due may wait to be sent with the next ones. The first token of
	// a request never waits.
	CoalesceMS float64 `json:"coalesce_ms"`

	MaxBodyBytes int64  `json:"max_body_bytes"` // of one HTTP request
	HashSeed     string `json:"hash_seed"`      // engines with different seeds name the same block differently

	// Adapters are names of LoRA adapters that requests may name as their model, as of /v1/models.
	Adapters []string `json:"-"`

	// Sink, if not nil, gets the events instead of the event and the replay socket, of which there are none then. It is called with the
	// engine's lock held: it must not block, and must not call the engine.
	Sink func(...publish.Event) error `json:"-"`
}

// DefaultConfig is an 8B model on one H100-class GPU: 400,000 tokens of KV cache in blocks of 16, 40,000 prompt tokens a second,
// 8 ms between tokens.
func DefaultConfig() Config {
	return Config{
		Model:            "mock-8b",
		HTTP:             "127.0.0.1:0",
		Events:           "tcp://127.0.0.1:0",
		Replay:           "tcp://127.0.0.1:0",
		BufferSteps:      10_000,
		BlockSize:        16,
		Blocks:           25_000,
		PrefillRate:      40_000,
		InterTokenMS:     8,
		MaxBatchedTokens: 2048,
		MaxRunning:       256,
		MaxWaiting:       4096,
		MaxModelLen:      131_072,
		Speedup:          1,
		CoalesceMS:       0,
		MaxBodyBytes:     16 << 20,
	}
}

// ParseConfig reads a JSON object over DefaultConfig. Unknown fields are refused.
func ParseConfig(data []byte) (Config, error) {
	c := DefaultConfig()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("%w: %s", ErrConfig, jsonFault(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return Config{}, fmt.Errorf("%w: something follows the JSON object", ErrConfig)
	}
	return c, c.Validate()
}

// Validate checks every field and names all that are wrong. Addresses are checked when they are listened on.
func (c *Config) Validate() error {
	var faults []string
	whole := func(name string, v, low, high int64) {
		if v < low || v > high {
			faults = append(faults, fmt.Sprintf("%s is %d, must be in %d..%d", name, v, low, high))
		}
	}
	real := func(name string, v, low, high float64) {
		if math.IsNaN(v) || v < low || v > high {
			faults = append(faults, fmt.Sprintf("%s is %v, must be in %v..%v", name, v, low, high))
		}
	}
	if c.Model == "" {
		faults = append(faults, "model is empty")
	}
	if c.HTTP == "" {
		faults = append(faults, "http is empty, must be host:port")
	}
	if c.Events == "" {
		faults = append(faults, "kv_events is empty, must be a ZeroMQ endpoint")
	}
	whole("buffer_steps", int64(c.BufferSteps), 1, 1_000_000)
	whole("block_size", int64(c.BlockSize), 1, 1<<16)
	whole("blocks", int64(c.Blocks), 1, 1<<24)
	real("prefill_tokens_per_second", c.PrefillRate, 1, 1e9)
	real("inter_token_ms", c.InterTokenMS, 0, 60_000)
	whole("max_num_batched_tokens", int64(c.MaxBatchedTokens), 1, 1<<24)
	whole("max_num_seqs", int64(c.MaxRunning), 1, 1<<16)
	whole("max_waiting", int64(c.MaxWaiting), 1, 1<<16)
	whole("max_model_len", int64(c.MaxModelLen), 2, 1<<24)
	real("speedup", c.Speedup, 0.001, 1000)
	real("coalesce_ms", c.CoalesceMS, 0, 10_000)
	whole("max_body_bytes", c.MaxBodyBytes, 1024, 1<<30)
	if len(faults) > 0 {
		return fmt.Errorf("%w: %s", ErrConfig, strings.Join(faults, "; "))
	}
	return nil
}

// pagesNeeded is the number of blocks that a request fills: its last output token is never computed.
func (c *Config) pagesNeeded(prompt, output int) int {
	return (prompt + output - 1 + c.BlockSize - 1) / c.BlockSize
}

// rates converts to what the scheduler counts in.
func (c *Config) rates() rates {
	const msNS = 1e6
	return rates{
		blockSize:  c.BlockSize,
		pages:      c.Blocks,
		perToken:   1e9 / c.PrefillRate,
		interToken: int64(c.InterTokenMS * msNS),
		coalesce:   int64(c.CoalesceMS * c.Speedup * msNS),
		chunk:      c.MaxBatchedTokens,
		running:    c.MaxRunning,
	}
}
