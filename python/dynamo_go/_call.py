"""One request in flight: a task runs the worker's handler into a bounded buffer, a stream reads from it.

States of a :class:`Call`: *open*, then *ended*; it never opens again. A call ends when the handler does, fails or yields
something unusable, when its worker goes away, or when its reader does. Its watcher is told exactly once that it ended,
at that moment, and sees every item before that. What was buffered when a handler ended can still be read.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol

from ._context import Context
from ._errors import Cancelled, Disconnected, DynamoError, RequestNotFound, WorkerError

if TYPE_CHECKING:
    from ._deployment import RemoteCall
    from ._native import Runtime

# How long a handler may run on after its reader went away, before it is cancelled.
STOP_GRACE_SECONDS = 1.0

_STOPPED = "the worker stopped before the generation completed"


class Watcher(Protocol):
    """Sees what passes through a call. Never called with a lock held. The last three are of a call to another process."""

    def item(self, item: Any) -> Any:
        """Turn what the handler yielded into what the reader gets. An exception ends the call with it."""

    def failure(self, error: Exception) -> Any:
        """Give a last item that tells of the error, or raise it."""

    def ended(self) -> None:
        """The call ended. Called in any thread, never raises."""

    def begun(self, route: Any) -> None:
        """A worker begins to answer; a router tells which."""

    def arrived(self, item: Any, flags: int, timing: Any) -> Any:
        """Turn an item into what the reader gets, as `item` does."""

    def note(self, note: list[Any]) -> Any:
        """Turn a remark, a name and a comment, into what the reader gets; None: nothing."""


class Call:
    """A request in flight. All methods but :meth:`dropped` belong to the event loop."""

    def __init__(
        self,
        start: Callable[[], AsyncIterator[Any]],
        context: Context,
        buffer_size: int,
        watcher: Watcher,
        done: Callable[[Call], None],
    ) -> None:
        """Start the handler, at most `buffer_size` items ahead of the reader; 0: each item is computed when asked for."""
        self._context = context
        self._limit = buffer_size
        self._watcher = watcher
        self._items: collections.deque[Any] = collections.deque()
        self._readers = 0  # waiting for an item now
        self._sleepers: list[asyncio.Future[None]] = []
        self._ended = False
        self._error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._pump(start))
        self._done = done
        self._task.add_done_callback(self._finished)

    async def begun(self) -> None:
        """Do nothing: the worker has begun."""

    async def next(self) -> Any:
        """Give the next item. Cancelling it abandons the call, as it would an asynchronous generator."""
        if not self._items and not self._ended:
            self._readers += 1
            self._wake()
            try:
                while not self._items and not self._ended:
                    await self._sleep()
            except asyncio.CancelledError:
                self.abandon()
                raise
            finally:
                self._readers -= 1
        if self._items:
            self._wake()
            return self._items.popleft()
        error, self._error = self._error, None
        if error is not None:
            return self._watcher.failure(error)
        raise StopAsyncIteration

    def abandon(self) -> None:
        """Nobody reads any more: end the call, and have the handler stop."""
        self._items.clear()
        self._end(None)
        if not self._task.done():
            self._context.stop_generating()
            timer = self._loop.call_later(STOP_GRACE_SECONDS, self._cancel)
            self._task.add_done_callback(lambda _: timer.cancel())

    def fail(self, error: Exception) -> None:
        """The worker went away: end the call with an error, and cancel the handler."""
        self._end(error)
        self._cancel()

    def dropped(self) -> None:
        """The stream was collected, by any thread. The watcher knows at once, the handler as soon as the loop runs."""
        if self._task.done():
            return
        if asyncio._get_running_loop() is self._loop:
            self.abandon()
            return
        self._watcher.ended()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.abandon)

    def _cancel(self) -> None:
        if not self._task.done():
            self._context._kill()
            self._task.cancel()

    def _finished(self, _: asyncio.Task[None]) -> None:
        self._end(Disconnected(_STOPPED))  # a task that is cancelled before its first step has not done so
        self._done(self)

    async def _pump(self, start: Callable[[], AsyncIterator[Any]]) -> None:
        error: Exception | None = None
        try:
            await self._room()
            if self._ended:
                return
            handler = start()
            if not hasattr(handler, "__aiter__"):
                if asyncio.iscoroutine(handler):
                    handler.close()
                kind = type(handler).__name__
                raise WorkerError(
                    f"the worker's handler gave a {kind}, expected an asynchronous generator: has it a yield?"
                )
            try:
                async for item in handler:
                    if self._ended:
                        break  # it had the time to see that it is stopped
                    self._put(item)
                    await self._room()
            finally:
                await _close(handler)
        except asyncio.CancelledError:
            error = Disconnected(_STOPPED)
            raise
        except DynamoError as mistake:
            error = mistake
        except BaseException as mistake:  # also one that is no Exception: what came is not the whole answer
            error = WorkerError(f"the worker's handler raised {type(mistake).__name__}: {mistake}")
            error.__cause__ = mistake
            if isinstance(mistake, (KeyboardInterrupt, SystemExit)):
                raise
        finally:
            self._end(error)

    def _put(self, item: Any) -> None:
        self._items.append(self._watcher.item(item))
        self._wake()

    async def _room(self) -> None:
        """Wait until the reader lets the handler go on, or is gone."""
        while not self._ended and len(self._items) >= self._limit + self._readers:
            await self._sleep()

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            self._watcher.ended()
            self._wake()

    async def _sleep(self) -> None:
        sleeper = self._loop.create_future()
        self._sleepers.append(sleeper)
        await sleeper

    def _wake(self) -> None:
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)


class Answer(Call):
    """A request of another process, which a worker of this one answers: items go to the library as they come."""

    def __init__(
        self,
        native: Runtime,
        number: int,
        start: Callable[[], AsyncIterator[Any]],
        context: Context,
        done: Callable[[Call], None],
    ) -> None:
        self._native = native
        self._number = number
        self._ahead = False  # of the caller's socket
        self._grace: asyncio.TimerHandle | None = None
        super().__init__(start, context, 0, _NOBODY, done)

    def drained(self) -> None:
        """Hear that the socket has taken what waited for it."""
        self._ahead = False
        self._wake()

    def cancelled(self, kill: bool) -> None:
        """Hear that the caller wants no more: the handler may see it, and has a while to end."""
        if kill:
            self._context._kill()
        else:
            self._context.stop_generating()
        self.drained()
        if self._grace is None:
            self._grace = self._loop.call_later(STOP_GRACE_SECONDS, self._cancel)

    def _put(self, item: Any) -> None:
        if not self._context.is_stopped():
            with contextlib.suppress(Cancelled, RequestNotFound):  # the caller is gone, which is about to be told
                self._ahead = self._native.answer(self._number, item)

    async def _room(self) -> None:
        while self._ahead and not self._ended:
            await self._sleep()

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        super()._end(error)
        if self._grace is not None:
            self._grace.cancel()
        failure = None
        if error is not None:
            cause = error.__cause__ or error
            invalid = isinstance(cause, ValueError)
            failure = json.dumps({"message": f"{type(cause).__name__}: {cause}", "invalid": invalid})
        with contextlib.suppress(DynamoError):  # it ended by itself: the runtime was closed
            self._native.finish(self._number, failure)


class _Nobody:
    """Watches nothing."""

    def item(self, item: Any) -> Any:
        return item

    def failure(self, error: Exception) -> Any:
        raise error

    def ended(self) -> None:
        pass

    def begun(self, route: Any) -> None:
        pass

    def arrived(self, item: Any, flags: int, timing: Any) -> Any:
        return item

    def note(self, note: list[Any]) -> Any:
        return None


_NOBODY = _Nobody()


async def _close(handler: AsyncIterator[Any]) -> None:
    close = getattr(handler, "aclose", None)
    if close is not None:
        await close()


class AsyncResponseStream:
    """A stream of responses: ``async for item in stream``.

    Dropping it, closing it, or cancelling a task that waits for its next item ends the request: the worker's handler sees
    ``context.is_stopped()``, and a router frees what it had booked.
    """

    __slots__ = ("__weakref__", "_call")

    def __init__(self, call: Call | RemoteCall) -> None:
        self._call = call

    def __aiter__(self) -> AsyncResponseStream:
        return self

    async def __anext__(self) -> Any:
        return await self._call.next()

    async def _begun(self) -> AsyncResponseStream:
        """Wait until a worker begins to answer."""
        await self._call.begun()
        return self

    async def aclose(self) -> None:
        """End the request, if it has not ended. Reading on finds the end."""
        self._abandon()

    def _abandon(self) -> None:
        self._call.abandon()

    def __del__(self) -> None:
        self._call.dropped()
