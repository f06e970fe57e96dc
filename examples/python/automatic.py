"""Pattern 1, automatic: `generate` chooses a worker, sends the request, and keeps the books."""

import asyncio

from workers import BLOCK_SIZE, Worker, worker_of

from dynamo_go import DistributedRuntime, KvRouter


async def main() -> None:
    """Send a conversation's second turn to the worker that has seen the first."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    workers = [Worker(runtime) for _ in range(4)]
    first_turn = list(range(100, 164))

    async with KvRouter(runtime.endpoint("example.backend.generate"), BLOCK_SIZE) as router:
        stream = await router.generate(first_turn, "my-model", stop_conditions={"max_tokens": 8})
        items = [item async for item in stream]
        seen_by = worker_of(items[0])
        answer = [token for item in items for token in item["token_ids"]]
        print(f"turn 1: worker {seen_by} of {len(workers)} answers {answer}")

        while not (await router.best_worker(first_turn))[2]:  # the worker's KV events arrive a moment later
            await asyncio.sleep(0.001)
        second_turn = first_turn + answer + list(range(200, 240))
        stream = await router.generate(second_turn, "my-model", stop_conditions={"max_tokens": 4})
        items = [item async for item in stream]
        hits = items[-1]["routing_data"]["timing"]["kv_hit_rate"]
        print(f"turn 2: worker {worker_of(items[0])} answers, {hits:.0%} of its blocks were cached")

        assert worker_of(items[0]) == seen_by, "the worker that holds the prefix"


if __name__ == "__main__":
    asyncio.run(main())
