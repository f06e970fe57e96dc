"""What a handler knows about the request it serves, and how it learns that nobody wants the answer any more."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping

from ._checks import expect


class Context:
    """Names a request, and tells whether its answer is still wanted. Handlers that take two parameters get one.

    When the consumer of a stream goes away the context is *stopped*: the handler should end soon. It runs on to its next
    item, or for a second, and is then cancelled. *Killed* means that it is being cancelled now.

    A context can also be made by whoever sends a request, to stop it later: ``client.generate(request, context=context)``.
    """

    __slots__ = ("_id", "_killed", "_listeners", "_metadata", "_stopped", "_waiters")

    #: Requests are not traced; Dynamo has these, and they are None there too without a tracer.
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None

    def __init__(self, id: str | None = None, metadata: Mapping[str, str] | None = None) -> None:
        """`id` names the request; without one it is a random UUID. `metadata` goes with it, as it is."""
        self._id = str(uuid.uuid4()) if id is None else expect(id, str, "id")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata: expected a mapping, got {type(metadata).__name__}")
        self._metadata = dict(metadata or {})
        self._stopped = False
        self._killed = False
        self._waiters: set[asyncio.Future[bool]] = set()
        self._listeners: list[Callable[[], None]] = []

    def id(self) -> str:
        """The request's id."""
        return self._id

    @property
    def metadata(self) -> dict[str, str]:
        """What whoever sent the request gave with it."""
        return self._metadata

    def trace_headers(self) -> dict[str, str] | None:
        """Give None: requests are not traced."""
        return None

    def is_stopped(self) -> bool:
        """Whether the answer is not wanted any more. True for good once it is."""
        return self._stopped

    def is_killed(self) -> bool:
        """Whether the handler is being cancelled."""
        return self._killed

    def stop_generating(self) -> None:
        """Ask the handler to end. It sees :meth:`is_stopped`; what it yields until it ends still arrives."""
        self._stopped = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()
        for waiter in tuple(self._waiters):
            if not waiter.done():
                waiter.set_result(True)

    def _on_stop(self, listener: Callable[[], None]) -> None:
        """Call something once when the context is stopped, or now if it is."""
        if self._stopped:
            listener()
        else:
            self._listeners.append(listener)

    def _kill(self) -> None:
        self._killed = True
        self.stop_generating()

    async def async_killed_or_stopped(self) -> bool:
        """Wait until the context is stopped or killed. Gives True."""
        if self._stopped:
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)

    def __repr__(self) -> str:
        state = "killed" if self._killed else "stopped" if self._stopped else "running"
        return f"<Context {self._id} {state}>"
