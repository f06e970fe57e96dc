"""Many streams at once: nothing is lost, duplicated or leaked."""

from __future__ import annotations

import asyncio
import collections
import gc
import os
import resource
import time
from collections.abc import AsyncIterator
from typing import Any

from kit import BLOCK, PATH, busy, live, make_router, make_runtime, run

from dynamo_go._call import Answer
from dynamo_go._deployment import RemoteCall

WORKERS = 8
STREAMS = int(os.environ.get("DGO_STREAMS", "200"))
TOKENS = int(os.environ.get("DGO_STREAM_TOKENS", "50"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def read(router: Any, number: int) -> int:
    """Generate, check each item against what its worker sends, and tell which worker it was."""
    prompt = [number] * BLOCK
    count, worker = 0, 0
    stream = await router.generate(prompt, "m", {"max_tokens": TOKENS})
    async for item in stream:
        if count == 0:
            worker = item["routing_data"]["worker_id"]["decode_worker_id"]
        assert item["token_ids"] == [number * TOKENS + count]
        count += 1
        assert (item["finish_reason"] == "length") == (count == TOKENS)
    assert count == TOKENS
    return worker


def test_many_streams_at_once() -> None:
    """At full scale: DGO_STREAMS=2000 DGO_STREAM_TOKENS=200."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two sockets a stream, in this one process

    async def handle(request: Any) -> AsyncIterator[Any]:
        first = request["token_ids"][0] * TOKENS
        for i in range(TOKENS - 1):
            yield {"token_ids": [first + i]}
            if i % 10 == 0:
                await asyncio.sleep(0)
        yield {"token_ids": [first + TOKENS - 1], "finish_reason": "length"}

    async def main() -> None:
        runtime = make_runtime()
        for _ in range(WORKERS):
            runtime.endpoint(PATH).serve_endpoint(handle)
        router = make_router(runtime)
        await read(router, 0)
        gc.collect()
        before = (descriptors(), len(asyncio.all_tasks()), len(live(RemoteCall)), len(live(Answer)))
        began, cpu = time.perf_counter(), time.process_time()
        workers = collections.Counter(await asyncio.gather(*(read(router, n) for n in range(STREAMS))))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        print(f"{STREAMS} streams of {TOKENS} tokens: {took:.1f} s, {STREAMS * TOKENS / cpu:.0f} tokens a CPU second")
        assert len(workers) == WORKERS and sum(workers.values()) == STREAMS
        assert max(workers.values()) < 2 * STREAMS / WORKERS, "they spread"
        while await busy(router):
            await asyncio.sleep(0.01)
        gc.collect()
        while any(
            now > then
            for now, then in zip(
                (descriptors() - 16, len(asyncio.all_tasks()), len(live(RemoteCall)), len(live(Answer))),
                before,
                strict=True,
            )
        ):  # the tail of connections that are closed
            await asyncio.sleep(0.05)
        assert router._router.stats()["active_requests"] == 0
        runtime.shutdown()

    run(main(), 600)
