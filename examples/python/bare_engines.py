"""Bare vLLM or SGLang servers behind a router: three lines each, no wrapper process, no infrastructure.

The engines here are mockers, which need no GPU; real ones take the same three lines.
"""

import asyncio

from dynamo_go import DistributedRuntime, KvRouter
from dynamo_go.mocker import Mocker

BLOCK_SIZE = 16


async def held(router: KvRouter, prompt: list[int], worker_id: int) -> bool:
    """Whether the router knows that a worker holds the prompt."""
    rows = (await router.get_overlap_scores(prompt))["workers"]
    return any(row["worker_id"] == worker_id and row["device_blocks"] >= 39 for row in rows)


async def main() -> None:
    """Ask for the same prompt twice; the second time its blocks are found."""
    engines = [Mocker(block_size=BLOCK_SIZE) for _ in range(2)]
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    endpoint = runtime.endpoint("demo.vllm.generate")
    for engine in engines:
        at = engine.info
        endpoint.add_engine(at["http"], kv_events=at["kv_events"], replay=at["replay"], block_size=BLOCK_SIZE)
    router = KvRouter(endpoint, BLOCK_SIZE)
    while len(await router.get_potential_loads([])) < 2:
        await asyncio.sleep(0.01)  # until both are healthy

    prompt = list(range(40 * BLOCK_SIZE))
    for turn in ("first", "second"):
        stream = await router.generate(prompt, "mock-8b", stop_conditions={"max_tokens": 8})
        items = [item async for item in stream]
        tokens = [token for item in items for token in item["token_ids"]]
        cached = items[-1]["completion_usage"]["prompt_tokens_details"]["cached_tokens"]
        worker = items[0]["routing_data"]["worker_id"]["decode_worker_id"]
        print(f"{turn} time: worker {worker}, {len(tokens)} tokens, {cached} of {len(prompt)} prompt tokens cached")
        while not await held(router, prompt, worker):
            await asyncio.sleep(0.01)  # until its KV events are here
    assert cached >= 39 * BLOCK_SIZE, "the worker that holds the prefix was not chosen"
    runtime.shutdown()
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    asyncio.run(main())
