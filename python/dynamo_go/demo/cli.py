"""The demo's command: runs every policy with every size of pool, and reports."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._errors import DynamoError
from . import plot, report, trace
from .client import RequestFailed
from .engines import EngineFailed, Engines
from .figures import Figures, figures
from .policies import KV, Policy, Random, RoundRobin
from .replay import replay

POLICIES = ("KV routing", "round robin", "random")

# An 8B model in FP8 on one H100-class GPU for each engine. With them the four engines spend about a quarter of the time
# computing prompts, and a request waits behind others every now and then: load matters, but does not pile up.
RATES: dict[str, float] = {
    "prefill_tokens_per_second": 40_000,
    "inter_token_ms": 8,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 256,
    "coalesce_ms": 20,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dynamo_go demo",
        description="Replays the first requests of a public trace of conversations to four mock engines, under KV routing, "
        "round robin and random; with caches that keep everything, and with small ones. Prints a table; writes demo.svg, "
        "demo.json, and demo.png if matplotlib is installed.",
    )
    parser.add_argument("--requests", type=int, default=1000, help="how many requests of the slice (default: all 1000)")
    parser.add_argument("--engines", type=int, default=4, help="engines (4)")
    parser.add_argument(
        "--pools",
        default="1,0.25",
        help="sizes of the engines' pools, as shares of the slice's distinct blocks; 1 and more: keeps everything",
    )
    parser.add_argument("--speedup", type=float, default=25.0, help="engine seconds in one second of this machine (25)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens in a block (16)")
    parser.add_argument("--seed", type=int, default=1, help="of random choices (1)")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the files (the current one)")
    return parser


class Demo:
    """One demo: its requests, and what its runs measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.requests = trace.load(options.requests, "mock-8b")
        size = options.block_size
        self.prompt_tokens = sum(request.prompt_tokens for request in self.requests)
        self.longest = max(request.prompt_tokens for request in self.requests)
        self.ideal = trace.ideal_cached_tokens(self.requests, size) / self.prompt_tokens
        self.distinct = trace.distinct_blocks(self.requests, size)
        needs = [-(-(request.prompt_tokens + request.output_tokens) // size) for request in self.requests]
        self._largest, self._everything = max(needs), sum(needs)
        self.runs: list[Figures] = []
        self.errors: list[str] = []

    def pool(self, share: float) -> tuple[str, int]:
        """The name and the blocks of a pool. It holds at least the longest request."""
        if share >= 1:
            return "everything", self._everything
        return f"{100 * share:g} %", max(int(share * self.distinct), self._largest)

    def titles(self) -> dict[str, str]:
        """A title for each size of pool."""
        size = self._options.block_size
        titles = {}
        for share in self._options.pools:
            name, blocks = self.pool(share)
            if name == "everything":
                titles[name] = "Caches that keep everything"
            else:
                titles[name] = (
                    f"Each engine's cache holds {name} of the slice's distinct blocks ({blocks * size / 1e6:.2f} M tokens)"
                )
                if self._options.engines * max(share, blocks / self.distinct) >= 1:
                    titles[name] += "\nTogether the pools can hold the whole working set, so little is evicted."
        return titles

    async def run(self, begin: Callable[[str], Callable[[], None]]) -> None:
        """All runs, one after the other, each with new engines."""
        for share in self._options.pools:
            name, blocks = self.pool(share)
            for policy in POLICIES:
                await self._one(policy, name, blocks, begin(f"{policy}, {name}"))

    async def _one(self, name: str, pool: str, blocks: int, progress: Callable[[], None]) -> None:
        options = self._options
        start = time.perf_counter()
        config = {**RATES, "speedup": options.speedup, "block_size": options.block_size, "blocks": blocks}
        async with Engines(options.engines, config) as engines:
            policy = self._policy(name, engines)
            try:
                outcomes = await replay(self.requests, engines, policy, options.speedup, progress)
                notes = policy.report()
            finally:
                policy.close()
        self.errors += [outcome.error for outcome in outcomes if outcome.error is not None]
        seconds = time.perf_counter() - start
        self.runs.append(figures(name, pool, blocks, options.engines, outcomes, self.ideal, seconds, notes))

    def _policy(self, name: str, engines: Engines) -> Policy:
        if name == "KV routing":
            return KV(engines.addresses, self._options.block_size, self._options.seed)
        if name == "round robin":
            return RoundRobin(self._options.engines)
        return Random(self._options.engines, self._options.seed)

    def result(self, seconds: float) -> dict[str, Any]:
        """Everything measured, as JSON values."""
        options = self._options
        return {
            "setup": {
                "requests": len(self.requests),
                "prompt_tokens": self.prompt_tokens,
                "trace_seconds": self.requests[-1].arrival,
                "distinct_blocks": self.distinct,
                "engines": options.engines,
                "block_size": options.block_size,
                "speedup": options.speedup,
                "seed": options.seed,
                "rates": RATES,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            "ideal_hit_rate": self.ideal,
            "runs": [run.as_dict() for run in self.runs],
            "comparisons": [self._comparison(pool) for pool in self.titles()],
            "errors": self.errors,
            "seconds": seconds,
        }

    def _comparison(self, pool: str) -> dict[str, Any]:
        """KV routing against round robin."""
        kv, other, _ = (run for run in self.runs if run.pool == pool)
        return {
            "pool": pool,
            "share_of_ideal": kv.share_of_ideal,
            "hit_rate_ratio": kv.hit_rate / other.hit_rate if other.hit_rate else math.nan,
            "spread_ratio": kv.spread / other.spread,
            "ttft_mean_ratio": kv.ttft_mean / other.ttft_mean,
        }


def _finite(value: Any) -> Any:
    """The same with None for what could not be measured."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.pools = [float(share) for share in options.pools.split(",")]
    except ValueError:
        parser.error(f"--pools is {options.pools!r}, must be numbers separated by commas")
    if not all(share > 0 for share in options.pools) or len({min(share, 1.0) for share in options.pools}) != len(
        options.pools
    ):
        parser.error(f"--pools is {options.pools}, must be different numbers above 0")
    for name, low, high in (("requests", 1, 1000), ("engines", 1, 64), ("speedup", 0.1, 1000), ("block_size", 1, 512)):
        if not low <= getattr(options, name) <= high:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}, must be in {low}..{high}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; gives the exit status, 1 if an engine failed or a request was lost."""
    options = _options(arguments)
    try:
        return _run(options)
    except (EngineFailed, RequestFailed, DynamoError, OSError) as error:
        print(f"demo: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130


def _busy() -> str:
    """Say that the machine has more to do than it can, if it has: the engines keep their times by it."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= cores:
        return ""
    return f"this machine is busy (load average {load:.1f}, {cores} cores): times to first token are disturbed, hit rates hardly"


def _run(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=options.out):
        pass  # files can be written there: better known now than at the end
    if busy := _busy():
        print(f"demo: {busy}", file=sys.stderr, flush=True)
    print("Loading the trace", file=sys.stderr, flush=True)
    demo = Demo(options)
    with report.progress(len(demo.requests) * len(POLICIES) * len(options.pools)) as begin:
        asyncio.run(demo.run(begin))
    result = demo.result(time.perf_counter() - start)
    (options.out / "demo.json").write_text(
        json.dumps(_finite(result), indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )
    paths = plot.write(options.out, demo.runs, demo.titles(), demo.ideal)
    print(report.table(demo.runs, demo.titles()))
    print()
    print(report.summary(result, demo.longest))
    print("Written:", *paths, options.out / "demo.json")
    for lost in demo.errors[:10]:
        print(f"demo: {lost}", file=sys.stderr)
    return 1 if demo.errors else 0
