"""What the objects of one runtime share: a process of a deployment, which in memory is one of its own.

The library does the work, and never calls Python: it tells of everything in one stream of notices, which the event loop reads when a descriptor says
so. Each call, service and client is a number; who hears of it is in `_parties`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import json
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from . import _native
from ._call import Answer, Watcher
from ._context import Context
from ._errors import CannotConnect, Closed, Disconnected, DynamoError
from ._instance import slug

T = TypeVar("T")

if TYPE_CHECKING:
    from ._instance import Adapter, Card, Instance, Profile
    from ._router import Router

# Kinds and flags of notices; see dynamo_go.h.
_REQUEST, _CANCELLED, _DRAINED, _BEGUN, _ITEM, _ENDED, _CHANGED, _CLOSED = range(1, 9)
FIRST, LAST, NOTE, KILL = 1, 2, 4, 8

# How often who waits for the first connection to etcd looks whether it is there.
_LOOK_SECONDS = 0.02

# How long callers may take for what was answered before a worker ended.
_LEAVE_SECONDS = 10.0


class _Party(Protocol):
    """Hears the notices about one number. Called by the event loop."""

    def notice(self, kind: int, flags: int, payload: Any, more: Any) -> None: ...


class Deployment:
    """One process of a deployment. All methods belong to the event loop, but for :meth:`shutdown`.

    In memory, whoever is to see a worker has seen it when the call returns that says so, and a worker needs no model card.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        discovery: str,
        request_plane: str = "tcp",
        event_plane: str | None = None,
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith(("DYN_", "ETCD_", "NATS_"))}
        self.loop = loop
        self.closed = False
        self._alone = discovery == "mem"
        config = {"discovery": discovery, "request_plane": request_plane, "environment": environment}
        if event_plane is not None:
            config["event_plane"] = event_plane
        self.native = _native.Runtime(json.dumps(config))
        self.first_id: int = json.loads(self.native.info())["id"]
        self._etcd = discovery == "etcd"
        self.connected = not self._etcd  # it has been, and what is there was seen; or it needs not be
        self._looking = False  # somebody looks whether it has
        self._watching: set[asyncio.Task[None]] = set()
        self._parties: dict[int, _Party] = {}
        self._clients: dict[str, _Client] = {}
        self._serving: dict[str, dict[int, Instance]] = {}
        self._services: dict[Instance, int] = {}
        self._ending: dict[
            int, asyncio.TimerHandle
        ] = {}  # services that are not closed yet, and when they are at the latest
        self._waiters: set[asyncio.Future[None]] = set()
        fd = self.native.fd()
        loop.add_reader(fd, _drain, weakref.ref(self), loop, fd)
        # The loop must not watch a descriptor that is closed, and so soon another one.
        weakref.finalize(self, _abandon, loop, fd, self.native).atexit = False

    def check(self) -> None:
        """Raise unless the runtime runs, and this is its loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this runtime belongs to another event loop than the one that is running")
        if self.closed:
            raise Closed("the runtime is shut down")

    async def reached(self) -> None:
        """Wait until etcd is within reach, the first time only. Raises ``CannotConnect`` once that took too long."""
        while not self.connected:
            if self._looking:
                await self._change()
                continue
            self.check()
            info = json.loads(self.native.info())
            if "discovery_error" in info:
                raise CannotConnect(info["discovery_error"])
            self.connected = info["discovered"]
            if self.connected:
                return
            self._looking = True
            try:
                await asyncio.sleep(_LOOK_SECONDS)
            finally:
                self._looking = False
                self.wake()

    async def listed(self, path: str, worker_id: int) -> None:
        """Wait until etcd lists a worker of this process. Raises ``CannotConnect`` once that took too long, or if it is refused."""
        if not self._etcd:
            return
        client = self.native.client(path)
        try:
            await self.reached()
            while all(row["instance_id"] != worker_id for row in json.loads(self.native.instances(client))):
                if (error := json.loads(self.native.info()).get("discovery_error")) is not None:
                    raise CannotConnect(error)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            with contextlib.suppress(DynamoError):
                self.native.end(client, False)

    def _watch(self, instance: Instance) -> None:
        """End a worker that etcd cannot be told of."""

        async def watch() -> None:
            try:
                await self.reached()
            except DynamoError as error:
                if not self.closed and not instance.served.done():
                    instance.served.set_exception(error)
                    instance.stop()

        task = self.loop.create_task(watch())
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    def drain(self) -> bool:
        """Pass on the notices that wait. False once there will be none any more."""
        notices = self.native.take()
        if notices is None:
            for party in list(self._parties.values()):
                party.notice(_ENDED, _statuses().closed, "the runtime is shut down", None)
            self._parties.clear()
            return False
        for kind, number, flags, payload, more in notices:
            party = self._parties.get(payload[0] if kind == _REQUEST else number)  # type: ignore[assignment]
            if party is not None:
                if kind in (_ENDED, _CLOSED):
                    del self._parties[number]
                party.notice(kind, flags, (number, payload) if kind == _REQUEST else payload, more)
        return True

    # -- workers

    def serve(self, instance: Instance) -> None:
        """Take in a worker that begins to serve; it is registered at once."""
        profile = instance.profile
        another = instance.worker_id != profile.worker_id  # than the one that `describe` has told of
        if profile.card.name if another else self._alone and not profile.card.name:
            self.native.model(instance.path, instance.worker_id, _record(profile.card))
        if another:
            for adapter in profile.card.adapters:
                self.native.model(instance.path, instance.worker_id, _adapter_record(adapter))
        service = self.native.serve(instance.path, json.dumps({"id": instance.worker_id}))
        self._serving.setdefault(instance.path, {})[instance.worker_id] = instance
        self._services[instance] = service
        self._parties[service] = _Service(self, service, instance)
        self._changed(instance.path)
        if not self.connected:
            self._watch(instance)

    def serves(self, path: str, worker_id: int) -> bool:
        """Whether a worker of this process serves, registered or not."""
        return worker_id in self._serving.get(path, {})

    def register(self, instance: Instance) -> None:
        """Let clients and routers find a worker again."""
        self.native.listed(self._services[instance], True)
        self._changed(instance.path)

    def unregister(self, instance: Instance) -> None:
        """Let nobody find a worker; it goes on serving."""
        with contextlib.suppress(DynamoError):
            self.native.listed(self._services[instance], False)
        self._changed(instance.path)

    def leave(self, instance: Instance) -> None:
        """Let nobody find a worker that is about to end."""
        self.unregister(instance)

    def finished(self, instance: Instance) -> None:
        """End a worker whose requests are answered, or failed: what their callers are told so, they may read first."""
        self._serving.get(instance.path, {}).pop(instance.worker_id, None)
        service = self._services.pop(instance, None)
        if service is not None:
            self._ending[service] = self.loop.call_later(_LEAVE_SECONDS, self.native.end, service, True)
            self.native.end(service, False)

    def ended(self, service: int) -> None:
        """Hear that nothing of a worker is left."""
        timer = self._ending.pop(service, None)
        if timer is not None:
            timer.cancel()
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self.closed and not self._services and not self._ending:
            self.native.close()

    def describe(self, profile: Profile, card: Card) -> None:
        """Store a worker's model card, whether it serves already or not."""
        self.native.model(profile.path, profile.worker_id, _record(card))
        profile.card = card
        for worker_id, instance in self._serving.get(profile.path, {}).items():
            if instance.profile is profile and worker_id != profile.worker_id:
                self.native.model(profile.path, worker_id, _record(card))

    def adapt(self, profile: Profile, adapter: Adapter, loaded: bool) -> None:
        """Store the model card of an adapter that a worker has, or take it back."""
        card = profile.card.adapted(adapter, loaded)
        record = _adapter_record(adapter) if loaded else json.dumps({"lora": {"name": adapter.name}})
        self.native.model(profile.path, profile.worker_id, record)
        profile.card = card
        for worker_id, instance in self._serving.get(profile.path, {}).items():
            if instance.profile is profile and worker_id != profile.worker_id:
                self.native.model(profile.path, worker_id, record)

    # -- routers and clients

    def instances(self, path: str) -> dict[int, Remote]:
        """The instances of a path."""
        return self._client(path).instances()

    def instance(self, path: str, worker_id: int) -> Remote | None:
        """One of them, if it is one."""
        return self._client(path).instances().get(worker_id)

    def _client(self, path: str) -> _Client:
        client = self._clients.get(path)
        if client is None:
            number = self.native.client(path)
            client = self._clients[path] = self._parties[number] = _Client(self, number)
        return client

    def _changed(self, path: str) -> None:
        """Have the instances of a path looked up again."""
        if path in self._clients:
            self._clients[path].notice(_CHANGED, 0, None, None)

    async def wait_for(self, path: str) -> list[int]:
        """Wait until a path has an instance, and give the ids of all."""
        await self.reached()
        while not (ids := list(self.instances(path))):
            await self._change()
        return ids

    async def _change(self) -> None:
        """Wait until something may have changed of some client's path: its instances, or the workers of a router."""
        self.check()
        waiter = self.loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def wake(self) -> None:
        """Have those that wait for instances or workers look again."""
        for waiter in tuple(self._waiters):
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_workers(self, router: Router, path: str, count: int) -> None:
        """Wait until etcd is within reach, and a path's router has so many workers."""
        await self.reached()
        if count > 0:
            self._client(path)  # hears of them
            while len(router.workers()) < count:
                await self._change()

    def start(self, number: int, buffer_size: int, watcher: Watcher, context: Context | None = None) -> RemoteCall:
        """Follow a call that was submitted."""
        call = self._parties[number] = RemoteCall(self, number, buffer_size, watcher, context)
        return call

    def answer(self, instance: Instance, number: int, request: Any, context: Context) -> None:
        """Have a worker answer a call."""
        self._parties[number] = _Answering(instance.answer(self.native, number, request, context))

    def answered(self, number: int) -> None:
        """Hear that a call was answered."""
        self._parties.pop(number, None)

    # -- end

    def shutdown(self) -> None:
        """Stop every worker, and leave the deployment. Called in any thread, or by a signal handler."""
        self.closed = True
        if self.loop.is_closed():
            self.native.close()
            return
        if asyncio._get_running_loop() is self.loop or not self.loop.is_running():
            self._stop()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        for instance in list(self._services):
            instance.stop(drain=True)
        self._close_if_idle()
        self.wake()


