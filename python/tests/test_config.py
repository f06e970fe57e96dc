"""KvRouterConfig: every keyword's default, range, environment and JSON."""

from __future__ import annotations

import copy
import inspect
import json
import math
import os
import pickle
import warnings
from typing import Any

import pytest

from dynamo_go import InvalidArgument, KvRouterConfig, Router

EXISTS = {
    "overlap_score_credit": 1.0,
    "overlap_score_credit_decay": 0.0,
    "prefill_load_scale": 1.0,
    "decode_active_request_weight": 0.0,
    "router_temperature": 0.0,
    "router_track_active_blocks": True,
    "router_assume_kv_reuse": True,
    "router_track_prefill_tokens": True,
    "host_cache_hit_weight": 0.75,
    "disk_cache_hit_weight": 0.25,
    "use_kv_events": True,
    "router_ttl_secs": 120.0,
    "router_approximate_cache_policy": "ttl",
    "router_predicted_ttl_secs": None,
    "router_replica_sync": False,
    "router_track_output_blocks": False,
    "router_prefill_load_model": "none",
    "router_queue_threshold": None,
    "router_queue_policy": "fcfs",
    "shared_cache_multiplier": None,
    "router_policy_config": None,
    "overlap_score_min_blocks": 0,  # not Dynamo's, like the next
    "record_decisions": 0,
}

# keyword: (default, a valid value that is another, environment variable)
PLANNED: dict[str, tuple[Any, Any, str]] = {
    "router_event_threads": (4, 1, "DYN_ROUTER_EVENT_THREADS"),
    "use_remote_indexer": (False, True, "DYN_USE_REMOTE_INDEXER"),
    "serve_indexer": (False, True, "DYN_SERVE_INDEXER"),
    "enable_session_prefix_index": (False, True, "DYN_ENABLE_SESSION_PREFIX_INDEX"),
    "shared_cache_type": ("none", "hicache", "DYN_SHARED_CACHE_TYPE"),
    "conditional_disagg_enabled": (False, True, "DYN_ROUTER_CONDITIONAL_DISAGG"),
    "conditional_disagg_policy": ("isl_bounding", "isl_or_load", "DYN_ROUTER_CONDITIONAL_DISAGG_POLICY"),
    "conditional_disagg_eff_isl_threshold": (2048, 1024, "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD"),
    "conditional_disagg_eff_isl_ratio_threshold": (0.7, 0.5, "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD"),
    "conditional_disagg_prefill_busy_threshold": (None, 1.0, "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD"),
    "conditional_disagg_decode_busy_threshold": (None, 1.0, "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD"),
    "router_prefill_policy": (None, "other", "DYN_ROUTER_PREFILL_POLICY"),
    "router_decode_policy": (None, "other", "DYN_ROUTER_DECODE_POLICY"),
    "router_tracking_key_file": (None, "key", "DYN_ROUTER_TRACKING_KEY_FILE"),
    "router_tracking_key_id": (None, "id", "DYN_ROUTER_TRACKING_KEY_ID"),
    # These need another keyword to be valid at all.
    "router_tracking_hash": ("public-xxh3-v1", "keyed-xxh3-v1", "DYN_ROUTER_TRACKING_HASH"),
}
COMPANION: dict[str, dict[str, Any]] = {
    "router_tracking_hash": {"router_tracking_key_file": "key"},
}
NOT_IN_JSON = {
    "router_approximate_cache_policy",
    "router_prefill_policy",
    "router_decode_policy",
    "overlap_score_min_blocks",
    "record_decisions",
}
DEFAULTS = {**EXISTS, **{name: row[0] for name, row in PLANNED.items()}}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in os.environ if v.startswith("DYN_")]:
        monkeypatch.delenv(variable)


def test_every_keyword_has_dynamos_default() -> None:
    signature = inspect.signature(KvRouterConfig)
    assert {name: p.default.default for name, p in signature.parameters.items()} == {
        "overlap_score_weight": None,
        **DEFAULTS,
    }
    config = KvRouterConfig()
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS


def test_only_the_first_five_are_positional() -> None:
    names = list(inspect.signature(KvRouterConfig).parameters)[:5]
    assert names == [
        "overlap_score_weight",
        "host_cache_hit_weight",
        "disk_cache_hit_weight",
        "router_temperature",
        "use_kv_events",
    ]
    assert KvRouterConfig(None, 0.75, 0.25, 0.5, True).router_temperature == 0.5
    with pytest.raises(TypeError):
        KvRouterConfig(None, 0.75, 0.25, 0.5, True, False)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["router_max_tree_size", "min_initial_workers", "durable_kv_events", "bogus"])
