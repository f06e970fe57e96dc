"""What the objects of one in-memory runtime share: who serves, who routes, and what workers have published.

Workers, routers and publishers come and go in any order; the :class:`Hub` keeps every router in step. What always holds,
under the hub's lock:

- a link knows exactly the registered instances of its path, each with its newest card;
- of each of them, for every rank it has, a link holds what the source of that rank holds.

The hub holds links weakly: dropping the last reference to a ``KvRouter`` ends its link.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Iterable

from ._errors import Closed, DynamoError, EventRefused, InvalidArgument
from ._instance import Adapter, Card, Instance, Profile
from ._router import Router
from ._source import Source


class Link:
    """One router's view of the workers of a path. Called under the hub's lock."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.block_size = router.block_size
        self._cards: dict[int, Card] = {}

    def join(self, worker_id: int, card: Card, sources: Iterable[Source]) -> None:
        """Add a worker, or give it another card. Ranks that change make it a new worker: its bookings go."""
        old = self._cards.get(worker_id)
        if old is not None and (old.dp_start, old.dp_size) != (card.dp_start, card.dp_size):
            self.leave(worker_id)
        self.router.add_worker(
            worker_id,
            dp_start=card.dp_start,
            dp_size=card.dp_size,
            block_size=card.block_size,
            max_num_batched_tokens=card.max_num_batched_tokens,
            total_kv_blocks=card.total_kv_blocks,
            taints=card.taints,
            adapters=[adapter.name for adapter in card.adapters],
        )
        self._cards[worker_id] = card
        for source in sources:
            if self._takes(source):
                self.router.load_events(source.dump())

    def leave(self, worker_id: int) -> None:
        """Remove a worker, if it is there."""
        if self._cards.pop(worker_id, None) is not None:
            self.router.remove_worker(worker_id)

    def apply(self, source: Source, event: bytes) -> None:
        """Pass on what a source has just published, if its rank is known."""
        if not self._takes(source):
            return
        try:
            self.router.apply_event(source.worker_id, event, duplicate_stores="set")
        except EventRefused:
            # What hid behind a hole when this router came is not in its dump (see Source.dump), but may be by now. Anew,
            # as the event may also have given names to other blocks.
            self.router.apply_event(source.worker_id, source.cleared())
            self.router.load_events(source.dump())

    def _takes(self, source: Source) -> bool:
        card = self._cards.get(source.worker_id)
        return card is not None and card.dp_start <= source.dp_rank < card.dp_start + card.dp_size


