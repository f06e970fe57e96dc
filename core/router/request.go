package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/internal/jsonkind"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// Prompt is what a request wants prefilled. Everything is borrowed for the call.
type Prompt struct {
	Tokens         []block.Token
	LoRAName       string     // "" is the base model
	CacheNamespace string     // cache salt; "" is the common one
	MM             [][]uint64 // by block, the hashes of the multimodal objects that overlap it

	// Shared tells which blocks of the prompt a cache holds that every rank can load from: ranges [start, end) of block
	// positions, ascending, apart. What is beyond the prompt does not matter.
	Shared [][2]uint32
}

// Request asks for a worker. Everything is borrowed for the call.
type Request struct {
	Prompt
	ID   string // books under this id if Book is set; any string, also ""
	Book bool
	// UpdateIndexer presumes from now on that the chosen rank holds the prompt's blocks, if the configuration presumes
	// anything (without events, or with router_predicted_ttl_secs).
	UpdateIndexer bool
	Overrides     schedule.Overrides
	Constraints   schedule.Constraints

	// SessionID prefers the rank that served the session before, and ties the session to the chosen one if the request is
	// booked; at most affinity.MaxIDBytes. Without session affinity (session_affinity_ttl_secs) it has no effect; "" is none.
	SessionID string

	// How it waits, where requests do (package queue).
	PolicyClass    string  // class or family of the policy file; one that is not known, also "", is the default
	StrictPriority uint32  // higher goes first, whatever else holds
	PriorityJump   float64 // seconds of head start, or weight; finite
	// Timeout is how long it may wait; nil: until it is its turn. Requests of equal priority with an earlier deadline go first.
	Timeout *time.Duration
}

// Choice is the answer to a Request.
type Choice struct {
	WorkerID      uint64
	DPRank        uint32
	OverlapBlocks uint32 // leading full blocks of the prompt that the rank holds on its device
}

// strict decodes one JSON object into v. Unknown fields are refused with the list of known ones, null fields are absent.
func strict(data []byte, what string, v any, known ...string) error {
	var fields map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&fields); err != nil {
		return fmt.Errorf("%w: %s is not a JSON object: %w", ErrInvalidArgument, what, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %s has data after its JSON object", ErrInvalidArgument, what)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("%w: %s: unknown key %q; known: %s", ErrInvalidArgument, what, name, strings.Join(known, ", "))
		}
	}
	err := json.Unmarshal(data, v)
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		name, _, _ := strings.Cut(kind.Field, ".")
		return fmt.Errorf("%w: %s: %s=%.200s: expected %s", ErrInvalidArgument, what, name, fields[name], jsonkind.Of(kind.Type))
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrInvalidArgument, what, err)
	}
	return nil
}

// ParseOverrides reads router_config_override: a JSON object with the keys of schedule.Overrides. Unknown keys are refused.
func ParseOverrides(data []byte) (schedule.Overrides, error) {
	var o schedule.Overrides
	err := strict(data, "router_config_override", &o, "overlap_score_credit", "overlap_score_weight", "prefill_load_scale",
		"router_temperature", "assume_kv_reuse", "track_prefill_tokens", "shared_cache_multiplier")
	if err != nil {
		return o, err
	}
	return o, o.Validate()
}

// ParseRoutingConstraints reads {"required_taints": [taint, ...], "preferred_taints": {taint: weight}} into c.
func ParseRoutingConstraints(data []byte, c *schedule.Constraints) error {
	var in struct {
		RequiredTaints  []string           `json:"required_taints"`
		PreferredTaints map[string]float64 `json:"preferred_taints"`
	}
	if err := strict(data, "routing_constraints", &in, "required_taints", "preferred_taints"); err != nil {
		return err
	}
	c.RequiredTaints = in.RequiredTaints
	for _, taint := range slices.Sorted(maps.Keys(in.PreferredTaints)) {
		c.PreferredTaints = append(c.PreferredTaints, schedule.Preference{Taint: taint, Weight: in.PreferredTaints[taint]})
	}
	return nil
}

// ParseBlockMMInfos reads block_mm_infos: a JSON list with an element per block, null or
// {"mm_objects": [{"mm_hash": hash, "offsets": [[start, end], ...]}]}. Offsets do not enter the hash.
func ParseBlockMMInfos(data []byte) ([][]uint64, error) {
	var in []*struct {
		Objects *[]struct {
			Hash    *uint64     `json:"mm_hash"`
			Offsets [][2]uint32 `json:"offsets"`
		} `json:"mm_objects"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return nil, fmt.Errorf("%w: block_mm_infos: %w", ErrInvalidArgument, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: block_mm_infos has data after its JSON list", ErrInvalidArgument)
	}
	out := make([][]uint64, len(in))
	for i, b := range in {
		if b == nil {
			continue
		}
		if b.Objects == nil {
			return nil, fmt.Errorf("%w: block_mm_infos[%d] has no mm_objects", ErrInvalidArgument, i)
		}
		for _, o := range *b.Objects {
			if o.Hash == nil {
				return nil, fmt.Errorf("%w: block_mm_infos[%d]: an object has no mm_hash", ErrInvalidArgument, i)
			}
			out[i] = append(out[i], *o.Hash)
		}
	}
	return out, nil
}
