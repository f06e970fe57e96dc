"""Dynamo's own client of a standalone router: one line of JSON with what each of the router's endpoints answers.

    client.py NAMESPACE TOKENS
"""

import asyncio
import json
import sys

import uvloop
from dynamo.runtime import DistributedRuntime


async def main() -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    tokens = list(range(int(sys.argv[2])))
    request = {"model": "mock-8b", "token_ids": tokens, "stop_conditions": {"max_tokens": 3}}
    told = {}
    for name, asked in (
        ("generate", request),
        ("generate", {"token_ids": "nonsense"}),
        ("best_worker_id", tokens),
        ("get_overlap_scores", {"token_ids": tokens}),
    ):
        client = await runtime.endpoint(f"{sys.argv[1]}.router.{name}").client()
        await client.wait_for_instances()
        items = []
        try:
            async for item in await client.generate(asked):
                items.append(item.comments() if item.is_error() else item.data())
        except Exception as error:
            items.append(str(error))
        told.setdefault(name, []).append(items)
    print(json.dumps(told))
    runtime.shutdown()


uvloop.run(main())
