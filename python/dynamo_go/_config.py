"""The configuration of a router: every keyword of Dynamo's ``KvRouterConfig``, its default, range and environment."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ._checks import integer, shown
from ._errors import InvalidArgument
from ._keyword import Choice, Count, Flag, Keyword, Maybe, Number, PrefillLoadModel, Text, Unreadable

_ANY_FINITE = Number("must be finite and non-negative", lambda v: math.isfinite(v) and v >= 0)
_CREDIT = Number("must be a finite, non-negative number", lambda v: math.isfinite(v) and v >= 0)
_FRACTION = Number("must be between 0 and 1", lambda v: 0 <= v <= 1)
_SECONDS = Number("must be greater than or equal to 0", lambda v: math.isfinite(v) and v >= 0)
_FLAG = Flag()

# Fields that Dynamo's JSON knew once: accepted, and nothing depends on them.
_LEGACY_FIELDS = ("durable_kv_events", "router_reset_states", "router_snapshot_threshold", "skip_initial_worker_wait")
# Keywords that Dynamo leaves out of its JSON, so they are there only if they are not the default.
_NOT_IN_JSON = (
    "router_approximate_cache_policy",
    "router_prefill_policy",
    "router_decode_policy",
    "overlap_score_min_blocks",
    "record_decisions",
)
# Values of :meth:`KvRouterConfig.preset`.
_PRESET_VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "first_token": {"prefill_load_scale": 4.0},
    "spread": {"overlap_score_credit": 0.0},
}
# Switches of Dynamo's command line that stand for keywords, and values with which they ask for nothing.
_PRESETS = {
    "DYN_ROUTER_LOAD_AWARE": ("", "0", "false", "off", "no"),
    "DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG": ("",),
    "DYN_ROUTER_WORKER_SELECTION_POLICY": ("", "default"),
}


class KvRouterConfig:
    """How a router scores, tracks and learns.

    Every keyword can be passed, read and set. For a keyword that is not passed the environment decides, and only then
    the default; a keyword that is passed wins, also when it is passed as ``None`` or as its default. Environment
    variables are listed with each keyword below, the first that is set counts.

    In the environment, booleans are ``1/true/on/yes`` and ``0/false/off/no`` in any case; an empty value counts as not
    set. A number or boolean that cannot be read is ignored, as Dynamo does, but with a :class:`RuntimeWarning`; a word
    that is not one of the choices is an error. To the commands (``python -m dynamo_go``) all of it is an error.

    A keyword whose feature does not exist yet takes its default only: any other value raises
    :class:`NotImplementedError`, wherever it came from.

    What exists (costs are in blocks, the lowest wins):

    ``overlap_score_credit`` (1.0, finite, >= 0; ``DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT``)
        What a cached block takes off the cost. 0 ignores caches, 1 counts a cached block as free.
    ``overlap_score_credit_decay`` (0.0, finite, >= 0; ``DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY``)
        Lets the credit shrink on workers with more waiting prompt tokens than the idlest:
        credit / (1 + decay * excess), the excess in units of this prompt.
    ``prefill_load_scale`` (1.0, finite, >= 0; ``DYN_ROUTER_PREFILL_LOAD_SCALE``)
        Weight of uncached prompt blocks against decode blocks.
    ``decode_active_request_weight`` (0.0, finite, >= 0; ``DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT``)
        Blocks that each active request costs besides its blocks.
    ``host_cache_hit_weight``, ``disk_cache_hit_weight`` (0.75, 0.25, 0 .. 1; ``DYN_ROUTER_HOST_CACHE_HIT_WEIGHT``,
    ``DYN_ROUTER_DISK_CACHE_HIT_WEIGHT``)
        What a block in pinned host memory, on disk or external, takes off the cost, if it goes on where the device's end.
    ``router_temperature`` (0.0, finite, >= 0; ``DYN_ROUTER_TEMPERATURE``)
        0 takes the lowest cost, ties at random; above, softmax over costs scaled to 0 .. 1.
    ``router_track_active_blocks``, ``router_assume_kv_reuse``, ``router_track_prefill_tokens`` (True;
    ``DYN_ROUTER_TRACK_ACTIVE_BLOCKS``, ``DYN_ROUTER_ASSUME_KV_REUSE``, ``DYN_ROUTER_TRACK_PREFILL_TOKENS``)
        Whether decode blocks count as load; whether equal blocks of several requests count once; whether prompt tokens
        count as load.
    ``use_kv_events`` (True; ``DYN_ROUTER_USE_KV_EVENTS``, ``DYN_USE_KV_EVENTS``)
        False routes without events: blocks are presumed to be where requests went.
    ``router_approximate_cache_policy`` ("ttl" or "lru"; ``DYN_ROUTER_APPROXIMATE_CACHE_POLICY``)
        Without events: how blocks are forgotten. "ttl": after ``router_ttl_secs`` (120.0; ``DYN_ROUTER_TTL_SECS``) without a
        request. "lru": the least recently used, when a worker's ``total_kv_blocks`` are used up.
    ``router_predicted_ttl_secs`` (None; ``DYN_ROUTER_PREDICTED_TTL_SECS``)
        With events: blocks of routed prompts are presumed for so long besides, so that a burst of equal prompts stays
        together before the events come.
    ``router_prefill_load_model`` ("none"; ``DYN_ROUTER_PREFILL_LOAD_MODEL``)
        How long a prefill takes, so that its load fades while it runs. A table ``{"new_tokens": [n, ...],
        "cached_tokens": [n, ...], "seconds": [[s, ...], ...]}``, lengths ascending, a row of seconds for each of
        ``cached_tokens``; durations between lengths are interpolated. Or a callable ``(new_tokens, cached_tokens) ->
        seconds``: it is made a table here and now, called a few hundred times on this thread for lengths to 2**20, and never
        again. (Dynamo's "ais" needs a model that is not here.)
    ``router_track_output_blocks`` (False; ``DYN_ROUTER_TRACK_OUTPUT_BLOCKS``)
        Whether :meth:`KvRouter.generate` books the blocks that a request generates.
    ``router_queue_threshold`` (None, or >= 0; ``DYN_ROUTER_QUEUE_THRESHOLD``)
        Requests wait while every eligible rank has more prompt tokens to compute than this multiple of its
        ``max_num_batched_tokens``. None: nothing waits.
    ``router_queue_policy`` ("fcfs", "lcfs", "wspt"; ``DYN_ROUTER_QUEUE_POLICY``)
        Which goes first: the first that came, the last, the one with the fewest uncached tokens per weight.
    ``router_policy_config`` (None; ``DYN_ROUTER_POLICY_CONFIG``)
        Path of a YAML policy file with classes of requests, read when a router is made. It replaces the two before.
    ``shared_cache_multiplier`` (None is 0.5; 0 .. 1; ``DYN_SHARED_CACHE_MULTIPLIER``)
        Credit of a block that a cache shared by all ranks holds (``shared_ranges`` of a request).
    ``overlap_score_min_blocks`` (0; not Dynamo's)
        Overlap of fewer blocks is worth nothing; see docs/tuning.md. :meth:`preset` sets it.
    ``record_decisions`` (0, at most 2**20; not Dynamo's)
        So many of the latest decisions are kept, with the hits that were predicted and those that engines report:
        :meth:`Router.decisions`. About 200 bytes each.
    ``overlap_score_weight`` (deprecated; ``DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT``, ``DYN_OVERLAP_SCORE_WEIGHT``)
        Another name for ``prefill_load_scale``, which it overrules; 0 also sets ``overlap_score_credit`` to 0.

    The others are named in the signature; ``KvRouterConfig.<keyword>.env`` tells their environment variables.

    Raises:
        TypeError: a keyword has a value of the wrong type, or does not exist.
        InvalidArgument: a value is out of its range, or contradicts another; all such faults are named at once.
        NotImplementedError: a keyword whose feature does not exist has another value than its default.
    """

    __slots__ = ("_values",)
    _values: dict[str, Any]

    host_cache_hit_weight = Keyword(_FRACTION, 0.75, "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", exists=True)
    disk_cache_hit_weight = Keyword(_FRACTION, 0.25, "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", exists=True)
    router_temperature = Keyword(_ANY_FINITE, 0.0, "DYN_ROUTER_TEMPERATURE", exists=True)
    use_kv_events = Keyword(_FLAG, True, "DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS", exists=True)
    router_replica_sync = Keyword(_FLAG, False, "DYN_ROUTER_REPLICA_SYNC", exists=True)
    router_track_active_blocks = Keyword(_FLAG, True, "DYN_ROUTER_TRACK_ACTIVE_BLOCKS", exists=True)
    router_track_output_blocks = Keyword(_FLAG, False, "DYN_ROUTER_TRACK_OUTPUT_BLOCKS", exists=True)
    router_assume_kv_reuse = Keyword(_FLAG, True, "DYN_ROUTER_ASSUME_KV_REUSE", exists=True)
    router_track_prefill_tokens = Keyword(_FLAG, True, "DYN_ROUTER_TRACK_PREFILL_TOKENS", exists=True)
    router_prefill_load_model = Keyword(
        PrefillLoadModel("prefill load model", "none", "ais", aliases={"aic": "ais"}),
        "none",
        "DYN_ROUTER_PREFILL_LOAD_MODEL",
        exists=True,
    )
    router_ttl_secs = Keyword(_SECONDS, 120.0, "DYN_ROUTER_TTL_SECS", exists=True)
    router_approximate_cache_policy = Keyword(
        Choice("approximate cache policy", "ttl", "lru"), "ttl", "DYN_ROUTER_APPROXIMATE_CACHE_POLICY", exists=True
    )
    router_queue_threshold = Keyword(Maybe(_SECONDS), None, "DYN_ROUTER_QUEUE_THRESHOLD", exists=True)
    router_event_threads = Keyword(Count(1), 4, "DYN_ROUTER_EVENT_THREADS")
    router_queue_policy = Keyword(
        Choice("queue policy", "fcfs", "lcfs", "wspt"), "fcfs", "DYN_ROUTER_QUEUE_POLICY", exists=True
    )
    use_remote_indexer = Keyword(_FLAG, False, "DYN_USE_REMOTE_INDEXER")
    serve_indexer = Keyword(_FLAG, False, "DYN_SERVE_INDEXER")
    enable_session_prefix_index = Keyword(_FLAG, False, "DYN_ENABLE_SESSION_PREFIX_INDEX")
    shared_cache_multiplier = Keyword(Maybe(_FRACTION), None, "DYN_SHARED_CACHE_MULTIPLIER", exists=True)
    shared_cache_type = Keyword(Choice("shared cache type", "none", "hicache"), "none", "DYN_SHARED_CACHE_TYPE")
    router_predicted_ttl_secs = Keyword(Maybe(_SECONDS), None, "DYN_ROUTER_PREDICTED_TTL_SECS", exists=True)
    conditional_disagg_enabled = Keyword(_FLAG, False, "DYN_ROUTER_CONDITIONAL_DISAGG")
    conditional_disagg_policy = Keyword(
        Choice("conditional disaggregation policy", "isl_bounding", "prefill_load", "isl_or_load", strict=False),
        "isl_bounding",
        "DYN_ROUTER_CONDITIONAL_DISAGG_POLICY",
    )
    conditional_disagg_eff_isl_threshold = Keyword(Count(0), 2048, "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD")
    conditional_disagg_eff_isl_ratio_threshold = Keyword(
        _FRACTION, 0.7, "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD"
    )
    conditional_disagg_prefill_busy_threshold = Keyword(
        Maybe(_SECONDS), None, "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD"
    )
    conditional_disagg_decode_busy_threshold = Keyword(
        Maybe(_SECONDS), None, "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD"
    )
    overlap_score_credit = Keyword(_CREDIT, 1.0, "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", exists=True)
    overlap_score_credit_decay = Keyword(_ANY_FINITE, 0.0, "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", exists=True)
    prefill_load_scale = Keyword(_ANY_FINITE, 1.0, "DYN_ROUTER_PREFILL_LOAD_SCALE", exists=True)
    decode_active_request_weight = Keyword(_ANY_FINITE, 0.0, "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", exists=True)
    router_policy_config = Keyword(Maybe(Text()), None, "DYN_ROUTER_POLICY_CONFIG", exists=True)
    router_prefill_policy = Keyword(Maybe(Text()), None, "DYN_ROUTER_PREFILL_POLICY")
    router_decode_policy = Keyword(Maybe(Text()), None, "DYN_ROUTER_DECODE_POLICY")
    router_tracking_hash = Keyword(
        Choice("tracking hash", "public-xxh3-v1", "keyed-xxh3-v1"), "public-xxh3-v1", "DYN_ROUTER_TRACKING_HASH"
    )
    router_tracking_key_file = Keyword(Maybe(Text()), None, "DYN_ROUTER_TRACKING_KEY_FILE")
    router_tracking_key_id = Keyword(Maybe(Text()), None, "DYN_ROUTER_TRACKING_KEY_ID")
    overlap_score_min_blocks = Keyword(Count(0), 0, exists=True)
    record_decisions = Keyword(Count(0), 0, exists=True)

    # Not stored: it is prefill_load_scale under its old name. The attribute of that name is the property below.
    _weight = Keyword(
        Maybe(_ANY_FINITE),
        None,
        "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT",
        "DYN_OVERLAP_SCORE_WEIGHT",
        exists=True,
        name="overlap_score_weight",
    )

    def __init__(
        self,
        overlap_score_weight: float | None = _weight.unset,
        host_cache_hit_weight: float = host_cache_hit_weight.unset,
        disk_cache_hit_weight: float = disk_cache_hit_weight.unset,
        router_temperature: float = router_temperature.unset,
        use_kv_events: bool = use_kv_events.unset,
        *,
        router_replica_sync: bool = router_replica_sync.unset,
        router_track_active_blocks: bool = router_track_active_blocks.unset,
        router_track_output_blocks: bool = router_track_output_blocks.unset,
        router_assume_kv_reuse: bool = router_assume_kv_reuse.unset,
        router_track_prefill_tokens: bool = router_track_prefill_tokens.unset,
        router_prefill_load_model: str
        | Mapping[str, Any]
        | Callable[[int, int], float] = router_prefill_load_model.unset,
        router_ttl_secs: float = router_ttl_secs.unset,
        router_approximate_cache_policy: str = router_approximate_cache_policy.unset,
        router_queue_threshold: float | None = router_queue_threshold.unset,
        router_event_threads: int = router_event_threads.unset,
        router_queue_policy: str = router_queue_policy.unset,
        use_remote_indexer: bool = use_remote_indexer.unset,
        serve_indexer: bool = serve_indexer.unset,
        enable_session_prefix_index: bool = enable_session_prefix_index.unset,
        shared_cache_multiplier: float | None = shared_cache_multiplier.unset,
        shared_cache_type: str = shared_cache_type.unset,
        router_predicted_ttl_secs: float | None = router_predicted_ttl_secs.unset,
        conditional_disagg_enabled: bool = conditional_disagg_enabled.unset,
        conditional_disagg_policy: str = conditional_disagg_policy.unset,
        conditional_disagg_eff_isl_threshold: int = conditional_disagg_eff_isl_threshold.unset,
        conditional_disagg_eff_isl_ratio_threshold: float = conditional_disagg_eff_isl_ratio_threshold.unset,
        conditional_disagg_prefill_busy_threshold: float | None = conditional_disagg_prefill_busy_threshold.unset,
        conditional_disagg_decode_busy_threshold: float | None = conditional_disagg_decode_busy_threshold.unset,
        overlap_score_credit: float = overlap_score_credit.unset,
        overlap_score_credit_decay: float = overlap_score_credit_decay.unset,
        prefill_load_scale: float = prefill_load_scale.unset,
        decode_active_request_weight: float = decode_active_request_weight.unset,
        router_policy_config: str | None = router_policy_config.unset,
        router_prefill_policy: str | None = router_prefill_policy.unset,
        router_decode_policy: str | None = router_decode_policy.unset,
        router_tracking_hash: str = router_tracking_hash.unset,
        router_tracking_key_file: str | None = router_tracking_key_file.unset,
        router_tracking_key_id: str | None = router_tracking_key_id.unset,
        overlap_score_min_blocks: int = overlap_score_min_blocks.unset,
        record_decisions: int = record_decisions.unset,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"]
        self._resolve({name: value for name, value in arguments.items() if value is not _BY_NAME[name].unset})

    def _resolve(self, passed: dict[str, Any]) -> None:
        """Fill in what was not passed, check everything, and take it over."""
        if passed.get("overlap_score_weight") is not None:
            warnings.warn(
                "overlap_score_weight is deprecated: use prefill_load_scale", DeprecationWarning, stacklevel=3
            )
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for name, keyword in _BY_NAME.items():
            if name in passed:
                values[name] = keyword.kind.convert(name, passed[name])
                continue
            values[name] = keyword.default
            for variable in keyword.env:
                text = os.environ.get(variable)
                if text:
                    _take_environment(keyword, variable, text, values, origin)
                    break
        weight = values.pop("overlap_score_weight")
        if weight is not None:
            # A weight that was passed overrules; one from the environment gives way to what was passed.
            new = {"prefill_load_scale": weight} | ({"overlap_score_credit": 0.0} if weight == 0 else {})
            for name, value in new.items():
                if "overlap_score_weight" in passed or name not in passed:
                    values[name] = value
                    origin[name] = origin.get("overlap_score_weight", "overlap_score_weight")
        for variable, idle in _PRESETS.items():
            if os.environ.get(variable, "").lower() not in idle:
                raise NotImplementedError(
                    f"the environment sets {variable}={os.environ[variable]!r}, which is not implemented: unset it"
                )
        _check(values, origin)
        self._values = values

    def _change(self, changes: dict[str, Any]) -> None:
        """Set some keywords; nothing changes if the result would not be valid."""
        values = self._values | {name: _BY_NAME[name].kind.convert(name, value) for name, value in changes.items()}
        _check(values, {})
        self._values = values

    @staticmethod
    def preset(name: str, *, system_prompt_tokens: int = 0, block_size: int = 16) -> KvRouterConfig:
        """Give a configuration for a kind of traffic; docs/tuning.md has the measurements. The environment is not read.

        Args:
            name: "default": Dynamo's. "shared_system_prompt": every request begins with the same
                `system_prompt_tokens`, which draw nobody to the worker that happens to hold them
                (``overlap_score_min_blocks``). "first_token": time to first token of long prompts matters most
                (``prefill_load_scale`` 4). "spread": caches matter little (``overlap_score_credit`` 0).
            system_prompt_tokens: length of the common beginning, at least 1; for "shared_system_prompt" alone.
            block_size: tokens per KV block.
        """
        if name == "shared_system_prompt":
            tokens = integer(system_prompt_tokens, "system_prompt_tokens", low=1)
            blocks = tokens // integer(block_size, "block_size", low=1)
            return _restore({"overlap_score_min_blocks": blocks + 2})
        try:
            return _restore(_PRESET_VALUES[name])
        except KeyError:
            known = ", ".join(["shared_system_prompt", *_PRESET_VALUES])
            raise InvalidArgument(f"unknown preset {name!r}, expected one of {known}") from None

    @property
    def overlap_score_weight(self) -> float:
        """Deprecated name of ``prefill_load_scale``. Setting it to 0 also sets ``overlap_score_credit`` to 0."""
        return self.prefill_load_scale

    @overlap_score_weight.setter
    def overlap_score_weight(self, value: float) -> None:
        weight = _ANY_FINITE.convert("overlap_score_weight", value)
        self._change({"prefill_load_scale": weight} | ({"overlap_score_credit": 0.0} if weight == 0 else {}))

    @staticmethod
    def from_json(config_json: str) -> KvRouterConfig:
        """Read a configuration from a JSON object whose fields are the keywords.

        A field that is not there counts as not passed: the environment decides, then the default. Fields of Dynamo's
        JSON that mean nothing any more (``router_snapshot_threshold`` and such) are accepted.

        Raises:
            InvalidArgument: not a JSON object, an unknown or repeated field, a value of the wrong type or range.
            NotImplementedError: as the constructor.
        """
        try:
            fields = json.loads(config_json, object_pairs_hook=_unique_fields)
        except RecursionError:
            raise InvalidArgument("KvRouterConfig JSON is nested too deeply") from None
        except InvalidArgument:
            raise
        except ValueError as error:  # JSONDecodeError, or a number with too many digits
            raise InvalidArgument(f"KvRouterConfig is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise InvalidArgument(f"KvRouterConfig JSON must be an object, got {type(fields).__name__}")
        for name in fields:
            if name not in _BY_NAME and name not in _LEGACY_FIELDS:
                known = ", ".join(sorted((*_BY_NAME, *_LEGACY_FIELDS)))
                raise InvalidArgument(f"unknown field {name!r} in KvRouterConfig JSON, expected one of {known}")
        if fields.get("durable_kv_events"):
            raise InvalidArgument("durable_kv_events=true is not supported any more, by Dynamo neither")
        config = KvRouterConfig.__new__(KvRouterConfig)
        try:
            config._resolve({name: value for name, value in fields.items() if name in _BY_NAME})
        except TypeError as error:
            raise InvalidArgument(f"KvRouterConfig JSON: {error}") from None
        return config

    def to_json(self) -> str:
        """Give the whole configuration as JSON, under the names that Dynamo and the C interface use."""
        values = {
            name: value
            for name, value in self._values.items()
            if name not in _NOT_IN_JSON or value != _BY_NAME[name].default
        }
        return json.dumps(values)

    def copy(self) -> KvRouterConfig:
        """Give an equal configuration that can be changed by itself."""
        return _restore(self._values)

    def with_overrides(
        self,
        overlap_score_weight: float | None = None,
        *,
        overlap_score_credit: float | None = None,
        overlap_score_credit_decay: float | None = None,
        prefill_load_scale: float | None = None,
        decode_active_request_weight: float | None = None,
    ) -> KvRouterConfig:
        """Give a copy with some scoring keywords changed; ``None`` leaves one as it is. Errors as the constructor."""
        changes = {
            "overlap_score_credit": overlap_score_credit,
            "overlap_score_credit_decay": overlap_score_credit_decay,
            "prefill_load_scale": prefill_load_scale,
            "decode_active_request_weight": decode_active_request_weight,
        }
        copy = self.copy()
        copy._change({name: value for name, value in changes.items() if value is not None})
        if overlap_score_weight is not None:
            copy.overlap_score_weight = overlap_score_weight
        return copy

    def __repr__(self) -> str:
        changed = (f"{n}={v!r}" for n, v in self._values.items() if v != _BY_NAME[n].default)
        return f"KvRouterConfig({', '.join(changed)})"

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, KvRouterConfig) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._values,)


_BY_NAME: dict[str, Keyword[Any]] = {
    k.name: k for k in (KvRouterConfig._weight, *vars(KvRouterConfig).values()) if isinstance(k, Keyword)
}


def _restore(values: dict[str, Any]) -> KvRouterConfig:
    """Make a configuration of a full set of values, not looking at the environment."""
    config = KvRouterConfig.__new__(KvRouterConfig)
    config._values = {name: keyword.default for name, keyword in _BY_NAME.items() if name != "overlap_score_weight"}
    config._change(values)
    return config


def not_a_config(name: str, value: object) -> str:
    """Say what was expected where a configuration is."""
    hint = ": KvRouterConfig(**it) makes one" if isinstance(value, Mapping) else ""
    return f"{name}: expected KvRouterConfig or None, got {type(value).__name__} ({shown(value)}){hint}"


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidArgument(f"a field is repeated in KvRouterConfig JSON: {[name for name, _ in pairs]}")
    return fields


def _take_environment(
    keyword: Keyword[Any], variable: str, text: str, values: dict[str, Any], origin: dict[str, str]
) -> None:
    try:
        values[keyword.name] = keyword.kind.parse(text)
        origin[keyword.name] = variable
    except ValueError:
        if keyword.kind.strict:
            raise InvalidArgument(keyword.kind.fault(f"{keyword.name} (from {variable})", text) or text) from None
        warnings.warn(
            Unreadable(
                f"{variable}={text!r}, expected {keyword.kind.expected}", f"{keyword.name} stays {keyword.default!r}"
            ),
            stacklevel=4,
        )


def _check(values: dict[str, Any], origin: dict[str, str]) -> None:
    """Raise for values out of range, for contradictions, and then for features that do not exist."""

    def named(name: str) -> str:
        return f"{name} (from {origin[name]})" if name in origin else name

    faults = [
        fault for name, value in values.items() if (fault := _BY_NAME[name].kind.fault(named(name), value)) is not None
    ]
    faults += [f"{message} ({', '.join(f'{n}={values[n]!r}' for n in names)})"
               for wrong, message, *names in _contradictions(values) if wrong]  # fmt: skip
    if faults:
        raise InvalidArgument("; ".join(faults))
    if values["router_prefill_load_model"] == "ais":
        raise NotImplementedError(
            f"{named('router_prefill_load_model')}='ais' is not implemented: give a table or a callable"
        )
    for name, value in values.items():
        keyword = _BY_NAME[name]
        if not keyword.exists and value != keyword.default:
            existing = ", ".join(n for n, k in _BY_NAME.items() if k.exists)
            raise NotImplementedError(
                f"{named(name)}={value!r} is not implemented: only its default, {keyword.default!r}, exists. {_INSTEAD.get(name, '')}"
                f"Keywords that can be changed: {existing}"
            )


# What to do without some of them.
_INSTEAD = {
    "shared_cache_type": "No shared store is asked here: what you know of one goes with each request (shared_ranges), and what a "
    "worker's own host memory, disk or external storage holds comes with its events. ",
}


def _contradictions(v: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Rules between keywords, as (broken, message, keywords...)."""
    return [
        (
            v["router_track_output_blocks"] and not v["router_track_active_blocks"],
            "router_track_output_blocks requires router_track_active_blocks",
            "router_track_output_blocks", "router_track_active_blocks",
        ),
        (
            v["router_prefill_load_model"] != "none" and not v["router_track_prefill_tokens"],
            "router_prefill_load_model requires router_track_prefill_tokens",
            "router_prefill_load_model", "router_track_prefill_tokens",
        ),
        (
            v["router_approximate_cache_policy"] == "lru" and v["use_kv_events"],
            "router_approximate_cache_policy 'lru' requires use_kv_events=False",
            "router_approximate_cache_policy", "use_kv_events",
        ),
        (
            v["router_predicted_ttl_secs"] is not None and not v["use_kv_events"],
            "router_predicted_ttl_secs requires use_kv_events=True",
            "router_predicted_ttl_secs", "use_kv_events",
        ),
        (
            v["use_remote_indexer"] and v["serve_indexer"],
            "use_remote_indexer and serve_indexer are mutually exclusive",
            "use_remote_indexer", "serve_indexer",
        ),
        (
            v["enable_session_prefix_index"] and (not v["use_kv_events"] or v["use_remote_indexer"]),
            "enable_session_prefix_index requires use_kv_events=True and no remote indexer",
            "enable_session_prefix_index", "use_kv_events", "use_remote_indexer",
        ),
        (
            v["router_tracking_hash"] == "keyed-xxh3-v1" and v["router_tracking_key_file"] is None,
            "router_tracking_hash 'keyed-xxh3-v1' requires router_tracking_key_file",
            "router_tracking_hash", "router_tracking_key_file",
        ),
        (
            v["conditional_disagg_enabled"]
            and v["conditional_disagg_policy"] != "isl_bounding"
            and v["conditional_disagg_prefill_busy_threshold"] is None
            and v["router_queue_threshold"] is None,
            "conditional_disagg_policy by load requires a prefill busy threshold or a queue threshold",
            "conditional_disagg_policy", "conditional_disagg_prefill_busy_threshold", "router_queue_threshold",
        ),
    ]  # fmt: skip
