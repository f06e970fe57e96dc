"""RadixTree: the index by itself, for those who score on their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from . import _native
from ._json import document
from ._signals import interruptible


class OverlapScores:
    """How many leading blocks of a prompt each rank holds; what :meth:`RadixTree.find_matches` gives."""

    __slots__ = ("scores",)

    def __init__(self, scores: dict[tuple[int, int], int]) -> None:
        self.scores = scores
        """Blocks by (worker_id, dp_rank); ranks that hold none are left out."""

    @property
    def frequencies(self) -> list[int]:
        """Always empty, as in Dynamo 1.6.1."""
        return []

    def __repr__(self) -> str:
        return f"OverlapScores({self.scores!r})"


class RadixTree:
    """Which worker ranks hold how much of a prompt, from the KV events of their engines.

    The index of a :class:`Router`, without its loads, costs and connections. A rank comes with its first store; at most
    65,536. All methods may be called from any thread::

        tree = RadixTree()
        block = {"block_hash": 1, "tokens_hash": compute_block_hash_for_seq(tokens, 16)[0]}
        tree.apply_event(7, {"event_id": 1, "data": {"stored": {"parent_hash": None, "blocks": [block]}}})
        assert tree.find_matches(compute_block_hash_for_seq(tokens, 16)).scores == {(7, 0): 1}

    **Errors**: :class:`InvalidArgument` (a ``ValueError``) for a malformed event or value, ``TypeError`` for a wrong type,
    :class:`EventRefused` (a ``RuntimeError``) for an event that contradicts what the rank holds, :class:`Closed`,
    :class:`ForkError`.
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self) -> None:
        self._native = _native.RadixTree()

    def apply_event(self, worker_id: int, kv_cache_event_bytes: bytes | str | Mapping[str, Any]) -> None:
        """Apply one KV event of a worker; its form is that of :meth:`Router.apply_event`, for device blocks.

        A block that is stored twice must be removed once.

        Raises:
            InvalidArgument: the event is malformed, or of another tier.
            EventRefused: a store's parent is not held by the rank or its blocks form no chain, and nothing changed; or a
                block to remove is not held, and those that were are removed.
            Overloaded: too many ranks.
        """
        self._native.apply_event(worker_id, document(kv_cache_event_bytes, "kv_cache_event"))

    def find_matches(self, sequence: Iterable[int], early_exit: bool = False) -> OverlapScores:
        """Tell how many leading blocks of a prompt each rank holds, without a hole.

        Args:
            sequence: the hash of each of the prompt's blocks (:func:`compute_block_hash_for_seq`), 0 .. 2**64-1.
            early_exit: of no consequence: a match is complete, and fast.
        """
        return OverlapScores(self._native.find_matches(sequence))

    def remove_worker(self, worker_id: int) -> None:
        """Forget a worker with all its ranks; one that is not there is no error."""
        self._native.remove_worker(worker_id)

    def clear_all_blocks(self, worker_id: int) -> None:
        """Forget what a worker's ranks hold; one that is not there is no error."""
        self._native.remove_worker(worker_id)

    def dump_tree_as_events(self) -> list[str]:
        """Give all that can be matched as RouterEvents in JSON that store it, a rank after the other, parents first."""
        return interruptible(self._native.dump).splitlines()

    def close(self) -> None:
        """Give the memory back. Closing again does nothing; dropping the tree does it too."""
        self._native.close()

    def __enter__(self) -> RadixTree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
