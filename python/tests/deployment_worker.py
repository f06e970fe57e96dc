"""A worker in a process of its own, for tests that kill it: 1 ms between items, without end."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from dynamo_go import DistributedRuntime, ModelInput, ModelType, register_model


async def main() -> None:
    """Serve until killed."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint(sys.argv[1])

    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        while not context.is_stopped():
            yield {"token_ids": [1]}
            await asyncio.sleep(0.001)

    await register_model(ModelInput.Tokens, ModelType.Completions, endpoint, "m", kv_cache_block_size=16)
    await endpoint.serve_endpoint(handle)


asyncio.run(main())
