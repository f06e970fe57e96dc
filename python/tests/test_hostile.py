"""Every public function and method, with each of its arguments wrong in every way of its kind.

A row of CALLS is a call that works, and what each parameter is; a public function, method or parameter without one fails a
test. What is refused is refused by the right exception, which names the argument and the value in a short text, and changes
nothing: the call that works still works afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import inspect
import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import BLOCK, echo, make_router, make_runtime, run, serve

import dynamo_go
from dynamo_go import CannotConnect, Closed, FileError, InvalidArgument, WorkerNotFound
from dynamo_go.mocker import Mocker, MockWorker
from dynamo_go.serve import Server

HUGE = "x" * 10_000_000
NAN, INFINITE = float("nan"), float("inf")
DIGITS = 10**5000  # Python does not print it
Wrong = list[tuple[Any, type[BaseException]]]  # a value, and what it raises


def types(*values: Any) -> Wrong:
    return [(value, TypeError) for value in values]


def values(*wrong: Any) -> Wrong:
    return [(value, InvalidArgument) for value in wrong]


def released() -> memoryview:
    view = memoryview(array("I", [1]))
    view.release()
    return view


ANY: Wrong = []  # every value is fine: it is passed on, or of no consequence
U64 = types("1", 1.5, NAN, None, object()) + values(-1, 2**64, DIGITS)
U32 = types("1", 1.5, None) + values(-1, 2**32, DIGITS)
COUNT = types("1", 1.5, None) + values(0, -1, 2**64, DIGITS)
TEXT = types(5, b"x", None, object()) + values("\ud800", HUGE)
NUMBER = types("1", object()) + values(NAN, INFINITE, -1.0)
FLAG = types(1, "x", None, [])
TOKENS = types(None, 5, "abc", ["a"], [1.5], [None], {1: 2}, array("d", [1.0])) + values(
    [-1], [2**32], [DIGITS], array("i", [-1]), array("Q", [2**32])
)
TOKENS.append((released(), ValueError))
MAPPING = types(5, [1]) + values({"nonsense": 1}, {"\ud800": 1})
JSON = types(5, {"a": object()}) + values("{", b"\xff", {"a": NAN}, [1], {"data": {"stored": {"blocks": 5}}})
INFOS = types(object(), [object()]) + values(5, [5], [{"mm_objects": 5}], [{"mm_objects": [{"mm_hash": -1}]}], [NAN])
HASHES = types(None, 5, "12", ["a"], [1.5]) + values([-1], [2**64], [DIGITS])
TEXTS = types(5, "x", [5], [None]) + values(["\ud800"], [HUGE])
RANGES = types(5, [5], [(1, "a")]) + values([(-1, 2)], [(0, 2**32)], [(2, 1)], [(0, 2), (1, 3)])
ENDPOINTS = types(5, {"a": "tcp://127.0.0.1:1"}, {0: 5}) + values(
    "", "nonsense", "tcp://h:99999", {-1: "tcp://h:1"}, HUGE
)
FILE: Wrong = [*types(5, None, object()), *values("\ud800", HUGE), ("/nowhere/x", FileError), ("/tmp/a\0b", FileError)]
NONE: Wrong = [(5, NotImplementedError), ("x", NotImplementedError)]  # a feature of Dynamo's that is not there
CONFIG = types(5, [1]) + values("{", "[]", {"nonsense": 1}, '{"router_temperature":-1}', {"router_temperature": NAN})


def maybe(wrong: Wrong) -> Wrong:
    """Of a parameter that may be None."""
    return [row for row in wrong if row[0] is not None]


class Called:
    """A call that works, and the kinds of its parameters."""

    def __init__(self, arguments: dict[str, Any], **kinds: Wrong) -> None:
        self.arguments = arguments
        self.kinds = kinds


IDENTITY = {"lora_name": maybe(TEXT), "cache_namespace": maybe(TEXT), "block_mm_infos": maybe(INFOS)}
REQUEST = {
    "router_config_override": maybe(MAPPING),
    "routing_constraints": maybe(MAPPING),
    "session_id": maybe(TEXT),
    "shared_ranges": maybe(RANGES),
    **IDENTITY,
}
PINNED = {"worker_id": maybe(U64) + [(99, WorkerNotFound)], "dp_rank": maybe(U32)}
WAITING = {"strict_priority": U32, "policy_class": maybe(TEXT), "timeout": maybe(NUMBER), "priority_jump": NUMBER[:-1]}
BOOKED: Wrong = [*types(5, b"x", None), *values("\ud800", HUGE), ("nobody", dynamo_go.RequestNotFound)]
EVENT = {"data": "cleared"}
AFFINITY = {
    "max_bytes": maybe(COUNT),
    "session_affinity_ttl_secs": maybe(COUNT),
    "session_affinity_mode": types(5) + values("x"),
    "load_threshold_config": types(5, {}),
}
WEIGHTS = (
    "overlap_score_weight",
    "overlap_score_credit",
    "overlap_score_credit_decay",
    "prefill_load_scale",
    "decode_active_request_weight",
)

CALLS: dict[str, Called] = {
    "compute_block_hash_for_seq": Called(
        {"tokens": [1] * 16, "kv_block_size": 16}, tokens=TOKENS, kv_block_size=COUNT, is_eagle=maybe(FLAG), **IDENTITY
    ),
    "configure_logging": Called(
        {"level": "off"}, level=types(1.5, True, object()) + values("x", HUGE, 0, 51, DIGITS), handler=types(5, "x")
    ),
    "Router": Called(
        {"block_size": 16}, block_size=COUNT, config=CONFIG, seed=maybe(U64), model_name=TEXT,
        worker_type=types(5) + values("x"), **AFFINITY,
    ),
    "Router.add_worker": Called(
        {"worker_id": 1}, worker_id=U64, dp_start=U32, dp_size=COUNT, kv_events=ENDPOINTS, replay=ENDPOINTS, query=ENDPOINTS,
        topic=maybe(TEXT), host=maybe(TEXT), block_size=maybe(COUNT), max_num_batched_tokens=maybe(U64),
        total_kv_blocks=maybe(U64), taints=TEXTS, adapters=TEXTS,
    ),
    "Router.remove_worker": Called({"worker_id": 2}, worker_id=[*U64, (99, WorkerNotFound)]),
    "Router.apply_event": Called(
        {"worker_id": 1, "event": EVENT}, worker_id=[*U64, (99, WorkerNotFound)], event=JSON,
        duplicate_stores=values(5, "x"),
    ),
    "Router.best_worker": Called(
        {"token_ids": [1] * 16}, token_ids=TOKENS, request_id=maybe(TEXT), update_indexer=FLAG, allowed_worker_ids=HASHES[1:],
        **REQUEST, **PINNED, **WAITING,
    ),
    "Router.best_workers": Called(
        {"prompts": [[1] * 16]}, prompts=types(None, 5, "abc", b"abc"), router_config_override=maybe(MAPPING),
        request_ids=types(5, "a", [5]) + values([], ["a", "b"]), asked=types(5),
    ),
    "Router.explain": Called({"token_ids": [1] * 16}, token_ids=TOKENS, allowed_worker_ids=HASHES[1:], **REQUEST, worker_id=maybe(U64), dp_rank=maybe(U32)),
    "Router.get_potential_loads": Called({"token_ids": [1] * 16}, token_ids=TOKENS, **IDENTITY),
    "Router.get_overlap_scores": Called(
        {"token_ids": [1] * 16}, token_ids=TOKENS, shared_ranges=maybe(RANGES), **IDENTITY
    ),
    "Router.mark_prefill_complete": Called({"request_id": "a"}, request_id=BOOKED),
    "Router.free": Called({"request_id": "a"}, request_id=BOOKED),
    "Router.add_output_block": Called(
        {"request_id": "a"}, request_id=BOOKED, n=types("1", 1.5, None) + values(-1, 2**63, DIGITS),
        decay_fraction=[*maybe(NUMBER), (1.5, InvalidArgument)],
    ),
    "Router.report_cached_tokens": Called({"request_id": "a", "cached_tokens": 1}, request_id=types(1, None), cached_tokens=types("1", 1.5) + values(-1, 2**64)),
    "Router.decisions": Called({}, after=types("1", 1.5, None) + values(-1, 2**64, DIGITS)),
    "Router.load_events": Called({"json": "[]"}, json=types(5, [object()]) + values("{", b"\xff", [NAN], {"a": 1}, "5")),
    "Router.replicate": Called(
        {"connect": ["tcp://127.0.0.1:1"]}, bind=types(5) + values("nonsense", "tcp://127.0.0.1:99999", HUGE),
        connect=types(5, "tcp://h:1", [5]) + values([""], ["nonsense"], [HUGE]), model=TEXT, group=TEXT,
        replica_id=maybe(COUNT), peer_timeout=NUMBER,
    ),
    "Router.save": Called({"path": "SCRATCH"}, path=FILE),
    "Router.load": Called({"path": "SCRATCH"}, path=FILE),
    "RadixTree.apply_event": Called(
        {"worker_id": 1, "kv_cache_event_bytes": EVENT}, worker_id=U64, kv_cache_event_bytes=JSON
    ),
    "RadixTree.find_matches": Called({"sequence": [1]}, sequence=HASHES, early_exit=ANY),
    "RadixTree.remove_worker": Called({"worker_id": 1}, worker_id=U64),
    "RadixTree.clear_all_blocks": Called({"worker_id": 1}, worker_id=U64),
    "Mocker": Called({}, config=[]),
    "Mocker.generate": Called(
        {"token_ids": [1]}, token_ids=[*TOKENS, ([], InvalidArgument)], max_tokens=COUNT,
        response_buffer_size=types("1", 1.5, None) + values(-1, 2**64, DIGITS),
    ),
    "KvRouter": Called(
        {"endpoint": "ENDPOINT"}, endpoint=types(5, None), block_size=maybe(COUNT), kv_router_config=types(5, {}),
        ais_perf_config=NONE, **AFFINITY,
    ),
    "KvRouter.best_worker": Called(
        {"token_ids": [1] * 16}, token_ids=TOKENS, request_id=maybe(TEXT), update_indexer=FLAG,
        **{**REQUEST, "routing_constraints": types(5, {})}, **WAITING,
    ),
    "KvRouter.best_workers": Called(
        {"prompts": [[1] * 16]}, prompts=types(None, 5, "abc", b"abc"), router_config_override=maybe(MAPPING),
        request_ids=types(5, "a", [5]) + values([], ["a", "b"]), asked=types(5),
    ),
    "KvRouter.generate": Called(
        {"token_ids": [1] * 16, "model": "m"}, token_ids=TOKENS, model=ANY, stop_conditions=types(5, [1]),
        sampling_options=ANY, output_options=ANY, router_config_override=maybe(MAPPING), extra_args=ANY,
        block_mm_infos=maybe(INFOS), multi_modal_data=ANY, mm_routing_info=types(5, [1]),
        routing_constraints=types(5, [1]), response_buffer_size=types("1", 1.5, None) + values(-1),
        lora_name=maybe(TEXT), session_id=maybe(TEXT), policy_class=maybe(TEXT), timeout=maybe(NUMBER), **PINNED,
    ),
    "KvRouter.generate_from_request": Called(
        {"request": {"token_ids": [1] * 16}},
        request=types(None, 5, {"token_ids": 5}, {"token_ids": [1], "routing": 5}) + values({}),
        response_buffer_size=types("1", 1.5, None) + values(-1),
    ),
    "KvRouter.mark_prefill_complete": Called({"request_id": "a"}, request_id=BOOKED),
    "KvRouter.report_cached_tokens": Called({"request_id": "a", "cached_tokens": 1}, request_id=types(1, None), cached_tokens=types("1", 1.5) + values(-1, 2**64)),
    "KvRouter.decisions": Called({}, after=types("1", 1.5, None) + values(-1, 2**64, DIGITS)),
    "KvRouter.free": Called({"request_id": "a"}, request_id=BOOKED),
    "KvRouter.get_potential_loads": Called({"token_ids": [1] * 16}, token_ids=TOKENS, **IDENTITY),
    "KvRouter.get_overlap_scores": Called(
        {"token_ids": [1] * 16}, token_ids=TOKENS, router_config_override=ANY, include_shared=ANY, **IDENTITY
    ),
    "KvRouter.explain": Called({"token_ids": [1] * 16}, token_ids=TOKENS, asked=types(5)),
    "KvRouter.replicate": Called(
        {"connect": ["tcp://127.0.0.1:1"]}, bind=types(5) + values("nonsense"),
        connect=types(5, "tcp://h:1", [5]) + values(["nonsense"]), keywords=types(5),
    ),
    "KvRouterConfig.from_json": Called({"config_json": "{}"}, config_json=types(5, None) + values("{", "[]", '{"a":1}')),
    "KvRouterConfig.preset": Called(
        {"name": "shared_system_prompt", "system_prompt_tokens": 64}, name=values(5, "x"), system_prompt_tokens=types("1", 1.5) + values(-1),
        block_size=COUNT[:-2],
    ),
    "KvRouterConfig.with_overrides": Called(
        {}, **dict.fromkeys(WEIGHTS, types("1", object()) + values(NAN, -1.0))
    ),
    "LoadThresholdConfig": Called(
        {}, active_decode_blocks_threshold=types("1", object()) + values(NAN, -1.0, 1.5),
        active_prefill_tokens_threshold=types("1", 1.5) + values(-1, 2**64, DIGITS),
        active_prefill_tokens_threshold_frac=NUMBER,
    ),
    "RoutingConstraints": Called(
        {}, required_taints=types(5, "a", ["a"], {5}),
        preferred_taints=types(5, ["a"], {5: 1.0}, {"a": "x"}) + values({"a": NAN}),
    ),
    "KvEventPublisher": Called(
        {"endpoint": "tcp://127.0.0.1:0", "worker_id": 1, "kv_block_size": 16},
        endpoint=types(5, None) + values("", "nonsense", "\ud800", HUGE), worker_id=U64[:3] + U64[-3:], kv_block_size=COUNT,
        dp_rank=U32, enable_local_indexer=FLAG, zmq_endpoint=types(5) + values("", "nonsense", "\ud800"),
        zmq_topic=types(5) + values("x"), batching_timeout_ms=types("1", 1.5) + values(-1),
        image_token_id=NONE, kv_state_endpoint=NONE, video_token_id=NONE, replay_endpoint=types(5) + values("nonsense"),
        query_endpoint=types(5) + values("nonsense"), topic=TEXT, buffer_steps=COUNT,
        zmq_replay_endpoint=types(5) + values("tcp://127.0.0.1:1"),
    ),
    "KvEventPublisher.publish_stored": Called(
        {"token_ids": [1] * 16, "num_block_tokens": [16], "block_hashes": [1]}, token_ids=types(None, 5, ["a"] * 16)
        + values([1], [-1] * 16, [2**32] * 16), num_block_tokens=types(None, 5) + values([], [15], ["a"]),
        block_hashes=types(None, 5, ["a"], [1.5]) + values([], [1, 2]) + [([2**64], OverflowError)],
        parent_hash=types("a", 1.5) + [(2**64, OverflowError), (77, dynamo_go.EventRefused)],
        block_mm_infos=types(5, [object()]) + values([], [5]), lora_name=maybe(TEXT), is_eagle=[*types(1, "x")], cache_salt=maybe(TEXT),
    ),
    "KvEventPublisher.publish_removed": Called(
        {"block_hashes": [1]}, block_hashes=types(None, 5, "12", ["a"], [1.5]) + [([2**64], OverflowError)]
    ),
    "KvEventPublisher.publish_batch": Called(
        {"events": []}, events=types(None, 5, "x", [5]) + values([{}], [{"type": "x"}], [{"type": "removed"}])
    ),
    "WorkerMetricsPublisher.create_endpoint": Called({"endpoint": "ENDPOINT"}, endpoint=types(5, None)),
    "WorkerMetricsPublisher.publish": Called(
        {"active_decode_blocks": 1}, dp_rank=maybe(U32), active_decode_blocks=maybe(U64), kv_used_blocks=maybe(U64)
    ),
    "DistributedRuntime": Called(
        {"event_loop": "LOOP", "discovery_backend": "mem", "request_plane": "tcp"}, event_loop=types(5, None),
        discovery_backend=types(5) + values("x", HUGE), request_plane=types(5) + values("x"),
        enable_nats=ANY, event_plane=types(5) + values("x"), response_plane=types(5) + values("x"),
    ),
    "DistributedRuntime.endpoint": Called({"path": "a.b.c"}, path=types(5, None) + values("", "a.b", "a..c", HUGE)),
    "Endpoint.client": Called({}, router_mode=NONE),
    "Endpoint.serve_endpoint": Called(
        {"handler": echo}, handler=types(5, None), graceful_shutdown=types(5), metrics_labels=ANY, health_check_payload=ANY
    ),
    "Endpoint.add_engine": Called(
        {"url": "http://127.0.0.1:1", "worker_id": 7}, url=types(5, None) + values("", "nonsense", "\ud800", HUGE), kv_events=ENDPOINTS,
        replay=ENDPOINTS, **dict.fromkeys(("dp_size", "dp_start", "worker_id", "block_size", "max_num_batched_tokens",
        "total_kv_blocks"), types("1", 1.5) + values(-1, 2**64, DIGITS)), kind=types(5) + values("x", HUGE),
        **dict.fromkeys(("model", "topic", "health_path"), types(5, b"x") + values("\ud800", HUGE)), taints=TEXTS, adapters=TEXTS,
        headers=types(5, ["a"], {5: "a"}, {"a": 5}) + values({"\ud800": "a"}),
    ),
    "Endpoint.add_engines": Called({"path": "ENGINES"}, path=FILE),
    "Endpoint.drain": Called({"worker_id": 7}, worker_id=[*U64, (99, WorkerNotFound)], timeout=types("1", [])),
    "Endpoint.resume": Called({"worker_id": 7}, worker_id=[*U64, (99, WorkerNotFound)]),
    "Endpoint.remove_engine": Called({"worker_id": 7}, worker_id=[*U64, (99, WorkerNotFound)], kill=FLAG),
    "MockWorker": Called({"endpoint": "UNSERVED"}, endpoint=types(5, None), config=[]),
    "Server": Called(
        {"engines": ["http://127.0.0.1:1,none"], "listen": "127.0.0.1:0"}, engines=types(None, 5, "http://127.0.0.1:1", [5])
        + values([], ["nonsense"], ["\ud800"], [HUGE]), listen=types(5, None) + values("\ud800") + [("nonsense", CannotConnect)], block_size=COUNT,
        router_mode=types(5, None) + values("x", HUGE), config=types(5, {}), encode=types(5, "x"), engines_file=types(5) + values("\ud800"),
        limits=types(5, [1], {5: 1}) + values({"nonsense": 1}, {"requests": 0}, {"requests": NAN}, {"requests": "1"}),
        drain_seconds=types("1", None) + values(NAN, -1.0),
    ),
    "Server.stop": Called({"grace_seconds": 0}, grace_seconds=[*types("1", None), *values(NAN, -1.0)]),
    "Client.direct": Called(
        {"request": 1, "instance_id": "INSTANCE"}, request=ANY, instance_id=[*types("x", 1.5), (5, WorkerNotFound)],
        annotated=ANY, context=types(5),
    ),
    "Client.generate": Called({"request": 1}, request=ANY, annotated=ANY, context=types(5)),
    "Client.random": Called({"request": 1}, request=ANY, annotated=ANY, context=types(5)),
    "Client.round_robin": Called({"request": 1}, request=ANY, annotated=ANY, context=types(5)),
    "Context": Called({}, id=types(5), metadata=types(5)),
    "register_model": Called(
        {"model_input": dynamo_go.ModelInput.Tokens, "model_type": dynamo_go.ModelType.Chat, "endpoint": "ENDPOINT",
         "model_path": "m"}, model_input=types(5, "x"), model_type=types(5), endpoint=types(5, None), model_path=types(5),
        model_name=types(5), kv_cache_block_size=maybe(COUNT), router_config=NONE, runtime_config=types(5), user_data=NONE,
        custom_template_path=NONE, media_decoder=NONE, media_fetcher=NONE, lora_name=[*types(5), ("l", InvalidArgument)],
        base_model_path=[*types(5), ("m", InvalidArgument)], worker_type=types(5), needs=NONE, self_host_metadata=NONE, tensor_model_config=NONE, ignore_weights=ANY,
        max_gpu_lora_count=maybe(COUNT), model_aliases=NONE, skip_model_assets=ANY,
    ),
}  # fmt: skip

# What messages call an argument where it is not its name.
SYNONYMS = {
    "asked": ["keyword"],
    "config": ["router_temperature"],
    "config_json": ["JSON"],
    "events": ["KV event batch"],
    "decay_fraction": ["decay fraction"],
    "json": ["event JSON"],
    "keywords": ["keyword"],
    "kv_cache_event_bytes": ["kv_cache_event", "event JSON"],
    "path": ["/nowhere"],
    "request": ["token_ids", "routing"],
    "request_ids": ["request_id"],
    "token_ids": ["prompt"],
    "tokens": ["token_ids"],
}

# Classes whose objects only the package makes, or that hold what test_config.py knows every value of.
NOT_MADE = {"AsyncResponseStream", "Client", "Endpoint", "ItemStream", "OverlapScores", "KvRouterConfig"}


def public() -> dict[str, Callable[..., Any]]:
    """Every function, constructor and method that takes arguments, by its name."""
    found: dict[str, Callable[..., Any]] = {}
    more = [("Mocker", Mocker), ("MockWorker", MockWorker), ("Server", Server)]
    for name, value in [*((name, getattr(dynamo_go, name)) for name in dynamo_go.__all__), *more]:
        if not inspect.isclass(value):
            found[name] = value
        elif not issubclass(value, (BaseException, dict, enum.Enum)):
            if name not in NOT_MADE:
                found[name] = value
            parts = [
                vars(part) for part in value.__mro__ if part.__module__.startswith("dynamo_go") and part is not Mocker
            ]
            for method, what in {**dict(kv for part in parts for kv in part.items()), **vars(value)}.items():
                if not method.startswith("_") and inspect.isroutine(getattr(value, method)):
                    found[f"{name}.{method}"] = getattr(value, method) if isinstance(what, staticmethod) else what
    return found


def parameters(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


def test_every_parameter_has_its_kind() -> None:
    assert {name: parameters(f) for name, f in public().items() if parameters(f)} == {
        name: set(called.kinds) for name, called in CALLS.items()
    }


class Subjects:
    """An object of every class, on a running loop; `at` gives the bound method, or the function."""

    def __init__(self, scratch: str) -> None:
        self.runtime = make_runtime()
        endpoint = serve(self.runtime)
        router = dynamo_go.Router(BLOCK)
        router.add_worker(1)
        self.objects: dict[str, Any] = {
            "Router": router,
            "RadixTree": dynamo_go.RadixTree(),
            "Mocker": Mocker(),
            "WorkerMetricsPublisher": dynamo_go.WorkerMetricsPublisher(),
            "KvRouter": make_router(self.runtime),
            "KvEventPublisher": dynamo_go.KvEventPublisher("tcp://127.0.0.1:0", 1, BLOCK),
            "DistributedRuntime": self.runtime,
            "Endpoint": endpoint,
            "KvRouterConfig": dynamo_go.KvRouterConfig(),
            "MockWorker": MockWorker(self.runtime.endpoint("a.b.mock")),
            "Server": Server(["http://127.0.0.1:1,none"], "127.0.0.1:0"),
        }
        engines = Path(f"{scratch}.engines")
        engines.write_text('{"engines": []}')
        self.objects["ItemStream"] = self.objects["Mocker"].generate([1])
        self.stands_for = {
            "ENDPOINT": endpoint, "LOOP": asyncio.get_running_loop(), "INSTANCE": endpoint.connection_id(), "SCRATCH": scratch,
            "ENGINES": str(engines), "UNSERVED": self.runtime.endpoint("a.b.unserved"),
        }  # fmt: skip

    async def prepare(self, name: str) -> None:
        """Make what a call needs: a worker, a booking, a file."""
        router, kv_router = self.objects["Router"], self.objects["KvRouter"]
        if name == "Router.remove_worker":
            router.add_worker(2)
        if name.split(".")[-1] in ("free", "mark_prefill_complete", "add_output_block"):
            for target in (router, kv_router):
                try:
                    await answered(target.best_worker([1], request_id="a"))
                except dynamo_go.DuplicateRequest:
                    pass
        if name == "Router.load":
            router.save(self.stands_for["SCRATCH"])
        if name in ("Endpoint.drain", "Endpoint.resume", "Endpoint.remove_engine"):
            with contextlib.suppress(dynamo_go.DuplicateWorker):
                self.objects["Endpoint"].add_engine("http://127.0.0.1:1", worker_id=7)
        if name.startswith("Client."):
            self.objects["Client"] = await self.objects["Endpoint"].client()

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        kind, _, method = name.partition(".")
        function = getattr(self.objects[kind], method) if kind in self.objects and method else public()[name]
        given = {key: self.stands_for.get(v, v) if isinstance(v, str) else v for key, v in arguments.items()}
        result = function(**given)
        if method == "serve_endpoint":  # done when the worker has stopped
            return result
        result = await answered(result)
        if method == "best_workers":  # of a batch, each prompt has its own
            for error in result:
                if isinstance(error, Exception):
                    raise error
        return result

    async def close(self) -> None:
        self.objects["KvEventPublisher"].shutdown()
        for name in ("Router", "RadixTree", "Mocker", "KvRouter", "MockWorker", "Server"):
            self.objects[name].close()
        await self.objects["ItemStream"].aclose()
        self.runtime.shutdown()


async def answered(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def fault(error: BaseException | None, wanted: type[BaseException], name: str, value: Any) -> str | None:
    """What is wrong with a refusal."""
    text = str(error)
    if error is None or not isinstance(error, wanted) or (wanted is not ValueError and type(error) is ValueError):
        return f"{type(error).__name__}: {text[:200]}"
    if len(text) > 2000:
        return f"a message of {len(text)} characters"
    named = any(word in text for word in (name, *SYNONYMS.get(name, ())))
    if wanted is not TypeError:
        named = named or any(part in text for part in parts(value))
    return None if named or wanted is ValueError else f"names neither argument nor value: {text[:200]}"


def parts(value: Any) -> set[str]:
    """Texts of which a message must have one: what the value, or an item of it, looks like, or its type."""
    each = [value]
    if isinstance(value, (list, tuple, set, array)):
        each += [item for one in value for item in (one if isinstance(one, tuple) else [one])]
    if isinstance(value, dict):
        each += [*value.keys(), *value.values()]
    return {type(one).__name__ for one in each} | {shown(one)[:20].strip("'") for one in each}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused(name: str, tmp_path: Any) -> None:
    called = CALLS[name]

    async def main() -> None:
        subjects = Subjects(str(tmp_path / "saved"))
        faults = []
        try:
            await subjects.prepare(name)
            for parameter, wrong in called.kinds.items():
                for value, wanted in wrong:
                    try:
                        await subjects.call(name, {**called.arguments, parameter: value})
                    except BaseException as error:
                        found = fault(error, wanted, parameter, value)
                    else:
                        found = "not refused"
                    if found:
                        faults.append((parameter, shown(value), wanted.__name__, found))
            assert not faults, "\n" + "\n".join(map(str, faults))
            await subjects.prepare(name)
            await subjects.call(name, called.arguments)
        finally:
            await subjects.close()

    run(main())


def shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except ValueError:
        return f"<{type(value).__name__}>"


# What works on a closed object, and what `close` does not concern.
STILL = {
    *("Client.instance_ids", "DistributedRuntime.endpoint", "DistributedRuntime.event_loop", "Endpoint.connection_id"),
    *("WorkerMetricsPublisher.create_endpoint", "WorkerMetricsPublisher.publish"),  # nobody listens any more
    *("KvRouterConfig.copy", "KvRouterConfig.from_json", "KvRouterConfig.preset", "KvRouterConfig.to_json"),
    *("KvRouterConfig.with_overrides", "ItemStream.aclose", "DistributedRuntime.shutdown"),
    *(
        "Router.close",
        "RadixTree.close",
        "Mocker.close",
        "Server.close",
        "KvRouter.close",
        "KvRouter.aclose",
        "KvEventPublisher.shutdown",
    ),
    *(
        f"KvEventPublisher.publish_{what}" for what in ("stored", "removed", "cleared", "batch")
    ),  # do nothing, by contract
}


def test_closed_objects_say_so(tmp_path: Any) -> None:
    async def main() -> None:
        subjects = Subjects(str(tmp_path / "saved"))
        await subjects.prepare("Client.generate")
        await subjects.close()
        outcomes: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for name in public():
            if name.partition(".")[0] not in subjects.objects or "." not in name:
                continue
            try:
                await subjects.call(name, CALLS[name].arguments if name in CALLS else {})
            except BaseException as error:
                outcomes[name] = type(error)
                texts[name] = str(error)
            else:
                outcomes[name] = None
        assert outcomes == {name: None if name in STILL else Closed for name in outcomes}
        said = re.compile(
            r"the (router|stream|mocker|publisher|radix tree|runtime|server) (is closed|is shut down|was closed)"
        )
        assert {name: text for name, text in texts.items() if not said.match(text)} == {}
        assert len(outcomes) > 60

    run(main())
