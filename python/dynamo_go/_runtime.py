"""The runtime: workers and routers find each other here, and requests travel from one to the other."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ._call import AsyncResponseStream
from ._checks import expect, integer, shown
from ._context import Context
from ._deployment import Deployment, Remote
from ._engines import EngineEndpoint
from ._errors import InvalidArgument, NoWorkers, WorkerNotFound
from ._instance import Instance, Profile

_PLANES = {
    # name of the argument: (values that exist, values that Dynamo has besides, how Dynamo calls a value that is neither)
    "discovery_backend": (("mem", "file", "etcd"), ("kubernetes",), "Unknown key-value store type {!r}"),
    "request_plane": (("tcp", "nats"), (), "Invalid request plane mode: {!r}"),
    "event_plane": (("zmq", "nats"), (), "Invalid event_plane value {!r}"),
    "response_plane": (("tcp",), ("quic",), "Invalid response_plane value {!r}"),
}

# What to use for what Dynamo has besides.
_INSTEAD = {
    "kubernetes": "in a cluster, have all processes of the deployment find each other by an etcd server (DYN_DISCOVERY_BACKEND=etcd)",
    "quic": "leave it out",
}


# Odd, so that 2**64 ids differ; and they look like no sequence.
_ID_STEP = 0x9E3779B97F4A7C15


class DistributedRuntime:
    """Discovers workers and carries requests: a process of a Dynamo deployment, or a deployment in memory.

    With "file", the processes of a deployment find each other in the directory that ``DYN_FILE_KV`` names, Dynamo's own
    (1.4 to 1.6) among them, as workers and as routers. Other variables of Dynamo's: ``DYN_TCP_RPC_HOST`` and ``_PORT``,
    ``DYN_TCP_RESPONSE_STREAM_HOST`` and ``_PORT``, ``DYN_EVENT_PLANE_HOST``, ``DYN_REQUEST_PLANE_CODEC``::

        runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")

    With "etcd", they find each other by an etcd server; ``ETCD_ENDPOINTS`` names it, ``ETCD_AUTH_*`` how to be let in. It is connected to in the
    background, and nothing waits for it; ``Client.wait_for_instances`` and the future of ``serve_endpoint`` raise ``CannotConnect`` if it is not
    there within ``ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS`` (120).

    With "mem", workers and routers that share one runtime object see each other, and nobody else: two runtimes never do,
    not even in one process. Everything goes the same way, over sockets of the loopback address. What a worker says of
    itself is known when the call returns; its KV events arrive a moment later, as everywhere.

    A process may have several runtimes; none disturbs another.

    Args:
        event_loop: the loop that everything runs on.
        discovery_backend: "file", "etcd" or "mem"; None: ``DYN_DISCOVERY_BACKEND``, or "file". (Dynamo needs it, and the next.)
        request_plane: "tcp" or "nats"; None: ``DYN_REQUEST_PLANE``, or "tcp".
        enable_nats: without effect: the planes decide.
        event_plane: "zmq" or "nats"; None: ``DYN_EVENT_PLANE``, or "zmq".
        response_plane: "tcp"; None: ``DYN_RESPONSE_PLANE``, or "tcp".

    With "nats", ``NATS_SERVER`` names the server, and ``NATS_AUTH_*`` and ``NATS_TLS_*`` how to be let in. It is connected to in
    the background: a request waits for it, for at most 30 s.

    Raises:
        InvalidArgument: a back-end nobody has, or a variable that cannot be used.
        NotImplementedError: a back-end that Dynamo has and this version does not.
        FileError: the directory cannot be used.
    """

    def __init__(
        self,
        event_loop: asyncio.AbstractEventLoop,
        discovery_backend: str | None = None,
        request_plane: str | None = None,
        enable_nats: bool | None = None,
        *,
        event_plane: str | None = None,
        response_plane: str | None = None,
    ) -> None:
        if not isinstance(event_loop, asyncio.AbstractEventLoop):
            raise TypeError(f"event_loop: expected an event loop, got {type(event_loop).__name__}")
        discovery_backend = _chosen("discovery_backend", discovery_backend, "DYN_DISCOVERY_BACKEND", "file")
        request_plane = _chosen("request_plane", request_plane, "DYN_REQUEST_PLANE", "tcp")
        event_plane = _chosen("event_plane", event_plane, "DYN_EVENT_PLANE", "zmq")
        _chosen("response_plane", response_plane, "DYN_RESPONSE_PLANE", "tcp")
        self._hub = Deployment(event_loop, discovery_backend, request_plane, event_plane)
        self._first_id = self._hub.first_id
        self._lock = threading.Lock()  # guards what follows
        self._taken: dict[str, int] = {}  # ids given out, by path

    def endpoint(self, path: str) -> Endpoint:
        """Name an endpoint: ``"namespace.component.endpoint"``, also with ``dyn://`` before it.

        Each object returned is one worker of that path, should it serve; a router takes any of them.

        Raises:
            InvalidArgument: the path has another form.
        """
        if not isinstance(path, str):
            raise TypeError(f"path: expected str, got {type(path).__name__}")
        parts = path.removeprefix("dyn://").split(".")
        if len(parts) != 3 or not all(parts):
            raise InvalidArgument(
                f"Invalid endpoint path {shown(path)}. Expected format: 'namespace.component.endpoint' "
                "or 'dyn://namespace.component.endpoint'"
            )
        return Endpoint(self, ".".join(parts))

    def shutdown(self) -> None:
        """Stop all workers. Those that serve with `graceful_shutdown` end their requests first, for at most 30 s.

        Nothing can be started again; routers raise ``Closed``. Calling it again does nothing. May be called from any
        thread, and by a signal handler.
        """
        self._hub.shutdown()

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that everything runs on."""
        return self._hub.loop

    def _take_id(self, path: str) -> int:
        """Give the next id of a path: the n-th of every path is the same, and no two of a path are."""
        with self._lock:
            n = self._taken.get(path, 0)
            self._taken[path] = n + 1
        return (self._first_id + n * _ID_STEP) % (1 << 64)


