"""The names of ``dynamo.runtime``. See :mod:`dynamo_go.compat`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ... import _runtime
from ..._call import AsyncResponseStream
from ..._context import Context
from ..._runtime import Annotated
from .._futures import Stream

if TYPE_CHECKING:
    from ..._deployment import Remote as _Remote

__all__ = [
    "Client",
    "Context",
    "DistributedRuntime",
    "Endpoint",
    "UnaryClient",
    "dynamo_endpoint",
    "dynamo_worker",
    "serve_unary_endpoint",
]


def _missing(what: str, instead: str) -> NoReturn:
    raise NotImplementedError(f"{what} is not implemented: {instead}")


class DistributedRuntime(_runtime.DistributedRuntime):
    """:class:`dynamo_go.DistributedRuntime` with the rest of Dynamo's methods."""

    def endpoint(self, path: str) -> Endpoint:
        """Name an endpoint: ``"namespace.component.endpoint"``."""
        return Endpoint(self, super().endpoint(path)._path)

    def set_health_status(self, ready: bool) -> None:
        """Accepted: there is no status server that would tell it."""

    def register_engine_route(self, route_name: str, callback: Callable[..., Any]) -> None:
        """Accepted: there is no status server that would serve it."""

    def system_status_server_url(self) -> str | None:
        """Give None, as Dynamo does without a status server."""
        return None


class Endpoint(_runtime.Endpoint):
    """:class:`dynamo_go.Endpoint`; what has nothing to give gives the empty tuple."""

    def serve_endpoint(
        self,
        generator: Callable[..., Any],
        graceful_shutdown: bool = True,
        metrics_labels: Any = None,
        health_check_payload: Mapping[str, Any] | None = None,
    ) -> asyncio.Future[None]:
        """Serve requests, from now on; see :meth:`dynamo_go.Endpoint.serve_endpoint`."""
        return super().serve_endpoint(generator, graceful_shutdown, metrics_labels, health_check_payload)

    async def register_endpoint_instance(self) -> tuple[()]:  # type: ignore[override]
        """Make the worker a candidate again."""
        await super().register_endpoint_instance()
        return ()

    async def unregister_endpoint_instance(self) -> tuple[()]:  # type: ignore[override]
        """Take the worker from the candidates while it goes on serving what it has."""
        await super().unregister_endpoint_instance()
        return ()

    async def client(self, router_mode: Any = None) -> Client:
        """Give a client; its ``generate`` goes round robin (None, RoundRobin), at random (Random) or raises (Direct)."""
        self._hub.check()
        name = "RoundRobin" if router_mode is None else getattr(router_mode, "name", None)
        if name not in ("RoundRobin", "Random", "Direct"):
            _missing(f"router_mode={router_mode!r} of a client", "a KvRouter routes by load and prefix")
        return Client(self._hub, self._path, name)


@dataclass(frozen=True)
class Transport:
    """How an instance is reached: ``kind`` is "tcp"."""

    kind: str
    address: str


@dataclass(frozen=True)
class Instance:
    """A worker that serves an endpoint."""

    namespace: str
    component: str
    endpoint: str
    instance_id: int
    transport: Transport
    device_type: str | None = None

    def __repr__(self) -> str:
        return f"Instance({self.namespace}/{self.component}/{self.endpoint}/{self.instance_id})"


class Client(_runtime.Client):
    """:class:`dynamo_go.Client`, but an error ends a stream with a ``ValueError``, also of annotated items."""

    def __init__(self, hub: Any, path: str, mode: str = "RoundRobin") -> None:
        super().__init__(hub, path)
        self._mode = mode

    def instances(self) -> list[Instance]:
        """The workers that serve now."""
        records = [instance.record for instance in self._hub.instances(self._path).values()]
        return [Instance(**{**r, "transport": Transport(**r["transport"])}) for r in records]

    async def generate(
        self, request: Any, annotated: bool = True, context: Context | None = None
    ) -> AsyncResponseStream:
        """Call a worker as the client's mode says."""
        if self._mode == "Direct":
            raise ValueError("a client of RouterMode.Direct has no generate: call direct with an instance_id")
        if self._mode == "Random":
            return await self.random(request, annotated, context)
        return await self.round_robin(request, annotated, context)

    def _call(self, instance: _Remote, request: Any, annotated: bool, context: Context | None) -> AsyncResponseStream:
        plain = super()._call(instance, request, False, context)
        return _AnnotatedStream(plain) if annotated else Stream(plain)


