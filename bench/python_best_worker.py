"""How long one decision takes from Python: Router.best_worker, 64 workers, 1 M blocks, prompts of 4,096 tokens.

    python bench/python_best_worker.py [--blocks N] [--workers N] [--json FILE]

Each worker holds chains of 256 blocks of its own; each prompt is one chain, so every query matches 256 blocks of one
worker. "hot" asks for one prompt again and again; "cold" walks 200 prompts, whose lists do not fit the caches. A figure is
the mean of a window of 20 calls; the smallest and the median of 200 windows are shown, in thread CPU time, which other
processes on the machine disturb least, and in wall time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from dynamo_go import Router, compute_block_hash_for_seq

BLOCK = 16
CHAIN = 256
WINDOW = 20
WINDOWS = 200
PROMPTS = 200


def fill(router: Router, workers: int, blocks: int, rng: random.Random) -> list[list[int]]:
    """Store the blocks, and give prompts that are held."""
    prompts = []
    for n in range(blocks // CHAIN):
        if n < PROMPTS:
            tokens = [rng.randrange(128_000) for _ in range(BLOCK * CHAIN)]
            hashes = compute_block_hash_for_seq(tokens, BLOCK)
            prompts.append(tokens)
        else:
            hashes = [rng.getrandbits(64) for _ in range(CHAIN)]
        stored = [{"block_hash": rng.getrandbits(64), "tokens_hash": h} for h in hashes]
        router.apply_event(n % workers, {"event_id": n, "data": {"stored": {"parent_hash": None, "blocks": stored}}})
    return prompts


def measure(call: Callable[[int], object]) -> dict[str, float]:
    """Microseconds a call."""
    cpu, wall = [], []
    n = 0
    for _ in range(WINDOWS):
        w, c = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(WINDOW):
            call(n)
            n += 1
        cpu.append((time.thread_time_ns() - c) / WINDOW / 1e3)
        wall.append((time.perf_counter_ns() - w) / WINDOW / 1e3)
    return {
        "cpu_min_us": round(min(cpu), 2),
        "cpu_median_us": round(statistics.median(cpu), 2),
        "wall_min_us": round(min(wall), 2),
        "wall_median_us": round(statistics.median(wall), 2),
    }


def book(router: Router, tokens: list[int], n: int) -> None:
    """Run one request's life."""
    name = f"request-{n}"
    router.best_worker(tokens, request_id=name)
    router.mark_prefill_complete(name)
    router.free(name)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()

    rng = random.Random(7)
    results: dict[str, dict[str, float]] = {}
    with Router(BLOCK, seed=1) as router:
        for worker in range(args.workers):
            router.add_worker(worker)
        prompts = fill(router, args.workers, args.blocks, rng)
        for n, tokens in enumerate(prompts):
            found = router.best_worker(tokens)
            assert found == (n % args.workers, 0, CHAIN), f"prompt {n} went to {found}"
        buffers = [array("I", tokens) for tokens in prompts]
        hot, hot_buffer, many = prompts[0], buffers[0], len(prompts)
        cases: dict[str, Callable[[int], object]] = {
            "list, hot": lambda n: router.best_worker(hot),
            "list, cold": lambda n: router.best_worker(prompts[n % many]),
            "uint32 buffer, hot": lambda n: router.best_worker(hot_buffer),
            "uint32 buffer, cold": lambda n: router.best_worker(buffers[n % many]),
            "list, hot: book, mark, free": lambda n: book(router, hot, n),
        }
        stats = router.stats()
        print(
            f"{args.workers} workers, {stats['blocks']:,} blocks, {len(hot):,} tokens a prompt; microseconds a decision"
        )
        print(f"{'':30}{'CPU min':>10}{'median':>10}{'wall min':>10}{'median':>10}")
        for name, call in cases.items():
            measure(call)  # warm
            row = results[name] = measure(call)
            print(f"{name:30}" + "".join(f"{value:10.2f}" for value in row.values()))
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
