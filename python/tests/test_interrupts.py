"""KeyboardInterrupt ends every call that blocks, within 100 ms.

A program says that it is about to block; once its main thread sleeps, it gets a SIGINT, and tells how long after it the
exception came. The machine may be busy, so a program has a few tries: what fails is a call that never makes it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# For a call of the library that takes long stands one that never ends, without the GIL, and that no signal ends: a mutex is
# locked twice.
BLOCKED = """
import ctypes
mutex, lock = ctypes.create_string_buffer(256), ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
def blocked(*arguments):
    lock(mutex)
class Native:
    save = load = dump_events = load_events = dump = close = staticmethod(blocked)
"""
ROUTER = """
router = dynamo_go.Router(16, dynamo_go.KvRouterConfig(router_queue_threshold=0.0))
router.add_worker(1)
router.best_worker([1] * 64, request_id="first")
"""
STUCK = ROUTER + BLOCKED + "router._native = Native()\n"

CALLS = {
    "best_worker": (ROUTER, "router.best_worker([1] * 64)"),
    "best_worker with a timeout": (ROUTER, "router.best_worker([1] * 64, timeout=60)"),
    "best_workers": (ROUTER, "router.best_workers([[1] * 64] * 3, timeout=60)"),
    "EventReader.next": (
        "reader = _native.EventReader('tcp://127.0.0.1:1', None, None)\n",
        "while True: reader.next(100)",
    ),
    "Stream.take": (
        "engine = Mocker(inter_token_ms=60000)\nstream = engine.generate([1], 5)._native\nstream.take(100)\n",
        "while True: stream.take(100)",
    ),
    "async for": (
        "engine = Mocker(inter_token_ms=60000)\n"
        "async def read():\n    async for item in engine.generate([1], 5): pass\n",
        "asyncio.run(read())",
    ),
    "awaited best_worker": (
        "async def ask():\n"
        "    runtime = dynamo_go.DistributedRuntime(asyncio.get_running_loop(), 'mem', 'tcp')\n"
        "    async def handler(request, context):\n        yield {}\n"
        "    runtime.endpoint('a.b.c').serve_endpoint(handler)\n"
        "    config = dynamo_go.KvRouterConfig(router_queue_threshold=0.0)\n"
        "    router = dynamo_go.KvRouter(runtime.endpoint('a.b.c'), 16, config)\n"
        "    await router.best_worker([1] * 64, request_id='first')\n"
        "    await router.best_worker([1] * 64)\n",
        "asyncio.run(ask())",
    ),
    "save": (STUCK, "router.save('x')"),
    "load": (STUCK, "router.load('x')"),
    "dump_events": (STUCK, "router.dump_events()"),
    "load_events": (STUCK, "router.load_events('[]')"),
    "dump_tree_as_events": (
        BLOCKED + "tree = dynamo_go.RadixTree()\ntree._native = Native()\n",
        "tree.dump_tree_as_events()",
    ),
    "Mocker.close": (BLOCKED + "engine = Mocker()\nengine._native = Native()\n", "engine.close()"),
    "KvEventPublisher.shutdown": (
        BLOCKED + "publisher = dynamo_go.KvEventPublisher('tcp://127.0.0.1:0', 1, 16)\n"
        "publisher._outlet.unknown_removals = lambda: 0\npublisher._outlet._native = Native()\n",
        "publisher.shutdown()",
    ),
}

PROGRAM = """
import asyncio, signal, sys, time
import dynamo_go
from dynamo_go import _native
from dynamo_go.mocker import Mocker
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


def sleeps(process: subprocess.Popen[str]) -> bool:
    """Whether the main thread of a process sleeps."""
    state = Path(f"/proc/{process.pid}/task/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S"


def seconds_until_interrupted(program: str) -> float:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        seen = 0
        while seen < 5 and process.poll() is None:  # asleep for good, not between two steps
            seen = seen + 1 if sleeps(process) else 0
            time.sleep(0.005)
        sent = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, ""), out
        return float(out) - sent
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", CALLS)
def test_interrupt_ends_a_blocking_call(name: str) -> None:
    before, call = CALLS[name]
    program = PROGRAM.format(before=before, call=call)
    took: list[float] = []
    while not took or (took[-1] >= 0.1 and len(took) < 20):
        took.append(seconds_until_interrupted(program))
    assert took[-1] < 0.1, took