class Endpoint(EngineEndpoint):
    """One endpoint of one worker. Made by :meth:`DistributedRuntime.endpoint`."""

    def __init__(self, runtime: DistributedRuntime, path: str) -> None:
        self._runtime = runtime
        self._hub = runtime._hub
        self._path = path
        self._worker: Profile | None = None
        self._instances: weakref.WeakSet[Instance] = weakref.WeakSet()  # those that serve, the deployment keeps

    def connection_id(self) -> int:
        """The worker's id, 0 .. 2**64-1. It does not change.

        The first object of every path has the same id, so that one worker can have several endpoints; the second has
        another, and so on. It is given when it is first needed, so a router's endpoint object does not count.
        """
        return self._profile().worker_id

    def _profile(self) -> Profile:
        if self._worker is None:
            self._worker = Profile(self._path, self._runtime._take_id(self._path))
        return self._worker

    def serve_endpoint(
        self,
        handler: Callable[..., Any],
        graceful_shutdown: bool = True,
        metrics_labels: Any = None,
        health_check_payload: Mapping[str, Any] | None = None,
    ) -> asyncio.Future[None]:
        """Serve requests, from now on; the worker is a candidate of every router when this returns.

        Serving an endpoint again while it serves adds another worker of the same configuration, with an id of its own
        (see :meth:`Client.instance_ids`).

        Args:
            handler: an asynchronous generator function, ``handler(request)`` or ``handler(request, context)``; see
                :class:`Context`. Behind a ``KvRouter`` it yields dicts with ``token_ids``.
            graceful_shutdown: let requests in flight end when the runtime shuts down.
            metrics_labels: not used.
            health_check_payload: not used.

        Returns:
            A future that is done when the worker has stopped. Cancelling it stops the worker at once: it leaves the
            candidates, and its requests in flight end with ``Disconnected``. It need not be kept.

        Raises:
            InvalidArgument: the worker's KV block size is not that of a router.
            Closed: the runtime is shut down.
        """
        self._hub.check()
        if not callable(handler):
            raise TypeError(f"handler: expected an asynchronous generator function, got {type(handler).__name__}")
        expect(graceful_shutdown, bool, "graceful_shutdown")
        profile = self._profile()
        worker_id = profile.worker_id
        if self._hub.serves(self._path, worker_id):
            worker_id = self._runtime._take_id(self._path)
        instance = Instance(self._hub, profile, worker_id, handler, graceful_shutdown)
        self._hub.serve(instance)
        self._instances.add(instance)
        instance.served.add_done_callback(lambda _: self._instances.discard(instance))
        return instance.served

    async def register_endpoint_instance(self) -> None:
        """Make the worker a candidate again, after :meth:`unregister_endpoint_instance`."""
        self._hub.check()
        for instance in self._own():
            self._hub.register(instance)

    async def unregister_endpoint_instance(self) -> None:
        """Take the worker from the candidates while it goes on serving what it has."""
        self._hub.check()
        for instance in self._own():
            self._hub.unregister(instance)

    async def client(self, router_mode: Any = None) -> Client:
        """Give a client that calls the workers of this path, without regard to caches.

        Args:
            router_mode: None: :meth:`Client.generate` goes round robin. Other modes do not exist yet.
        """
        self._hub.check()
        if router_mode is not None:
            raise NotImplementedError(f"router_mode={router_mode!r} is not implemented: only None, round robin, exists")
        return Client(self._hub, self._path)

    def _own(self) -> list[Instance]:
        return [instance for instance in self._instances if not instance.served.done()]

    def __repr__(self) -> str:
        return f"<Endpoint {self._path}>"