def test_unknown_keyword(name: str) -> None:
    keywords: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=name):
        KvRouterConfig(**keywords)


def test_a_router_by_itself_finds_no_others() -> None:
    with pytest.raises(NotImplementedError, match="router_replica_sync"):
        Router(16, KvRouterConfig(router_replica_sync=True))


@pytest.mark.parametrize("name", PLANNED)
def test_missing_feature_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default, value, variable = PLANNED[name]
    companion = COMPANION.get(name, {})
    with pytest.raises(NotImplementedError) as caught:
        KvRouterConfig(**{name: value, **companion})
    if not companion:
        for part in (f"{name}={value!r}", repr(default), "router_temperature"):
            assert part in str(caught.value)
    if name not in NOT_IN_JSON:
        with pytest.raises(NotImplementedError):
            KvRouterConfig.from_json(json.dumps({name: value, **companion}))
    config = KvRouterConfig()
    with pytest.raises((NotImplementedError, InvalidArgument)):
        setattr(config, name, value)
    assert config == KvRouterConfig(), "a refused value must not stay"
    # Its default is fine wherever it comes from.
    assert getattr(KvRouterConfig(**{name: default}), name) == default

    for key, other in companion.items():
        monkeypatch.setenv(PLANNED[key][2], str(other))
    monkeypatch.setenv(variable, str(value))
    with pytest.raises(NotImplementedError, match="DYN_" if companion else variable):
        KvRouterConfig()


def test_shared_store_that_is_not_asked_is_told_with_what_there_is_instead() -> None:
    with pytest.raises(NotImplementedError, match="shared_ranges"):
        KvRouterConfig(shared_cache_type="hicache")
    with pytest.raises(NotImplementedError, match="shared_ranges"):
        Router(16, {"shared_cache_type": "hicache"})


@pytest.mark.parametrize("name", PLANNED)
def test_passed_keyword_wins_over_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default, value, variable = PLANNED[name]
    monkeypatch.setenv(variable, str(value))
    assert getattr(KvRouterConfig(**{name: default}), name) == default


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "3", "overlap_score_credit", 3.0),
        ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", "0.25", "overlap_score_credit_decay", 0.25),
        ("DYN_ROUTER_PREFILL_LOAD_SCALE", "1e1", "prefill_load_scale", 10.0),
        ("DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", "4", "decode_active_request_weight", 4.0),
        ("DYN_ROUTER_TEMPERATURE", "0.5", "router_temperature", 0.5),
        ("DYN_ROUTER_TRACK_ACTIVE_BLOCKS", "OFF", "router_track_active_blocks", False),
        ("DYN_ROUTER_ASSUME_KV_REUSE", "no", "router_assume_kv_reuse", False),
        ("DYN_ROUTER_TRACK_PREFILL_TOKENS", "False", "router_track_prefill_tokens", False),
        ("DYN_ROUTER_TRACK_PREFILL_TOKENS", "YES", "router_track_prefill_tokens", True),
        ("DYN_ROUTER_TEMPERATURE", "", "router_temperature", 0.0),
        ("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", "1", "host_cache_hit_weight", 1.0),
        ("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", "0", "disk_cache_hit_weight", 0.0),
        ("DYN_ROUTER_USE_KV_EVENTS", "0", "use_kv_events", False),
        ("DYN_USE_KV_EVENTS", "0", "use_kv_events", False),
        ("DYN_ROUTER_TTL_SECS", "5", "router_ttl_secs", 5.0),
        ("DYN_ROUTER_PREDICTED_TTL_SECS", "5", "router_predicted_ttl_secs", 5.0),
    ],
)
def test_environment(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: Any) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(KvRouterConfig(), name) == value
    assert getattr(KvRouterConfig.from_json("{}"), name) == value
    assert getattr(KvRouterConfig(**{name: DEFAULTS[name]}), name) == DEFAULTS[name]
    assert getattr(KvRouterConfig.from_json(json.dumps({name: DEFAULTS[name]})), name) == DEFAULTS[name]


@pytest.mark.parametrize("text", ["abc", "1,5", "1_0", "0x1"])
@pytest.mark.parametrize(
    "variable", ["DYN_ROUTER_TEMPERATURE", "DYN_ROUTER_EVENT_THREADS", "DYN_ROUTER_TRACK_ACTIVE_BLOCKS"]
)
def test_value_that_cannot_be_read_is_ignored_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    unset = KvRouterConfig()
    monkeypatch.setenv(variable, text)
    with pytest.warns(RuntimeWarning, match=f"{variable}={text!r}") as caught:
        assert KvRouterConfig() == unset
    assert [w.filename for w in caught] == [__file__]


