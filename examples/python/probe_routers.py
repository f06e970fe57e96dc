"""Pattern 3, probing: ask several routers, and use the one whose workers suit the prompt best.

Two pools of workers, each with a router of its own. Asking without a request id books nothing.
"""

import asyncio

from workers import BLOCK_SIZE, Worker, worker_of

from dynamo_go import DistributedRuntime, KvRouter

POOLS = ["east.backend.generate", "west.backend.generate"]


async def main() -> None:
    """Find the pool that holds a prompt's prefix."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    workers = {path: [Worker(runtime, path) for _ in range(3)] for path in POOLS}
    routers = {path: KvRouter(runtime.endpoint(path), BLOCK_SIZE) for path in POOLS}
    prefix = list(range(100, 164))

    # Earlier the west pool saw the prefix.
    items = [item async for item in await routers["west.backend.generate"].generate(prefix, "my-model")]
    seen_by = worker_of(items[0])
    while not (await routers["west.backend.generate"].best_worker(prefix))[2]:  # the KV events arrive a moment later
        await asyncio.sleep(0.001)

    prompt = [*prefix, *range(20)]
    choices = dict(
        zip(POOLS, await asyncio.gather(*(routers[path].best_worker(prompt) for path in POOLS)), strict=True)
    )
    for path, (worker_id, _, overlap) in choices.items():
        print(f"{path}: worker {worker_id} has {overlap} blocks")

    best = max(POOLS, key=lambda path: choices[path][2])
    items = [item async for item in await routers[best].generate(prompt, "my-model")]
    print(f"{best}: worker {worker_of(items[0])} answers")

    assert best == "west.backend.generate" and worker_of(items[0]) == seen_by, "the worker that holds the prefix"
    assert seen_by in [worker.id for worker in workers[best]]
    for router in routers.values():
        router.close()


if __name__ == "__main__":
    asyncio.run(main())