class Annotated:
    """One item of a client's stream: data, or an error."""

    __slots__ = ("_data", "_error", "_note")

    def __init__(self, data: Any, error: Exception | None = None, note: list[Any] | None = None) -> None:
        self._data = data
        self._error = error
        self._note = note

    def data(self) -> Any:
        """What the handler yielded; None for an error."""
        return self._data

    def is_error(self) -> bool:
        """Whether the request ended with an error, which is then its last item."""
        return self._error is not None

    def event(self) -> str | None:
        """The name of a remark that a worker of Dynamo makes beside its items; None for an item."""
        return None if self._note is None else str(self._note[0])

    def id(self) -> str | None:
        """Give None."""
        return None

    def comments(self) -> list[str]:
        """The error's message, if it is one; what a remark says."""
        if self._note is not None:
            return [str(comment) for comment in self._note[1] or ()]
        return [] if self._error is None else [str(self._error)]

    def __repr__(self) -> str:
        return f"<Annotated {self._data!r}>" if self._error is None else f"<Annotated error {self._error!r}>"


class Client:
    """Calls the workers of an endpoint. Requests and items are what MessagePack has: None, bool, int, float, str, bytes,
    and lists and dicts of them.

    A stream's items are :class:`Annotated`, an error the last of them; with ``annotated=False`` they are what the
    handler yields, and an error is raised.
    """

    def __init__(self, hub: Deployment, path: str) -> None:
        self._hub = hub
        self._path = path
        hub.instances(path)  # from now on they are known at once

    def instance_ids(self) -> list[int]:
        """The ids of the workers that serve now."""
        return list(self._hub.instances(self._path))

    async def wait_for_instances(self) -> list[int]:
        """Wait until a worker serves, and give the ids of all that do."""
        self._hub.check()
        return await self._hub.wait_for(self._path)

    async def random(self, request: Any, annotated: bool = True, context: Context | None = None) -> AsyncResponseStream:
        """Call a worker at random. Raises ``NoWorkers`` if none serves."""
        return await self._call(self._pick(at_random=True), request, annotated, context)._begun()

    async def round_robin(
        self, request: Any, annotated: bool = True, context: Context | None = None
    ) -> AsyncResponseStream:
        """Call the workers in turn. Raises ``NoWorkers`` if none serves."""
        return await self._call(self._pick(at_random=False), request, annotated, context)._begun()

    async def generate(
        self, request: Any, annotated: bool = True, context: Context | None = None
    ) -> AsyncResponseStream:
        """Call a worker as the client's mode says: in turn."""
        return await self.round_robin(request, annotated, context)

    async def direct(
        self, request: Any, instance_id: int, annotated: bool = True, context: Context | None = None
    ) -> AsyncResponseStream:
        """Call one worker. Raises ``WorkerNotFound`` if it does not serve."""
        self._hub.check()
        instance = self._hub.instance(self._path, integer(instance_id, "instance_id"))
        if instance is None:
            raise WorkerNotFound(f"instance_id={instance_id} does not serve {self._path!r}")
        return await self._call(instance, request, annotated, context)._begun()

    def _pick(self, at_random: bool) -> Remote:
        self._hub.check()
        for instance in self._hub.instances(self._path).values():
            return instance.anyone(at_random)
        raise NoWorkers(f"no worker serves {self._path!r}")

    def _call(self, instance: Remote, request: Any, annotated: bool, context: Context | None) -> AsyncResponseStream:
        known = Context() if context is None else expect(context, Context, "context")
        call = instance.call(request, known, _CLIENT_BUFFER, _Annotate() if annotated else _Plain())
        return AsyncResponseStream(call)


# Items that a handler may be ahead of a client's reader, as in `KvRouter.generate`.
_CLIENT_BUFFER = 100


class _Plain:
    """Items and errors as they are."""

    def failure(self, error: Exception) -> Any:
        raise error

    def begun(self, route: Any) -> None:
        pass

    def arrived(self, item: Any, flags: int, timing: Any) -> Any:
        return item

    def note(self, note: list[Any]) -> Any:
        return None


class _Annotate(_Plain):
    """Items and errors wrapped."""

    def arrived(self, item: Any, flags: int, timing: Any) -> Any:
        return Annotated(item)

    def note(self, note: list[Any]) -> Any:
        return Annotated(None, None, note)

    def failure(self, error: Exception) -> Annotated:
        return Annotated(None, error)


def _chosen(argument: str, value: object, variable: str, default: str) -> str:
    """Give a back-end: the one that was asked for, else that of the environment, else the default."""
    existing, elsewhere, complaint = _PLANES[argument]
    said = argument
    if value is None:
        said, value = variable, os.environ.get(variable, "").strip().lower() or default
    if not isinstance(value, str):
        raise TypeError(f"{argument}: expected str, got {type(value).__name__}")
    if value in elsewhere:
        raise NotImplementedError(f"{said}={value!r} is not there, only {_listed(existing)}: {_INSTEAD[value]}")
    if value not in existing:
        source = f"{variable}: " if said == variable else ""
        raise InvalidArgument(f"{source}{complaint.format(value[:80])}. Valid values: {_listed(existing)}")
    return value


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(map(repr, words))