class _AnnotatedStream(Stream):
    __slots__ = ()

    async def __anext__(self) -> Any:
        return Annotated(await super().__anext__())


# What a worker function of any kind takes besides the runtime, and gives.
_Worker = Callable[..., Awaitable[Any]]


def dynamo_worker(enable_nats: bool | None = None) -> Callable[[_Worker], Callable[..., Coroutine[Any, Any, None]]]:
    """Give a decorator for an async function whose first argument is to be a :class:`DistributedRuntime`.

    The back-ends are those of ``DYN_DISCOVERY_BACKEND`` ("mem" if it is not set; Dynamo means etcd then) and
    ``DYN_REQUEST_PLANE`` ("tcp").

    Args:
        enable_nats: deprecated; without effect.
    """
    if enable_nats is not None:
        warnings.warn(
            "enable_nats is deprecated and has no effect: the event plane decides", DeprecationWarning, stacklevel=2
        )

    def decorate(function: _Worker) -> Callable[..., Coroutine[Any, Any, None]]:
        @functools.wraps(function)
        async def run(*arguments: Any, **keywords: Any) -> None:
            backend = os.environ.get("DYN_DISCOVERY_BACKEND") or "mem"
            plane = os.environ.get("DYN_REQUEST_PLANE") or "tcp"
            runtime = DistributedRuntime(asyncio.get_running_loop(), backend, plane)
            await function(runtime, *arguments, **keywords)

        return run

    return decorate


def dynamo_endpoint(request_model: type[Any], response_model: type[Any]) -> Callable[..., Any]:
    """Give a decorator for a handler whose request is to be an instance of a pydantic model.

    A handler of one or two positional arguments gets its last one, a JSON text or a dict, as an instance of the model;
    with any other class, or other arguments, nothing is changed. Needs pydantic only if a model is given.

    Args:
        request_model: the class of requests.
        response_model: not checked, as in Dynamo.

    Raises:
        ValueError: from the first item: the request is no instance, text or dict that fits.
    """
    validate = getattr(request_model, "model_validate", None)

    def parsed(request: Any) -> Any:
        assert validate is not None
        if isinstance(request, str):
            return request_model.model_validate_json(request)
        if isinstance(request, dict):
            return validate(request)
        raise ValueError(f"Invalid request: {request}")

    def decorate(function: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        @functools.wraps(function)
        async def handle(*arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
            if validate is not None and len(arguments) in (1, 2):
                try:
                    arguments = (*arguments[:-1], parsed(arguments[-1]))
                except ValueError as error:  # pydantic's errors are
                    text = str(error)
                    raise ValueError(
                        text if text.startswith("Invalid request") else f"Invalid request: {text}"
                    ) from None
            async for item in function(*arguments, **keywords):
                yield item

        return handle

    return decorate


class UnaryClient:
    """Calls workers that answer a request with exactly one item."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def complete(self, request: Any, *, context: Context | None = None) -> Any:
        """Call a worker, in turn, and give its one item.

        Raises:
            RuntimeError: it gave none, or several.
        """
        stream = await self._client.round_robin(request, annotated=False, context=context)
        items = []
        try:
            async for item in stream:
                items.append(item)
                if len(items) > 1:
                    raise RuntimeError("unary endpoint returned multiple responses")
        finally:
            await stream.aclose()
        if not items:
            raise RuntimeError("unary endpoint returned no response")
        return items[0]


async def serve_unary_endpoint(endpoint: Any, handler: Callable[..., Awaitable[Any]]) -> None:
    """Serve ``await handler(request, context=context)``, which gives one item."""
    if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        raise TypeError(f"handler: expected an async function, got {type(handler).__name__}")

    async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
        yield await handler(request, context=context)

    await endpoint.serve_endpoint(generate)
