"""``python -m dynamo_go router``: a router as a process of its own, as Dynamo's standalone router is one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import warnings
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from ._config import _BY_NAME, KvRouterConfig
from ._context import Context
from ._errors import DynamoError, InvalidArgument
from ._keyword import Flag, Unreadable
from ._kv_router import KvRouter
from ._process import PLANES_HELP, add_planes, listed, ready, run, tell
from ._runtime import Client, DistributedRuntime

# Flag: keyword of KvRouterConfig; its kind: what its text is converted by, bool is a flag with a --no- form; its help.
_FLAGS: Mapping[str, tuple[str, type, str]] = {
    "router-kv-overlap-score-credit": ("overlap_score_credit", float, "what a cached block takes off the cost"),
    "router-kv-overlap-score-credit-decay": (
        "overlap_score_credit_decay",
        float,
        "how the credit shrinks on workers with more to prefill than the idlest",
    ),
    "router-kv-overlap-score-weight": ("overlap_score_weight", float, "older name of --router-prefill-load-scale"),
    "router-prefill-load-scale": ("prefill_load_scale", float, "weight of prompt blocks that are not cached"),
    "router-decode-active-request-weight": (
        "decode_active_request_weight",
        float,
        "blocks that an active request costs besides its own",
    ),
    "router-host-cache-hit-weight": ("host_cache_hit_weight", float, "credit of a block in host memory, 0 .. 1"),
    "router-disk-cache-hit-weight": ("disk_cache_hit_weight", float, "credit of a block on disk, 0 .. 1"),
    "router-temperature": ("router_temperature", float, "0: the cheapest worker; more: others too, at random"),
    "router-kv-events": ("use_kv_events", bool, "follow the workers' KV events; without, presume from what was routed"),
    "router-replica-sync": ("router_replica_sync", bool, "share load with the other routers of the endpoint"),
    "router-track-active-blocks": ("router_track_active_blocks", bool, "count blocks of running requests as load"),
    "router-track-output-blocks": ("router_track_output_blocks", bool, "count the blocks that they generate, too"),
    "router-assume-kv-reuse": ("router_assume_kv_reuse", bool, "count blocks that requests share once"),
    "router-track-prefill-tokens": ("router_track_prefill_tokens", bool, "count prompts that are computed as load"),
    "router-ttl-secs": ("router_ttl_secs", float, "without events: how long blocks are presumed, seconds"),
    "router-approximate-cache-policy": ("router_approximate_cache_policy", str, "without events: ttl, or lru"),
    "router-predicted-ttl-secs": (
        "router_predicted_ttl_secs",
        float,
        "with events: how long blocks of what was routed are presumed besides, seconds",
    ),
    "router-queue-threshold": (
        "router_queue_threshold",
        float,
        "requests wait while all workers have more to prefill than this multiple of max_num_batched_tokens",
    ),
    "router-queue-policy": ("router_queue_policy", str, "which goes first: fcfs, lcfs, wspt"),
    "router-policy-config": ("router_policy_config", str, "YAML file with classes of requests"),
    "shared-cache-multiplier": ("shared_cache_multiplier", float, "credit of a block that all workers share, 0 .. 1"),
}

# Those of Dynamo of which nothing but the default exists here.
_DEFAULT_ONLY: Mapping[str, tuple[str, type]] = {
    "router-prefill-load-model": ("router_prefill_load_model", str),
    "router-tracking-hash": ("router_tracking_hash", str),
    "router-tracking-key-file": ("router_tracking_key_file", str),
    "router-tracking-key-id": ("router_tracking_key_id", str),
    "router-prefill-policy": ("router_prefill_policy", str),
    "router-decode-policy": ("router_decode_policy", str),
    "router-event-threads": ("router_event_threads", int),
    "router-conditional-disagg": ("conditional_disagg_enabled", bool),
    "serve-indexer": ("serve_indexer", bool),
    "use-remote-indexer": ("use_remote_indexer", bool),
    "enable-session-prefix-index": ("enable_session_prefix_index", bool),
    "shared-cache-type": ("shared_cache_type", str),
}

_ENVIRONMENT = {name: keyword.env[0] for name, keyword in _BY_NAME.items() if keyword.env}

# Older names of flags, which Dynamo takes too.
_OLDER = {
    "kv-overlap-score-weight": "router-kv-overlap-score-weight",
    "kv-events": "router-kv-events",
    "track-active-blocks": "router-track-active-blocks",
    "track-output-blocks": "router-track-output-blocks",
    "assume-kv-reuse": "router-assume-kv-reuse",
}

# What --load-aware stands for.
_LOAD_AWARE = {
    "overlap_score_credit": 0.0,
    "use_kv_events": False,
    "router_track_active_blocks": True,
    "router_assume_kv_reuse": False,
    "router_track_prefill_tokens": True,
    "shared_cache_multiplier": 0.0,
    "router_predicted_ttl_secs": None,
}
_LOAD_AWARE_VARIABLE = "DYN_ROUTER_LOAD_AWARE"

# Dynamo's, which is not that of most engines.
_BLOCK_SIZE = 128

# How often it is looked whether there are other workers, and for how long an instance may be none before that is told.
_LOOK_SECONDS = 0.5
_STRANGE_SECONDS = 3.0

_EPILOG = f"""\
It serves three endpoints of the workers' namespace, or of DYN_NAMESPACE:
  NAMESPACE.router.generate            a request (a dict with token_ids), answered by the chosen worker
  NAMESPACE.router.best_worker_id      a list of token ids; the id of the worker it would choose
  NAMESPACE.router.get_overlap_scores  a dict with token_ids; how many blocks each rank holds

