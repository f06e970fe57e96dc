package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/dynamo-go/dynamo-go/core/affinity"
	"github.com/dynamo-go/dynamo-go/core/queue"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

// This file turns what the configuration says of limits, sessions, queues and prefill durations into what does it.

// defaultSharedMultiplier is Dynamo's for a shared cache that is on; without ranges (Prompt.Shared) it weighs nothing.
const defaultSharedMultiplier = 0.5

var roles = map[string]schedule.Role{
	"aggregated": schedule.RoleAggregated, "prefill": schedule.RolePrefill, "decode": schedule.RoleDecode, "encode": schedule.RoleEncode,
}

// PrefillLoadModel expects how long prefills take, so that their load fades while they run: a table (schedule.PrefillTable),
// in JSON {"new_tokens": [n, ...], "cached_tokens": [n, ...], "seconds": [[s, ...], ...]} with a row of seconds for each of
// cached_tokens. The zero value, in JSON "none", is no model.
type PrefillLoadModel struct {
	NewTokens    []int       `json:"new_tokens"`
	CachedTokens []int       `json:"cached_tokens"`
	Seconds      [][]float64 `json:"seconds"`

	name string // of a model that does not exist here
}

// MarshalJSON implements json.Marshaler.
func (m PrefillLoadModel) MarshalJSON() ([]byte, error) {
	if m.name != "" || m.none() {
		return json.Marshal(m.String())
	}
	type table PrefillLoadModel
	return json.Marshal(table(m))
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *PrefillLoadModel) UnmarshalJSON(data []byte) error {
	*m = PrefillLoadModel{}
	if len(data) > 0 && data[0] == '"' {
		err := json.Unmarshal(data, &m.name)
		if m.name == "none" {
			m.name = ""
		}
		return err
	}
	type table PrefillLoadModel
	err := strict(data, "router_prefill_load_model", (*table)(m), "new_tokens", "cached_tokens", "seconds")
	if err == nil && m.none() {
		err = fmt.Errorf("%w: router_prefill_load_model is an empty table", ErrInvalidArgument)
	}
	return err
}

func (m PrefillLoadModel) none() bool {
	return m.name == "" && m.NewTokens == nil && m.CachedTokens == nil && m.Seconds == nil
}

// String names the model.
func (m PrefillLoadModel) String() string {
	switch {
	case m.name != "":
		return m.name
	case m.none():
		return "none"
	}
	return "table"
}

// model gives what the router asks, nil for no model.
func (m *PrefillLoadModel) model() (schedule.PrefillModel, error) {
	switch {
	case m.name == "ais" || m.name == "aic":
		return nil, fmt.Errorf("%w: router_prefill_load_model=%q: there is no such model here; give a table of durations", ErrNotImplemented, m.name)
	case m.name != "":
		return nil, fmt.Errorf("%w: router_prefill_load_model=%q, expected \"none\" or a table of durations", ErrInvalidArgument, m.name)
	case m.none():
		return nil, nil
	}
	durations := make([][]time.Duration, len(m.Seconds))
	for i, row := range m.Seconds {
		for _, s := range row {
			if !finiteNonNegative(s) || s > math.MaxInt32 {
				return nil, fmt.Errorf("%w: router_prefill_load_model: a prefill of %v seconds, expected 0 to %d", ErrInvalidArgument, s, math.MaxInt32)
			}
			durations[i] = append(durations[i], time.Duration(s*float64(time.Second)))
		}
	}
	table, err := schedule.NewPrefillTable(m.NewTokens, m.CachedTokens, durations)
	if err != nil {
		return nil, fmt.Errorf("router_prefill_load_model: %w", err)
	}
	return table, nil
}

func (c *Config) limits() schedule.Limits {
	return schedule.Limits{
		DecodeBlocksFraction: c.ActiveDecodeBlocksThreshold, PrefillTokens: c.ActivePrefillTokensThreshold,
		PrefillTokensFraction: c.ActivePrefillTokensThresholdFrac,
	}
}

