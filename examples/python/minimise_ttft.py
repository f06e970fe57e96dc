"""Minimise the time to the first token: send each prompt where the fewest tokens are to be computed before it answers.

The time to the first token is the prompt tokens that a worker still has to compute, this prompt's included, over the
rate at which it computes them. What its other requests decode hardly matters, so only prompts are weighed.
"""

import asyncio

from workers import BLOCK_SIZE, Worker, worker_of

from dynamo_go import DistributedRuntime, KvRouter

PREFILL_TOKENS_PER_SECOND = 40_000


async def choose(router: KvRouter, tokens: list[int]) -> tuple[int, int, float]:
    """Give the worker, its rank, and the seconds to the first token that are expected of it."""
    loads = await router.get_potential_loads(tokens)
    best = min(loads, key=lambda load: load["potential_prefill_tokens"])
    return best["worker_id"], best["dp_rank"], best["potential_prefill_tokens"] / PREFILL_TOKENS_PER_SECOND


async def main() -> None:
    """Answer two requests with a common system prompt, each as soon as possible."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    workers = [Worker(runtime) for _ in range(4)]
    system_prompt = list(range(1000, 1800))
    seen_by = None

    async with KvRouter(runtime.endpoint("example.backend.generate"), BLOCK_SIZE) as router:
        for question in ([1, 2, 3], [7, 8, 9]):
            prompt = system_prompt + question
            worker_id, dp_rank, seconds = await choose(router, prompt)
            stream = await router.generate(prompt, "my-model", worker_id=worker_id, dp_rank=dp_rank)
            items = [item async for item in stream]
            print(f"worker {worker_of(items[0])}: first token expected after {seconds * 1e3:.2f} ms")

            assert seen_by in (None, worker_id), "the worker that holds the prefix"
            seen_by = worker_id
            while (await router.best_worker(prompt))[2] < len(prompt) // BLOCK_SIZE:  # KV events arrive a moment later
                await asyncio.sleep(0.001)
        assert seconds < 0.1 * len(system_prompt) / PREFILL_TOKENS_PER_SECOND
        assert seen_by in [worker.id for worker in workers]


if __name__ == "__main__":
    asyncio.run(main())
