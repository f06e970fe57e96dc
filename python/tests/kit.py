"""What tests share."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

import dynamo_go
from dynamo_go import DistributedRuntime, Endpoint, KvRouter, KvRouterConfig

T = TypeVar("T")

PATH = "test.backend.generate"
BLOCK = 16
WHEEL = "ai-dynamo-runtime==1.6.1"


def memory_directory() -> Path:
    """Make a directory until the process ends, in memory where the machine has a place there: a disk takes milliseconds to synchronise."""
    shm = "/dev/shm"
    directory = tempfile.mkdtemp(dir=shm if os.access(shm, os.W_OK | os.X_OK) else None)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def run(main: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
    """Run a test on an event loop of its own; one that hangs fails."""

    async def limited() -> T:
        return await asyncio.wait_for(main, timeout)

    return asyncio.run(limited())


def make_runtime() -> DistributedRuntime:
    return DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")


# Whether the address sanitizer is in this process. It keeps what is freed and has a heap of its own, so what tests measure of memory is
# the sanitizer's: they are skipped, and run without it.
SANITIZED = hasattr(ctypes.CDLL(None), "__asan_init")
# The environment of programs that are not ours. Some, curl among them, hang with the sanitizer's library in them.
FOREIGN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
measures_memory = pytest.mark.skipif(SANITIZED, reason="the memory measured is the address sanitizer's")


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go on until something holds; the test's own limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.001)


async def echo(request: Any, context: Any) -> Any:
    """Answer two tokens, the second of them the last."""
    yield {"token_ids": [1]}
    yield {"token_ids": [2], "finish_reason": "stop"}


async def silent(request: Any, context: Any) -> Any:
    """Never answer."""
    await context.async_killed_or_stopped()
    return
    yield


def serve(runtime: DistributedRuntime, handler: Any = echo, path: str = PATH) -> Endpoint:
    """Start a worker."""
    endpoint = runtime.endpoint(path)
    endpoint.serve_endpoint(handler)
    return endpoint


def make_router(runtime: DistributedRuntime, path: str = PATH, **keywords: Any) -> KvRouter:
    return KvRouter(runtime.endpoint(path), BLOCK, KvRouterConfig(**keywords))


class KvEventPublisher(dynamo_go.KvEventPublisher):
    """One that `caught_up` knows of."""

    known: ClassVar[weakref.WeakSet[KvEventPublisher]] = weakref.WeakSet()

    def __init__(self, endpoint: Endpoint, *arguments: Any, **keywords: Any) -> None:
        super().__init__(endpoint, *arguments, **keywords)
        worker_id = keywords.get("worker_id")
        self.hub = endpoint._hub
        self.rank = (
            endpoint.connection_id() if worker_id is None else worker_id,
            keywords.get("dp_rank", 0),
            endpoint._path,
        )
        self.known.add(self)


def caught_up(*routers: KvRouter) -> None:
    """Wait until routers know all that the publishers of their workers have said. The library works while this blocks the loop."""
    for router in routers:
        deadline = time.monotonic() + 20
        while not all(_knows(router, publisher) for publisher in tuple(KvEventPublisher.known)):
            assert time.monotonic() < deadline, router._router.health()
            time.sleep(0.001)


def _knows(router: KvRouter, publisher: KvEventPublisher) -> bool:
    worker_id, dp_rank, path = publisher.rank
    if (publisher.hub, path) != (router._hub, router._path):
        return True
    try:
        said = publisher.info()["messages"]
    except dynamo_go.Closed:
        return True
    for row in router._router.health():
        if (row["worker_id"], row["dp_rank"]) == (worker_id, dp_rank):
            return row["state"] == "exact" and (row["last_seq"] == said - 1 if said else row["last_seq"] is None)
    return True


def publish(publisher: dynamo_go.KvEventPublisher, tokens: list[int], first_hash: int = 1) -> list[int]:
    """Store a prompt's full blocks, named first_hash, first_hash + 1 ..."""
    blocks = len(tokens) // BLOCK
    hashes = list(range(first_hash, first_hash + blocks))
    publisher.publish_stored(tokens[: blocks * BLOCK], [BLOCK] * blocks, hashes)
    return hashes


async def overlaps(router: KvRouter, tokens: list[int]) -> dict[int, int]:
    """Blocks of the prompt that each worker holds, of those that hold any, when the router has caught up."""
    caught_up(router)
    rows = (await router.get_overlap_scores(tokens))["workers"]
    return {row["worker_id"]: row["device_blocks"] for row in rows if row["device_blocks"]}


async def busy(router: KvRouter) -> list[tuple[int, int, int]]:
    """(prefill tokens, decode blocks, requests) of each rank that has any."""
    rows = await router.get_potential_loads([])
    loads = [(r["potential_prefill_tokens"], r["potential_decode_blocks"], r["active_requests"]) for r in rows]
    return sorted(load for load in loads if load != (0, 0, 0))


async def held(router: KvRouter) -> set[tuple[int, int, int]]:
    """(worker, rank, engine hash) of each block that a router knows of, when it has caught up."""
    caught_up(router)
    return dumped(await router.dump_events())


def dumped(text: str) -> set[tuple[int, int, int]]:
    """(worker, rank, engine hash) of each block in a dump."""
    found = set()
    for event in json.loads(text):
        for block in event["event"]["data"]["stored"]["blocks"]:
            found.add((event["worker_id"], event["event"]["dp_rank"], block["block_hash"]))
    return found


async def collect(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def error_of(awaitable: Awaitable[Any]) -> Exception:
    """What awaiting raises."""
    try:
        await awaitable
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def live(kind: type) -> list[Any]:
    """The objects of a class that are alive."""
    gc.collect()
    return [o for o in gc.get_objects() if type(o) is kind]


def wheel() -> str:
    """Give the Python of an environment that has the wheel; made once, and kept in the tests' cache."""
    cache = os.environ.get("DGO_TEST_CACHE", os.path.join(tempfile.gettempdir(), "dynamo-go-test-cache"))
    place = Path(cache) / "selection-service"
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        for command in ([sys.executable, "-m", "venv", place], [python, "-m", "pip", "install", "-q", WHEEL]):
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"the wheel {WHEEL} cannot be installed: {' '.join(done.stderr.split())[-200:]}")
        (place / "complete").touch()
    return str(python)
