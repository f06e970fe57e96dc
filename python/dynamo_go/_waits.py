"""Requests that wait for a worker, as futures of an event loop.

The library makes a descriptor readable when tickets are done; the loop watches it while any future is pending, and no
longer, so that a dropped router can go. Everything here belongs to the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any

from ._errors import Closed, DynamoError
from ._router import Router

Choice = tuple[int, int, int]


class _Promise(asyncio.Future[Choice]):
    """A choice to come. Cancelled before anybody has read it, it is given up, also if it has come: who waits for it gets
    CancelledError then, and knows of no booking that he might free.
    """

    def __init__(self, router: Router, request_id: str | None, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._booked = None if request_id is None else (router, request_id)

    def result(self) -> Choice:  # tasks that wake up call it before they go on
        choice = super().result()
        self._booked = None
        return choice

    def __await__(self) -> Generator[Any, None, Choice]:
        choice = yield from super().__await__()
        self._booked = None
        return choice

    __iter__ = __await__

    def cancel(self, msg: Any | None = None) -> bool:
        if super().cancel(msg):
            return True
        if self._booked is not None and not self.cancelled() and self.exception() is None:
            router, request_id = self._booked
            self._booked = None
            with contextlib.suppress(DynamoError):
                router.free(request_id)
        return False


class Waits:
    """The pending futures of one router, by ticket."""

    def __init__(self, router: Router, loop: asyncio.AbstractEventLoop) -> None:
        self._router = router
        self._loop = loop
        self._pending: dict[int, asyncio.Future[Choice]] = {}
        self._fd = -1

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, **request: Any) -> Choice | asyncio.Future[Choice]:
        """Choose now, or give a future if the request has to wait. Cancelling the future gives the request up."""
        given = self._router._submit(**request)
        return self.follow(given, request.get("request_id")) if isinstance(given, int) else given

    def follow(self, ticket: int, request_id: str | None) -> asyncio.Future[Choice]:
        """Give a future for a request that waits."""
        future = _Promise(self._router, request_id, self._loop)
        if not self._pending:
            self._fd = self._router._native.ready_fd()
            self._loop.add_reader(self._fd, self._drain)
        self._pending[ticket] = future
        future.add_done_callback(lambda done: self._ended(ticket, done))
        self._take(ticket)  # it may be done since, and have been told before anybody listened
        return future

    def close(self) -> None:
        """Stop listening; the router is about to be closed. Every pending future gets ``Closed``."""
        if self._pending:
            self._ignore()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(Closed("the router was closed while the request waited"))
        self._pending.clear()

    def _drain(self) -> None:
        tickets = [0]
        while tickets and self._pending:
            try:
                tickets = self._router._native.ready()
            except Closed:
                self.close()  # not by us
                return
            for ticket in tickets:
                self._take(ticket)

    def _take(self, ticket: int) -> None:
        """Give a ticket's result to its future, if there is one."""
        future = self._pending.get(ticket)
        if future is None or future.done():
            return
        try:
            choice = self._router._native.take(ticket)
        except DynamoError as error:
            future.set_exception(error)
        else:
            if choice is None:
                return
            future.set_result(choice)
        self._forget(ticket)

    def _ended(self, ticket: int, future: asyncio.Future[Choice]) -> None:
        if future.cancelled() and self._forget(ticket):
            with contextlib.suppress(DynamoError):
                self._router._native.cancel(ticket)

    def _forget(self, ticket: int) -> bool:
        known = self._pending.pop(ticket, None) is not None
        if known and not self._pending:
            self._ignore()
        return known

    def _ignore(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.remove_reader(self._fd)
