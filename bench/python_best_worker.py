"""How long one decision takes from Python: Router.best_worker, 64 workers, 1 M blocks, prompts of 4,096 tokens.

    python bench/python_best_worker.py [--blocks N] [--workers N]

Each worker holds chains of 256 blocks of its own; each prompt is one chain, so every query matches 256 blocks of one
worker. "hot" asks for one prompt again and again; "cold" walks 200 prompts, whose lists do not fit the caches. A figure is
the mean of a window of 20 calls; the smallest and the median of 200 windows are shown, in thread CPU time, which other
processes on the machine disturb least, and in wall time.

With --serve it answers `./build.sh bench` instead of printing; see python_serve.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array

from python_serve import BLOCK, CHAIN, WORKERS, Cases, chains, long_prompt, serve, windows

from dynamo_go import RadixTree, Router, compute_block_hash_for_seq


def book(router: Router, tokens: list[int], n: int) -> None:
    """Run one request's life."""
    name = f"request-{n}"
    router.best_worker(tokens, request_id=name)
    router.mark_prefill_complete(name)
    router.free(name)


def prepare(router: Router, workers: int, blocks: int) -> Cases:
    """Store the blocks, and give what can be measured."""
    prompts: list[list[int]] = []
    tree = RadixTree()
    for worker in range(workers):
        router.add_worker(worker)
    for n, (event, tokens) in enumerate(chains(blocks, compute_block_hash_for_seq)):
        router.apply_event(n % workers, event)
        tree.apply_event(n % workers, event)
        if tokens is not None:
            prompts.append(tokens)
    for n, tokens in enumerate(prompts):
        found = router.best_worker(tokens)
        assert found == (n % workers, 0, CHAIN), f"prompt {n} went to {found}"
    buffers = [array("I", tokens) for tokens in prompts]
    hot, hot_buffer, many = prompts[0], buffers[0], len(prompts)
    long, hashes = long_prompt(), compute_block_hash_for_seq(hot, BLOCK)
    assert tree.find_matches(hashes).scores == {(0, 0): CHAIN}
    return {
        "list_hot": lambda n: router.best_worker(hot),
        "list_cold": lambda n: router.best_worker(prompts[n % many]),
        "buffer_hot": lambda n: router.best_worker(hot_buffer),
        "buffer_cold": lambda n: router.best_worker(buffers[n % many]),
        "book": lambda n: book(router, hot, n),
        "block_hash_8k": lambda n: compute_block_hash_for_seq(long, BLOCK),
        "radix_match": lambda n: tree.find_matches(hashes).scores,
    }


def show(router: Router, cases: Cases, workers: int) -> None:
    """Measure and print."""
    print(
        f"{workers} workers, {router.stats()['blocks']:,} blocks, {CHAIN * BLOCK:,} tokens a prompt; microseconds a decision"
    )
    print(f"{'':14}{'CPU min':>10}{'median':>10}{'wall min':>10}{'median':>10}")
    for name, call in cases.items():
        windows(call, time.thread_time_ns)  # warm
        cpu, wall = windows(call, time.thread_time_ns), windows(call, time.perf_counter_ns)
        row = [f(samples) / 1e3 for samples in (cpu, wall) for f in (min, statistics.median)]
        print(f"{name:14}" + "".join(f"{value:10.2f}" for value in row))


def main() -> None:
    """Measure and print, or answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--serve", action="store_true", help="answer ./build.sh bench")
    args = parser.parse_args()
    with Router(BLOCK, seed=1) as router:
        cases = prepare(router, args.workers, args.blocks)
        if args.serve:
            serve(cases)
        else:
            show(router, cases, args.workers)


if __name__ == "__main__":
    main()
