"""What the Python sides of the benchmarks share: prompts and the blocks they are stored as, samples, and how they are asked for.

A side prepares, prints "ready", and answers each line of standard input, the name of a measurement, with a line " sample
sample ..." in nanoseconds (or bytes) and a line "done measurement".
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

BLOCK = 16
CHAIN = 256
WINDOW = 20
WINDOWS = 200
PROMPTS = 200
WORKERS = 64

Cases = dict[str, Callable[[int], object]]
AsyncCases = dict[str, Callable[[int], Awaitable[object]]]


def chains(
    blocks: int, hashes_of: Callable[[list[int], int], list[int]]
) -> Iterator[tuple[dict[str, Any], list[int] | None]]:
    """Chains of 256 blocks, each an event that stores it; the first ones are prompts with tokens."""
    rng = random.Random(7)
    for n in range(blocks // CHAIN):
        tokens = [rng.randrange(128_000) for _ in range(BLOCK * CHAIN)] if n < PROMPTS else None
        hashes = [rng.getrandbits(64) for _ in range(CHAIN)] if tokens is None else hashes_of(tokens, BLOCK)
        stored = [{"block_hash": rng.getrandbits(64), "tokens_hash": h} for h in hashes]
        yield {"event_id": n, "data": {"stored": {"parent_hash": None, "blocks": stored}}}, tokens


def long_prompt() -> list[int]:
    """8,192 tokens that one worker holds; shorter prompts are its beginning."""
    rng = random.Random(11)
    return [rng.randrange(128_000) for _ in range(8192)]


def windows(call: Callable[[int], object], clock: Callable[[], int]) -> list[float]:
    """Nanoseconds a call, each the mean of a window of 20 calls."""
    samples = []
    n = 0
    for _ in range(WINDOWS):
        start = clock()
        for _ in range(WINDOW):
            call(n)
            n += 1
        samples.append((clock() - start) / WINDOW)
    return samples


async def awaited(call: Callable[[int], Awaitable[object]]) -> list[float]:
    """The same, in CPU time of the process, of calls that are awaited."""
    samples = []
    n = 0
    for _ in range(WINDOWS):
        start = time.process_time_ns()
        for _ in range(WINDOW):
            await call(n)
            n += 1
        samples.append((time.process_time_ns() - start) / WINDOW)
    return samples


def answer(measurement: str, samples: list[float]) -> None:
    """Say what was measured."""
    print("", *samples)
    print("done", measurement, flush=True)


def questions() -> Iterator[str]:
    """Say that all is prepared; then what is asked for, until standard input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        yield line.strip()


def serve(cases: Cases) -> None:
    """Answer until standard input ends. The CPU time is that of the process: a library may have threads of its own."""
    for call in cases.values():
        windows(call, time.process_time_ns)  # warm
    for measurement in questions():
        answer(measurement, windows(cases[measurement], time.process_time_ns))


async def serve_awaited(cases: AsyncCases) -> None:
    """Do as :func:`serve`, with calls that are awaited."""
    for call in cases.values():
        await awaited(call)  # warm
    for measurement in questions():
        answer(measurement, await awaited(cases[measurement]))


def router_cases(router: Any, tokens: list[int], buffer: Any) -> AsyncCases:
    """What is asked of a KvRouter, ours or Dynamo's; `buffer` gives the tokens as what it takes with least work."""
    short, middle = tokens[:1024], buffer(tokens[:4096])

    async def book(n: int) -> None:
        name = f"request-{n}"
        await router.best_worker(short, request_id=name)
        await router.mark_prefill_complete(name)
        await router.free(name)

    return {
        "list_1k": lambda _: router.best_worker(short),
        "list_8k": lambda _: router.best_worker(tokens),
        "buffer_4k": lambda _: router.best_worker(middle),
        "book_cycle": book,
        "loads": lambda _: router.get_potential_loads(short),
    }