def test_out_of_range_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_ROUTER_TEMPERATURE", "-1")
    with pytest.raises(InvalidArgument, match=r"DYN_ROUTER_TEMPERATURE.*finite and non-negative, got -1"):
        KvRouterConfig()


def test_unknown_word_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_ROUTER_CONDITIONAL_DISAGG_POLICY", "bogus")
    with pytest.warns(RuntimeWarning, match="bogus"):
        KvRouterConfig()
    monkeypatch.delenv("DYN_ROUTER_CONDITIONAL_DISAGG_POLICY")
    monkeypatch.setenv("DYN_ROUTER_QUEUE_POLICY", "bogus")
    with pytest.raises(InvalidArgument, match='DYN_ROUTER_QUEUE_POLICY.*"bogus"'):
        KvRouterConfig()


def test_approximate_cache_policy_is_in_the_json_only_if_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "router_approximate_cache_policy" not in json.loads(KvRouterConfig().to_json())
    monkeypatch.setenv("DYN_ROUTER_APPROXIMATE_CACHE_POLICY", "lru")
    config = KvRouterConfig(use_kv_events=False)
    assert config.router_approximate_cache_policy == "lru"
    assert KvRouterConfig.from_json(config.to_json()) == config


def test_second_name_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_USE_KV_EVENTS", "0")
    assert not KvRouterConfig().use_kv_events
    monkeypatch.setenv("DYN_ROUTER_USE_KV_EVENTS", "1")
    assert KvRouterConfig().use_kv_events


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("DYN_ROUTER_LOAD_AWARE", "true"),
        ("DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG", "{}"),
        ("DYN_ROUTER_WORKER_SELECTION_POLICY", "mine"),
    ],
)
def test_switches_without_a_keyword(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(NotImplementedError, match=variable):
        KvRouterConfig()
    monkeypatch.setenv("DYN_ROUTER_WORKER_SELECTION_POLICY", "default")
    monkeypatch.setenv("DYN_ROUTER_LOAD_AWARE", "0")
    monkeypatch.setenv("DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG", "")
    KvRouterConfig()


FINITE = "must be finite and non-negative"
FRACTION = "must be between 0 and 1"
SECONDS = "must be greater than or equal to 0"


# https://github.com/ai-dynamo/dynamo/issues/1589
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("overlap_score_credit", -0.5, "must be a finite, non-negative number"),
        ("overlap_score_credit", math.nan, "must be a finite, non-negative number"),
        ("overlap_score_credit_decay", -1, FINITE),
        ("prefill_load_scale", math.inf, FINITE),
        ("decode_active_request_weight", math.nan, FINITE),
        ("router_temperature", -1, FINITE),
        ("router_temperature", math.nan, FINITE),
        ("router_temperature", math.inf, FINITE),
        ("overlap_score_weight", -1, FINITE),
        ("overlap_score_weight", math.nan, FINITE),
        ("host_cache_hit_weight", 1.5, FRACTION),
        ("disk_cache_hit_weight", -0.1, FRACTION),
        ("shared_cache_multiplier", 2, FRACTION),
        ("conditional_disagg_eff_isl_ratio_threshold", math.nan, FRACTION),
        ("router_ttl_secs", -1, SECONDS),
        ("router_predicted_ttl_secs", -1, SECONDS),
        ("router_queue_threshold", -1, SECONDS),
        ("router_event_threads", 0, "must be at least 1"),
        ("router_event_threads", -3, "must be at least 1"),
        ("router_event_threads", 1 << 40, "must be below 2"),
        ("router_queue_policy", "x", "unknown queue policy: \"x\", expected 'fcfs', 'lcfs', or 'wspt'"),
        ("router_prefill_load_model", "x", "'none' or 'ais'"),
        ("router_approximate_cache_policy", "x", "'ttl' or 'lru'"),
        ("shared_cache_type", "x", "'none' or 'hicache'"),
        ("conditional_disagg_policy", "x", "'isl_bounding', 'prefill_load', or 'isl_or_load'"),
        ("router_tracking_hash", "x", "'public-xxh3-v1' or 'keyed-xxh3-v1'"),
    ],
)
def test_range(name: str, value: Any, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(InvalidArgument) as caught:
            KvRouterConfig(**{name: value})
    assert isinstance(caught.value, ValueError)
    shown = repr(float(value)) if isinstance(value, (int, float)) and "threads" not in name else str(value)
    for part in ("prefill_load_scale" if name == "overlap_score_weight" else name, message, shown):
        assert part in str(caught.value)
    if name != "overlap_score_weight":
        config = KvRouterConfig()
        with pytest.raises(InvalidArgument):
            setattr(config, name, value)
        assert config == KvRouterConfig()


def test_number_beyond_a_float_is_infinite() -> None:
    with pytest.raises(InvalidArgument, match=f"router_temperature {FINITE}, got inf"):
        KvRouterConfig(router_temperature=10**400)


def test_all_faults_at_once() -> None:
    with pytest.raises(InvalidArgument, match="router_temperature.*router_ttl_secs"):
        KvRouterConfig(router_temperature=-1, router_ttl_secs=-1, use_kv_events=False)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"router_track_output_blocks": True, "router_track_active_blocks": False},
            "requires router_track_active_blocks",
        ),
        ({"router_prefill_load_model": "aic", "router_track_prefill_tokens": False}, "requires router_track_prefill"),
        ({"router_approximate_cache_policy": "lru"}, "requires use_kv_events=False"),
        ({"router_predicted_ttl_secs": 1, "use_kv_events": False}, "requires use_kv_events=True"),
        ({"use_remote_indexer": True, "serve_indexer": True}, "mutually exclusive"),
        ({"enable_session_prefix_index": True, "use_kv_events": False}, "requires use_kv_events=True"),
        ({"router_tracking_hash": "keyed-xxh3-v1"}, "requires router_tracking_key_file"),
        ({"conditional_disagg_enabled": True, "conditional_disagg_policy": "prefill_load"}, "requires a prefill busy"),
    ],
)
def test_contradictions(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        KvRouterConfig(**keywords)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_kv_events", 1),
        ("router_track_active_blocks", 0),
        ("router_assume_kv_reuse", None),
        ("router_temperature", "0.5"),
        ("router_temperature", None),
        ("router_temperature", [1]),
        ("router_event_threads", 1.0),
        ("router_event_threads", "4"),
        ("router_queue_policy", None),
        ("router_policy_config", 3),
    ],
)
def test_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name}.*{type(value).__name__}"):
        KvRouterConfig(**{name: value})
    with pytest.raises(TypeError, match=name):
        setattr(KvRouterConfig(), name, value)
    with pytest.raises(InvalidArgument, match=name):
        KvRouterConfig.from_json(json.dumps({name: value}))