class Hub:
    """The shared state of one runtime. `lock` guards all of it; instances and waiters belong to the loop besides."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.lock = threading.RLock()  # reentrant: a collected publisher retires its source, wherever it was collected
        self.closed = False
        self._serving: dict[str, dict[int, Instance]] = {}
        self._registered: dict[str, dict[int, Instance]] = {}
        self._links: dict[str, weakref.WeakSet[Link]] = {}
        self._sources: dict[str, dict[tuple[int, int], Source]] = {}  # by worker id and rank
        self._waiters: set[asyncio.Future[None]] = set()

    def check(self) -> None:
        """Raise unless the runtime runs, and this is its loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this runtime belongs to another event loop than the one that is running")
        if self.closed:
            raise Closed("the runtime is shut down")

    # -- workers

    def serve(self, instance: Instance) -> None:
        """Take in a worker that begins to serve; it is registered at once. If a router refuses it, it does not serve."""
        with self.lock:
            self._check_block_size(instance.path, instance.profile.card.block_size)
            self._serving.setdefault(instance.path, {})[instance.worker_id] = instance
            try:
                self.register(instance)
            except BaseException:
                self.leave(instance)
                raise

    def serves(self, path: str, worker_id: int) -> bool:
        """Whether a worker serves, registered or not."""
        with self.lock:
            return worker_id in self._serving.get(path, {})

    def register(self, instance: Instance) -> None:
        """Make a serving worker a candidate of every router, or, if one of them refuses it, of none."""
        with self.lock:
            self._registered.setdefault(instance.path, {})[instance.worker_id] = instance
            try:
                for link in self._path_links(instance.path):
                    link.join(instance.worker_id, instance.profile.card, self._worker_sources(instance))
            except BaseException:
                self.unregister(instance)
                raise
        self._wake()

    def unregister(self, instance: Instance) -> None:
        """Take a worker from the candidates; requests in flight go on."""
        with self.lock:
            if self._registered.get(instance.path, {}).pop(instance.worker_id, None) is not None:
                for link in self._path_links(instance.path):
                    link.leave(instance.worker_id)
        self._wake()

    def leave(self, instance: Instance) -> None:
        """Forget a worker that does not serve any more, but for what a live publisher says of its cache."""
        with self.lock:
            self.unregister(instance)
            if self._serving.get(instance.path, {}).pop(instance.worker_id, None) is not None:
                for source in self._worker_sources(instance):
                    self._drop_if_idle(source)

    def finished(self, instance: Instance) -> None:
        """Do nothing: it has left."""

    def answered(self, number: int) -> None:
        """Never called: requests here have no numbers."""

    def describe(self, profile: Profile, card: Card) -> None:
        """Take over a worker's configuration, whether it serves already or not. If a router refuses it, nothing changes."""
        with self.lock:
            self._check_block_size(profile.path, card.block_size)
            old, profile.card = profile.card, card
            instances = [i for i in self.instances(profile.path).values() if i.profile is profile]
            try:
                for instance in instances:
                    self.register(instance)
            except DynamoError:
                profile.card = old
                for instance in instances:
                    self.register(instance)
                raise

    def adapt(self, profile: Profile, adapter: Adapter, loaded: bool) -> None:
        """Take over that a worker has an adapter, or has it no more."""
        self.describe(profile, profile.card.adapted(adapter, loaded))

    def instances(self, path: str) -> dict[int, Instance]:
        """The candidates of a path, in the order in which they came."""
        with self.lock:
            return dict(self._registered.get(path, {}))

    def instance(self, path: str, worker_id: int) -> Instance | None:
        """One candidate, if it is one."""
        with self.lock:
            return self._registered.get(path, {}).get(worker_id)

    async def wait_for(self, path: str, count: int, link: Link | None = None) -> list[int]:
        """Wait until a path has `count` candidates, and give their ids. With a link, also until that is detached."""
        while len(ids := list(self.instances(path))) < count and (link is None or link in self._path_links(path)):
            self.check()
            waiter = self.loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return ids

    def shutdown(self) -> None:
        """Stop every worker; nothing starts again. Called in any thread, or by a signal handler."""
        with self.lock:
            self.closed = True
        if self.loop.is_closed():
            return  # and so did everything that ran on it
        if asyncio._get_running_loop() is self.loop or not self.loop.is_running():
            self._stop()
            then = _nothing  # but wake the loop, which a signal handler may have found asleep
        else:
            then = self._stop
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(then)

    def _stop(self) -> None:
        with self.lock:
            serving = [instance for path in self._serving.values() for instance in path.values()]
        for instance in serving:
            instance.stop(drain=True)
        self._wake()

    # -- routers

    def attach(self, path: str, router: Router) -> Link:
        """Connect a router with the workers of a path, those that are there and those to come."""
        with self.lock:
            instances = self.instances(path).values()
            sizes = [i.profile.card.block_size for i in instances]
            sizes += [source.block_size for source in self._sources.get(path, {}).values()]
            for size in sizes:
                if size not in (None, router.block_size):
                    raise InvalidArgument(
                        f"block_size={router.block_size}, but a worker of {path!r} has blocks of {size} tokens"
                    )
            link = Link(router)
            for instance in instances:
                link.join(instance.worker_id, instance.profile.card, self._worker_sources(instance))
            self._links.setdefault(path, weakref.WeakSet()).add(link)
            return link

    def detach(self, path: str, link: Link) -> None:
        """Disconnect a router."""
        with self.lock:
            self._links[path].discard(link)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._wake)

    # -- publishers

    def source(self, path: str, worker_id: int, dp_rank: int, block_size: int) -> Source:
        """Give a publisher the source of its rank. Several publishers of a rank share it, and its references."""
        with self.lock:
            if self.closed:
                raise Closed("the runtime is shut down")
            self._check_block_size(path, block_size)
            sources = self._sources.setdefault(path, {})
            source = sources.get((worker_id, dp_rank))
            if source is None:
                source = sources[worker_id, dp_rank] = Source(path, worker_id, dp_rank, block_size)
            elif source.block_size != block_size:
                raise InvalidArgument(
                    f"kv_block_size={block_size}, but rank {dp_rank} of worker {worker_id} publishes blocks of "
                    f"{source.block_size} tokens"
                )
            source.publishers += 1
            return source

    def publish(self, source: Source, event: bytes) -> None:
        """Pass an event that its source has taken to the routers. Called under the lock, in the source's order."""
        for link in self._path_links(source.path):
            link.apply(source, event)

    def retire(self, source: Source) -> None:
        """Hear that a publisher says nothing more. What it said holds for as long as its worker serves."""
        with self.lock:
            source.publishers -= 1
            self._drop_if_idle(source)

    def _drop_if_idle(self, source: Source) -> None:
        """Forget a source that has neither publishers nor a worker that serves."""
        if source.publishers == 0 and source.worker_id not in self._serving.get(source.path, {}):
            del self._sources[source.path][source.worker_id, source.dp_rank]
            source.close()

    # -- helpers

    def _path_links(self, path: str) -> list[Link]:
        return list(self._links.get(path, ()))

    def _worker_sources(self, instance: Instance) -> list[Source]:
        return [s for s in self._sources.get(instance.path, {}).values() if s.worker_id == instance.worker_id]

    def _check_block_size(self, path: str, block_size: int | None) -> None:
        for link in self._path_links(path):
            if block_size not in (None, link.block_size):
                raise InvalidArgument(
                    f"blocks of {block_size} tokens for {path!r}, but a router of it has blocks of {link.block_size}"
                )

    def _wake(self) -> None:
        for waiter in tuple(self._waiters):
            if not waiter.done():
                waiter.set_result(None)


def _nothing() -> None:
    pass
