package router

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/internal/jsonkind"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// Config configures a Router. The names, defaults and ranges are those of NVIDIA Dynamo 1.6.1's KvRouterConfig, so that
// its JSON can be used as it is. A field whose feature does not exist here yet must keep its default; Validate says so
// with ErrNotImplemented instead of ignoring it.
type Config struct {
	// Weights of the cost function (package schedule). Each is finite and >= 0.
	OverlapScoreCredit        float64 `json:"overlap_score_credit"`         // blocks of prefill forgiven per cached block; 1
	OverlapScoreCreditDecay   float64 `json:"overlap_score_credit_decay"`   // credit / (1 + decay * excess prefill, in requests); 0
	PrefillLoadScale          float64 `json:"prefill_load_scale"`           // weight of prefill against decode; 1
	DecodeActiveRequestWeight float64 `json:"decode_active_request_weight"` // blocks per active request; 0
	RouterTemperature         float64 `json:"router_temperature"`           // 0 picks the cheapest; above it samples; 0
	// OverlapScoreMinBlocks is not Dynamo's: overlap of fewer blocks is worth nothing; 0. See docs/tuning.md.
	OverlapScoreMinBlocks uint32 `json:"overlap_score_min_blocks"`
	// OverlapScoreWeight is deprecated: it sets PrefillLoadScale, and 0 also sets OverlapScoreCredit to 0.
	OverlapScoreWeight *float64 `json:"overlap_score_weight"`

	// A rank beyond any of these takes no request; null is no limit (schedule.Limits). Dynamo's LoadThresholdConfig.
	ActiveDecodeBlocksThreshold      *float64 `json:"active_decode_blocks_threshold"`       // of the rank's TotalKVBlocks, 0 to 1
	ActivePrefillTokensThreshold     *uint64  `json:"active_prefill_tokens_threshold"`      // prompt tokens
	ActivePrefillTokensThresholdFrac *float64 `json:"active_prefill_tokens_threshold_frac"` // of its MaxNumBatchedTokens

	// Session affinity (Request.SessionID, package affinity). The names are those of Dynamo's KvRouter.
	SessionAffinityTTLSecs *int64 `json:"session_affinity_ttl_secs"` // since the last request ended, 1 to 31,536,000; null: no affinity
	SessionAffinityMode    string `json:"session_affinity_mode"`     // "hard" or "soft"; "hard"

	WorkerType string `json:"worker_type"` // of all workers: "aggregated", "prefill", "decode" or "encode"
	ModelName  string `json:"model_name"`  // whose profile of the policy file holds; "" is the one for all models

	RouterTrackActiveBlocks  bool `json:"router_track_active_blocks"`  // count decode blocks of active requests; true
	RouterAssumeKVReuse      bool `json:"router_assume_kv_reuse"`      // blocks shared by active requests count once; true
	RouterTrackPrefillTokens bool `json:"router_track_prefill_tokens"` // count prefill still to do; true

	// MaxBytes bounds the memory of what is known of the ranks' blocks; 0 does not, otherwise it is MinMaxBytes or more. An
	// eighth of it is for the lower tiers, and one for what is presumed beside events. At the bound the least recently used
	// blocks go, the deepest of a prompt first, and the ranks that lost some say so in Health. Not of Dynamo.
	MaxBytes int64 `json:"max_bytes"`

	// MaxAnswerBytes bounds the answers of local indexers that are in memory at a time, of all ranks together; 0 is 64 MiB, which is the
	// state of a rank of a million blocks. A rank whose state is longer stays partial. Read, they take up to as much again. Not of Dynamo.
	MaxAnswerBytes int64 `json:"max_answer_bytes"`

	// RecordDecisions keeps so many of the latest decisions, with the hits that they expect and those that engines report (Router.Decisions); 0 keeps
	// none, MaxDecisions is the most. Not of Dynamo.
	RecordDecisions int `json:"record_decisions"`

	// Routing without events: blocks are presumed to be where requests went (Request.UpdateIndexer), each for
	// RouterTTLSecs, or until a rank's TotalKVBlocks are used up ("lru"). With events, RouterPredictedTTLSecs presumes
	// them for so long besides.
	UseKVEvents                  bool     `json:"use_kv_events"`                   // true
	RouterTTLSecs                float64  `json:"router_ttl_secs"`                 // 120
	RouterApproximateCachePolicy string   `json:"router_approximate_cache_policy"` // "ttl"
	RouterPredictedTTLSecs       *float64 `json:"router_predicted_ttl_secs"`       // null: nothing is presumed

	// RouterTrackOutputBlocks makes who carries requests book what they generate (AddOutputBlock, which always works).
	RouterTrackOutputBlocks bool             `json:"router_track_output_blocks"` // false
	RouterPrefillLoadModel  PrefillLoadModel `json:"router_prefill_load_model"`  // "none"
	SharedCacheMultiplier   *float64         `json:"shared_cache_multiplier"`    // credit of a block in a shared cache (Prompt.Shared), 0 to 1; null is 0.5

	// When requests wait until a rank is less busy (package queue). Without a threshold or a policy file none does.
	RouterQueueThreshold *float64 `json:"router_queue_threshold"` // a rank with more prompt tokens, as a multiple of its MaxNumBatchedTokens, is busy
	RouterQueuePolicy    string   `json:"router_queue_policy"`    // "fcfs", "lcfs" or "wspt"
	RouterPolicyConfig   *string  `json:"router_policy_config"`   // path of a YAML policy file; it replaces both of the above

	HostCacheHitWeight                    float64  `json:"host_cache_hit_weight"`
	DiskCacheHitWeight                    float64  `json:"disk_cache_hit_weight"`
	RouterReplicaSync                     bool     `json:"router_replica_sync"`
	RouterEventThreads                    int      `json:"router_event_threads"`
	UseRemoteIndexer                      bool     `json:"use_remote_indexer"`
	ServeIndexer                          bool     `json:"serve_indexer"`
	EnableSessionPrefixIndex              bool     `json:"enable_session_prefix_index"`
	SharedCacheType                       string   `json:"shared_cache_type"`
	ConditionalDisaggEnabled              bool     `json:"conditional_disagg_enabled"`
	ConditionalDisaggPolicy               string   `json:"conditional_disagg_policy"`
	ConditionalDisaggEffISLThreshold      int      `json:"conditional_disagg_eff_isl_threshold"`
	ConditionalDisaggEffISLRatioThreshold float64  `json:"conditional_disagg_eff_isl_ratio_threshold"`
	ConditionalDisaggPrefillBusyThreshold *float64 `json:"conditional_disagg_prefill_busy_threshold"`
	ConditionalDisaggDecodeBusyThreshold  *float64 `json:"conditional_disagg_decode_busy_threshold"`
	RouterPrefillPolicy                   *string  `json:"router_prefill_policy"`
	RouterDecodePolicy                    *string  `json:"router_decode_policy"`
	RouterTrackingHash                    string   `json:"router_tracking_hash"`
	RouterTrackingKeyFile                 *string  `json:"router_tracking_key_file"`
	RouterTrackingKeyID                   *string  `json:"router_tracking_key_id"`
}

