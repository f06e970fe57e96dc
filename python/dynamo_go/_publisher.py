"""The worker's side of KV events."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import EventRefused, InvalidArgument
from ._hub import Hub
from ._router import compute_block_hash_for_seq
from ._runtime import Endpoint

if TYPE_CHECKING:
    from ._native import Tokens

_Infos = Sequence[Mapping[str, Any] | None] | None


class KvEventPublisher:
    """Tell the routers of a runtime what one rank of a worker has in its KV cache.

    Every ``KvRouter`` of the endpoint's path hears of it, also one that is made later, and when the worker leaves and
    comes back. Methods are synchronous, may be called from any thread, and raise at once if they are used wrongly (a
    difference from Dynamo, which drops such events silently). A block that is stored twice must be removed twice, also
    when several publishers tell of one rank.

    Args:
        endpoint: the worker's endpoint.
        worker_id: the worker's id; None: that of the endpoint.
        kv_block_size: tokens per block, 1 .. 1,048,576. Must be given, and be that of the routers.
        dp_rank: the rank, counted over all workers.
        enable_local_indexer: of no consequence in memory, where nothing is lost.
        batching_timeout_ms: of no consequence in memory: events arrive at once.
        zmq_endpoint, zmq_topic, image_token_id, kv_state_endpoint, video_token_id: must be None.

    Raises:
        InvalidArgument: a value out of range, or a block size that is not that of a router.
        NotImplementedError: a feature that this version does not have. To follow an engine's ZeroMQ socket, give it to
            ``Router.add_worker``.
        Closed: the runtime is shut down.
    """

    def __init__(
        self,
        endpoint: Endpoint,
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
    ) -> None:
        if not isinstance(endpoint, Endpoint):
            raise TypeError(f"endpoint: expected Endpoint, got {type(endpoint).__name__}")
        for name, value in (
            ("zmq_endpoint", zmq_endpoint),
            ("zmq_topic", zmq_topic),
            ("image_token_id", image_token_id),
            ("kv_state_endpoint", kv_state_endpoint),
            ("video_token_id", video_token_id),
        ):
            if value is not None:
                raise NotImplementedError(f"{name}={value!r} is not implemented: only None exists")
        self._block_size = _integer(kv_block_size, "kv_block_size")
        if self._block_size == 0:
            raise InvalidArgument("kv_block_size cannot be 0: give the engine's block size")
        self._hub: Hub = endpoint._hub
        self._endpoint = endpoint  # keeps the worker's id
        identity = endpoint.connection_id() if worker_id is None else _integer(worker_id, "worker_id")
        rank = _integer(dp_rank, "dp_rank")
        self._source = self._hub.source(endpoint._path, identity, rank, self._block_size)
        self._retire = weakref.finalize(self, self._hub.retire, self._source)
        self._retire.atexit = False  # nobody is there to hear it, least of all in a forked child

    @property
    def unknown_removals(self) -> int:
        """How often a block of this rank was removed that was not held; such removals change nothing."""
        return self._source.unknown_removals

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
        chain = self._chain(token_ids, num_block_tokens, block_hashes, block_mm_infos, lora_name, is_eagle, cache_salt)
        self._store(_engine_hash(parent_hash, "parent_hash") if parent_hash is not None else None, chain)

    def publish_removed(self, block_hashes: Sequence[int]) -> None:
        """Say that blocks left the cache. One that is not held is counted, and the others are removed.

        Args:
            block_hashes: the engine's names, as they were stored.
        """
        self._remove(_engine_hashes(block_hashes))

    def publish_cleared(self) -> None:
        """Say that the rank's whole cache is empty."""
        with self._hub.lock:
            if self._retire.alive:
                self._hub.publish(self._source, self._source.clear())

    def publish_batch(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Publish several events, in order.

        Args:
            events: ``{"type": "stored", ...}`` with the arguments of :meth:`publish_stored`, ``{"type": "removed",
                "block_hashes": [...]}``, or ``{"type": "cleared"}``.

        Raises:
            InvalidArgument: an event is malformed; nothing was published.
            EventRefused: the first event that was refused; all others are published.
        """
        steps = [self._step(event) for event in events]
        refusals: list[EventRefused] = []
        for method, arguments in steps:
            try:
                method(*arguments)
            except EventRefused as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]

    def shutdown(self) -> None:
        """Publish nothing more: later calls do nothing. What was published holds until the worker stops."""
        self._retire()

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
            return self.publish_cleared, ()
        if kind == "removed":
            return self._remove, (_engine_hashes(fields["block_hashes"]),)
        parent = fields.pop("parent_hash", None)
        return self._store, (None if parent is None else _engine_hash(parent, "parent_hash"), self._chain(**fields))

    def _chain(
        self,
        token_ids: Tokens,
        num_block_tokens: Sequence[int],
        block_hashes: Sequence[int],
        block_mm_infos: _Infos = None,
        lora_name: str | None = None,
        is_eagle: bool | None = None,
        cache_salt: str | None = None,
    ) -> list[tuple[int, int]]:
        """Check the arguments of a store, and give (engine hash, content hash) of each block."""
        engine = _engine_hashes(block_hashes)
        if len(num_block_tokens) != len(engine):
            raise InvalidArgument(f"num_block_tokens has {len(num_block_tokens)} blocks, block_hashes {len(engine)}")
        for size in num_block_tokens:
            if size != self._block_size:
                raise InvalidArgument(
                    f"num_block_tokens has a block of {size}, expected {self._block_size}, a full block"
                )
        expected = len(engine) * self._block_size + (1 if is_eagle and engine else 0)
        given = len(token_ids)  # type: ignore[arg-type]  # buffers of tokens have a length
        if given != expected:
            raise InvalidArgument(
                f"token_ids has {given} tokens, expected {expected} for {len(engine)} blocks of {self._block_size}"
                f"{' and the one after' if is_eagle else ''}"
            )
        if block_mm_infos is not None and len(block_mm_infos) != len(engine):
            raise InvalidArgument(f"block_mm_infos has {len(block_mm_infos)} blocks, block_hashes {len(engine)}")
        content = compute_block_hash_for_seq(
            token_ids, self._block_size, block_mm_infos, lora_name, is_eagle, cache_salt
        )
        return list(zip(engine, content, strict=True))

    def _store(self, parent: int | None, chain: list[tuple[int, int]]) -> None:
        with self._hub.lock:
            if self._retire.alive:
                self._hub.publish(self._source, self._source.store(parent, chain))

    def _remove(self, hashes: list[int]) -> None:
        with self._hub.lock:
            if self._retire.alive and (event := self._source.remove(hashes)) is not None:
                self._hub.publish(self._source, event)


# The fields of each event of a batch: those it must have, those it may have.
_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "stored": (
        ("token_ids", "num_block_tokens", "block_hashes"),
        ("parent_hash", "block_mm_infos", "lora_name", "is_eagle", "cache_salt"),
    ),
    "removed": (("block_hashes",), ()),
    "cleared": ((), ()),
}


def _integer(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected int, got {type(value).__name__} ({value!r})") from None


def _engine_hashes(values: Sequence[int]) -> list[int]:
    return [_engine_hash(value, "block_hashes") for value in values]


def _engine_hash(value: int, name: str) -> int:
    """Give a hash as 0 .. 2**64-1; a negative one is the same bits, signed."""
    number = operator.index(value)
    if not -(1 << 63) <= number < 1 << 64:
        raise OverflowError(f"{name} has {number}, expected -2**63 .. 2**64-1")
    return number & ((1 << 64) - 1)
