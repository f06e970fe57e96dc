"""KvRouter: a router that discovers workers by a runtime, and carries requests to them."""

from __future__ import annotations

import asyncio
import functools
import os
import warnings
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from . import _native, _request
from ._call import AsyncResponseStream
from ._checks import expect, integer, several, shown
from ._config import KvRouterConfig, not_a_config
from ._constraints import LoadThresholdConfig, RoutingConstraints
from ._deployment import FIRST, LAST, Deployment
from ._errors import Closed, DynamoError, InvalidArgument, WorkerError
from ._json import encode, mapping
from ._router import _NO_REQUEST, Router, _arguments, packed_ranges
from ._runtime import Endpoint
from ._waits import Waits

if TYPE_CHECKING:
    from ._native import Tokens
    from ._types import Decision, PotentialLoad

T = TypeVar("T")
_Infos = Sequence[Mapping[str, Any] | None] | None

# Tokens in a KV block where neither the caller nor the environment says: vLLM's default.
_BLOCK_SIZE = 16
_BLOCK_SIZE_VARIABLE = "DYN_KV_CACHE_BLOCK_SIZE"
_MIN_WORKERS_VARIABLE = "DYN_ROUTER_MIN_INITIAL_WORKERS"
_AFFINITY_TTL_MAX = 31_536_000

# Errors of a call's arguments are raised by the call; all others when its result is awaited.
_ARGUMENT_ERRORS = (InvalidArgument, TypeError, ValueError, OverflowError, NotImplementedError)

# What a request's routing says of the worker is said anew when one is chosen.
_DECIDED = ("dp_rank", "backend_instance_id")