// MinMaxBytes is the least memory that can be asked for: an index needs a megabyte to begin with.
const MinMaxBytes = 16 << 20

// minAnswerBytes is the least that MaxAnswerBytes can be.
const minAnswerBytes = 1 << 20

func (c *Config) answerBytes() int64 { return cmp.Or(c.MaxAnswerBytes, 64<<20) }

// DefaultConfig gives Dynamo's defaults. It does not read the environment.
func DefaultConfig() Config {
	w := schedule.DefaultWeights()
	return Config{
		OverlapScoreCredit:                    w.OverlapCredit,
		OverlapScoreCreditDecay:               w.CreditDecay,
		PrefillLoadScale:                      w.PrefillLoadScale,
		DecodeActiveRequestWeight:             w.DecodeActiveRequestWeight,
		RouterTemperature:                     w.Temperature,
		OverlapScoreMinBlocks:                 w.MinOverlapBlocks,
		RouterTrackActiveBlocks:               true,
		RouterAssumeKVReuse:                   true,
		RouterTrackPrefillTokens:              true,
		UseKVEvents:                           true,
		HostCacheHitWeight:                    w.HostWeight,
		DiskCacheHitWeight:                    w.DiskWeight,
		SessionAffinityMode:                   affinity.Hard.String(),
		WorkerType:                            "aggregated",
		RouterTTLSecs:                         120,
		RouterApproximateCachePolicy:          "ttl",
		RouterEventThreads:                    4,
		RouterQueuePolicy:                     "fcfs",
		SharedCacheType:                       "none",
		ConditionalDisaggPolicy:               "isl_bounding",
		ConditionalDisaggEffISLThreshold:      2048,
		ConditionalDisaggEffISLRatioThreshold: 0.7,
		RouterTrackingHash:                    "public-xxh3-v1",
	}
}

