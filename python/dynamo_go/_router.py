"""Router: the decision, without a runtime."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from . import _native
from ._checks import expect, integer, path_text, several, shown, text, texts
from ._errors import DynamoError, InvalidArgument
from ._json import decode, document, encode, mapping, merged
from ._signals import interruptible

if TYPE_CHECKING:
    from ._config import KvRouterConfig
    from ._constraints import LoadThresholdConfig, RoutingConstraints
    from ._native import Tokens
    from ._types import Decision, PotentialLoad, RankHealth, Stats, WorkerInfo

__all__ = ["Router", "compute_block_hash_for_seq"]


class Router:
    """Route the requests of one model to its workers.

    A router follows its workers' KV events, remembers what it placed where, and picks the cheapest worker for a prompt.
    It needs nothing else running. All methods are synchronous, take microseconds (but for requests that wait, where the
    configuration asks for that), and may be called from any thread::

        with Router(block_size=16) as router:
            router.add_worker(7, kv_events="tcp://10.0.0.5:5557", replay="tcp://10.0.0.5:6557")
            worker_id, dp_rank, overlap_blocks = router.best_worker(token_ids, request_id="req-1")
            ...  # send the prompt to worker_id; at its first token:
            router.mark_prefill_complete("req-1")
            ...  # at its end:
            router.free("req-1")

    **Tokens** (`token_ids`) are ints in 0 .. 2**32-1: a buffer of uint32 (``array('I')``, ``numpy.uint32``,
    ``memoryview``) is read in place, which is fastest; any other sequence of ints is converted. Of ``bytes``, each byte
    is a token. At most 2**24.

    **Identity** (`lora_name`, `cache_namespace`, `block_mm_infos`) is what, besides tokens, makes cached blocks equal.

    **Signals**: :class:`KeyboardInterrupt` ends a wait within 100 ms. A call that works rather than waits (:meth:`save`,
    :meth:`load`, :meth:`dump_events`, :meth:`load_events`) goes on to its end in a thread of its own then.

    **Errors**: :class:`InvalidArgument` names the value and what was expected, and nothing changed; ``TypeError`` for a
    wrong type; :class:`Closed` after :meth:`close`; :class:`ForkError` in a child forked after the first router was made.

    Args:
        block_size: tokens per KV block of the engines, 1 .. 1,048,576.
        config: a :class:`KvRouterConfig`, or a mapping or JSON text with its fields; None for the defaults.
        seed: makes choices among equals repeatable; an int in 0 .. 2**64-1.
        max_bytes: bounds the memory of what is known of the ranks' blocks, at least 16 MiB; None does not. At the bound
            the least recently used blocks go, the deepest of a prompt first: matches may then be too short, never too
            long, and :meth:`health` calls the ranks that lost some ``partial``. An eighth is for the lower tiers.
        load_threshold_config: above which load a rank takes no request (:class:`Overloaded` if all are above it).
        session_affinity_ttl_secs: how long a session without requests stays with its rank, 1 .. 31,536,000; None:
            sessions are not kept together. At most 65,536 sessions.
        session_affinity_mode: when the session's own rank cannot be chosen: "hard" raises :class:`SessionMoved`, "soft"
            lets the session move.
        worker_type: what the workers do. For "prefill", prompt tokens that are cached save no decode blocks where prefill is
            not tracked.
        model_name: whose profile of the policy file holds (``router_policy_config``).

    Raises:
        InvalidArgument: a value out of range, an unknown field.
        NotImplementedError: a field asks for what this version does not have.
    """

    __slots__ = ("__weakref__", "_native", "_block_size")

    def __init__(
        self,
        block_size: int,
        config: KvRouterConfig | Mapping[str, Any] | str | None = None,
        *,
        seed: int | None = None,
        max_bytes: int | None = None,
        load_threshold_config: LoadThresholdConfig | None = None,
        session_affinity_ttl_secs: int | None = None,
        session_affinity_mode: Literal["hard", "soft"] = "hard",
        worker_type: Literal["aggregated", "prefill", "decode", "encode"] = "aggregated",
        model_name: str = "",
    ) -> None:
        given = config if isinstance(config, str) else mapping(config, "config")
        fields: dict[str, Any] = {}
        if max_bytes is not None:
            fields["max_bytes"] = integer(max_bytes, "max_bytes", low=1)
        if load_threshold_config is not None:
            from ._constraints import LoadThresholdConfig

            fields.update(expect(load_threshold_config, LoadThresholdConfig, "load_threshold_config").fields())
        if session_affinity_ttl_secs is not None:
            fields["session_affinity_ttl_secs"] = integer(session_affinity_ttl_secs, "session_affinity_ttl_secs")
        for name, value, default in (
            ("session_affinity_mode", session_affinity_mode, "hard"),
            ("worker_type", worker_type, "aggregated"),
            ("model_name", model_name, ""),
        ):
            if text(value, name) != default:
                fields[name] = value
        if fields:
            given = merged(given, fields)
        self._native = self._open(block_size, given, seed)
        self._block_size = int(block_size)

    def _open(self, block_size: int, config: str | None, seed: int | None) -> _native.Router:
        return _native.Router(block_size, config, seed)

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        return self._block_size

    def close(self) -> None:
        """Stop following the workers and forget everything. Closing again does nothing."""
        self._native.close()

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dynamo_go.Router block_size={self._block_size}>"

    # -- workers

    def add_worker(
        self,
        worker_id: int,
        *,
        dp_start: int = 0,
        dp_size: int = 1,
        kv_events: str | Mapping[int, str] | None = None,
        replay: str | Mapping[int, str] | None = None,
        query: str | Mapping[int, str] | None = None,
        topic: str = "",
        host: str | None = None,
        block_size: int | None = None,
        max_num_batched_tokens: int | None = None,
        total_kv_blocks: int | None = None,
        taints: Iterable[str] = (),
        adapters: Iterable[str] = (),
    ) -> None:
        """Register a worker; it is a candidate at once.

        Returns at once, whether the ports answer or not; :meth:`health` tells how far the connections are. The same id
        with the same endpoints updates the rest. The router does not judge whether an engine is alive: a worker whose
        ports do not answer stays a candidate until it is removed.

        Args:
            worker_id: any int in 0 .. 2**64-1.
            dp_start: the worker's first data-parallel rank, counted over all workers.
            dp_size: how many ranks it has.
            kv_events: where the ranks publish KV events: a base endpoint ``tcp://HOST:PORT``, of which rank r uses
                PORT + r, or a mapping from rank to endpoint. Without it, events come by :meth:`apply_event`.
            replay: where the ranks replay them, likewise.
            query: where the ranks' local indexers answer queries, likewise: a router that missed events asks there, and
                gets them or the rank's whole state, however long ago it began. `replay` is not used then.
            topic: prefix of the ZeroMQ topics to follow; "" means all.
            host: stands for ``*`` in endpoints.
            block_size: the worker's block size; another than the router's is an error.
            max_num_batched_tokens: prompt tokens the engine takes in one step, if known.
            total_kv_blocks: size of the engine's cache, if known.
            taints: labels that routing constraints can ask for.
            adapters: LoRA adapters that are loaded. Requests with a `lora_name` that any worker names go to those that
                name it, unless all of them are overloaded or excluded.

        Raises:
            InvalidArgument: a malformed endpoint, overlapping port ranges, another block size, a value out of range.
            DuplicateWorker: the id is registered with other endpoints.
        """
        self._native.add_worker(
            worker_id,
            dp_start,
            dp_size,
            _endpoints(kv_events, "kv_events"),
            _endpoints(replay, "replay"),
            topic,
            host,
            block_size,
            max_num_batched_tokens,
            total_kv_blocks,
            tuple(several(taints, "taints")),
            tuple(several(adapters, "adapters")),
            _endpoints(query, "query"),
        )

    def remove_worker(self, worker_id: int) -> None:
        """Forget a worker, its blocks and its bookings. Added again, it starts empty.

        Raises:
            WorkerNotFound: it is not registered.
        """
        self._native.remove_worker(worker_id)

    def workers(self) -> list[WorkerInfo]:
        """List the registered workers, ordered by id."""
        rows = decode(self._native.workers())
        for row in rows:
            for name in ("kv_events", "replay", "query"):
                if isinstance(row[name], dict):  # JSON has no integer keys
                    row[name] = {int(rank): endpoint for rank, endpoint in row[name].items()}
        return cast("list[WorkerInfo]", rows)

    def apply_event(
        self,
        worker_id: int,
        event: Mapping[str, Any] | str | bytes,
        *,
        duplicate_stores: Literal["count", "set"] = "count",
    ) -> None:
        """Apply one KV event of a worker, from a source that the caller follows.

        Args:
            worker_id: a registered worker.
            event: a KvCacheEvent as mapping or JSON: ``{"event_id": 1, "dp_rank": 0, "data": DATA}``, where DATA is
                ``{"stored": {"parent_hash": None, "blocks": [{"block_hash": H, "tokens_hash": T}, ...]}}``,
                ``{"removed": {"block_hashes": [H, ...]}}`` or ``"cleared"``. H is the engine's name for a block, T the
                hash of its tokens (:func:`compute_block_hash_for_seq`), both -2**63 .. 2**64-1. `event_id` is not
                checked; `dp_rank` is the rank counted over all workers. `storage_tier` may be "host_pinned", "disk" or
                "external"; a lower tier's blocks go on where those above end.
            duplicate_stores: "count": a block stored twice must be removed twice, as engines mean it. "set": once is
                enough, as after a dump.

        Raises:
            InvalidArgument: the event is malformed.
            WorkerNotFound: no such worker or rank.
            EventRefused: its parent is not held by the rank, or its blocks form no chain. Nothing changed.
        """
        if duplicate_stores not in ("count", "set"):
            raise InvalidArgument(f"duplicate_stores={duplicate_stores!r}, expected 'count' or 'set'")
        self._native.apply_event(worker_id, document(event, "event"), duplicate_stores == "set")

    # -- prompts

    def best_worker(
        self,
        token_ids: Tokens,
        router_config_override: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        update_indexer: bool = False,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        worker_id: int | None = None,
        dp_rank: int | None = None,
        allowed_worker_ids: Iterable[int] | None = None,
        routing_constraints: RoutingConstraints | Mapping[str, Any] | None = None,
        strict_priority: int = 0,
        policy_class: str | None = None,
        session_id: str | None = None,
        timeout: float | None = None,
        priority_jump: float = 0.0,
        shared_ranges: Iterable[tuple[int, int]] | None = None,
    ) -> tuple[int, int, int]:
        """Choose a worker for a prompt; with a request id, book the prompt there in the same step.

        Where the configuration has requests wait (``router_queue_threshold``, ``router_policy_config``), a request that
        has to wait does, without the GIL; :class:`KeyboardInterrupt` ends that within 100 ms. Requests without an id wait
        too. Without such a configuration nothing waits.

        Args:
            token_ids: the prompt.
            router_config_override: for this request only: ``overlap_score_credit``, ``prefill_load_scale``,
                ``router_temperature``, ``assume_kv_reuse``, ``track_prefill_tokens``, ``shared_cache_multiplier``, and
                the deprecated ``overlap_score_weight``.
            request_id: books: the worker counts as busy with the prompt until :meth:`free`. None only asks.
            update_indexer: presume from now on that the chosen rank holds the prompt's blocks, if the configuration
                presumes anything (``use_kv_events=False``, or ``router_predicted_ttl_secs``).
            lora_name: LoRA adapter.
            cache_namespace: cache salt.
            block_mm_infos: per block, None or ``{"mm_objects": [{"mm_hash": int, "offsets": [[start, end], ...]}]}``.
            worker_id: only this worker.
            dp_rank: only this rank.
            allowed_worker_ids: only these workers.
            routing_constraints: a :class:`RoutingConstraints`, or
                ``{"required_taints": [...], "preferred_taints": {taint: weight}}``.
            strict_priority: 0 .. 2**32-1; of requests that wait, higher goes first, whatever else holds.
            policy_class: class or family of the policy file; None, or one that is not known, is the default.
            session_id: prefers the rank that served the session, and a booking ties the session to the chosen one; at
                most 256 bytes. No effect without ``session_affinity_ttl_secs``.
            timeout: how long the request may wait, in seconds; None is without end. Of requests with one strict
                priority, those whose time is up first go first.
            priority_jump: of requests that wait: seconds of head start, or weight (``router_queue_policy="wspt"``).
            shared_ranges: what a cache that all ranks share holds of the prompt: ranges (start, end) of block positions,
                ascending, apart. They count with ``shared_cache_multiplier``.

        Returns:
            (worker_id, dp_rank, overlap_blocks): the last is the number of leading full blocks of the prompt that the
            chosen rank holds.

        Raises:
            TypeError: a value of the wrong type.
            InvalidArgument: a value out of range; unknown fields in an override; the pinned worker is not allowed.
            Closed: the router is closed, also while the request waits.
            WorkerNotFound: the pinned worker, or the rank pinned with it, does not exist.
            NoWorkers: no registered worker is eligible, or none has the `dp_rank` asked for.
            Overloaded: every rank that fits is beyond a load threshold.
            QueueLimitExceeded: the request would have to wait, and as many wait as may.
            Timeout: the request waited for `timeout` seconds.
            DuplicateRequest: the id is booked already. Nothing changed.
            SessionMoved: the session's own rank cannot be chosen, and the mode is "hard".

        Of several, the first in this order is raised.
        """
        return self._native.best_worker(
            *_arguments(
                token_ids,
                router_config_override,
                request_id,
                update_indexer,
                lora_name,
                cache_namespace,
                block_mm_infos,
                worker_id,
                dp_rank,
                allowed_worker_ids,
                routing_constraints,
                strict_priority,
                policy_class,
                session_id,
                timeout,
                priority_jump,
                shared_ranges,
            )
        )

    def best_workers(
        self,
        prompts: Iterable[Tokens],
        router_config_override: Mapping[str, Any] | None = None,
        request_ids: Iterable[str | None] | None = None,
        **asked: Any,
    ) -> list[tuple[int, int, int] | Exception]:
        """Choose a worker for each of several prompts, in order, in one call without the GIL.

        Each choice sees the bookings of those before it. Requests that have to wait do, when all have been asked.

        Args:
            prompts: at most 65,536; each as `token_ids` of :meth:`best_worker`.
            router_config_override: for all of them.
            request_ids: for each prompt its id, which books it, or None; None books nothing.
            asked: the other arguments of :meth:`best_worker`, for all of them.

        Returns:
            For each prompt the choice, or the exception that :meth:`best_worker` would have raised for it; the others
            stand.

        Raises:
            TypeError, InvalidArgument: an argument for all of them is wrong, or there are not as many ids as prompts.
                Nothing was booked.
            Closed: the router is closed.
        """
        given = self._submit_many(prompts, request_ids, {**asked, "router_config_override": router_config_override})
        for i, one in enumerate(given):
            if isinstance(one, int):
                try:
                    given[i] = self._native.wait(one)
                except DynamoError as error:
                    given[i] = error
                except BaseException:
                    for ticket in given[i + 1 :]:
                        if isinstance(ticket, int):
                            self._native.cancel(ticket)
                    raise
        return cast("list[tuple[int, int, int] | Exception]", given)

    def _submit_many(
        self, prompts: Iterable[Tokens], request_ids: Iterable[str | None] | None, asked: dict[str, Any]
    ) -> list[tuple[int, int, int] | int | Exception]:
        """Ask for each prompt; those that wait have a ticket."""
        each = tuple(several(prompts, "prompts"))
        ids = (None,) * len(each) if request_ids is None else tuple(several(request_ids, "request_ids"))
        unknown = asked.keys() - _NO_REQUEST.keys() | asked.keys() & {"request_id", "token_ids"}
        if unknown:
            raise TypeError(f"best_workers() got an unexpected keyword argument {sorted(unknown)[0]!r}")
        arguments = _arguments(token_ids=(), **{**_NO_REQUEST, **asked})
        return self._native.submit_many(each, arguments[1], ids, *arguments[3:])

    def _submit(self, **request: Any) -> tuple[int, int, int] | int:
        """Do as :meth:`best_worker`, whose keywords it takes, but give a ticket for a request that has to wait."""
        return self._native.submit(*_arguments(**{**_NO_REQUEST, **request}))

    def explain(
        self,
        token_ids: Tokens,
        router_config_override: Mapping[str, Any] | None = None,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        worker_id: int | None = None,
        dp_rank: int | None = None,
        allowed_worker_ids: Iterable[int] | None = None,
        routing_constraints: RoutingConstraints | Mapping[str, Any] | None = None,
        session_id: str | None = None,
        shared_ranges: Iterable[tuple[int, int]] | None = None,
    ) -> dict[str, Any]:
        """Tell what :meth:`best_worker` would weigh: each candidate with every term of its cost. Books nothing.

        Arguments and errors are those of :meth:`best_worker`; that no rank is eligible is part of the explanation.
        ``python -m dynamo_go explain`` shows it as a table.
        """
        text = self._native.explain(
            *_arguments(
                token_ids,
                router_config_override,
                None,
                False,
                lora_name,
                cache_namespace,
                block_mm_infos,
                worker_id,
                dp_rank,
                allowed_worker_ids,
                routing_constraints,
                0,
                None,
                session_id,
                None,
                0.0,
                shared_ranges,
            )
        )
        return cast("dict[str, Any]", decode(text))

    def get_potential_loads(
        self,
        token_ids: Tokens,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[PotentialLoad]:
        """Tell what each rank would be busy with if it got the prompt; with no tokens, what it is busy with."""
        infos = None if block_mm_infos is None else encode(block_mm_infos, "block_mm_infos")
        rows = self._native.potential_loads(token_ids, lora_name, cache_namespace, infos)
        return cast("list[PotentialLoad]", rows)

    def get_overlap_scores(
        self,
        token_ids: Tokens,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        shared_ranges: Iterable[tuple[int, int]] | None = None,
    ) -> dict[str, Any]:
        """Tell how many leading blocks of the prompt each rank holds, by tier.

        Returns:
            ``{"block_size": int, "num_blocks": int, "workers": [{"worker_id", "dp_rank", "device_blocks",
            "host_pinned_blocks", "disk_blocks", ...}, ...], "shared_cache": {...}}``; every rank has a row.
            ``shared_cache`` repeats `shared_ranges`. The host's
            blocks go on where the device's end, those on disk (and external) where the host's end; their numbers count
            all before, ``host_pinned_extension_blocks`` and ``disk_extension_blocks`` do not.
        """
        infos = None if block_mm_infos is None else encode(block_mm_infos, "block_mm_infos")
        text = self._native.overlap_scores(token_ids, lora_name, cache_namespace, infos, packed_ranges(shared_ranges))
        return cast("dict[str, Any]", decode(text))

    # -- bookings

    def mark_prefill_complete(self, request_id: str) -> None:
        """Say that the request's first token came: its prompt no longer loads the worker. Twice is fine.

        Raises:
            RequestNotFound: the id was never booked, or was freed.
        """
        self._native.mark_prefill_complete(request_id)

    def free(self, request_id: str) -> None:
        """Say that the request ended, however it did.

        Raises:
            RequestNotFound: the id was never booked, or was freed. An id that expired, or whose worker was removed, can
                be freed once. What another router placed (:meth:`replicate`) is known only there.
        """
        self._native.free(request_id)

    def add_output_block(self, request_id: str, n: int = 1, decay_fraction: float | None = None) -> None:
        """Say that the request's output filled `n` more blocks.

        Args:
            request_id: a booked request.
            n: blocks, at least 0.
            decay_fraction: 0 .. 1: how much of the expected output is still to come; its blocks weigh that much.

        Raises:
            RequestNotFound: the id was never booked, or was freed.
        """
        self._native.add_output_block(request_id, n, decay_fraction)

    def report_cached_tokens(self, request_id: str, cached_tokens: int) -> None:
        """Say how many tokens of a booked request's prompt its engine found in its cache, for :meth:`decisions`.

        At any time from its decision on, also when it was freed. No effect where decisions are not recorded
        (``record_decisions``).

        Args:
            request_id: a booked request, or one that was.
            cached_tokens: at least 0, as in a usage; the first report counts, and more than the prompt has counts as all.

        Raises:
            RequestNotFound: the recorded decisions have no such request.
        """
        self._native.report_cached_tokens(request_id, cached_tokens)

    # -- state

    def decisions(self, after: int = 0) -> list[Decision]:
        """Give the latest decisions that chose a rank, oldest first; ``record_decisions`` says how many are kept (0: none).

        Args:
            after: only those with a higher ``number``, to read on from the last one.

        Returns:
            For each ``number`` (from 1 on), ``at`` (Unix seconds), ``request_id`` (None: nothing was booked),
            ``worker_id``, ``dp_rank``, ``prompt_tokens``, ``predicted_cached_tokens`` (what the rank holds of the prompt in
            all tiers, as far as the router knows), ``actual_cached_tokens`` (what the engine found, None where nobody
            reported it: :meth:`report_cached_tokens`).
        """
        return cast("list[Decision]", decode(self._native.decisions(after)))

    def dump_events(self) -> str:
        """Give what the router knows of every rank's blocks: a JSON list of RouterEvent, stores only, parents first.

        Blocks of the lower tiers follow those of the device, with their ``storage_tier``.
        """
        return interruptible(self._native.dump_events)

    def load_events(self, json: str | bytes | Sequence[Mapping[str, Any]]) -> None:
        """Apply a dump of :meth:`dump_events`, lower tiers included. Each block gets one reference.

        A dump does not say how old it is. So a rank with event endpoints takes it only before its own events are known, and
        gives it up for them; afterwards it is counted as ``unproven_events`` (:meth:`health`). :meth:`save` and :meth:`load`
        carry the positions that events go on from.

        Raises:
            InvalidArgument: malformed; nothing was applied.
            WorkerNotFound: an event names a rank that is not registered; nothing was applied.
            EventRefused: an event contradicts what its rank holds; those before it stay applied.
        """
        interruptible(self._native.load_events, document(json, "json"))

    def replicate(
        self,
        bind: str | None = None,
        connect: Iterable[str] = (),
        *,
        model: str = "",
        group: str = "default",
        replica_id: int | None = None,
        peer_timeout: float = 30.0,
    ) -> tuple[str, int]:
        """Share load with other routers of the same workers, without a server; once, until the router is closed.

        Each router hears which requests the others place, and counts them: a burst that comes in at several routers
        spreads. Delivery is best effort; what was placed before a router joins it does not hear. Messages are those of
        Dynamo's replica mesh. ``stats()["replicas"]`` counts them.

        Args:
            bind: endpoint to publish on, such as ``tcp://0.0.0.0:5600``; None only listens.
            connect: the others' endpoints; the own one may be among them. They need not be there yet.
            model: routers of other models do not concern this one.
            group: likewise routers of other groups.
            replica_id: this router among the replicas, 1 .. 2**64-1; None takes a random one.
            peer_timeout: a router that is out of reach for so many seconds is gone, and what it placed has ended.

        Returns:
            (endpoint, replica_id): where others connect to, its port resolved ("" if none), and who it is.

        Raises:
            InvalidArgument: a malformed endpoint, neither `bind` nor `connect`, or a second call.
            CannotConnect: `bind` cannot be bound.
        """
        if isinstance(peer_timeout, bool) or not isinstance(peer_timeout, (int, float)):
            raise TypeError(f"peer_timeout: expected a number, got {type(peer_timeout).__name__} ({peer_timeout!r})")
        fields = {
            "connect": texts(connect, "connect"),
            "model": text(model, "model"),
            "group": text(group, "group"),
            "peer_timeout_secs": peer_timeout,
        }
        if bind is not None:
            fields["bind"] = text(bind, "bind")
        if replica_id is not None:
            fields["id"] = integer(replica_id, "replica_id", low=1)
        joined = decode(self._native.replicate(encode(fields, "replicate")))
        return joined["bind"], joined["id"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what all ranks hold to a file, for a router that starts later: see :meth:`load`.

        The file is replaced at once or not at all. Each rank is saved at one position of its events, which wait while
        the file is written; decisions do not. Bookings are not saved, and neither is what is presumed without events.
        A link stays, and what it leads to is replaced; a file that is there keeps its mode, a new one is for its owner only.

        Raises:
            FileError: the file cannot be written, or what is there is no regular file (an ``OSError``).
        """
        interruptible(self._native.save, path_text(path))

    def load(self, path: str | os.PathLike[str]) -> int:
        """Start warm with a file of :meth:`save`; call it before the workers are added.

        A restored rank waits until its worker is added. If it has event endpoints then, it answers with its blocks at
        once, and keeps them only if the engine's replay shows that they are current; without a replay endpoint they are
        dropped. If it has none, it keeps them if it had none before. Registered ranks without event endpoints that
        hold nothing are restored too; other registered ranks stay as they are. :meth:`remove_worker` gives up what
        waits for a worker, ``stats()["waiting_ranks"]`` counts it.

        Returns:
            How many ranks were restored.

        Raises:
            FileError: the file cannot be read, or is no regular file (an ``OSError``).
            SnapshotRefused: the file is foreign, of another version or block size, torn or corrupt. The router is as
                it was.
        """
        return interruptible(self._native.load, path_text(path))

    def health(self) -> list[RankHealth]:
        """Tell for every rank how complete the router's view of its cache is, and why.

        A row per rank: ``worker_id``, ``dp_rank``, ``state`` (exact, recovering, partial, disconnected), ``reason``,
        ``since`` (Unix seconds), ``last_seq`` (None before the first batch), ``counters`` (name to number; only those
        above 0), ``findings`` (why prompts do not find what the rank holds: ``cause``, ``evidence``, ``action``; see
        docs/troubleshooting.md). With ``use_kv_events=False`` every state is "presumed". A disconnected rank stays a candidate: leave it out by ``allowed_worker_ids``, or remove its worker.
        """
        return cast("list[RankHealth]", decode(self._native.health()))

    def stats(self) -> Stats:
        """Tell how big the router is."""
        return cast("Stats", decode(self._native.stats()))

    def metrics(self) -> str:
        """Give what a Prometheus server would scrape, as text: serve it as ``text/plain; version=0.0.4``.

        Decisions and their outcome, latency of each phase, hit rates, loads, events, completeness of each rank's view,
        memory; under Dynamo's names where there are any.
        """
        return self._native.metrics()


