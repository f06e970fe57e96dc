"""What the objects of one in-memory runtime share: who serves, who routes, and what workers have published.

Workers, routers and publishers come and go in any order; the :class:`Hub` keeps every router in step. What always holds,
under the hub's lock:

- a link knows exactly the registered instances of its path, each with its newest card;
- of each of them, for every rank it has, a link holds what the sources of that rank hold.

The hub holds links weakly: dropping the last reference to a ``KvRouter`` ends its link.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from ._errors import Closed, EventRefused, InvalidArgument
from ._instance import Instance
from ._router import Router
from ._source import Source


@dataclass(frozen=True)
class Card:
    """What a worker says of itself when it registers a model. The defaults stand for a worker that did not."""

    block_size: int | None = None
    dp_start: int = 0
    dp_size: int = 1
    max_num_batched_tokens: int | None = None
    total_kv_blocks: int | None = None
    taints: frozenset[str] = frozenset()


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
            # A dump leaves out what hides behind a hole. A store below such a block is refused here, but is in the next dump.
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
        self._cards: dict[tuple[str, int], Card] = {}
        self._links: dict[str, weakref.WeakSet[Link]] = {}
        self._sources: dict[str, list[Source]] = {}
        self._waiters: set[asyncio.Future[None]] = set()

    def check(self) -> None:
        """Raise unless the runtime runs, and this is its loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this runtime belongs to another event loop than the one that is running")
        if self.closed:
            raise Closed("the runtime is shut down")

    # -- workers

    def serve(self, instance: Instance) -> None:
        """Take in a worker that begins to serve; it is registered at once."""
        with self.lock:
            self._check_block_size(instance.path, self._card(instance).block_size)
            self._serving.setdefault(instance.path, {})[instance.worker_id] = instance
            self.register(instance)

    def serves(self, path: str, worker_id: int) -> bool:
        """Whether a worker serves, registered or not."""
        with self.lock:
            return worker_id in self._serving.get(path, {})

    def register(self, instance: Instance) -> None:
        """Make a serving worker a candidate."""
        with self.lock:
            self._registered.setdefault(instance.path, {})[instance.worker_id] = instance
            for link in self._path_links(instance.path):
                link.join(instance.worker_id, self._card(instance), self._worker_sources(instance))
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
                    if source.retired:
                        self._drop_source(source)

    def describe(self, path: str, worker_id: int, card: Card) -> None:
        """Take over a worker's configuration, whether it serves already or not."""
        with self.lock:
            self._check_block_size(path, card.block_size)
            self._cards[path, worker_id] = card
            instance = self._registered.get(path, {}).get(worker_id)
            if instance is not None:
                self.register(instance)

    def instances(self, path: str) -> dict[int, Instance]:
        """The candidates of a path, in the order in which they came."""
        with self.lock:
            return dict(self._registered.get(path, {}))

    def instance(self, path: str, worker_id: int) -> Instance | None:
        """One candidate, if it is one."""
        with self.lock:
            return self._registered.get(path, {}).get(worker_id)

    async def wait_for(self, path: str, count: int) -> list[int]:
        """Wait until a path has `count` candidates, and give their ids."""
        while len(ids := list(self.instances(path))) < count:
            self.check()
            waiter = self.loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return ids

    def shutdown(self) -> None:
        """Stop every worker; nothing starts again."""
        with self.lock:
            self.closed = True
            serving = [instance for path in self._serving.values() for instance in path.values()]
        for instance in serving:
            instance.stop(drain=True)
        self._wake()

    # -- routers

    def attach(self, path: str, router: Router) -> Link:
        """Connect a router with the workers of a path, those that are there and those to come."""
        with self.lock:
            instances = self.instances(path).values()
            sizes = [self._card(i).block_size for i in instances] + [s.block_size for s in self._sources.get(path, ())]
            for size in sizes:
                if size not in (None, router.block_size):
                    raise InvalidArgument(
                        f"block_size={router.block_size}, but a worker of {path!r} has blocks of {size} tokens"
                    )
            link = Link(router)
            for instance in instances:
                link.join(instance.worker_id, self._card(instance), self._worker_sources(instance))
            self._links.setdefault(path, weakref.WeakSet()).add(link)
            return link

    def detach(self, path: str, link: Link) -> None:
        """Disconnect a router."""
        with self.lock:
            self._links[path].discard(link)

    # -- publishers

    def add_source(self, source: Source) -> None:
        """Take in what a publisher will say."""
        with self.lock:
            if self.closed:
                raise Closed("the runtime is shut down")
            self._check_block_size(source.path, source.block_size)
            self._sources.setdefault(source.path, []).append(source)

    def publish(self, source: Source, event: bytes) -> None:
        """Pass an event that its source has taken to the routers. Called under the lock, in the source's order."""
        for link in self._path_links(source.path):
            link.apply(source, event)

    def retire(self, source: Source) -> None:
        """Hear that nothing more comes from a source. What it said holds for as long as its worker serves."""
        with self.lock:
            source.retired = True
            if source.worker_id not in self._serving.get(source.path, {}):
                self._drop_source(source)

    def _drop_source(self, source: Source) -> None:
        sources = self._sources.get(source.path, [])
        if source in sources:
            sources.remove(source)
            source.close()

    # -- helpers

    def _card(self, instance: Instance) -> Card:
        return self._cards.get((instance.path, instance.endpoint_id), _PLAIN)

    def _path_links(self, path: str) -> list[Link]:
        return list(self._links.get(path, ()))

    def _worker_sources(self, instance: Instance) -> list[Source]:
        return [s for s in self._sources.get(instance.path, ()) if s.worker_id == instance.worker_id]

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


_PLAIN = Card()