What the flags of routing mean in full, their ranges and defaults: help(dynamo_go.KvRouterConfig). A flag wins over the
environment. Prints one JSON line when it serves; SIGINT or SIGTERM lets requests end first, a
second one ends it at once.

{PLANES_HELP}
examples, each in a terminal of its own, without a GPU:
  python -m dynamo_go worker --mocker --endpoint dynamo.backend.generate
  python -m dynamo_go worker --mocker --endpoint dynamo.backend.generate
  python -m dynamo_go router --endpoint dynamo.backend.generate --router-block-size 16
"""


def main(arguments: Sequence[str]) -> int:
    """Run the router; gives its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.endpoint:
        parser.error("--endpoint is required, or DYN_ROUTER_ENDPOINT: the workers', as namespace.component.endpoint")
    try:
        namespace, path = _paths(options.endpoint)
        block_size = _block_size(options.router_block_size)
        config = _config(options)
    except (DynamoError, NotImplementedError, TypeError, ValueError) as error:
        tell("router", str(error))
        return 2

    async def serve(runtime: DistributedRuntime, stop: asyncio.Event) -> None:
        await _serve(runtime, stop, namespace, path, block_size, config)

    return run("router", options, serve)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dynamo_go router",
        usage="python -m dynamo_go router --endpoint PATH [--router-block-size N] [FLAGS]",
        description="A KV-cache-aware router for the workers of an endpoint, as a process of their Dynamo deployment.\n"
        "Flags, environment and endpoints are those of Dynamo's standalone router (python -m dynamo.router).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--endpoint", metavar="PATH", default=os.environ.get("DYN_ROUTER_ENDPOINT"),
        help="the workers' endpoint, namespace.component.endpoint (DYN_ROUTER_ENDPOINT)")  # fmt: skip
    add("--router-block-size", "--block-size", metavar="N", default=os.environ.get("DYN_ROUTER_BLOCK_SIZE"),
        help=f"tokens in a KV block of the workers (DYN_ROUTER_BLOCK_SIZE, {_BLOCK_SIZE}); 16 for vLLM's default and for worker --mocker")  # fmt: skip
    add_planes(parser)
    group = parser.add_argument_group("routing")
    add_routing(parser, group, names=True)
    return parser