_OK = 0


class _Statuses(NamedTuple):
    """How the library tells how something ended."""

    classes: dict[int, type[Exception]]
    closed: int
    cancelled: int


@functools.cache
def _statuses() -> _Statuses:
    known = _native.statuses()  # loads the library, which importing must not
    numbers = {name: status for status, (name, _) in known.items()}
    return _Statuses({status: kind for status, (_, kind) in known.items()}, numbers["CLOSED"], numbers["CANCELLED"])


def _drain(reference: weakref.ref[Deployment], loop: asyncio.AbstractEventLoop, fd: int) -> None:
    deployment = reference()
    if deployment is None or not deployment.drain():
        loop.remove_reader(fd)


def _abandon(loop: asyncio.AbstractEventLoop, fd: int, native: _native.Runtime) -> None:
    """End a runtime that nobody has any more."""

    def end() -> None:
        loop.remove_reader(fd)
        with contextlib.suppress(DynamoError):
            native.close()

    if loop.is_closed():
        with contextlib.suppress(DynamoError):
            native.close()
    elif asyncio._get_running_loop() is loop:
        end()
    else:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(end)


class _Service:
    """Hears of the calls to one worker of this process."""

    def __init__(self, deployment: Deployment, service: int, instance: Instance) -> None:
        self._deployment = deployment
        self._service = service
        self._instance = instance

    def notice(self, kind: int, flags: int, payload: Any, more: Any) -> None:
        if kind == _REQUEST:
            number, (_, request_id, metadata, body) = payload
            self._deployment.answer(self._instance, number, body, Context(request_id, metadata))
        elif kind == _CLOSED:
            self._deployment.ended(self._service)