// affinity gives an empty table of sessions, nil if there is no affinity.
func (c *Config) affinity() (*affinity.Table, error) {
	mode, err := affinity.ParseMode(c.SessionAffinityMode)
	if err != nil {
		return nil, fmt.Errorf("%w: session_affinity_mode=%q: %w", ErrInvalidArgument, c.SessionAffinityMode, err)
	}
	if c.SessionAffinityTTLSecs == nil {
		return nil, nil
	}
	const most = int64(affinity.MaxTTL / time.Second)
	if secs := *c.SessionAffinityTTLSecs; secs < 1 || secs > most {
		return nil, fmt.Errorf("%w: session_affinity_ttl_secs=%d must be between 1 and %d", ErrInvalidArgument, secs, most)
	}
	return affinity.New(time.Duration(*c.SessionAffinityTTLSecs)*time.Second, mode)
}

// queueing gives the classes of requests that wait. It reads the policy file.
func (c *Config) queueing() (*queue.Profile, error) {
	policy, err := queue.ParsePolicy(c.RouterQueuePolicy)
	if err != nil {
		return nil, fmt.Errorf("%w: router_queue_policy: %w", ErrInvalidArgument, err)
	}
	if c.RouterPolicyConfig == nil {
		return queue.Single(c.RouterQueueThreshold, policy), nil
	}
	data, err := readBounded(*c.RouterPolicyConfig)
	if err != nil {
		return nil, fmt.Errorf("%w: router_policy_config: %w", ErrInvalidArgument, err)
	}
	file, err := queue.ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%w: router_policy_config=%q: %w", ErrInvalidArgument, *c.RouterPolicyConfig, err)
	}
	profile := file.Profile(c.ModelName)
	if profile == nil {
		return nil, fmt.Errorf("%w: router_policy_config=%q has no profile for model_name=%q, and none for all models", ErrInvalidArgument, *c.RouterPolicyConfig, c.ModelName)
	}
	return profile, nil
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // to open a pipe is to wait for its writer
		return nil, fmt.Errorf("%s is not a regular file: %v", path, info.Mode())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, queue.MaxConfigBytes+1))
}

// features checks all of the above.
func (c *Config) features() (faults []error) {
	limits := c.limits()
	_, sessions := c.affinity()
	_, queueing := c.queueing()
	_, model := c.RouterPrefillLoadModel.model()
	for _, err := range []error{limits.Validate(), sessions, queueing} {
		if err != nil {
			faults = append(faults, err)
		}
	}
	if model != nil && !errors.Is(model, ErrNotImplemented) { // that is said if nothing else is wrong
		faults = append(faults, model)
	}
	if _, ok := roles[c.WorkerType]; !ok {
		faults = append(faults, fmt.Errorf("%w: worker_type=%q, expected \"aggregated\", \"prefill\", \"decode\" or \"encode\"", ErrInvalidArgument, c.WorkerType))
	}
	if c.RouterTrackOutputBlocks && !c.RouterTrackActiveBlocks {
		faults = append(faults, fmt.Errorf("%w: router_track_output_blocks requires router_track_active_blocks", ErrInvalidArgument))
	}
	if !c.RouterPrefillLoadModel.none() && !c.RouterTrackPrefillTokens {
		faults = append(faults, fmt.Errorf("%w: router_prefill_load_model requires router_track_prefill_tokens", ErrInvalidArgument))
	}
	if len(faults) == 0 && model != nil {
		faults = append(faults, model)
	}
	return faults
}

// equip gives a new router what its configuration, which is valid, asks for.
func (r *Router) equip(prefill schedule.PrefillModel) (err error) {
	if r.prefill = prefill; prefill == nil {
		if r.prefill, err = r.config.RouterPrefillLoadModel.model(); err != nil {
			return err
		}
	}
	if r.sessions, err = r.config.affinity(); err != nil {
		return err
	}
	if r.sessions != nil {
		r.leases = make(map[string]affinity.Lease)
	}
	if r.profile, err = r.config.queueing(); err != nil {
		return err
	}
	if r.profile.Queues() {
		r.queue = queue.New[*Ticket](r.profile, 0)
		if r.sessions != nil {
			r.queue.Lane = func(it *queue.Item[*Ticket]) string { return r.lane(&it.Value.q) }
		}
	}
	return nil
}
