"""The peer of python_router.py: KvRouter of Dynamo's wheel, on the event loop that the wheel brings.

Its workers are in a process of their own, as they are in use, so that only the router's work is measured. It takes token
ids as lists only.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop
from python_serve import BLOCK, WORKERS, long_prompt, router_cases, serve_awaited

PATH = "bench.backend.generate"


async def main() -> None:
    """Make a router of the workers, and answer once it knows all that they published."""
    from dynamo.llm import KvRouter, KvRouterConfig
    from dynamo.runtime import DistributedRuntime

    tokens = long_prompt()
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    router = KvRouter(runtime.endpoint(PATH), BLOCK, KvRouterConfig())
    async with asyncio.timeout(60):
        while len(await router.get_potential_loads([])) < WORKERS or (await router.best_worker(tokens))[2] < 512:
            await asyncio.sleep(0.1)
    await serve_awaited(router_cases(router, tokens, list))


async def workers() -> None:
    """Serve until standard input ends; the first worker publishes the prompt's blocks."""
    from dynamo.llm import KvEventPublisher, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
    from dynamo.runtime import DistributedRuntime

    async def handler(request: Any, context: Any) -> Any:
        yield request

    tokens, kept = long_prompt(), []
    for n in range(WORKERS):
        runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
        endpoint = runtime.endpoint(PATH)
        if n == 0:
            publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK, enable_local_indexer=True)
            kept.append(publisher)
        card = ModelRuntimeConfig()
        card.enable_local_indexer = n == 0
        await register_model(
            ModelInput.Tokens,
            ModelType.Completions,
            endpoint,
            "bench",
            "bench",
            worker_type=WorkerType.Aggregated,
            kv_cache_block_size=BLOCK,
            runtime_config=card,
            skip_model_assets=True,
        )
        kept.append(asyncio.ensure_future(endpoint.serve_endpoint(handler)))
    blocks = len(tokens) // BLOCK
    publisher.publish_stored(tokens, [BLOCK] * blocks, list(range(1, blocks + 1)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1:] == ["workers"]:
        uvloop.run(workers())
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update(DYN_FILE_KV=directory, DYN_LOG="error")
        command = [sys.executable, str(Path(__file__)), "workers"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            try:
                uvloop.run(main())
            finally:
                process.kill()
