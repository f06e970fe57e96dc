"""The worker's side of KV events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._checks import expect, integer, several, shown, text
from ._errors import Closed, EventRefused, InvalidArgument
from ._json import encode
from ._router import compute_block_hash_for_seq
from ._runtime import Endpoint
from ._signals import interruptible

if TYPE_CHECKING:
    from ._native import Tokens

_Infos = Sequence[Mapping[str, Any] | None] | None


class _Chain(NamedTuple):
    """What a store says, checked."""

    parent: int | None
    tokens: Tokens
    hashes: list[int]
    infos: _Infos
    lora_name: str | None
    eagle: bool
    cache_salt: str | None


class _Sockets:
    """ZeroMQ sockets of this process, for routers anywhere, or for those of its deployment."""

    def __init__(self, native: _native.Publisher, dp_rank: int, block_size: int) -> None:
        self._native = native
        self._dp_rank = dp_rank
        self._block_size = block_size
        self._open = True
        self._unknown = 0  # removals, when it was closed

    def _publish(self, method: Callable[..., None], *arguments: object) -> None:
        """Publish, unless the publisher is shut down before or meanwhile."""
        if self._open:
            try:
                method(self._dp_rank, *arguments)
            except Closed:
                if self._open:
                    raise

    def store(self, chain: _Chain) -> None:
        infos = None if chain.infos is None else encode(chain.infos, "block_mm_infos")
        if chain.hashes:
            self._publish(
                self._native.stored,
                chain.tokens,
                chain.hashes,
                self._block_size,
                chain.parent,
                chain.eagle,
                chain.lora_name,
                chain.cache_salt,
                infos,
            )

    def remove(self, hashes: list[int]) -> None:
        if hashes:
            self._publish(self._native.removed, hashes)

    def clear(self) -> None:
        self._publish(self._native.cleared)

    def info(self) -> dict[str, Any]:
        ranks: list[dict[str, Any]] = json.loads(self._native.info())
        return ranks[0]

    def unknown_removals(self) -> int:
        if self._open:
            try:
                unknown: int = self.info()["unknown_removals"]
                return unknown
            except Closed:
                if self._open:
                    raise
        return self._unknown

    def retire(self) -> None:
        self._unknown = self.unknown_removals()
        self._open = False
        interruptible(self._native.close)


class KvEventPublisher:
    """Tell routers what one rank of a worker has in its KV cache.

    With an ``Endpoint``, the routers are those of its deployment, Dynamo's own among them, or, in memory, of its runtime:
    every ``KvRouter`` of the endpoint's path hears of it a moment later, also one that is made later, and when the worker
    leaves and comes back. Keep the publisher: one that is dropped is shut down. With a text, the publisher listens on
    ZeroMQ, in vLLM's format: give its addresses (see :meth:`info`) to ``Router.add_worker`` as `kv_events`, `replay` and
    `query`, in this process or any other. With `zmq_endpoint` too, what an engine publishes there is passed on, and
    the methods that publish raise.

    Methods are synchronous, may be called from any thread, and raise at once if they are used wrongly (a
    difference from Dynamo, which drops such events silently). A block that is stored twice must be removed twice, also
    when several publishers of a runtime tell of one rank: they are one to the routers, and have blocks of one size.

    Args:
        endpoint: the worker's endpoint, or ``"tcp://HOST:PORT"`` to publish on: HOST ``*`` for all addresses; `dp_rank` is
            added to the port; port 0 takes a free one.
        worker_id: the worker's id; None: that of the endpoint. Must be given without one.
        kv_block_size: tokens per block, 1 .. 1,048,576. Must be given, and be that of the routers.
        dp_rank: the rank, counted over all workers.
        enable_local_indexer: of no consequence: routers of a deployment can always ask for what they missed, and else
            `query_endpoint` decides.
        batching_timeout_ms: of no consequence: events leave at once.
        zmq_endpoint: the engine's event socket, exactly as it is (no rank is added).
        zmq_topic: topic prefix to subscribe to there; None means all.
        image_token_id: must be None.
        kv_state_endpoint: must be None.
        video_token_id: must be None.
        replay_endpoint: where routers ask for messages again, written as `endpoint`; None: nowhere.
        query_endpoint: where routers ask for what they missed or for everything the rank holds; None: nowhere.
        topic: ZeroMQ topic to publish under.
        buffer_steps: how many events are kept to be asked for, 1 .. 1,000,000.
        zmq_replay_endpoint: the engine's replay socket, with which gaps are filled; None: it has none.

    Raises:
        InvalidArgument: a value out of range, or a block size that is not that of a router.
        NotImplementedError: a feature that this version does not have.
        CannotConnect: an address cannot be listened on.
        Closed: the runtime is shut down.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        worker_id: int | None = None,
        kv_block_size: int = 0,
        dp_rank: int = 0,
        enable_local_indexer: bool = False,
        zmq_endpoint: str | None = None,
        zmq_topic: str | None = None,
        batching_timeout_ms: int | None = None,
        image_token_id: int | None = None,
        kv_state_endpoint: str | None = None,
        video_token_id: int | None = None,
        *,
        replay_endpoint: str | None = None,
        query_endpoint: str | None = None,
        topic: str = "",
        buffer_steps: int = 10_000,
        zmq_replay_endpoint: str | None = None,
    ) -> None:
        _refuse(image_token_id=image_token_id, kv_state_endpoint=kv_state_endpoint, video_token_id=video_token_id)
        expect(enable_local_indexer, bool, "enable_local_indexer")
        if batching_timeout_ms is not None and integer(batching_timeout_ms, "batching_timeout_ms") < 0:
            raise InvalidArgument(f"batching_timeout_ms={batching_timeout_ms}, expected 0 or more")
        for name, value in (
            ("zmq_endpoint", zmq_endpoint),
            ("zmq_topic", zmq_topic),
            ("replay_endpoint", replay_endpoint),
            ("query_endpoint", query_endpoint),
            ("zmq_replay_endpoint", zmq_replay_endpoint),
        ):
            if value is not None:
                text(value, name)
        text(topic, "topic")
        self._block_size = integer(kv_block_size, "kv_block_size")
        if self._block_size == 0:
            raise InvalidArgument("kv_block_size cannot be 0: give the engine's block size")
        rank = integer(dp_rank, "dp_rank")
        identity = None if worker_id is None else integer(worker_id, "worker_id")
        engine: dict[str, Any] = {}
        if zmq_endpoint is not None:
            engine = {"kv_events": {str(rank): zmq_endpoint}, "topic": zmq_topic or ""}
            if zmq_replay_endpoint is not None:
                engine["replay"] = {str(rank): zmq_replay_endpoint}
        if isinstance(endpoint, Endpoint):
            if endpoint._hub.closed:
                raise Closed("the runtime is shut down")
            _refuse(replay_endpoint=replay_endpoint, query_endpoint=query_endpoint)
            config: dict[str, Any] = {
                "worker_id": endpoint.connection_id() if identity is None else identity,
                "dp_rank": rank,
                "block_size": self._block_size,
                "buffer_steps": integer(buffer_steps, "buffer_steps"),
            }
            if engine:
                config["engine"] = engine
            native = _native.Publisher(json.dumps(config), endpoint._hub.native, endpoint._path)
            self._outlet = _Sockets(native, rank, self._block_size)
            return
        if not isinstance(endpoint, str):
            raise TypeError(f"endpoint: expected Endpoint or str, got {type(endpoint).__name__} ({shown(endpoint)})")
        text(endpoint, "endpoint")
        if identity is None:
            raise InvalidArgument("worker_id must be given to publish on ZeroMQ")
        if zmq_endpoint is None:
            for name, value in (("zmq_topic", zmq_topic), ("zmq_replay_endpoint", zmq_replay_endpoint)):
                if value is not None:
                    raise InvalidArgument(f"{name}={value!r} without zmq_endpoint")
        config = {
            "worker_id": identity,
            "block_size": self._block_size,
            "dp_start": rank,
            "kv_events": endpoint,
            "replay": replay_endpoint or "",
            "query": query_endpoint or "",
            "topic": topic,
            "buffer_steps": integer(buffer_steps, "buffer_steps"),
        }
        if engine:
            config["engine"] = engine
        self._outlet = _Sockets(_native.Publisher(json.dumps(config)), rank, self._block_size)

    def info(self) -> dict[str, Any]:
        """Where the sockets are, and what was published.

        Returns:
            ``kv_events``, ``replay`` and ``query`` (addresses with the ports taken; "" for none, and in a deployment, whose
            routers find them by themselves), ``dp_rank``, ``messages``
            (published so far), ``blocks`` (held now, on the device), ``stored``, ``duplicate_stores``, ``removed``,
            ``unknown_removals``, ``refused``, and ``engine``: None or its ``state``, ``reason`` and ``counters``, as
            ``Router.health`` has them.

        Raises:
            Closed: it was shut down.
        """
        return self._outlet.info()

    @property
    def unknown_removals(self) -> int:
        """How often a block of this rank was removed that was not held; such removals change nothing."""
        return self._outlet.unknown_removals()

    def publish_stored(
        self,
        token_ids: Tokens,
        num_block_tokens: Sequence[int],
        block_hashes: Sequence[int],
        parent_hash: int | None = None,
        block_mm_infos: _Infos = None,
        lora_name: str | None = None,
        is_eagle: bool | None = None,
        cache_salt: str | None = None,
    ) -> None:
        """Say that a chain of full blocks was stored.

        Args:
            token_ids: the tokens of the blocks, one after the other; with `is_eagle` also the one after them.
            num_block_tokens: tokens of each block; each is the publisher's kv_block_size.
            block_hashes: the engine's name of each block, -2**63 .. 2**64-1.
            parent_hash: the engine's name of the block before the first; None if a prompt begins here.
            block_mm_infos: per block, None or ``{"mm_objects": [{"mm_hash": int, "offsets": [[start, end], ...]}]}``.
            lora_name: LoRA adapter.
            is_eagle: the blocks are windows of one token more, as EAGLE drafters use.
            cache_salt: cache salt; routers call it cache_namespace.

        Raises:
            InvalidArgument: lengths that do not agree, a block that is not full.
            EventRefused: the parent is not held, or the blocks form no chain. Nothing changed.
        """
        self._outlet.store(
            self._chain(
                token_ids,
                num_block_tokens,
                block_hashes,
                parent_hash,
                block_mm_infos,
                lora_name,
                is_eagle,
                cache_salt,
            )
        )

    def publish_removed(self, block_hashes: Sequence[int]) -> None:
        """Say that blocks left the cache. One that is not held is counted, and the others are removed.

        Args:
            block_hashes: the engine's names, as they were stored.
        """
        self._outlet.remove(_engine_hashes(block_hashes))

    def publish_cleared(self) -> None:
        """Say that the rank's whole cache is empty."""
        self._outlet.clear()

    def publish_batch(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Publish several events, in order.

        Args:
            events: ``{"type": "stored", ...}`` with the arguments of :meth:`publish_stored`, ``{"type": "removed",
                "block_hashes": [...]}``, or ``{"type": "cleared"}``.

        Raises:
            InvalidArgument, TypeError, OverflowError: an event is malformed; nothing was published.
            EventRefused: the first event that was refused; all others are published.
        """
        steps = [self._step(event) for event in several(events, "events")]
        refusals: list[EventRefused] = []
        for method, arguments in steps:
            try:
                method(*arguments)
            except EventRefused as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]

    def shutdown(self) -> None:
        """Publish nothing more: later calls do nothing. What was published holds in the routers that know it until the worker
        stops, or, on ZeroMQ, until the worker is removed from them; routers that come later do not hear of it."""
        self._outlet.retire()

    def _step(self, event: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """Check one event of a batch, and give what publishes it."""
        if not isinstance(event, Mapping):
            raise TypeError(f"invalid KV event batch: expected a mapping, got {type(event).__name__}")
        fields = dict(event)
        kind = fields.pop("type", None)
        known = _FIELDS.get(kind) if isinstance(kind, str) else None
        if known is None:
            raise InvalidArgument(
                f"invalid KV event batch: unknown variant `{kind}`, expected `stored`, `removed` or `cleared`"
            )
        required, optional = known
        for name in required:
            if name not in fields:
                raise InvalidArgument(f"invalid KV event batch: missing field `{name}` of a {kind} event")
        for name in fields:
            if name not in required and name not in optional:
                raise InvalidArgument(f"invalid KV event batch: unknown field `{name}` of a {kind} event")
        if kind == "cleared":
            return self._outlet.clear, ()
        if kind == "removed":
            return self._outlet.remove, (_engine_hashes(fields["block_hashes"]),)
        chain = self._chain(**fields)
        # What is wrong inside shows now, before another event is published.
        compute_block_hash_for_seq(
            chain.tokens, self._block_size, chain.infos, chain.lora_name, chain.eagle, chain.cache_salt
        )
        return self._outlet.store, (chain,)

    def _chain(
        self,
        token_ids: Tokens,
        num_block_tokens: Sequence[int],
        block_hashes: Sequence[int],
        parent_hash: int | None = None,
        block_mm_infos: _Infos = None,
        lora_name: str | None = None,
        is_eagle: bool | None = None,
        cache_salt: str | None = None,
    ) -> _Chain:
        """Check the arguments of a store."""
        engine = _engine_hashes(block_hashes)
        for name, value in (("token_ids", token_ids), ("num_block_tokens", num_block_tokens)):
            if not hasattr(type(value), "__len__"):
                raise TypeError(f"{name}: expected a sequence of ints, got {type(value).__name__} ({shown(value)})")
        if len(num_block_tokens) != len(engine):
            raise InvalidArgument(f"num_block_tokens has {len(num_block_tokens)} blocks, block_hashes {len(engine)}")
        for size in num_block_tokens:
            if size != self._block_size:
                raise InvalidArgument(
                    f"num_block_tokens has a block of {size}, expected {self._block_size}, a full block"
                )
        eagle = False if is_eagle is None else expect(is_eagle, bool, "is_eagle")
        expected = len(engine) * self._block_size + (1 if eagle and engine else 0)
        given = len(token_ids)  # type: ignore[arg-type]  # buffers of tokens have a length
        if given != expected:
            raise InvalidArgument(
                f"token_ids has {given} tokens, expected {expected} for {len(engine)} blocks of {self._block_size}"
                f"{' and the one after' if eagle else ''}"
            )
        if block_mm_infos is not None and len(several(block_mm_infos, "block_mm_infos")) != len(engine):
            raise InvalidArgument(f"block_mm_infos has {len(block_mm_infos)} blocks, block_hashes {len(engine)}")
        parent = None if parent_hash is None else _engine_hash(parent_hash, "parent_hash")
        return _Chain(parent, token_ids, engine, block_mm_infos, lora_name, eagle, cache_salt)


# The fields of each event of a batch: those it must have, those it may have.
_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "stored": (
        ("token_ids", "num_block_tokens", "block_hashes"),
        ("parent_hash", "block_mm_infos", "lora_name", "is_eagle", "cache_salt"),
    ),
    "removed": (("block_hashes",), ()),
    "cleared": ((), ()),
}


def _refuse(**given: object) -> None:
    """Refuse what this version, or this kind of publisher, does not have."""
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(f"{name}={value!r} is not implemented: only None exists here")


def _engine_hashes(values: Sequence[int]) -> list[int]:
    return [_engine_hash(value, "block_hashes") for value in several(values, "block_hashes")]


def _engine_hash(value: int, name: str) -> int:
    """Give a hash as 0 .. 2**64-1; a negative one is the same bits, signed."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected int, got {type(value).__name__} ({shown(value)})") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise OverflowError(f"{name} has {shown(number)}, expected -2**63 .. 2**64-1")
    return number & ((1 << 64) - 1)