// working lists the fields that act today; every other field must keep its default.
var working = map[string]bool{
	"overlap_score_credit":         true,
	"overlap_score_credit_decay":   true,
	"prefill_load_scale":           true,
	"decode_active_request_weight": true,
	"router_temperature":           true,
	"overlap_score_min_blocks":     true,
	"overlap_score_weight":         true,
	"router_track_active_blocks":   true,
	"router_assume_kv_reuse":       true,
	"router_track_prefill_tokens":  true,
	"router_replica_sync":          true, // of package kvrouter

	"max_bytes":             true,
	"max_answer_bytes":      true,
	"record_decisions":      true,
	"host_cache_hit_weight": true,
	"disk_cache_hit_weight": true,

	"active_decode_blocks_threshold":       true,
	"active_prefill_tokens_threshold":      true,
	"active_prefill_tokens_threshold_frac": true,
	"session_affinity_ttl_secs":            true,
	"session_affinity_mode":                true,
	"worker_type":                          true,
	"model_name":                           true,
	"router_track_output_blocks":           true,
	"router_prefill_load_model":            true,
	"shared_cache_multiplier":              true,
	"router_queue_threshold":               true,
	"router_queue_policy":                  true,
	"router_policy_config":                 true,

	"use_kv_events":                   true,
	"router_ttl_secs":                 true,
	"router_approximate_cache_policy": true,
	"router_predicted_ttl_secs":       true,
}

// instead tells what to do without some of the others.
var instead = map[string]string{
	"shared_cache_type": "no shared store is asked here; what the host knows of one goes with each request (shared_ranges), and what a worker's " +
		"own host memory, disk or external storage holds comes with its events",
}

// legacy fields: accepted in JSON, without effect. The first two are without effect in Dynamo too; a Router never waits for
// workers, so there is no wait to skip.
var legacy = []string{"router_snapshot_threshold", "router_reset_states", "skip_initial_worker_wait"}

// ParseConfig reads JSON: fields that are absent keep their defaults, unknown ones are refused. The result is valid.
func ParseConfig(data []byte) (Config, error) {
	cfg := DefaultConfig()
	var fields map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&fields); err != nil {
		return cfg, fmt.Errorf("%w: configuration is not a JSON object: %w", ErrInvalidArgument, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return cfg, fmt.Errorf("%w: configuration has data after its JSON object", ErrInvalidArgument)
	}
	for _, name := range legacy {
		delete(fields, name)
	}
	if raw, ok := fields["durable_kv_events"]; ok {
		if string(raw) != "false" && string(raw) != "null" {
			return cfg, fmt.Errorf("%w: durable_kv_events=%s was removed from Dynamo and is not offered here", ErrInvalidArgument, raw)
		}
		delete(fields, "durable_kv_events")
	}
	v := reflect.ValueOf(&cfg).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("json")
		raw, ok := fields[name]
		if !ok {
			continue
		}
		delete(fields, name)
		if string(raw) == "null" && v.Field(i).Kind() != reflect.Pointer {
			return cfg, fmt.Errorf("%w: %s=null: expected %s", ErrInvalidArgument, name, jsonkind.Of(v.Field(i).Type()))
		}
		if err := json.Unmarshal(raw, v.Field(i).Addr().Interface()); err != nil {
			return cfg, fmt.Errorf("%w: %s=%s: expected %s", ErrInvalidArgument, name, raw, jsonkind.Of(v.Field(i).Type()))
		}
	}
	for name := range fields {
		return cfg, fmt.Errorf("%w: unknown configuration field %q; known: %s", ErrInvalidArgument, name, strings.Join(fieldNames(), ", "))
	}
	return cfg, cfg.Validate()
}

func fieldNames() []string {
	t := reflect.TypeFor[Config]()
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("json")
	}
	return names
}