class KvRouter:
    """Route requests to the worker that holds most of their prompt, and is not too busy.

    The workers are those that serve the endpoint's path in the runtime, now and later. The constructor never blocks. All
    methods but :meth:`close` return an awaitable (a future, so they need a running event loop, and also work with
    ``asyncio.wait`` and ``gather``; one whose result is there at once is a future to asyncio, but no instance of
    ``asyncio.Future``); what is wrong with arguments is raised at the call, everything else when awaited::

        async with KvRouter(runtime.endpoint("dynamo.backend.generate")) as router:
            stream = await router.generate(token_ids, "my-model", stop_conditions={"max_tokens": 10})
            async for item in stream:
                print(item["token_ids"])

    :meth:`generate` does everything for a request. :meth:`best_worker`, :meth:`mark_prefill_complete` and :meth:`free`
    are for those who send requests themselves.

    A router that is dropped is closed; streams that run go on.

    Args:
        endpoint: names the workers' path. It is only read.
        block_size: tokens per KV block of the workers, 1 .. 1,048,576; None: ``DYN_KV_CACHE_BLOCK_SIZE``, or 16.
        kv_router_config: how to score; None: ``KvRouterConfig()``, which reads the environment.
        ais_perf_config: must be None.
        session_affinity_ttl_secs: how long a session without requests stays with its worker, as in :class:`Router`.
        load_threshold_config: above which load a worker's rank takes no request, as in :class:`Router`.
        session_affinity_mode: "hard" or "soft", as in :class:`Router`.
        max_bytes: bounds the memory of what is known of the workers' blocks, as in :class:`Router`.

    With "etcd", what is asked first waits until etcd has told which workers there are (``CannotConnect`` if it cannot be
    reached in time). With ``DYN_ROUTER_MIN_INITIAL_WORKERS`` in the environment, it waits once for so many workers.

    Where it differs from Dynamo 1.6.1: errors are typed; :meth:`free` and :meth:`mark_prefill_complete` give None, not the
    empty tuple; overrides act, and unknown ones are errors; `dp_rank` without `worker_id` pins; a worker needs no model
    card to be a candidate in memory; a router can be closed; the constructor waits for nothing.

    Raises:
        InvalidArgument: a value out of range, or a block size that is not that of a worker.
        NotImplementedError: a feature that this version does not have.
        Closed: the runtime is shut down.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        block_size: int | None = None,
        kv_router_config: KvRouterConfig | None = None,
        ais_perf_config: Any = None,
        session_affinity_ttl_secs: int | None = None,
        *,
        load_threshold_config: LoadThresholdConfig | None = None,
        session_affinity_mode: str = "hard",
        max_bytes: int | None = None,
    ) -> None:
        if not isinstance(endpoint, Endpoint):
            raise TypeError(f"endpoint: expected Endpoint, got {type(endpoint).__name__}")
        if kv_router_config is not None and not isinstance(kv_router_config, KvRouterConfig):
            raise TypeError(not_a_config("kv_router_config", kv_router_config))
        if load_threshold_config is not None and not isinstance(load_threshold_config, LoadThresholdConfig):
            raise TypeError(
                f"load_threshold_config: expected LoadThresholdConfig, got {type(load_threshold_config).__name__}"
            )
        _check_affinity(session_affinity_ttl_secs, session_affinity_mode)
        if ais_perf_config is not None:
            raise NotImplementedError(f"ais_perf_config={ais_perf_config!r} is not implemented: only None exists")
        if block_size is None:
            block_size = _from_environment(_BLOCK_SIZE_VARIABLE, _BLOCK_SIZE)
        self._hub: Deployment = endpoint._hub
        if self._hub.closed:
            raise Closed("the runtime is shut down")
        self._path = endpoint._path
        self._min_workers = max(_from_environment(_MIN_WORKERS_VARIABLE, 0), 0)
        self._early = self._min_workers > 0 or not self._hub.connected  # what is asked now may have to wait
        config = KvRouterConfig() if kv_router_config is None else kv_router_config
        self._router = _EndpointRouter(
            self._hub,
            self._path,
            block_size,
            config,
            max_bytes=max_bytes,
            load_threshold_config=load_threshold_config,
            session_affinity_ttl_secs=session_affinity_ttl_secs,
            session_affinity_mode=cast('Literal["hard", "soft"]', session_affinity_mode),
        )
        self._loop = self._hub.loop
        self._waits = Waits(self._router, self._loop)
        self._native_answer = self._router._native.answer
        self._closed = False

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        return self._router.block_size

    # -- requests, end to end

    def generate(
        self,
        token_ids: Tokens,
        model: str,
        stop_conditions: Mapping[str, Any] | None = None,
        sampling_options: Mapping[str, Any] | None = None,
        output_options: Mapping[str, Any] | None = None,
        router_config_override: Mapping[str, Any] | None = None,
        worker_id: int | None = None,
        dp_rank: int | None = None,
        extra_args: Any = None,
        block_mm_infos: _Infos = None,
        multi_modal_data: Any = None,
        mm_routing_info: Mapping[str, Any] | None = None,
        routing_constraints: RoutingConstraints | None = None,
        response_buffer_size: int = 100,
        *,
        lora_name: str | None = None,
        session_id: str | None = None,
        policy_class: str | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[AsyncResponseStream]:
        """Choose a worker for a prompt, book it, send the request, and stream the answer.

        The request is booked and sent when awaiting ends. Cancelling what is awaited gives it up. Its prompt stops loading
        the worker when the first item has come, and all of it at the end: when the handler ends or fails, when the worker
        stops, when the stream is closed or dropped, or when a task that waits for its next item is cancelled. Until then a
        worker that cannot be reached makes it try another one.

        Args:
            token_ids: the prompt, ints in 0 .. 2**32-1; a buffer of uint32 is read in place. May be empty.
            model: passed on to the worker.
            stop_conditions: passed on: ``max_tokens``, ``stop``, ``min_tokens``, ``ignore_eos`` ...
            sampling_options: passed on: ``temperature``, ``top_p``, ``seed`` ...
            output_options: passed on: ``logprobs`` ...
            router_config_override: scoring for this request only, see :meth:`best_worker`.
            worker_id: only this worker.
            dp_rank: only this rank, counted over all workers. (Dynamo ignores it without `worker_id`.)
            extra_args: passed on.
            block_mm_infos: per block, None or ``{"mm_objects": [{"mm_hash": int, "offsets": [[start, end], ...]}]}``.
            multi_modal_data: passed on.
            mm_routing_info: ``{"routing_token_ids": [...], "block_mm_infos": [...]}``: what to route by instead.
            routing_constraints: which workers may serve it.
            response_buffer_size: items that may wait here for the reader; 0: each is fetched when asked for. A worker can be
                ahead of that by what the connection between holds.
            lora_name: LoRA adapter: workers that have it serve the request, if any has. Passed on. Not Dynamo's, like the next
                three: there, frontends put it into `routing`.
            session_id: see :meth:`best_worker`.
            policy_class: likewise.
            timeout: likewise.

        Returns:
            A stream of dicts: ``token_ids`` (list of int), ``tokens``, ``text``, ``output_type``, ``cum_log_probs``,
            ``log_probs``, ``top_logprobs``, ``finish_reason``, ``index``, None where the worker gave nothing. The first
            has ``routing_data["worker_id"]``: ``prefill_worker_id``, ``prefill_dp_rank``, ``decode_worker_id``,
            ``decode_dp_rank``; the one with a ``finish_reason`` has ``routing_data["timing"]``: ``request_received_ms``
            (Unix time), ``prefill_wait_time_ms``, ``prefill_time_ms``, ``ttft_ms``, ``total_time_ms``, ``kv_hit_rate``
            (0 .. 1, share of the prompt's blocks), ``router_queue_depth``.

        Raises:
            TypeError, InvalidArgument: at the call, for a wrong argument.
            WorkerNotFound, NoWorkers, Overloaded, QueueLimitExceeded, Timeout, SessionMoved, Closed: when awaited.
            CannotConnect, Disconnected, WorkerError: when awaited: it was sent, its worker cannot be reached, left, broke the
                connection or refused it before it began, and there was no other one to ask, or none that may be.
            WorkerError, Disconnected: from the stream: the handler failed, or yielded something that is not a dict with
                a list of token ids; its worker went away.
        """
        request: dict[str, Any] = {
            "model": model,
            "token_ids": token_ids,
            "stop_conditions": stop_conditions,
            "sampling_options": sampling_options,
            "output_options": output_options,
            "router_config_override": router_config_override,
        }
        if worker_id is not None:
            request["routing"] = {"backend_instance_id": worker_id}
        if dp_rank is not None:
            request["routing"] = {**request.get("routing", {}), "dp_rank": dp_rank}
        if block_mm_infos is not None and mm_routing_info is None:
            mm_routing_info = {"routing_token_ids": _request.listed(token_ids), "block_mm_infos": block_mm_infos}
            mm_routing_info["expanded_prompt_len"] = len(mm_routing_info["routing_token_ids"])
        for name, given in (
            ("lora_name", lora_name),
            ("session_id", session_id),
            ("policy_class", policy_class),
            ("timeout", timeout),
        ):
            if given is not None:
                request["routing"] = {**request.get("routing", {}), name: given}
        for name, value in (
            ("extra_args", extra_args),
            ("multi_modal_data", multi_modal_data),
            ("mm_routing_info", mm_routing_info),
        ):
            if value is not None:
                request[name] = value
        return self._generate(request, routing_constraints, response_buffer_size)

    def generate_from_request(
        self, request: Mapping[str, Any], response_buffer_size: int = 100
    ) -> asyncio.Future[AsyncResponseStream]:
        """Do as :meth:`generate`, for a request that is put together already.

        Args:
            request: a dict with ``token_ids``, and optionally ``model``, the option dicts, ``router_config_override``,
                ``mm_routing_info``, and ``routing``: ``backend_instance_id`` or ``decode_worker_id``, ``dp_rank``,
                ``allowed_worker_ids``, ``lora_name``, ``cache_namespace``, ``strict_priority``, ``priority_jump``,
                ``policy_class``, ``session_id``, ``timeout``, ``expected_output_tokens``. All of it is passed on.
                With ``annotations: ["query_instance_id:"]`` nothing is booked or sent: the stream is one item with the
                choice and the prompt in ``routing_data``.
            response_buffer_size: as in :meth:`generate`.
        """
        return self._generate(request, None, response_buffer_size)

    def _generate(
        self, given: Mapping[str, Any], constraints: RoutingConstraints | None, buffer_size: int
    ) -> asyncio.Future[AsyncResponseStream]:
        request = _request.build(given)
        buffer_size = integer(buffer_size, "response_buffer_size")
        if buffer_size < 0:
            raise InvalidArgument(f"response_buffer_size must be non-negative, got {buffer_size}")
        routing = {name: value for name, value in request["routing"].items() if value is not None}
        for name in ("lora_name", "cache_namespace", "policy_class", "session_id"):
            if name in routing:
                expect(routing[name], str, name)
        for name in ("timeout", "priority_jump"):
            if name in routing and not isinstance(routing[name], (int, float)):
                raise TypeError(f"{name}: expected a number, got {type(routing[name]).__name__} ({routing[name]!r})")
        pinned = routing.get("backend_instance_id", routing.get("decode_worker_id"))
        mm = request.get("mm_routing_info") or {}
        asked = {
            "token_ids": mm.get("routing_token_ids", request["token_ids"]),
            "router_config_override": request["router_config_override"],
            "lora_name": routing.get("lora_name"),
            "cache_namespace": routing.get("cache_namespace"),
            "block_mm_infos": mm.get("block_mm_infos"),
            "worker_id": pinned,
            "dp_rank": routing.get("dp_rank"),
            "allowed_worker_ids": routing.get("allowed_worker_ids"),
            "routing_constraints": _constraints(constraints),
            "strict_priority": routing.get("strict_priority", 0),
            "priority_jump": routing.get("priority_jump", 0.0),
            "policy_class": routing.get("policy_class"),
            "session_id": routing.get("session_id"),
            "timeout": routing.get("timeout"),
        }
        if any(str(note).startswith("query_instance_id") for note in request["annotations"]):
            return self._answer_with_workers(lambda: self._query(request, asked), self._probe(asked))
        submit = functools.partial(self._submit, request, asked, buffer_size)
        return self._answer_with_workers(submit, self._probe(asked))

    def _probe(self, asked: dict[str, Any]) -> Callable[[], Any]:
        """Ask as a request would, without waiting."""
        return lambda: self._router.best_worker(**{**asked, "timeout": 0.0})

    def _submit(
        self, request: dict[str, Any], asked: dict[str, Any], buffer_size: int
    ) -> asyncio.Future[AsyncResponseStream]:
        """Have the library choose, book and send, and wait until a worker has begun."""
        options: dict[str, Any] = {"credit": buffer_size}
        if (expected := request["routing"].get("expected_output_tokens")) is not None:
            options["expected_output_tokens"] = expected
        if routing := {name: value for name, value in request["routing"].items() if name not in _DECIDED}:
            options["routing"] = routing
        if asked["token_ids"] is not request["token_ids"]:
            options["token_ids"] = _request.listed(request["token_ids"])
        fields = {name: value for name, value in request.items() if name not in ("token_ids", "routing")}
        asked = {**_NO_REQUEST, **asked, "update_indexer": True}
        number = self._router._native.generate(fields, encode(options, "routing"), *_arguments(**asked))
        call = self._hub.start(number, buffer_size, _Routed(self))
        return call.begun(AsyncResponseStream(call))

    def _query(
        self, request: dict[str, Any], asked: dict[str, Any]
    ) -> AsyncResponseStream | asyncio.Future[AsyncResponseStream]:
        """Answer which worker would serve the request."""

        def answer(choice: tuple[int, int, int]) -> AsyncResponseStream:
            data = {"worker_id": _who(*choice[:2]), "token_ids": _request.listed(request["token_ids"])}
            return _Answered([{**_EMPTY_ITEM, "token_ids": [], "routing_data": data}])

        async def later(choice: asyncio.Future[tuple[int, int, int]]) -> AsyncResponseStream:
            return answer(await choice)

        choice = self._waits.submit(**asked)
        return answer(choice) if isinstance(choice, tuple) else _following(choice, later(choice))

    # -- the parts of a request

    def best_worker(
        self,
        token_ids: Tokens,
        router_config_override: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        update_indexer: bool = False,
        block_mm_infos: _Infos = None,
        lora_name: str | None = None,
        routing_constraints: RoutingConstraints | None = None,
        strict_priority: int = 0,
        policy_class: str | None = None,
        cache_namespace: str | None = None,
        *,
        session_id: str | None = None,
        priority_jump: float = 0.0,
        timeout: float | None = None,
        shared_ranges: Iterable[tuple[int, int]] | None = None,
    ) -> asyncio.Future[tuple[int, int, int]]:
        """Choose a worker for a prompt; with a request id, book the prompt there in the same step.

        Where the configuration has requests wait (``router_queue_threshold``, ``router_policy_config``), the future stays
        pending until it is the request's turn; also without an id. Cancelling it gives the request up, and frees a booking
        that nobody has read of.

        Args:
            token_ids: the prompt, ints in 0 .. 2**32-1; a buffer of uint32 is read in place.
            router_config_override: for this request only: ``overlap_score_credit``, ``prefill_load_scale``,
                ``router_temperature``, ``assume_kv_reuse``, ``track_prefill_tokens``, ``shared_cache_multiplier``, and
                the deprecated ``overlap_score_weight``. They act (Dynamo accepts and ignores most); an unknown key is an
                error (Dynamo drops it).
            request_id: books: the worker counts as busy with the prompt until :meth:`free`. None only asks.
            update_indexer: presume from now on that the chosen rank holds the prompt's blocks, if the configuration
                presumes anything (``use_kv_events=False``, or ``router_predicted_ttl_secs``). :meth:`generate` does.
            block_mm_infos: per block, None or ``{"mm_objects": [{"mm_hash": int, "offsets": [[start, end], ...]}]}``.
            lora_name: LoRA adapter.
            routing_constraints: which workers may be chosen.
            strict_priority: 0 .. 2**32-1; of requests that wait, higher goes first.
            policy_class: class or family of the policy file; None, or one that is not known, is the default.
            cache_namespace: cache salt.
            session_id: prefers the rank that served the session, and a booking ties the session to the chosen one. No
                effect without ``session_affinity_ttl_secs``. This and the next are not Dynamo's.
            priority_jump: of requests that wait: seconds of head start, or weight.
            timeout: how long the request may wait, in seconds; None is without end.
            shared_ranges: what a cache that all ranks share holds, as in :meth:`Router.best_worker`.

        Returns:
            ``(worker_id, dp_rank, overlap_blocks)``: the last is the number of leading full blocks of the prompt that
            the chosen rank holds.

        Raises:
            TypeError, InvalidArgument: at the call, for a wrong argument.
            WorkerNotFound, NoWorkers, Overloaded, QueueLimitExceeded, Timeout, DuplicateRequest, SessionMoved, Closed: when
                awaited.
        """
        if self._early and self._too_early():
            _check_id(request_id)
            shared = None if shared_ranges is None else list(shared_ranges)
            again: dict[str, Any] = {"session_id": session_id, "priority_jump": priority_jump, "shared_ranges": shared}
            probe = functools.partial(
                self._router.best_worker,
                token_ids,
                router_config_override,
                lora_name=lora_name,
                cache_namespace=cache_namespace,
                block_mm_infos=block_mm_infos,
                routing_constraints=_constraints(routing_constraints),
                strict_priority=strict_priority,
                policy_class=policy_class,
                timeout=0.0,
                **again,
            )
            do = functools.partial(
                self.best_worker,
                token_ids,
                router_config_override,
                request_id,
                update_indexer,
                block_mm_infos,
                lora_name,
                routing_constraints,
                strict_priority,
                policy_class,
                cache_namespace,
                timeout=timeout,
                **again,
            )
            return self._when_known(do, probe)
        loop = self._loop
        if get_running_loop() is not loop:
            self._check_loop()
        try:
            if self._closed or self._hub.closed:
                self._check_open()
            given = self._native_answer(
                loop,
                token_ids,
                None if router_config_override is None else mapping(router_config_override, "router_config_override"),
                request_id,
                update_indexer,
                lora_name,
                cache_namespace,
                None if block_mm_infos is None else encode(block_mm_infos, "block_mm_infos"),
                None,
                None,
                None,
                None if routing_constraints is None else _constraints(routing_constraints).to_json(),
                strict_priority,
                policy_class,
                session_id,
                timeout,
                priority_jump,
                None if shared_ranges is None else packed_ranges(shared_ranges),
            )
        except _ARGUMENT_ERRORS:
            raise
        except DynamoError as error:
            return self._failed(error)
        if type(given) is int:
            return self._waits.follow(given, request_id)
        return given  # type: ignore[return-value]  # an Answer is all that an asyncio.Future is, but a subclass

    def best_workers(
        self,
        prompts: Iterable[Tokens],
        router_config_override: Mapping[str, Any] | None = None,
        request_ids: Iterable[str | None] | None = None,
        **asked: Any,
    ) -> asyncio.Future[list[tuple[int, int, int] | Exception]]:
        """Choose a worker for each of several prompts, in one call: see :meth:`Router.best_workers`, whose arguments it
        takes. Not Dynamo's.

        Returns:
            For each prompt the choice, or the exception that awaiting :meth:`best_worker` would have raised.
        """
        asked = {**asked, "router_config_override": router_config_override}
        ids = None if request_ids is None else several(request_ids, "request_ids")
        each = several(prompts, "prompts")

        def do() -> Any:
            given = self._router._submit_many(each, ids, asked)
            if not any(type(one) is int for one in given):
                return given
            known = ids or [None] * len(given)
            pending = {i: self._waits.follow(one, known[i]) for i, one in enumerate(given) if isinstance(one, int)}
            gathered = asyncio.gather(*pending.values(), return_exceptions=True)
            return _following(gathered, _filled(given, list(pending), gathered))

        return self._answer_with_workers(do, lambda: None)

    def mark_prefill_complete(self, request_id: str) -> asyncio.Future[None]:
        """Say that a booked request's first token came. Twice is fine. ``RequestNotFound`` when awaited."""
        return self._answer(self._router._native.mark_prefill_complete, request_id)

    def free(self, request_id: str) -> asyncio.Future[None]:
        """Say that a booked request ended, however it did. ``RequestNotFound`` when awaited.

        An id whose worker has left can be freed once.
        """
        return self._answer(self._router._native.free, request_id)

    # -- state

    def get_potential_loads(
        self,
        token_ids: Tokens,
        block_mm_infos: _Infos = None,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
    ) -> asyncio.Future[list[PotentialLoad]]:
        """Tell what each rank would be busy with if it got the prompt; with no tokens, what it is busy with.

        Returns:
            A row per rank, in no particular order: ``worker_id``, ``dp_rank``, ``potential_prefill_tokens``,
            ``potential_decode_blocks``, ``active_requests``. Without workers, none.
        """
        ask = functools.partial(self._router.get_potential_loads, token_ids, lora_name, cache_namespace, block_mm_infos)
        return self._answer_with_workers(ask, ask)

    def get_overlap_scores(
        self,
        token_ids: Tokens,
        router_config_override: Mapping[str, Any] | None = None,
        block_mm_infos: _Infos = None,
        lora_name: str | None = None,
        include_shared: bool = True,
        cache_namespace: str | None = None,
    ) -> asyncio.Future[dict[str, Any]]:
        """Tell how many leading blocks of the prompt each rank holds, by tier.

        Args:
            token_ids: the prompt.
            router_config_override: not looked at, as in Dynamo: no override changes what a rank holds.
            block_mm_infos: as in :meth:`best_worker`.
            lora_name: likewise.
            cache_namespace: likewise.
            include_shared: of no consequence: no shared cache is asked. See :meth:`Router.get_overlap_scores`.

        Returns:
            ``{"block_size", "num_blocks", "workers": [{"worker_id", "dp_rank", "device_blocks", "host_pinned_blocks",
            "disk_blocks", ...}], "shared_cache": {...}}``; every rank has a row.
        """
        ask = functools.partial(self._router.get_overlap_scores, token_ids, lora_name, cache_namespace, block_mm_infos)
        return self._answer_with_workers(ask, ask)

    def explain(self, token_ids: Tokens, **asked: Any) -> asyncio.Future[dict[str, Any]]:
        """Tell what :meth:`best_worker` would weigh: see :meth:`Router.explain`, whose arguments it takes. Not Dynamo's."""
        ask = functools.partial(self._router.explain, token_ids, **asked)
        return self._answer_with_workers(ask, ask)

    def replicate(
        self, bind: str | None = None, connect: Iterable[str] = (), **keywords: Any
    ) -> asyncio.Future[tuple[str, int]]:
        """Share load with other routers of the same workers: see :meth:`Router.replicate`, whose arguments it takes.

        Not Dynamo's, whose routers find each other by an event plane (``router_replica_sync``).
        """
        return self._answer(lambda: self._router.replicate(bind, connect, **keywords))

    def report_cached_tokens(self, request_id: str, cached_tokens: int) -> asyncio.Future[None]:
        """Say what an engine found in its cache: see :meth:`Router.report_cached_tokens`. :meth:`generate` does, where workers
        say so (``completion_usage``). Not Dynamo's, like the next.
        """
        return self._answer(self._router._native.report_cached_tokens, request_id, cached_tokens)

    def decisions(self, after: int = 0) -> asyncio.Future[list[Decision]]:
        """Give the latest decisions, with predicted and actual hits: see :meth:`Router.decisions`."""
        return self._answer(self._router.decisions, after)

    def dump_events(self) -> asyncio.Future[str]:
        """Give what the router knows of the ranks' blocks: a JSON list of RouterEvent, stores only, parents first."""
        self._check_loop()
        # A large index takes a while: not on the loop.
        return asyncio.ensure_future(self._dump())

    async def _dump(self) -> str:
        self._check_open()
        return await self._hub.loop.run_in_executor(None, self._router.dump_events)

    def metrics(self) -> asyncio.Future[str]:
        """Give what a Prometheus server would scrape, as text: see :meth:`Router.metrics`."""
        return self._answer(self._router.metrics)

    # -- end

    def close(self) -> None:
        """Stop routing, and forget everything; streams that run go on. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._waits.close()
            self._router.close()
            self._hub.wake()

    async def aclose(self) -> None:
        """Close, from ``async`` code."""
        self.close()

    async def __aenter__(self) -> KvRouter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<KvRouter {self._path} block_size={self.block_size}{' closed' if self._closed else ''}>"

    # -- helpers

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._hub.loop:
            raise RuntimeError("this router belongs to another event loop than the one that is running")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the router was closed")
        if self._hub.closed:
            raise Closed("the runtime is shut down")

    def _answer(self, do: Callable[..., T | asyncio.Future[T]], *arguments: Any) -> asyncio.Future[T]:
        """Do something now, and give its result as a future; what comes later is a future already."""
        loop = self._loop
        if get_running_loop() is not loop:
            self._check_loop()
        try:
            if self._closed or self._hub.closed:
                self._check_open()
            result = do(*arguments)
        except _ARGUMENT_ERRORS:
            raise
        except DynamoError as error:
            return self._failed(error)
        if isinstance(result, asyncio.Future):
            return result
        return cast("asyncio.Future[T]", _native.Answer(loop, result))

    def _failed(self, error: DynamoError) -> asyncio.Future[Any]:
        future = self._hub.loop.create_future()
        future.set_exception(error)
        return future

    def _answer_with_workers(
        self, do: Callable[[], T | asyncio.Future[T]], probe: Callable[[], Any]
    ) -> asyncio.Future[T]:
        """Do as :meth:`_answer`, once etcd has told what is there, and the workers are that the environment asks for."""
        if self._early and self._too_early():
            return self._when_known(do, probe)
        return self._answer(do)

    def _too_early(self) -> bool:
        """Whether the deployment is not known yet, or too few workers are; once it is it is over."""
        self._check_loop()
        if self._closed:
            return False
        self._early = not self._hub.connected or len(self._router.workers()) < self._min_workers
        return self._early

    def _when_known(self, do: Callable[[], T | asyncio.Future[T]], probe: Callable[[], Any]) -> asyncio.Future[T]:
        """Wait for the deployment; the probe finds what is wrong with the arguments meanwhile."""
        try:
            probe()
        except _ARGUMENT_ERRORS:
            raise
        except DynamoError:
            pass  # found when it is done
        return asyncio.ensure_future(self._answer_later(do))

    async def _answer_later(self, do: Callable[[], T | asyncio.Future[T]]) -> T:
        self._check_open()
        await self._hub.wait_for_workers(self._router, self._path, self._min_workers)
        self._check_open()
        self._early = False
        result = do()
        return await result if asyncio.isfuture(result) else result


_EMPTY_ITEM: dict[str, Any] = {
    "token_ids": [],
    "tokens": None,
    "text": None,
    "output_type": "text",
    "cum_log_probs": None,
    "log_probs": None,
    "top_logprobs": None,
    "finish_reason": None,
    "index": None,
}


async def _filled(given: list[Any], places: list[int], gathered: asyncio.Future[list[Any]]) -> list[Any]:
    """Put what came later in its place."""
    for place, one in zip(places, await gathered, strict=True):
        given[place] = one
    return given


def _following(choice: asyncio.Future[Any], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start what awaits a choice; if it is cancelled before it got so far, that is given up."""

    def ended(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            choice.cancel()

    task = asyncio.ensure_future(work)
    task.add_done_callback(ended)
    return task


class _EndpointRouter(Router):
    """A router whose workers are those of an endpoint of a deployment: the library adds and removes them."""

    def __init__(self, deployment: Deployment, path: str, block_size: int, *arguments: Any, **keywords: Any) -> None:
        self._of = (deployment.native, path)
        super().__init__(block_size, *arguments, **keywords)

    def _open(self, block_size: int, config: str | None, seed: int | None) -> _native.Router:
        return _native.Router(block_size, config, seed, *self._of)


class _Routed:
    """Watches a request: completes its items. Its booking is the library's."""

    def __init__(self, router: KvRouter) -> None:
        self._router: KvRouter | None = router  # it stays until a worker has begun, even if nobody else has it

    def begun(self, route: list[Any]) -> None:
        self._router = None
        worker_id, dp_rank, overlap, blocks, _, self._depth = route
        self._worker = _who(worker_id, dp_rank)
        self._hit_rate = min(overlap / blocks, 1.0) if blocks else 0.0

    def arrived(self, item: Any, flags: int, timing: Any) -> dict[str, Any]:
        answer = {**_EMPTY_ITEM, **item}
        tokens = answer["token_ids"]
        if type(tokens) is not list or not all(type(token) is int for token in tokens):
            raise WorkerError(f"the worker's handler yielded token_ids={shown(tokens)}, expected a list of int")
        if flags & (FIRST | LAST):
            data: dict[str, Any] = {}
            if flags & FIRST:
                data["worker_id"] = self._worker
            if flags & LAST:
                received, wait, prefill, total = timing
                data["timing"] = {
                    "request_received_ms": received,
                    "prefill_wait_time_ms": wait,
                    "prefill_time_ms": prefill,
                    "ttft_ms": wait + prefill,
                    "total_time_ms": total,
                    "kv_hit_rate": self._hit_rate,
                    "router_queue_depth": self._depth,
                }
            answer["routing_data"] = data
        return answer

    def note(self, note: list[Any]) -> None:
        return None

    def failure(self, error: Exception) -> Any:
        raise error


class _Answered(AsyncResponseStream):
    """A stream whose items are there already."""

    __slots__ = ("_ready",)

    def __init__(self, items: list[Any]) -> None:
        self._ready = items

    async def __anext__(self) -> Any:
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop(0)

    def _abandon(self) -> None:
        self._ready.clear()

    def __del__(self) -> None:
        pass


def _who(worker_id: int, dp_rank: int) -> dict[str, int]:
    """Name the worker as Dynamo does for one that does both prefill and decode."""
    return {
        "prefill_worker_id": worker_id,
        "prefill_dp_rank": dp_rank,
        "decode_worker_id": worker_id,
        "decode_dp_rank": dp_rank,
    }


def _constraints(value: RoutingConstraints | None) -> Any:
    if value is not None and not isinstance(value, RoutingConstraints):
        raise TypeError(f"routing_constraints: expected RoutingConstraints, got {type(value).__name__}")
    return value


def _check_id(request_id: Any) -> None:
    if request_id is not None and not isinstance(request_id, str):
        raise TypeError(f"request_id: expected str, got {type(request_id).__name__} ({request_id!r})")


def _check_affinity(ttl: int | None, mode: str) -> None:
    if expect(mode, str, "session_affinity_mode") not in ("hard", "soft"):
        raise InvalidArgument(f"invalid session affinity mode {shown(mode)}; expected 'hard' or 'soft'")
    if ttl is not None and not 1 <= integer(ttl, "session_affinity_ttl_secs") <= _AFFINITY_TTL_MAX:
        raise InvalidArgument(f"session_affinity_ttl_secs must be between 1 and {_AFFINITY_TTL_MAX}, got {ttl}")


def _from_environment(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        warnings.warn(
            f"{variable}={text!r} is not an integer and is ignored: {default} stays", RuntimeWarning, stacklevel=3
        )
        return default