# The defaults of best_worker.
_NO_REQUEST: dict[str, Any] = {
    "router_config_override": None,
    "request_id": None,
    "update_indexer": False,
    "lora_name": None,
    "cache_namespace": None,
    "block_mm_infos": None,
    "worker_id": None,
    "dp_rank": None,
    "allowed_worker_ids": None,
    "routing_constraints": None,
    "strict_priority": 0,
    "policy_class": None,
    "session_id": None,
    "timeout": None,
    "priority_jump": 0.0,
    "shared_ranges": None,
}


def _arguments(
    token_ids: Tokens,
    router_config_override: Mapping[str, Any] | None,
    request_id: str | None,
    update_indexer: bool,
    lora_name: str | None,
    cache_namespace: str | None,
    block_mm_infos: Sequence[Mapping[str, Any] | None] | None,
    worker_id: int | None,
    dp_rank: int | None,
    allowed_worker_ids: Iterable[int] | None,
    routing_constraints: RoutingConstraints | Mapping[str, Any] | None,
    strict_priority: int,
    policy_class: str | None,
    session_id: str | None,
    timeout: float | None,
    priority_jump: float,
    shared_ranges: Iterable[tuple[int, int]] | None,
) -> tuple[Any, ...]:
    """Give the arguments of a request as the extension takes them."""
    return (
        token_ids,
        None if router_config_override is None else mapping(router_config_override, "router_config_override"),
        request_id,
        update_indexer,
        lora_name,
        cache_namespace,
        None if block_mm_infos is None else encode(block_mm_infos, "block_mm_infos"),
        worker_id,
        dp_rank,
        allowed_worker_ids,
        None if routing_constraints is None else mapping(routing_constraints, "routing_constraints"),
        strict_priority,
        policy_class,
        session_id,
        timeout,
        priority_jump,
        None if shared_ranges is None else packed_ranges(shared_ranges),
    )