// Validate reports every fault at once: values out of range (ErrInvalidArgument) and features that do not exist yet
// (ErrNotImplemented).
func (c Config) Validate() error {
	var faults []error
	w := c.Weights()
	if err := w.Validate(); err != nil {
		faults = append(faults, err)
	}
	for _, f := range []struct {
		name  string
		value *float64
	}{
		{"overlap_score_weight", c.OverlapScoreWeight},
		{"router_ttl_secs", &c.RouterTTLSecs},
		{"router_queue_threshold", c.RouterQueueThreshold},
		{"router_predicted_ttl_secs", c.RouterPredictedTTLSecs},
	} {
		if f.value != nil && !finiteNonNegative(*f.value) {
			faults = append(faults, fmt.Errorf("%w: %s=%v must be finite and non-negative", ErrInvalidArgument, f.name, *f.value))
		}
	}
	if c.SharedCacheMultiplier != nil && !(*c.SharedCacheMultiplier >= 0 && *c.SharedCacheMultiplier <= 1) {
		faults = append(faults, fmt.Errorf("%w: shared_cache_multiplier=%v must be between 0 and 1", ErrInvalidArgument, *c.SharedCacheMultiplier))
	}
	if c.RouterEventThreads < 1 {
		faults = append(faults, fmt.Errorf("%w: router_event_threads=%d must be at least 1", ErrInvalidArgument, c.RouterEventThreads))
	}
	if c.MaxBytes != 0 && c.MaxBytes < MinMaxBytes {
		faults = append(faults, fmt.Errorf("%w: max_bytes=%d must be 0 or at least %d", ErrInvalidArgument, c.MaxBytes, int64(MinMaxBytes)))
	}
	if c.MaxAnswerBytes != 0 && c.MaxAnswerBytes < minAnswerBytes {
		faults = append(faults, fmt.Errorf("%w: max_answer_bytes=%d must be 0 or at least %d", ErrInvalidArgument, c.MaxAnswerBytes, minAnswerBytes))
	}
	if c.RecordDecisions < 0 || c.RecordDecisions > MaxDecisions {
		faults = append(faults, fmt.Errorf("%w: record_decisions=%d must be between 0 and %d", ErrInvalidArgument, c.RecordDecisions, MaxDecisions))
	}
	faults = append(faults, c.presumption()...)
	faults = append(faults, c.features()...)
	if len(faults) == 0 {
		faults = c.unimplemented()
	}
	return errors.Join(faults...)
}

func (c Config) unimplemented() []error {
	var faults []error
	got, want := reflect.ValueOf(c), reflect.ValueOf(DefaultConfig())
	for i, name := range fieldNames() {
		if working[name] || reflect.DeepEqual(got.Field(i).Interface(), want.Field(i).Interface()) {
			continue
		}
		fault := fmt.Errorf("%w: %s=%s (only its default, %s, exists in this version)", ErrNotImplemented, name, show(got.Field(i)), show(want.Field(i)))
		if instead := instead[name]; instead != "" {
			fault = fmt.Errorf("%w: %s", fault, instead)
		}
		faults = append(faults, fault)
	}
	return faults
}

func show(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "null"
		}
		v = v.Elem()
	}
	return fmt.Sprint(v.Interface())
}

func finiteNonNegative(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }

// Weights gives the weights of the cost function, the deprecated overlap_score_weight applied last.
func (c Config) Weights() schedule.Weights {
	w := schedule.Weights{
		OverlapCredit:             c.OverlapScoreCredit,
		CreditDecay:               c.OverlapScoreCreditDecay,
		PrefillLoadScale:          c.PrefillLoadScale,
		DecodeActiveRequestWeight: c.DecodeActiveRequestWeight,
		HostWeight:                c.HostCacheHitWeight,
		DiskWeight:                c.DiskCacheHitWeight,
		Temperature:               c.RouterTemperature,
		MinOverlapBlocks:          c.OverlapScoreMinBlocks,
	}
	w.SharedMultiplier = defaultSharedMultiplier
	if c.SharedCacheMultiplier != nil {
		w.SharedMultiplier = *c.SharedCacheMultiplier
	}
	if c.OverlapScoreWeight != nil {
		w.SetOverlapScoreWeight(*c.OverlapScoreWeight)
	}
	return w
}
