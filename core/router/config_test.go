package router_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/event"
	"github.com/dynamo-go/dynamo-go/core/index"
	"github.com/dynamo-go/dynamo-go/core/router"
	"github.com/dynamo-go/dynamo-go/core/schedule"
)

func TestConfigJSON(t *testing.T) {
	cfg, err := router.ParseConfig([]byte(`{"router_temperature": 0.5, "overlap_score_credit": 2, "router_queue_threshold": null,
		"router_snapshot_threshold": 5, "router_reset_states": true, "skip_initial_worker_wait": true, "durable_kv_events": false}`))
	require.NoError(t, err)
	want := router.DefaultConfig()
	want.RouterTemperature, want.OverlapScoreCredit = 0.5, 2
	require.Equal(t, want, cfg)

	cfg, err = router.ParseConfig([]byte(`{"overlap_score_weight": 0}`))
	require.NoError(t, err)
	require.Zero(t, cfg.Weights().PrefillLoadScale)
	require.Zero(t, cfg.Weights().OverlapCredit)

	for text, want := range map[string]error{
		``:                               router.ErrInvalidArgument,
		`[]`:                             router.ErrInvalidArgument,
		`{} {}`:                          router.ErrInvalidArgument,
		`{"bogus": 1}`:                   router.ErrInvalidArgument,
		`{"router_ttl_secs": null}`:      router.ErrInvalidArgument,
		`{"router_temperature": "hot"}`:  router.ErrInvalidArgument,
		`{"router_temperature": -1}`:     router.ErrInvalidArgument,
		`{"overlap_score_credit": -0.1}`: router.ErrInvalidArgument,
		`{"overlap_score_weight": -1}`:   router.ErrInvalidArgument,
		`{"disk_cache_hit_weight": -1}`:  router.ErrInvalidArgument,
		`{"host_cache_hit_weight": 1.5}`: router.ErrInvalidArgument,
		`{"shared_cache_multiplier": 2}`: router.ErrInvalidArgument,
		`{"router_event_threads": 0}`:    router.ErrInvalidArgument,
		`{"durable_kv_events": true}`:    router.ErrInvalidArgument,
		`{"max_bytes": -1}`:              router.ErrInvalidArgument,
		`{"max_bytes": 1000}`:            router.ErrInvalidArgument,
		`{"max_answer_bytes": 1000}`:     router.ErrInvalidArgument,
		`{"use_remote_indexer": true}`:   router.ErrNotImplemented,

		`{"use_kv_events": false, "router_predicted_ttl_secs": 1}`:                  router.ErrInvalidArgument,
		`{"router_approximate_cache_policy": "lru"}`:                                router.ErrInvalidArgument,
		`{"router_approximate_cache_policy": "x"}`:                                  router.ErrInvalidArgument,
		`{"router_predicted_ttl_secs": -1}`:                                         router.ErrInvalidArgument,
		`{"router_queue_threshold": -1}`:                                            router.ErrInvalidArgument,
		`{"use_remote_indexer": true, "serve_indexer": true}`:                       router.ErrNotImplemented,
		`{"router_policy_config": "p.yaml"}`:                                        router.ErrInvalidArgument,
		`{"router_track_output_blocks": true, "router_track_active_blocks": false}`: router.ErrInvalidArgument,
	} {
		_, err := router.ParseConfig([]byte(text))
		require.ErrorIs(t, err, want, text)
	}
}

// https://github.com/ai-dynamo/dynamo/issues/1589 https://github.com/ai-dynamo/dynamo/pull/8395
func TestExtremesOfBlockSizeAndWeights(t *testing.T) {
	for _, size := range []int{0, -1, block.MaxSize + 1, 1 << 32, math.MinInt} {
		_, err := router.New(size, router.DefaultConfig(), router.Options{})
		require.ErrorIs(t, err, router.ErrInvalidArgument, "%d", size)
	}
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, name := range []string{"OverlapScoreCredit", "OverlapScoreCreditDecay", "PrefillLoadScale", "DecodeActiveRequestWeight", "RouterTemperature"} {
			cfg := router.DefaultConfig()
			reflect.ValueOf(&cfg).Elem().FieldByName(name).SetFloat(bad)
			_, err := router.New(16, cfg, router.Options{})
			require.ErrorIs(t, err, router.ErrInvalidArgument, "%s=%v", name, bad)
		}
	}
	k := newKit(t, 1, router.DefaultConfig()).workers(1)
	stored := event.Event{Kind: event.Stored}
	for i, h := range block.Hashes(nil, []uint32{7, 7, 7, 7}, 1, nil) { // four equal blocks: the engine names them apart
		stored.Blocks = append(stored.Blocks, event.Block{Engine: block.EngineHash(i), Hash: h})
	}
	require.NoError(t, k.ApplyEvent(1, &stored, index.Count))
	require.EqualValues(t, 4, k.best(ask([]uint32{7, 7, 7, 7})).OverlapBlocks, "block size 1 is valid")

	huge := router.DefaultConfig()
	huge.PrefillLoadScale, huge.DecodeActiveRequestWeight = 1e300, 1e300
	k = newKit(t, 16, huge).workers(1, 2)
	k.best(book("a", tokens(1, 64)))
	k.best(book("b", tokens(1, 64)))
	k.best(ask(tokens(1, 64)))
}

func TestRequestJSON(t *testing.T) {
	o, err := router.ParseOverrides([]byte(`{"router_temperature": 1, "assume_kv_reuse": false, "prefill_load_scale": null}`))
	require.NoError(t, err)
	require.Equal(t, 1.0, *o.RouterTemperature)
	require.False(t, *o.AssumeKVReuse)
	require.Nil(t, o.PrefillLoadScale)
	_, err = router.ParseOverrides([]byte(`{"router_assume_kv_reuse": false}`))
	require.ErrorIs(t, err, router.ErrInvalidArgument)
	require.ErrorContains(t, err, "known: overlap_score_credit")
	_, err = router.ParseOverrides([]byte(`{"router_temperature": -1}`))
	require.ErrorIs(t, err, router.ErrInvalidArgument)
	_, err = router.ParseOverrides([]byte(`{"router_temperature": "warm"}`))
	require.ErrorIs(t, err, router.ErrInvalidArgument)
	require.ErrorContains(t, err, `router_config_override: router_temperature="warm": expected a number`)
	err = router.ParseRoutingConstraints([]byte(`{"preferred_taints": {"a": "b"}}`), &schedule.Constraints{})
	require.ErrorIs(t, err, router.ErrInvalidArgument)
	require.ErrorContains(t, err, `routing_constraints: preferred_taints={"a": "b"}: expected a number`)

	mm, err := router.ParseBlockMMInfos([]byte(`[null, {"mm_objects": [{"mm_hash": 18446744073709551615, "offsets": [[0, 4]]}]}]`))
	require.NoError(t, err)
	require.Equal(t, [][]uint64{nil, {math.MaxUint64}}, mm)
	for _, bad := range []string{`{}`, `[{"mm_objects": [{}]}]`, `[{}]`, `[{"foo": 1}]`, `[] []`, `[{"mm_objects": [{"mm_hash": -1}]}]`, `[{"mm_objects": [{"mm_hash": 1.5}]}]`} {
		_, err := router.ParseBlockMMInfos([]byte(bad))
		require.ErrorIs(t, err, router.ErrInvalidArgument, bad)
	}
}
