"""Pattern 2, by hand: the router chooses and keeps the books, you send the requests."""

import asyncio

from workers import BLOCK_SIZE, Worker

from dynamo_go import Client, DistributedRuntime, KvRouter


async def answer(router: KvRouter, client: Client, request_id: str, tokens: list[int]) -> int:
    """Route and send one request; give the worker that answered it."""
    # With a request id the choice is booked: the worker counts as busy with this prompt.
    worker_id, dp_rank, overlap = await router.best_worker(tokens, request_id=request_id)
    print(f"{request_id}: worker {worker_id}, rank {dp_rank}, {overlap} blocks cached")
    try:
        request = {"token_ids": tokens, "stop_conditions": {"max_tokens": 4}}
        first = True
        async for item in await client.direct(request, worker_id):
            assert not item.is_error(), item.comments()
            if first:
                first = False
                await router.mark_prefill_complete(request_id)  # its prompt is no load any more
    finally:
        await router.free(request_id)  # whatever happened
    return worker_id


async def main() -> None:
    """Send two requests with a common prefix."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    workers = [Worker(runtime) for _ in range(4)]
    endpoint = runtime.endpoint("example.backend.generate")
    client = await endpoint.client()
    prefix = list(range(100, 164))

    async with KvRouter(endpoint, BLOCK_SIZE) as router:
        seen_by = await answer(router, client, "request-1", prefix)
        while not (await router.best_worker(prefix))[2]:  # the worker's KV events arrive a moment later
            await asyncio.sleep(0.001)
        again = await answer(router, client, "request-2", [*prefix, 1, 2, 3])
        assert again == seen_by and again in [worker.id for worker in workers], "the worker that holds the prefix"

        loads = await router.get_potential_loads([])
        assert all(load["active_requests"] == 0 for load in loads), "every booking was freed"


if __name__ == "__main__":
    asyncio.run(main())
