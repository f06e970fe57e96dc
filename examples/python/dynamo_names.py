"""Code as it is written for Dynamo, with the imports changed: `dynamo.llm` and `dynamo.runtime` are in `dynamo_go.compat`.

Workers and router share a process here. docs/compat.md tells of every name whether it is the same.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dynamo_go.compat.llm import (
    KvEventPublisher,
    KvRouter,
    KvRouterConfig,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)
from dynamo_go.compat.runtime import Context, DistributedRuntime, Endpoint, dynamo_worker

BLOCK_SIZE = 16


class Engine:
    """A worker: it answers, and tells what it caches."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.id = endpoint.connection_id()
        self._publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK_SIZE)
        self._cached = 0

    async def generate(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """Answer with the number of tokens, and cache the prompt's blocks."""
        tokens = request["token_ids"]
        blocks = len(tokens) // BLOCK_SIZE
        names = range(self._cached + 1, self._cached + blocks + 1)
        self._cached += blocks
        self._publisher.publish_stored(tokens[: blocks * BLOCK_SIZE], [BLOCK_SIZE] * blocks, list(names))
        yield {"token_ids": [len(tokens)], "finish_reason": "stop"}


@dynamo_worker()
async def main(runtime: DistributedRuntime) -> None:
    """Send a prompt, others, and the first one again."""
    engines = []
    for _ in range(3):
        endpoint = runtime.endpoint("example.backend.generate")
        engines.append(Engine(endpoint))
        config = ModelRuntimeConfig()
        config.total_kv_blocks = 10_000
        await register_model(
            ModelInput.Tokens,
            ModelType.Completions,
            endpoint,
            "my-model",
            kv_cache_block_size=BLOCK_SIZE,
            runtime_config=config,
            worker_type=WorkerType.Aggregated,
        )
        asyncio.ensure_future(endpoint.serve_endpoint(engines[-1].generate))

    router = KvRouter(runtime.endpoint("example.backend.generate"), BLOCK_SIZE, KvRouterConfig())
    prompt = list(range(160))

    async def ask(tokens: list[int]) -> tuple[int, float]:
        stream = await router.generate(tokens, "my-model", stop_conditions={"max_tokens": 1})
        (item,) = [item async for item in stream]
        data = item["routing_data"]
        print(
            f"worker {data['worker_id']['decode_worker_id']}: {data['timing']['kv_hit_rate']:.0%} of the blocks were cached"
        )
        return data["worker_id"]["decode_worker_id"], data["timing"]["kv_hit_rate"]

    seen_by, hits = await ask(prompt)
    assert hits == 0
    await ask(list(range(1000, 1160)))
    while not (await router.best_worker(prompt))[2]:  # the worker's KV events arrive a moment later
        await asyncio.sleep(0.001)
    again, hits = await ask(prompt)
    assert again == seen_by and again in [engine.id for engine in engines], "the worker that holds the prefix"
    assert hits == 1
    runtime.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