def add_routing(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup, names: bool = False) -> None:
    """Add the flags of routing; those of which nothing but the default exists have a group of their own. `names`: help tells their variables."""
    group.add_argument(
        "--load-aware",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="route by load alone, without regard to caches (DYN_ROUTER_LOAD_AWARE)",
    )
    for flag, (keyword, kind, text) in _FLAGS.items():
        _add(group, flag, keyword, kind, text + (f" ({_ENVIRONMENT[keyword]})" if names else ""))
    for flag, of in _OLDER.items():
        _add(group, flag, *_FLAGS[of][:2], argparse.SUPPRESS)
    group = parser.add_argument_group(
        "of Dynamo, taken with their defaults only",
        "For commands and environments as they are; another value is an error.",
    )
    for flag, (keyword, kind) in _DEFAULT_ONLY.items():
        _add(group, flag, keyword, kind, f"{_BY_NAME[keyword].default!r}")


def _add(group: argparse._ArgumentGroup, flag: str, keyword: str, kind: type, text: str) -> None:
    if kind is bool:
        group.add_argument(
            f"--{flag}", dest=keyword, default=argparse.SUPPRESS, action=argparse.BooleanOptionalAction, help=text
        )
    else:
        metavar = {str: "TEXT", int: "N", float: "X"}[kind]
        group.add_argument(f"--{flag}", dest=keyword, default=argparse.SUPPRESS, type=kind, metavar=metavar, help=text)


def _paths(endpoint: str) -> tuple[str, str]:
    """Give the router's namespace and the workers' path, as Dynamo derives them from the flag and the environment."""
    parts = endpoint.removeprefix("dyn://").split(".")
    if len(parts) != 3 or not all(parts):
        raise InvalidArgument(f"Invalid endpoint format: {endpoint!r}. Expected format: namespace.component.endpoint")
    namespace = os.environ.get("DYN_NAMESPACE") or parts[0]
    suffix = os.environ.get("DYN_NAMESPACE_WORKER_SUFFIX")
    of_workers = f"{namespace}-{suffix}" if suffix else namespace
    return namespace, ".".join((of_workers, *parts[1:]))


def _block_size(text: str | None) -> int:
    if not text:
        return _BLOCK_SIZE
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size < 1:
        raise InvalidArgument(f"--router-block-size is {text!r}, expected a number of tokens, at least 1")
    return size


def _config(options: argparse.Namespace) -> KvRouterConfig:
    keywords = {"record_decisions", *(row[0] for row in (*_FLAGS.values(), *_DEFAULT_ONLY.values()))}
    given = {name: value for name, value in vars(options).items() if name in keywords}
    load_aware = options.load_aware
    said = os.environ.pop(_LOAD_AWARE_VARIABLE, "").strip()  # it is heard
    if load_aware is None and said:
        try:
            load_aware = Flag().parse(said)
        except ValueError:
            raise InvalidArgument(f"{_LOAD_AWARE_VARIABLE}={said!r}, expected {Flag.expected}") from None
    if load_aware:
        given |= _LOAD_AWARE
    with warnings.catch_warnings():
        warnings.simplefilter("error", Unreadable)
        try:
            return KvRouterConfig(**given)
        except Unreadable as warning:
            raise InvalidArgument(warning.fault) from None


async def _serve(
    runtime: DistributedRuntime,
    stop: asyncio.Event,
    namespace: str,
    path: str,
    block_size: int,
    config: KvRouterConfig,
) -> None:
    endpoint = runtime.endpoint(path)
    async with KvRouter(endpoint, block_size, config) as router:
        service = Service(router)
        handlers: dict[str, Callable[..., Any]] = {
            f"{namespace}.router.generate": service.generate,
            f"{namespace}.router.best_worker_id": service.best_worker_id,
            f"{namespace}.router.get_overlap_scores": service.get_overlap_scores,
        }
        endpoints = [runtime.endpoint(name) for name in handlers]
        served = [one.serve_endpoint(handler) for one, handler in zip(endpoints, handlers.values(), strict=True)]
        for future in served:
            future.add_done_callback(_retrieve)
        if not await listed("router", endpoints, stop):
            return
        ready(endpoints=list(handlers), worker_endpoint=path, block_size=block_size)
        watching = asyncio.ensure_future(_watch(router, await endpoint.client(), path, block_size))
        try:
            ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), *served]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            tell("router", "stopping: requests in flight end first; again to end them now")
        finally:
            watching.cancel()
        runtime.shutdown()
        await asyncio.wait(served)


