"""One request in flight, at both of its ends: a task runs the worker's handler, a stream reads what comes.

An :class:`Answer` is *open*, then *ended*; it never opens again. It ends when the handler does, fails or yields something
that cannot be sent, when its worker goes away, or when its caller does.
"""

from __future__ import annotations

import asyncio
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

# How many items a handler may yield that never waits, until others of its loop have a turn.
TURN_ITEMS = 64

_STOPPED = "the worker stopped before the generation completed"
_INVALID = "InvalidRequest: "  # how the message of an error begins by which a worker says that the request is wrong


class Watcher(Protocol):
    """Sees what a call brings, and says what its reader gets."""

    def begun(self, route: Any) -> None:
        """A worker begins to answer; a router tells which."""

    def arrived(self, item: Any, flags: int, timing: Any) -> Any:
        """Turn an item into what the reader gets. A ``DynamoError`` ends the call with it."""

    def note(self, note: list[Any]) -> Any:
        """Turn a remark, a name and a comment, into what the reader gets; None: nothing."""

    def failure(self, error: Exception) -> Any:
        """Give a last item that tells of the error, or raise it."""


class Answer:
    """A request that a worker of this process answers: items go to the library as they come. All of it belongs to the loop."""

    def __init__(
        self,
        native: Runtime,
        number: int,
        start: Callable[[], AsyncIterator[Any]],
        context: Context,
        done: Callable[[Answer], None],
    ) -> None:
        """Start the handler."""
        self._native = native
        self._number = number
        self._context = context
        self._ahead = False  # of the caller's socket
        self._grace: asyncio.TimerHandle | None = None
        self._sleeper: asyncio.Future[None] | None = None  # the handler's task, while it waits for the socket
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._pump(start))
        self._done = done
        self._task.add_done_callback(self._finished)

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
        if self._grace is None and not self._ended:
            self._grace = self._loop.call_later(STOP_GRACE_SECONDS, self._cancel)

    def fail(self, error: Exception) -> None:
        """The worker goes away: end the call with an error, and cancel the handler."""
        self._end(error)
        self._cancel()

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
            handler = start()
            if not hasattr(handler, "__aiter__"):
                if asyncio.iscoroutine(handler):
                    handler.close()
                kind = type(handler).__name__
                raise WorkerError(
                    f"the worker's handler gave a {kind}, expected an asynchronous generator: has it a yield?"
                )
            try:
                items = 0
                async for item in handler:
                    if self._ended:
                        break  # it had the time to see that it is stopped
                    self._put(item)
                    while self._ahead and not self._ended:
                        await self._sleep()
                    items += 1
                    if items % TURN_ITEMS == 0:  # one that never waits hears here that its caller is gone
                        await asyncio.sleep(0)
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
        if not self._context.is_stopped():
            with contextlib.suppress(Cancelled, RequestNotFound):  # the caller is gone, which is about to be told
                self._ahead = self._native.answer(self._number, item)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._wake()
        if self._grace is not None:
            self._grace.cancel()
        failure = None
        if error is not None:
            gone = isinstance(error, Disconnected)
            cause = error.__cause__ or error
            message = str(error) if gone or type(cause) is WorkerError else f"{type(cause).__name__}: {cause}"
            # A handler that asks another worker in turn passes on that the request is wrong.
            passed = type(cause) is WorkerError and message.startswith(_INVALID)
            invalid = passed or isinstance(cause, ValueError)
            failure = json.dumps({"message": message.removeprefix(_INVALID * passed), "invalid": invalid, "gone": gone})
        with contextlib.suppress(DynamoError):  # it ended by itself: the runtime was closed
            self._native.finish(self._number, failure)

    async def _sleep(self) -> None:
        self._sleeper = self._loop.create_future()
        await self._sleeper

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)


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

    def __init__(self, call: RemoteCall) -> None:
        self._call = call

    def __aiter__(self) -> AsyncResponseStream:
        return self

    async def __anext__(self) -> Any:
        return await self._call.next()

    async def _begun(self) -> AsyncResponseStream:
        """Wait until a worker begins to answer."""
        return await self._call.begun(self)

    async def aclose(self) -> None:
        """End the request, if it has not ended. Reading on finds the end."""
        self._abandon()

    def _abandon(self) -> None:
        self._call.abandon()

    def __del__(self) -> None:
        self._call.dropped()
