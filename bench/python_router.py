"""KvRouter from Python, beside Dynamo's: decisions that are awaited, with 64 workers. Asked by ./build.sh bench."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import Any

from python_serve import BLOCK, WORKERS, long_prompt, router_cases, serve_awaited

from dynamo_go import DistributedRuntime, KvEventPublisher, KvRouter


async def handler(request: Any) -> AsyncIterator[Any]:
    """Serve nothing; nothing is sent."""
    yield request


async def main() -> None:
    """Start workers and a router, and answer."""
    tokens = long_prompt()
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    endpoints = [runtime.endpoint("bench.backend.generate") for _ in range(WORKERS)]
    for endpoint in endpoints:
        endpoint.serve_endpoint(handler)
    publisher = KvEventPublisher(endpoints[0], kv_block_size=BLOCK)
    blocks = len(tokens) // BLOCK
    publisher.publish_stored(tokens, [BLOCK] * blocks, list(range(1, blocks + 1)))
    async with KvRouter(endpoints[0], BLOCK) as router:
        assert len(await router.get_potential_loads([])) == WORKERS
        while (await router.best_worker(tokens))[2] != blocks:
            await asyncio.sleep(0.001)  # the events are on their way
        await serve_awaited(router_cases(router, tokens, lambda part: array("I", part)))


if __name__ == "__main__":
    asyncio.run(main())