def _retrieve(served: asyncio.Future[Any]) -> None:
    """Look at what ended a service: it is told by who waits for it to be listed."""
    if not served.cancelled():
        served.exception()


async def _watch(router: KvRouter, client: Client, path: str, block_size: int) -> None:
    """Tell a person when there are other workers, and why an instance is none."""
    known = -1
    strange: dict[int, float] = {}
    loop = asyncio.get_running_loop()
    while True:
        workers = {row["worker_id"] for row in router._router.workers()}
        if len(workers) != known:
            known = len(workers)
            tell("router", f"{known or 'no'} worker{'s' * (known != 1)} of {path}")
        strange = {one: strange.get(one, loop.time()) for one in client.instance_ids() if one not in workers}
        for one, since in strange.items():
            if loop.time() - since > _STRANGE_SECONDS:
                strange[one] = float("inf")
                tell("router", f"instance {one} of {path} gets no requests: it has no model card, or its KV blocks are not of"
                     f" {block_size} tokens: give --router-block-size as it is there (worker --mocker and vLLM: 16)")  # fmt: skip
        await asyncio.sleep(_LOOK_SECONDS)


class Service:
    """What a standalone router serves. Each method is the handler of an endpoint."""

    def __init__(self, router: KvRouter) -> None:
        self._router = router

    async def generate(self, request: Any, context: Context) -> AsyncIterator[Any]:
        """Route a request, and pass on what its worker answers."""
        request = _mapping(request)
        request.setdefault("model", "unknown")
        if request.get("routing") is None and request.get("dp_rank") is not None:  # of older callers
            request["routing"] = {"dp_rank": request["dp_rank"]}
        with _at_fault():
            asked = self._router.generate_from_request(request)
        stream = await asked
        context._on_stop(stream._abandon)
        async for item in stream:
            yield item

    async def best_worker_id(self, request: Any) -> AsyncIterator[int]:
        """Tell which worker a prompt would go to: a list of token ids, or a dict as of `get_overlap_scores`."""
        request = _mapping(request) if isinstance(request, Mapping) else {"token_ids": _tokens(request)}
        with _at_fault():
            asked = self._router.best_worker(
                request["token_ids"],
                request.get("router_config_override"),
                block_mm_infos=request.get("block_mm_infos"),
                lora_name=request.get("lora_name"),
                cache_namespace=request.get("cache_namespace"),
            )
        worker_id, _, _ = await asked
        yield worker_id

    async def get_overlap_scores(self, request: Any) -> AsyncIterator[dict[str, Any]]:
        """Tell how many leading blocks of a prompt each rank holds, by tier."""
        request = _mapping(request)
        with _at_fault():
            asked = self._router.get_overlap_scores(
                request["token_ids"],
                request.get("router_config_override"),
                request.get("block_mm_infos"),
                request.get("lora_name"),
                request.get("include_shared", True),
                request.get("cache_namespace"),
            )
        yield await asked


@contextlib.contextmanager
def _at_fault() -> Iterator[None]:
    """Say of an argument that cannot be used that the caller is at fault, also if it is a type or a number too large."""
    try:
        yield
    except (TypeError, OverflowError) as error:
        raise InvalidArgument(str(error)) from None


def _mapping(request: Any) -> dict[str, Any]:
    if not isinstance(request, Mapping):
        raise InvalidArgument(f"expected a dict with token_ids, got {type(request).__name__}")
    if "token_ids" not in request:
        raise InvalidArgument(f"missing field `token_ids` in the request, which has {sorted(map(str, request))}")
    return {**request, "token_ids": _tokens(request["token_ids"])}


def _tokens(value: Any) -> Any:
    """Give tokens as a router takes them: also those that Dynamo packs, as little-endian 32-bit numbers."""
    if not isinstance(value, (bytes, bytearray)):
        return value
    if len(value) % 4:
        raise InvalidArgument(f"packed token_ids of {len(value)} bytes, expected a multiple of 4")
    packed = array("I", bytes(value))
    if sys.byteorder != "little":
        packed.byteswap()
    return packed