class WorkerMetricsPublisher:
    """Tell routers what a worker is busy with, besides what they placed there themselves."""

    def __init__(self) -> None:
        self._endpoint: Endpoint | None = None

    def create_endpoint(self, endpoint: Endpoint) -> asyncio.Future[None]:
        """Begin to publish for a worker; done at once. Routers find it from then on."""
        if not isinstance(endpoint, Endpoint):
            raise TypeError(f"endpoint: expected Endpoint, got {type(endpoint).__name__} ({shown(endpoint)})")
        self._endpoint = endpoint
        self._tell({})
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def publish(
        self, dp_rank: int | None = None, active_decode_blocks: int | None = None, kv_used_blocks: int | None = None
    ) -> None:
        """Publish what a rank is busy with. Before :meth:`create_endpoint` it goes nowhere.

        Args:
            dp_rank: counted over all workers; None is 0.
            active_decode_blocks: blocks of requests that run.
            kv_used_blocks: blocks that are not free.

        Raises:
            InvalidArgument: a number below 0 or too large, or no metric at all.
        """
        if active_decode_blocks is None and kv_used_blocks is None:
            raise InvalidArgument("worker metrics publish requires at least one load metric")
        load = {"dp_rank": 0 if dp_rank is None else dp_rank}
        for name, value in (("active_decode_blocks", active_decode_blocks), ("kv_used_blocks", kv_used_blocks)):
            if value is not None:
                load[name] = value
        for name, value in load.items():
            load[name] = integer(value, name)
            if not 0 <= load[name] < 1 << (32 if name == "dp_rank" else 64):
                raise InvalidArgument(f"{name}={shown(value)}, expected 0 or more")
        self._tell(load)

    def _tell(self, load: dict[str, int]) -> None:
        endpoint = self._endpoint
        if endpoint is not None:
            load["worker_id"] = endpoint.connection_id()
            with contextlib.suppress(Closed):  # nobody is there any more
                endpoint._hub.native.load(endpoint._path, json.dumps(load))