def test_overlap_score_weight_is_prefill_load_scale() -> None:
    with pytest.deprecated_call():
        config = KvRouterConfig(overlap_score_weight=2, prefill_load_scale=3)
    assert (config.prefill_load_scale, config.overlap_score_weight, config.overlap_score_credit) == (2.0, 2.0, 1.0)
    with pytest.deprecated_call():
        config = KvRouterConfig(0, overlap_score_credit=3)
    assert (config.prefill_load_scale, config.overlap_score_credit) == (0.0, 0.0)
    config = KvRouterConfig()
    config.overlap_score_weight = 0
    assert (config.prefill_load_scale, config.overlap_score_credit) == (0.0, 0.0)


def test_overlap_score_weight_in_the_environment_gives_way_to_what_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_OVERLAP_SCORE_WEIGHT", "0")
    monkeypatch.setenv("DYN_ROUTER_PREFILL_LOAD_SCALE", "5")
    config = KvRouterConfig()
    assert (config.prefill_load_scale, config.overlap_score_credit) == (0.0, 0.0)
    assert KvRouterConfig(prefill_load_scale=7).prefill_load_scale == 7
    assert KvRouterConfig(overlap_score_credit=2).overlap_score_credit == 2
    assert KvRouterConfig(overlap_score_weight=None).prefill_load_scale == 5
    monkeypatch.setenv("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "4")
    assert KvRouterConfig().prefill_load_scale == 4


def test_attributes_can_be_set() -> None:
    config = KvRouterConfig()
    config.router_temperature = 1
    config.router_track_active_blocks = False
    assert config == KvRouterConfig(router_temperature=1.0, router_track_active_blocks=False)
    with pytest.raises(AttributeError):
        config.bogus = 1  # type: ignore[attr-defined]


def test_copy_overrides_equality_repr_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    config = KvRouterConfig(router_temperature=0.5, overlap_score_credit=2)
    assert repr(config) == "KvRouterConfig(router_temperature=0.5, overlap_score_credit=2.0)"
    assert repr(KvRouterConfig()) == "KvRouterConfig()"
    monkeypatch.setenv("DYN_ROUTER_TEMPERATURE", "9")  # copies do not look there
    for twin in (config.copy(), copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin == config and twin is not config
        twin.router_temperature = 1.0
        assert twin != config
    assert config != "KvRouterConfig" and config != KvRouterConfig()
    with pytest.raises(TypeError):
        hash(config)
    changed = config.with_overrides(overlap_score_credit=3, decode_active_request_weight=1)
    assert (changed.overlap_score_credit, changed.router_temperature) == (3.0, 0.5)
    assert config.with_overrides() == config
    assert config.with_overrides(0).overlap_score_credit == 0.0
    with pytest.raises(InvalidArgument):
        config.with_overrides(prefill_load_scale=-1)


def test_json_round_trip() -> None:
    config = KvRouterConfig(router_temperature=0.5, overlap_score_credit=2, router_assume_kv_reuse=False)
    fields = json.loads(config.to_json())
    assert set(fields) == set(DEFAULTS) - NOT_IN_JSON
    assert KvRouterConfig.from_json(config.to_json()) == config
    Router(16, config).close()  # the library takes all of it


def test_json_legacy_fields() -> None:
    text = '{"router_snapshot_threshold": 3, "router_reset_states": true, "skip_initial_worker_wait": true}'
    assert KvRouterConfig.from_json(text) == KvRouterConfig()
    assert KvRouterConfig.from_json('{"durable_kv_events": false}') == KvRouterConfig()
    with pytest.raises(InvalidArgument, match="durable_kv_events"):
        KvRouterConfig.from_json('{"durable_kv_events": true}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"bogus": 1}', "unknown field 'bogus'.*router_temperature"),
        ("[]", "must be an object"),
        ("null", "must be an object"),
        ("{", "not JSON"),
        ("", "not JSON"),
        ('{"router_temperature": NaN}', FINITE),
        ('{"router_temperature": 1, "router_temperature": 1}', "repeated"),
        ('{"router_temperature": ' + "[" * 100_000, "nested too deeply|not JSON"),
        ('{"router_temperature": 1' + "0" * 5000 + "}", "not JSON|" + FINITE),
    ],
)
def test_bad_json(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        KvRouterConfig.from_json(text)


def test_prefill_load_model_is_a_table() -> None:
    table = {"new_tokens": [0, 1000], "cached_tokens": [0], "seconds": [[0, 10.0]]}
    config = KvRouterConfig(router_prefill_load_model=table)
    assert KvRouterConfig.from_json(config.to_json()) == config
    Router(16, config).close()
    asked: list[tuple[int, int]] = []

    def model(new: int, cached: int) -> float:
        asked.append((new, cached))
        return new / 1000

    with Router(16, KvRouterConfig(router_prefill_load_model=model)) as router:
        count = len(asked)
        assert 0 < count < 2000
        router.add_worker(1)
        router.best_worker(range(100), request_id="a")
        assert len(asked) == count, "it is asked once"
    with pytest.raises(NotImplementedError, match="'ais'"):
        KvRouterConfig(router_prefill_load_model="aic")
    for bad in (
        {},
        {**table, "more": 1},
        {**table, "new_tokens": [5, 5]},
        {**table, "seconds": [[0, -1]]},
        {**table, "seconds": [[0]]},
        {**table, "cached_tokens": []},
        lambda new, cached: -1.0,
    ):
        with pytest.raises(InvalidArgument, match="router_prefill_load_model"):
            KvRouterConfig(router_prefill_load_model=bad)
    with pytest.raises(TypeError):
        KvRouterConfig(router_prefill_load_model=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="requires router_track_prefill_tokens"):
        KvRouterConfig(router_prefill_load_model=table, router_track_prefill_tokens=False)


def test_presets() -> None:
    assert KvRouterConfig.preset("default") == KvRouterConfig()
    shared = KvRouterConfig.preset("shared_system_prompt", system_prompt_tokens=160, block_size=16)
    assert shared.overlap_score_min_blocks == 12
    assert KvRouterConfig.preset("first_token").prefill_load_scale == 4.0
    assert KvRouterConfig.preset("spread").overlap_score_credit == 0.0
    with pytest.raises(InvalidArgument, match="shared_system_prompt"):
        KvRouterConfig.preset("fast")
    with pytest.raises(InvalidArgument, match="system_prompt_tokens"):
        KvRouterConfig.preset("shared_system_prompt")
