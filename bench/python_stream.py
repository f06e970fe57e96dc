"""Items of one stream in ``async for``, beside the engine that makes them. Asked by ./build.sh bench."""

from __future__ import annotations

import asyncio
import time

from python_serve import answer, questions

from dynamo_go.mocker import Mocker

ITEMS = 50_000
ROUNDS = 10


async def sample(engine: Mocker) -> float:
    """Nanoseconds an item, of wall time: producer and reader work at the same time."""
    start = time.perf_counter_ns()
    count = 0
    async for _ in engine.generate(range(64), ITEMS, 4096):
        count += 1
    assert count == ITEMS
    return (time.perf_counter_ns() - start) / ITEMS


async def main() -> None:
    """Answer."""
    with Mocker(inter_token_ms=0, speedup=1000) as engine:
        await sample(engine)
        for measurement in questions():
            answer(measurement, [await sample(engine) for _ in range(ROUNDS)])


if __name__ == "__main__":
    asyncio.run(main())
