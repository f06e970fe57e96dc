"""What is published of one rank's cache."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from . import _native
from ._errors import ForkError
from ._json import encode
from ._router import Router


class Source:
    """The blocks of one rank as its publishers told them, with references counted.

    Engines may keep two copies of a block, stored twice and removed twice: only the last removal is one. The index is a
    router of its own, so that a router that comes later can be given a dump. Called under the hub's lock.

    `_held` maps each block's engine hash to (references, sequence hash): the latter names the block by its own content and
    all before it, whatever the engine called those. A hash used again for another block starts anew. What always holds:
    its keys are the names that the index knows.
    """

    def __init__(self, path: str, worker_id: int, dp_rank: int, block_size: int) -> None:
        self.path = path
        self.worker_id = worker_id
        self.dp_rank = dp_rank
        self.block_size = block_size
        self.publishers = 0
        self.unknown_removals = 0
        self._router = Router(block_size)
        self._router.add_worker(worker_id, dp_start=dp_rank)
        self._held: dict[int, tuple[int, int]] = {}
        self._next_id = 0

    def store(self, parent: int | None, blocks: Sequence[tuple[int, int]]) -> bytes:
        """Take a chain of (engine hash, content hash). Gives the event for the routers; EventRefused changes nothing."""
        event = self._event(
            {
                "stored": {
                    "parent_hash": parent,
                    "blocks": [{"block_hash": engine, "tokens_hash": content} for engine, content in blocks],
                }
            }
        )
        self._router.apply_event(self.worker_id, event, duplicate_stores="set")
        before = [] if parent is None else [self._held[parent][1]]
        names = _native.sequence_hashes([*before, *(content for _, content in blocks)])[len(before) :]
        for (engine, _), name in zip(blocks, names, strict=True):
            count, old = self._held.get(engine, (0, name))
            self._held[engine] = (count + 1 if old == name else 1, name)
        return event

    def remove(self, hashes: Sequence[int]) -> bytes | None:
        """Take one reference of each hash. Gives the event for the routers, None if every block stays."""
        gone = []
        for engine in hashes:
            count, name = self._held.get(engine, (0, 0))
            if count == 0:
                self.unknown_removals += 1
            elif count > 1:
                self._held[engine] = (count - 1, name)
            else:
                del self._held[engine]
                gone.append(engine)
        if not gone:
            return None
        event = self._event({"removed": {"block_hashes": gone}})
        self._router.apply_event(self.worker_id, event)
        return event

    def clear(self) -> bytes:
        """Take that the whole cache is empty. Gives the event for the routers."""
        event = self.cleared()
        self._router.apply_event(self.worker_id, event)
        self._held.clear()
        return event

    def cleared(self) -> bytes:
        """Give the event that empties the rank, for a router that is to be filled anew."""
        return self._event("cleared")

    def dump(self) -> str:
        """Give what the rank holds, as stores for a router that comes later.

        Blocks behind a hole are left out, as no store can express them: that router under-counts until they are stored
        again.
        """
        return self._router.dump_events()

    def close(self) -> None:
        """Let go of the index. Never raises: whoever drops a publisher comes here, in a forked child, too."""
        with contextlib.suppress(ForkError):
            self._router.close()
        self._held.clear()

    def _event(self, data: Any) -> bytes:
        self._next_id += 1
        return encode({"event_id": self._next_id - 1, "dp_rank": self.dp_rank, "data": data}, "event").encode()
