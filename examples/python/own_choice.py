"""Pattern 4, your own choice: take the router's view of every worker's load, and decide by a rule of your own."""

import asyncio

from workers import BLOCK_SIZE, Worker, worker_of

from dynamo_go import DistributedRuntime, KvRouter, PotentialLoad

REQUESTS_MAX = 8  # this service wants no more on one worker


def cost(load: PotentialLoad) -> tuple[bool, float]:
    """Rate a worker as if it got the prompt; the lowest wins."""
    prompt = load["potential_prefill_tokens"] / BLOCK_SIZE
    return load["active_requests"] >= REQUESTS_MAX, prompt + 0.5 * load["potential_decode_blocks"]


async def main() -> None:
    """Send a prompt to the worker that costs least by our own rule."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    workers = [Worker(runtime) for _ in range(4)]
    prefix = list(range(100, 164))

    async with KvRouter(runtime.endpoint("example.backend.generate"), BLOCK_SIZE) as router:
        items = [item async for item in await router.generate(prefix, "my-model")]
        seen_by = worker_of(items[0])
        while not (await router.best_worker(prefix))[2]:  # the worker's KV events arrive a moment later
            await asyncio.sleep(0.001)

        prompt = [*prefix, *range(40)]
        loads = await router.get_potential_loads(prompt)
        best = min(loads, key=cost)
        print(f"worker {best['worker_id']} would compute {best['potential_prefill_tokens']} of {len(prompt)} tokens")

        # A worker that is given is not scored, but its load is booked all the same.
        stream = await router.generate(prompt, "my-model", worker_id=best["worker_id"], dp_rank=best["dp_rank"])
        items = [item async for item in stream]

        assert worker_of(items[0]) == best["worker_id"] == seen_by, "the worker that holds the prefix"
        assert seen_by in [worker.id for worker in workers]


if __name__ == "__main__":
    asyncio.run(main())
