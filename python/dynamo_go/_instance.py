"""A worker that serves an endpoint."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ._call import Answer
from ._context import Context
from ._errors import Disconnected, InvalidArgument

if TYPE_CHECKING:
    from ._deployment import Deployment
    from ._native import Runtime

# How long `DistributedRuntime.shutdown` lets requests in flight run to their end.
DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that a worker has loaded."""

    name: str
    base: str = ""  # the model that it adapts
    model_type: str = ""
    most: int | None = None  # adapters that the worker holds at a time


@dataclass(frozen=True)
class Card:
    """What a worker says of itself when it registers a model. The defaults stand for a worker that did not."""

    block_size: int | None = None
    name: str = ""  # of the model; "" if no model was registered
    model_type: str = ""
    max_num_seqs: int | None = None
    local_indexer: bool = True
    dp_start: int = 0
    dp_size: int = 1
    max_num_batched_tokens: int | None = None
    total_kv_blocks: int | None = None
    taints: frozenset[str] = frozenset()
    adapters: tuple[Adapter, ...] = ()

    def adapted(self, adapter: Adapter, loaded: bool) -> Card:
        """Give the card of a worker that has one more adapter, or one less."""
        key = slug(adapter.name)
        others = tuple(other for other in self.adapters if other.name != adapter.name)
        if loaded:
            for other in others:
                if slug(other.name) == key:
                    raise InvalidArgument(f"lora_name={adapter.name!r} is stored as {key!r}, as {other.name!r} is")
            return replace(self, adapters=(*others, adapter))
        if len(others) == len(self.adapters):
            raise InvalidArgument(f"lora_name={adapter.name!r} is not registered")
        return replace(self, adapters=others)


def slug(name: str) -> str:
    """Name a model as Dynamo does where it stores cards."""
    return re.sub(r"[^a-z0-9_-]", "_", name.lower()).lstrip("_")


@dataclass
class Profile:
    """Who a worker is: one for each endpoint object that is a worker, shared by all that it serves."""

    path: str
    worker_id: int
    card: Card = Card()


class Instance:
    """One serving worker. It ends once, by :meth:`stop`, or by cancelling `served`, which does the same.

    Its id is the profile's, unless the endpoint serves already.
    """

    def __init__(
        self, hub: Deployment, profile: Profile, worker_id: int, handler: Callable[..., Any], graceful: bool
    ) -> None:
        self.profile = profile
        self.path = profile.path
        self.worker_id = worker_id
        self.served = _Served(self, hub.loop)
        self._hub = hub
        self._handler = handler
        self._takes_context = _takes_context(handler)
        self._graceful = graceful
        self._calls: set[Answer] = set()
        self._stopped = False

    def answer(self, native: Runtime, number: int, request: Any, context: Context) -> Answer:
        """Have the worker answer a request."""

        def ended(call: Answer) -> None:
            self._hub.answered(number)
            self._call_ended(call)

        answer = Answer(native, number, self._start(request, context), context, ended)
        self._calls.add(answer)
        return answer

    def _start(self, request: Any, context: Context) -> Callable[[], AsyncIterator[Any]]:
        def start() -> AsyncIterator[Any]:
            answer: AsyncIterator[Any] = self._handler(*((request, context) if self._takes_context else (request,)))
            return answer

        return start

    def stop(self, *, drain: bool = False) -> None:
        """Leave the candidates at once. Requests in flight fail, or with `drain` (and if it serves so) run to the end."""
        if not self._stopped:
            self._stopped = True
            self._hub.leave(self)
        if drain and self._graceful and self._calls:
            timer = self._hub.loop.call_later(DRAIN_SECONDS, self.stop)
            self.served.add_done_callback(lambda _: timer.cancel())
            return
        for call in tuple(self._calls):
            call.fail(Disconnected(f"worker {self.worker_id} stopped before the generation completed"))
        self._finish()

    def _call_ended(self, call: Answer) -> None:
        self._calls.discard(call)
        if self._stopped and not self._calls:
            self._finish()

    def _finish(self) -> None:
        self._hub.finished(self)
        if not self.served.done():
            self.served.set_result(None)


class _Served(asyncio.Future[None]):
    """Done when the worker does not serve any more. Cancelling it stops the worker then and there."""

    def __init__(self, instance: Instance, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._instance = instance

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        self._instance.stop()
        return True


def _takes_context(handler: Callable[..., Any]) -> bool:
    """Whether the handler wants the context as a second positional argument."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
