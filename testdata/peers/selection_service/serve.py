"""Dynamo's own selection service (the wheel ai-dynamo-runtime), commanded over standard input.

A command is a JSON list [method, arguments...]; the answer is a JSON value on the descriptor given as argument. The method
"drawn" selects for a request until it has seen all of the expected ranks, or so often that one that it never saw is not among
the cheapest.
"""

import asyncio
import json
import os
import sys

from dynamo._core import SelectionService


async def drawn(service, request, expected):
    wanted, seen = {tuple(rank) for rank in expected}, set()
    for n in range(40 * len(wanted)):
        got = await service.select(request)
        seen.add((got["worker_id"], got["dp_rank"]))
        if seen - wanted or (seen == wanted and n >= 2):
            break
    return sorted(seen)


async def main():
    service = SelectionService()
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as answers:
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            if method == "drawn":
                answer = await drawn(service, *arguments)
            elif method == "upsert_worker":
                (worker,) = arguments
                worker["kv_events_endpoints"] = {int(r): e for r, e in worker["kv_events_endpoints"].items()}
                answer = await service.upsert_worker(worker)
            elif method == "restart":  # with these variables of the environment
                service.shutdown()
                for name in [name for name in os.environ if name.startswith("DYN_ROUTER_")]:
                    del os.environ[name]
                os.environ.update(*arguments)
                service, answer = SelectionService(), None
            else:
                answer = getattr(service, method)(*arguments)
                if asyncio.isfuture(answer) or asyncio.iscoroutine(answer):
                    answer = await answer
            answers.write(json.dumps(answer) + "\n")


asyncio.run(main())