class _Answering:
    """Hears how the caller takes an answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def notice(self, kind: int, flags: int, payload: Any, more: Any) -> None:
        if kind == _DRAINED:
            self._answer.drained()
        elif kind == _CANCELLED:
            self._answer.cancelled(kill=bool(flags & KILL))


class _Client:
    """The instances of a path, as they were when they changed last."""

    def __init__(self, deployment: Deployment, number: int) -> None:
        self._deployment = deployment
        self.number = number
        self._instances: dict[int, Remote] | None = None

    def instances(self) -> dict[int, Remote]:
        if self._instances is None:
            try:
                records = json.loads(self._deployment.native.instances(self.number))
            except Closed:
                return {}
            self._instances = {r["instance_id"]: Remote(self._deployment, self.number, r) for r in records}
        return self._instances

    def notice(self, kind: int, flags: int, payload: Any, more: Any) -> None:
        self._instances = None
        self._deployment.wake()


class Remote:
    """An instance of an endpoint, in whatever process."""

    def __init__(self, deployment: Deployment, client: int, record: dict[str, Any]) -> None:
        self._deployment = deployment
        self._client = client
        self.record = record
        self._way: dict[str, Any] = {"instance": record["instance_id"]}

    def anyone(self, at_random: bool) -> Remote:
        """Give what calls any instance: the library knows those that are better left alone for a while."""
        other = Remote(self._deployment, self._client, self.record)
        other._way = {"random": at_random}
        return other

    def call(self, request: Any, context: Context, buffer_size: int, watcher: Watcher) -> RemoteCall:
        """Send a request."""
        options = {**self._way, "request_id": context.id(), "metadata": context.metadata, "credit": buffer_size}
        number = self._deployment.native.call(self._client, request, json.dumps(options))
        return self._deployment.start(number, buffer_size, watcher, context)


class RemoteCall:
    """A request in flight, as its caller sees it. It has credit for as many items as its reader may be behind.

    It is open, then ended; it never opens again. What came before it ended can still be read, unless it was given up.
    """

    def __init__(
        self, deployment: Deployment, number: int, buffer_size: int, watcher: Watcher, context: Context | None
    ) -> None:
        self._deployment = deployment
        self._number = number
        self._limit = buffer_size
        self._watcher = watcher
        self._context = context
        self._items: collections.deque[Any] = collections.deque()
        self._sleepers: list[asyncio.Future[None]] = []
        self._taken = 0  # items that credit is due for
        self._opening: tuple[asyncio.Future[Any], Any] | None = None  # who waits for the beginning, and for what
        self._begun = False
        self._stopping = False  # by us: then its end is no error
        self._ended = False
        self._error: Exception | None = None
        if context is not None and context.is_stopped():
            self._stopping = True
            self._kill()
        elif context is not None:
            context._on_stop(self.stop)

    def begun(self, answer: T) -> asyncio.Future[T]:
        """Give `answer` when a worker begins to answer, or what says that none does. Cancelling it abandons the call. Once."""
        opening: asyncio.Future[T] = self._deployment.loop.create_future()
        opening.add_done_callback(self._opened)
        self._opening = opening, answer
        self._open()
        return opening

    def _open(self) -> None:
        if self._opening is None or not (self._begun or self._ended):
            return
        (opening, answer), self._opening = self._opening, None
        if opening.done():  # cancelled, which it is about to hear
            return
        if self._begun or self._error is None:
            opening.set_result(answer)
        else:
            error, self._error = self._error, None
            opening.set_exception(error)

    def _opened(self, opening: asyncio.Future[Any]) -> None:
        if opening.cancelled():
            self._opening = None
            self.abandon()

    async def next(self) -> Any:
        """Give the next item. Cancelling it abandons the call, as it would an asynchronous generator."""
        if not self._items and not self._ended:
            if self._limit == 0:
                self._deployment.native.more(self._number, 1)
            try:
                while not self._items and not self._ended:
                    await self._sleep()
            except asyncio.CancelledError:
                self.abandon()
                raise
        if self._items:
            self._credit()
            return self._items.popleft()
        error, self._error = self._error, None
        if error is not None:
            return self._watcher.failure(error)
        raise StopAsyncIteration

    def _credit(self) -> None:
        """Let as many items come as were taken, some at a time."""
        self._taken += 1
        if self._limit > 0 and self._taken * 2 >= self._limit:
            if not self._ended:
                self._deployment.native.more(self._number, self._taken)
            self._taken = 0

    def notice(self, kind: int, flags: int, payload: Any, more: Any) -> None:
        """Hear what happens to the call."""
        if kind == _ITEM:
            if self._ended:
                return
            try:
                if not flags & NOTE:
                    self._items.append(self._watcher.arrived(payload, flags, more))
                elif (note := self._watcher.note(payload)) is not None:
                    self._items.append(note)
                elif self._limit == 0:
                    self._deployment.native.more(self._number, 1)
                else:
                    self._credit()
            except DynamoError as error:
                self._end(error)
                self._kill()
                return
        elif kind == _BEGUN:
            self._begun = True
            self._watcher.begun(payload)
            self._open()
        elif kind == _ENDED:
            quiet = flags == _OK or (self._stopping and flags == _statuses().cancelled)
            self._end(None if quiet else _error(flags, payload))
        self._wake()

    def stop(self) -> None:
        """Ask the worker to end; what it still sends comes."""
        self._stopping = True
        with contextlib.suppress(DynamoError):
            self._deployment.native.cancel(self._number, False)

    def abandon(self) -> None:
        """Nobody reads any more: end the call."""
        self._items.clear()
        self._end(None)
        self._kill()

    def dropped(self) -> None:
        """The stream was collected, by any thread."""
        if not self._ended:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(DynamoError):
            self._deployment.native.cancel(self._number, True)

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            self._open()
            self._wake()

    async def _sleep(self) -> None:
        sleeper = self._deployment.loop.create_future()
        self._sleepers.append(sleeper)
        await sleeper

    def _wake(self) -> None:
        if self._sleepers:
            sleepers, self._sleepers = self._sleepers, []
            for sleeper in sleepers:
                if not sleeper.done():
                    sleeper.set_result(None)


def _error(status: int, text: str) -> Exception:
    kind = _statuses().classes.get(status, DynamoError)
    if status == _statuses().closed and not text:
        kind = Disconnected
    return kind(text)


def _record(card: Card) -> str:
    """A model card in Dynamo's form."""
    config: dict[str, Any] = {
        "total_kv_blocks": card.total_kv_blocks,
        "max_num_seqs": card.max_num_seqs,
        "max_num_batched_tokens": card.max_num_batched_tokens,
        "tool_call_parser": None,
        "reasoning_parser": None,
        "tool_call_arguments_format": "json_string",
        "structural_tag_mode": "off",
        "structural_tag_scope": "auto",
        "structural_tag_schema": "auto",
        "exclude_tools_when_tool_choice_none": True,
        "data_parallel_start_rank": card.dp_start,
        "data_parallel_size": card.dp_size,
        "enable_local_indexer": card.local_indexer,
        "enable_eagle": False,
    }
    if card.taints:
        config["taints"] = sorted(card.taints)
    return _named(card.name, card.model_type, kv_cache_block_size=card.block_size or 0, runtime_config=config)


def _adapter_record(adapter: Adapter) -> str:
    """The model card of an adapter, in Dynamo's form: it stands beside that of its worker."""
    lora: dict[str, Any] = {"name": adapter.name}
    if adapter.most is not None:
        lora["max_gpu_lora_count"] = adapter.most
    return _named(adapter.name, adapter.model_type, source_path=adapter.base, lora=lora, runtime_config={})


def _named(name: str, model_type: str, **fields: Any) -> str:
    return json.dumps(
        {
            "display_name": name,
            "slug": slug(name),
            "model_info": None,
            "tokenizer": None,
            "context_length": 0,
            "kv_cache_block_size": 0,
            "migration_limit": 0,
            "model_type": model_type,
            "model_input": "Tokens",
            "worker_type": "aggregated",
            "needs": [],
            "media_decoder": None,
            "media_fetcher": None,
            **fields,
        }
    )
