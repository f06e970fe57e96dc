"""What the Python sides of the benchmarks share: prompts and the blocks they are stored as, samples, and how they are asked for.

A side prepares, prints "ready", and answers each line of standard input, the name of a measurement, with a line " sample
sample ..." in nanoseconds and a line "done measurement".
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

BLOCK = 16
CHAIN = 256
WINDOW = 20
WINDOWS = 200
PROMPTS = 200

Cases = dict[str, Callable[[int], object]]


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


def serve(cases: Cases) -> None:
    """Answer until standard input ends. The CPU time is that of the process: a library may have threads of its own."""
    for call in cases.values():
        windows(call, time.process_time_ns)  # warm
    print("ready", flush=True)
    for line in sys.stdin:
        measurement = line.strip()
        print("", *windows(cases[measurement], time.process_time_ns))
        print("done", measurement, flush=True)
