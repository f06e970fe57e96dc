"""KvRouter.generate, end to end: ours ("ours") and Dynamo's ("wheel"), each with workers of the same program. Asked by ./build.sh bench.

The workers, eight, are served by the benchmarks' own Go program in a process of its own, found by files; they answer as fast
as they are read. Only the CPU time of this process, the router's, counts. Dynamo's runs on uvloop, which its wheel brings.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from python_serve import answer, questions

PATH = "bench.backend.generate"
WORKERS = 8
STREAMS = 2000
TOKENS = 200
PROMPT = 64
PAIRS = 5000
LENGTH = 1024


async def stream(router: Any, first: int) -> None:
    """Send one request for all tokens, and see that they come: each once, in order."""
    n = 0
    async for item in await router.generate(list(range(first, first + PROMPT)), "many-tokens"):
        assert item["token_ids"] == [n], (n, item)
        assert (n == 0) == ("worker_id" in item.get("routing_data", {})), item
        assert (n == TOKENS - 1) == (item["finish_reason"] is not None), item
        n += 1
    assert n == TOKENS, n


async def per_token(router: Any) -> float:
    """Nanoseconds of CPU time that a token takes."""
    start = time.process_time_ns()
    await asyncio.gather(*(stream(router, n * PROMPT) for n in range(STREAMS)))
    return (time.process_time_ns() - start) / (STREAMS * TOKENS)


async def overhead(router: Any, client: Any) -> float:
    """The median of the nanoseconds by the clock that a request takes longer through the router than directly."""
    prompt = list(range(LENGTH))
    request = {"model": "m", "token_ids": prompt, "stop_conditions": {}, "routing": {"dp_rank": 0}}
    (to, *_) = client.instance_ids()

    async def direct() -> int:
        start = time.perf_counter_ns()
        async for _ in await client.direct(request, to, annotated=False):
            pass
        return time.perf_counter_ns() - start

    async def routed() -> int:
        start = time.perf_counter_ns()
        async for _ in await router.generate(prompt, "m"):
            pass
        return time.perf_counter_ns() - start

    differences = []
    for n in range(PAIRS):
        if n % 2 == 0:
            less = await direct()
            differences.append(await routed() - less)
        else:
            more = await routed()
            differences.append(more - await direct())
    return float(sorted(differences)[PAIRS // 2])


async def main(runtime_class: Any, router_class: Any, config: Any) -> None:
    """Answer."""
    runtime = runtime_class(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint(PATH)
    client = await endpoint.client()
    router = router_class(endpoint, 16, config())
    async with asyncio.timeout(60):
        while len(await router.get_potential_loads([])) < WORKERS:
            await asyncio.sleep(0.1)
    await stream(router, 0)  # warm
    for measurement in questions():
        answer(measurement, [await per_token(router) if measurement == "streams" else await overhead(router, client)])


def start(folder: str) -> subprocess.Popen[bytes]:
    """Start the workers of a deployment; they end with their standard input."""
    os.environ.update(DYN_FILE_KV=folder, DYN_LOG="off", DYN_TCP_RPC_HOST="127.0.0.1", DYN_TCP_RESPONSE_STREAM_HOST="127.0.0.1", DYN_EVENT_PLANE_HOST="127.0.0.1")  # fmt: skip
    workers = subprocess.Popen(
        [os.environ["DGO_BENCH"], "serve", "workers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert workers.stdout is not None and workers.stdout.readline() == b"ready\n"
    return workers


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        workers = start(folder)
        try:
            if sys.argv[1] == "ours":
                from dynamo_go import DistributedRuntime, KvRouter, KvRouterConfig

                asyncio.run(main(DistributedRuntime, KvRouter, KvRouterConfig))
            else:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it logs a line for each request, whatever DYN_LOG says
                import uvloop
                from dynamo.llm import KvRouter, KvRouterConfig
                from dynamo.runtime import DistributedRuntime

                uvloop.run(main(DistributedRuntime, KvRouter, KvRouterConfig))
        finally:
            assert workers.stdin is not None
            workers.stdin.close()
            workers.wait()