def packed_ranges(value: Iterable[tuple[int, int]] | None) -> bytes | None:
    """Give ranges of block positions as the C interface takes them."""
    if value is None:
        return None
    flat = array("I")
    for pair in several(value, "shared_ranges"):
        try:
            start, end = pair
            flat.extend((start, end))
        except OverflowError:
            raise InvalidArgument(f"shared_ranges: {shown(pair)}, expected ints in 0 .. 2**32-1") from None
        except (TypeError, ValueError):
            raise TypeError(f"shared_ranges: expected pairs of int, got {shown(pair)}") from None
    return flat.tobytes()


def _endpoints(value: str | Mapping[int, str] | None, name: str) -> str | None:
    """Give the endpoints of a worker's ranks as the C interface takes them."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected str, a mapping from rank to str, or None, got {type(value).__name__}")
    for rank, endpoint in value.items():
        if not isinstance(rank, int) or not isinstance(endpoint, str):
            raise TypeError(f"{name}: expected a mapping from int to str, got {rank!r}: {endpoint!r}")
    return encode(dict(value), name)


def compute_block_hash_for_seq(
    tokens: Tokens,
    kv_block_size: int,
    block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
    lora_name: str | None = None,
    is_eagle: bool | None = None,
    cache_namespace: str | None = None,
) -> list[int]:
    """Hash each full block of a prompt as Dynamo does: the `tokens_hash` of KV events.

    Args:
        tokens: the prompt, as for :class:`Router`.
        kv_block_size: tokens per block, 1 .. 1,048,576.
        block_mm_infos: per block, None or ``{"mm_objects": [{"mm_hash": int, "offsets": [[start, end], ...]}]}``.
        lora_name: LoRA adapter.
        is_eagle: hash windows of kv_block_size + 1 tokens, as EAGLE drafters use.
        cache_namespace: cache salt.

    Returns:
        One int in 0 .. 2**64-1 per full block; each names its own block only (not a chain).

    Raises:
        InvalidArgument: a value out of range.
    """
    infos = None if block_mm_infos is None else encode(block_mm_infos, "block_mm_infos")
    eagle = False if is_eagle is None else is_eagle
    return _native.block_hashes(tokens, kv_block_size, lora_name, cache_namespace, infos, eagle)
