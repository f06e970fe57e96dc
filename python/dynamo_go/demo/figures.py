"""The figures of a run, from what became of its requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .replay import Outcome


@dataclass(frozen=True)
class Figures:
    """What one run measured."""

    policy: str
    pool: str  # "everything", or the share of the slice that a pool holds
    blocks: int  # in each engine's pool
    requests: int
    lost: int
    prompt_tokens: int
    saved_tokens: int  # prompt tokens found in a cache
    hit_rate: float  # saved_tokens / prompt_tokens
    share_of_ideal: float  # hit_rate / the ideal's
    requests_per_worker: list[int]
    uncached_per_worker: list[int]  # prompt tokens computed
    spread: float  # max / mean of uncached_per_worker
    ttft_mean: float  # seconds by the engines' clock, from a request's arrival there to its first token
    ttft_p99: float
    ttft_here_mean: float  # seconds here times the speedup, from when a request was due to its first token
    ttft_here_p99: float
    late_p99: float  # seconds of this machine that requests were sent after they were due
    decision_p50: float  # seconds of this machine
    decision_p99: float
    seconds: float  # of this machine
    notes: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `share` of all values do not exceed."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN of nothing."""
    return sum(values) / len(values) if values else math.nan


def figures(
    policy: str,
    pool: str,
    blocks: int,
    workers: int,
    outcomes: Sequence[Outcome],
    ideal_rate: float,
    seconds: float,
    notes: dict[str, int],
) -> Figures:
    """Sum up a run. Lost requests count as lost and nowhere else."""
    served = [outcome for outcome in outcomes if outcome.error is None]
    prompt = sum(outcome.prompt_tokens for outcome in served)
    saved = sum(outcome.cached_tokens for outcome in served)
    uncached = [0] * workers
    placed = [0] * workers
    for outcome in served:
        uncached[outcome.worker] += outcome.prompt_tokens - outcome.cached_tokens
        placed[outcome.worker] += 1
    rate = saved / prompt if prompt else math.nan
    ttfts = [outcome.ttft for outcome in served]
    here = [outcome.ttft_here for outcome in served]
    decisions = [outcome.decision for outcome in outcomes]
    return Figures(
        policy=policy,
        pool=pool,
        blocks=blocks,
        requests=len(outcomes),
        lost=len(outcomes) - len(served),
        prompt_tokens=prompt,
        saved_tokens=saved,
        hit_rate=rate,
        share_of_ideal=rate / ideal_rate if ideal_rate else math.nan,
        requests_per_worker=placed,
        uncached_per_worker=uncached,
        spread=max(uncached) / mean(uncached) if any(uncached) else math.nan,
        ttft_mean=mean(ttfts),
        ttft_p99=percentile(ttfts, 0.99),
        ttft_here_mean=mean(here),
        ttft_here_p99=percentile(here, 0.99),
        late_p99=percentile([outcome.late for outcome in outcomes], 0.99),
        decision_p50=percentile(decisions, 0.50),
        decision_p99=percentile(decisions, 0.99),
        seconds=seconds,
        notes=notes,
    )
