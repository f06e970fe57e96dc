"""The policies: which engine gets a request."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol

from .._errors import DynamoError
from .._router import Router
from .engines import Address, EngineFailed
from .trace import Request

FOLLOW_SECONDS = 20.0


class Policy(Protocol):
    """Picks an engine for each request, and is told how the request goes."""

    async def ready(self) -> None:
        """Wait until the policy can see what it needs."""

    def pick(self, request: Request) -> int:
        """The number of the engine that gets the request."""

    def first_token(self, request: Request) -> None:
        """The request's first token came."""

    def end(self, request: Request) -> None:
        """The request is over, however it ended."""

    def report(self) -> dict[str, int]:
        """What the policy counted."""

    def close(self) -> None:
        """Stop."""


class _Blind:
    """A policy that looks at nothing."""

    async def ready(self) -> None:
        return None

    def first_token(self, request: Request) -> None:
        return None

    def end(self, request: Request) -> None:
        return None

    def report(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        return None


class RoundRobin(_Blind):
    """One engine after the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def pick(self, request: Request) -> int:
        number = self._next
        self._next = (number + 1) % self._count
        return number


class Random(_Blind):
    """Any engine."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._random = random.Random(seed)

    def pick(self, request: Request) -> int:
        return self._random.randrange(self._count)


class KV:
    """KV routing with the router's default configuration: it follows the engines' events, and books each request."""

    def __init__(self, addresses: list[Address], block_size: int, seed: int) -> None:
        self._router = Router(block_size, seed=seed)
        for number, address in enumerate(addresses):
            self._router.add_worker(number, kv_events={0: address.kv_events}, replay={0: address.replay})

    async def ready(self) -> None:
        deadline = time.monotonic() + FOLLOW_SECONDS
        while any(rank["state"] != "exact" for rank in self._router.health()):
            if time.monotonic() > deadline:
                raise EngineFailed(
                    f"the engines' events were not followed after {FOLLOW_SECONDS:.0f} s: {self.states()}"
                )
            await asyncio.sleep(0.01)

    def states(self) -> list[str]:
        """The completeness of each engine's view."""
        return [rank["state"] for rank in self._router.health()]

    def pick(self, request: Request) -> int:
        worker, _, _ = self._router.best_worker(request.tokens, request_id=str(request.number))
        return worker

    def first_token(self, request: Request) -> None:
        self._router.mark_prefill_complete(str(request.number))

    def end(self, request: Request) -> None:
        try:
            self._router.free(str(request.number))
        except DynamoError as error:  # never expected: the run must not pass as clean
            raise EngineFailed(f"request {request.number} could not be freed: {error}") from error

    def report(self) -> dict[str, int]:
        return {f"ranks_{state}": self.states().count(state) for state in set(self.states())}

    def close(self) -> None:
        self._router.close()
