"""Items that the library produces, for ``async for``.

The library makes a descriptor readable when there is something to take; the loop watches it while somebody waits, and no
longer. All that came is taken and decoded at once: nothing calls Python from a thread of the library, and an item costs
little.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from typing import Any

from ._errors import DynamoError
from ._native import Stream


class ItemStream:
    """Items in order: ``async for item in stream``. One reader at a time.

    Whoever fills the stream is held back while its reader is slow. Dropping the stream closes it.

    Raises, where an item would come:
        Disconnected: who served it is gone.
        WorkerError: who served it failed.
        Cancelled: it was killed.
        Closed: it was closed.
    """

    __slots__ = ("__weakref__", "_native", "_items", "_waiter")

    def __init__(self, native: Stream) -> None:
        self._native = native
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> ItemStream:
        return self

    async def __anext__(self) -> Any:
        if not self._items:
            await self._fill()
        return self._items.popleft()

    async def _fill(self) -> None:
        while True:
            taken = self._native.take(0)
            if taken is None:
                raise StopAsyncIteration
            if taken:
                self._items.extend(json.loads(b"[%s]" % b",".join(taken)))
                return
            await self._wait()

    async def _wait(self) -> None:
        """Wait until there is something to take, or to tell."""
        if self._waiter is not None:
            raise RuntimeError("another task waits for the next item of this stream")
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        try:
            loop.add_reader(self._native.fd(), _wake, waiter)
            await waiter
        finally:
            self._unwatch(waiter)

    def _unwatch(self, waiter: asyncio.Future[None]) -> None:
        """Stop polling the descriptor, once: after the stream is closed its number may be another's."""
        if self._waiter is waiter:
            self._waiter = None
            with contextlib.suppress(DynamoError, RuntimeError):  # there is no descriptor; the loop is closed
                waiter.get_loop().remove_reader(self._native.fd())

    def stop(self) -> None:
        """Ask whoever fills the stream to end it; what is on its way comes before the end."""
        self._native.cancel(False)

    async def aclose(self) -> None:
        """Close the stream: what was not read is dropped. A task that waits for an item gets ``Closed``."""
        self._items.clear()
        waiter = self._waiter
        if waiter is not None:
            self._unwatch(waiter)
            _wake(waiter)
        self._native.close()


def _wake(waiter: asyncio.Future[None]) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        waiter.set_result(None)
