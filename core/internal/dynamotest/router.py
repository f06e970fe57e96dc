"""A router of NVIDIA Dynamo, driven by one JSON object a line on standard input; answers are lines of JSON on standard output.

Arguments: the workers' endpoint, the block size. Commands (``do``):

    generate  tokens, model, max_tokens (3), stop_after (then the stream is dropped)   -> items, error, worker
    overlap   tokens                                                   -> scores by worker id
    best      tokens, request_id                                       -> worker, overlap
    free, prefilled  request_id
    loads     tokens                                                   -> rows
    instances                                                          -> ids
    dump                                                               -> events
    direct    worker, request, stop_after (then it is stopped)         -> items
"""

import asyncio
import json
import os
import sys

import uvloop
from dynamo._core import Context, DistributedRuntime, KvRouter, KvRouterConfig


async def main():
    loop = asyncio.get_running_loop()
    discovery, requests, events = os.environ["PLANES"].split()
    runtime = DistributedRuntime(loop, discovery, requests, event_plane=events)
    endpoint = runtime.endpoint(sys.argv[1])
    client = await endpoint.client()
    router = KvRouter(endpoint, int(sys.argv[2]), KvRouterConfig(router_replica_sync=True))

    async def generate(c):
        items, error = [], None
        stream = await router.generate(c["tokens"], c["model"], stop_conditions={"max_tokens": c.get("max_tokens", 3)})
        try:
            async for item in stream:
                if item is None:  # releases before 1.5 tell no more of an error than that
                    error = "boom (the release gives no text)"
                    break
                items.append(item)
                if len(items) == c.get("stop_after"):
                    break
        except Exception as e:
            error = str(e)
        del stream
        return {"items": items, "error": error}

    async def direct(c):
        items, context = [], Context()
        async for item in await client.direct(c["request"], c["worker"], context=context):
            items.append(item.data())
            if len(items) == c.get("stop_after"):
                context.stop_generating()
        return {"items": items}

    async def overlap(c):
        scores = await router.get_overlap_scores(c["tokens"])
        return {"scores": scores}

    async def best(c):
        worker, rank, blocks = await router.best_worker(c["tokens"], request_id=c.get("request_id"))
        return {"worker": worker, "rank": rank, "overlap": blocks}

    async def free(c):
        await router.free(c["request_id"])
        return {}

    async def prefilled(c):
        await router.mark_prefill_complete(c["request_id"])
        return {}

    async def loads(c):
        return {"rows": await router.get_potential_loads(c["tokens"])}

    async def instances(c):
        return {"ids": client.instance_ids()}

    async def dump(c):
        return {"events": json.loads(await router.dump_events())}

    actions = {f.__name__: f for f in (generate, direct, overlap, best, free, prefilled, loads, instances, dump)}

    async def answer(line):
        command = json.loads(line)
        try:
            result = await asyncio.wait_for(actions[command["do"]](command), 30)
        except BaseException as e:
            result = {"failed": f"{type(e).__name__}: {e}"}
        print(json.dumps({"n": command["n"], **result}, default=str), flush=True)

    print(json.dumps({"ready": True}), flush=True)
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = set()
    while line := await reader.readline():
        task = asyncio.ensure_future(answer(line))
        running.add(task)
        task.add_done_callback(running.discard)
    runtime.shutdown()


uvloop.run(main())
