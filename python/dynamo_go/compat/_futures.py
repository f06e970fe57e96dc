"""Futures and streams that end as Dynamo's do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from .._call import AsyncResponseStream
from .._errors import Disconnected, WorkerError

S = TypeVar("S")
T = TypeVar("T")


def mapped(given: asyncio.Future[S], turn: Callable[[S], T]) -> asyncio.Future[T]:
    """Give a future of what `turn` makes of the given one's result. Cancelling it cancels the given one first."""
    if given.done() and not given.cancelled():
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        error = given.exception()
        if error is None:
            future.set_result(turn(given.result()))
        else:
            future.set_exception(error)
        return future

    async def turned() -> T:
        return turn(await given)

    def ended(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            given.cancel()  # it may not have come to await it

    task = asyncio.ensure_future(turned())
    task.add_done_callback(ended)
    return task


def unit(_: object) -> tuple[()]:
    """What Dynamo's methods give that have nothing to give."""
    return ()


class StreamFailed(WorkerError, ValueError):
    """The worker's handler failed: a ``ValueError``, as Dynamo raises it."""


class StreamLost(Disconnected, ValueError):
    """The worker went away: a ``ValueError``, as Dynamo raises it."""


class Stream(AsyncResponseStream):
    """A stream whose errors are ``ValueError`` too."""

    __slots__ = ("_inner",)

    def __init__(self, inner: AsyncResponseStream) -> None:
        self._inner = inner

    async def __anext__(self) -> Any:
        try:
            return await self._inner.__anext__()
        except WorkerError as error:
            raise StreamFailed(*error.args) from error
        except Disconnected as error:
            raise StreamLost(*error.args) from error

    async def _begun(self) -> AsyncResponseStream:
        await self._inner._begun()
        return self

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __del__(self) -> None:
        pass  # the inner one goes with it
