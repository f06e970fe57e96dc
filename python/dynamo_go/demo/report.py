"""What the demo prints: progress, a table, and a summary in words."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .figures import Figures

_COLUMNS = (
    "policy",
    "hit rate",
    "of ideal",
    "tokens saved",
    "balance",
    "mean TTFT",
    "p99 TTFT",
    "decision p50",
    "decision p99",
)


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Progress over all runs, on standard error: ``begin(name)`` gives what each finished request calls.

    A bar by rich where that is installed and standard error is a terminal.
    """
    try:
        bars = importlib.import_module("rich.progress") if sys.stderr.isatty() else None
    except ImportError:
        bars = None
    if bars is None:
        yield _Plain(total).begin
        return
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description:28}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=console, refresh_per_second=4) as bar:
        task = bar.add_task("", total=total)

        def begin(name: str) -> Callable[[], None]:
            bar.update(task, description=name)
            return lambda: bar.advance(task)

        yield begin


class _Plain:
    """A progress line on standard error: redrawn on a terminal, else printed once a run."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._name = ""
        self._live = sys.stderr.isatty()

    def begin(self, name: str) -> Callable[[], None]:
        self._name = name
        if not self._live:
            print(f"[{self._done:5}/{self._total}] {name}", file=sys.stderr, flush=True)
        return self._step

    def _step(self) -> None:
        self._done += 1
        if self._live and (self._done % 20 == 0 or self._done == self._total):
            filled = 30 * self._done // self._total
            end = "\n" if self._done == self._total else ""
            bar = "#" * filled + "." * (30 - filled)
            print(f"\r{self._name:28} [{bar}] {self._done}/{self._total}", end=end, file=sys.stderr, flush=True)


def _row(run: Figures) -> tuple[str, ...]:
    return (
        run.policy,
        f"{run.hit_rate:.3f}",
        f"{run.share_of_ideal:.2f}",
        f"{run.saved_tokens / 1e6:.2f} M",
        f"{run.spread:.3f}",
        f"{run.ttft_mean:.3f} s",
        f"{run.ttft_p99:.2f} s",
        f"{run.decision_p50 * 1e6:.0f} us",
        f"{run.decision_p99 * 1e6:.0f} us",
    )


def table(runs: Sequence[Figures], titles: dict[str, str]) -> str:
    """The runs as text, one part for each size of pool."""
    rows = [_row(run) for run in runs]
    widths = [max(len(cell) for cell in column) for column in zip(_COLUMNS, *rows)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths))
        ).rstrip()

    out = []
    for pool, title in titles.items():
        out += ["", title, line(_COLUMNS), "-" * (sum(widths) + 2 * len(widths) - 2)]
        out += [line(row) for run, row in zip(runs, rows) if run.pool == pool]
    return "\n".join(out)


def _range(result: dict[str, Any], name: str, scale: float) -> str:
    values = [scale * run[name] for run in result["runs"]]
    return f"{min(values):.2f} to {max(values):.2f}"


def _than(ratio: float, more: str, less: str, same: str, unknown: str) -> str:
    """A ratio in words: "72 % more", "8 % less"."""
    if not math.isfinite(ratio):
        return unknown
    percent = round(100 * (ratio - 1))
    return f"{percent} % {more}" if percent > 0 else f"{-percent} % {less}" if percent < 0 else same


def _compared(comparison: dict[str, Any]) -> str:
    pool, hits, ttft = comparison["pool"], comparison["hit_rate_ratio"], comparison["ttft_mean_ratio"]
    caches = "Caches that keep everything" if pool == "everything" else f"Caches of {pool}"
    found = _than(hits, "more hits than", "fewer hits than", "as many hits as", "hits that cannot be compared with")
    return (
        f"{caches}: KV routing has {found} round robin, its mean TTFT is "
        f"{_than(ttft, 'higher', 'lower', 'the same', 'not known')}. The ratios: hit rate {hits:.2f}, mean TTFT {ttft:.2f}, "
        f"balance {comparison['spread_ratio']:.2f}."
    )


# A machine that sends requests later than that does not keep the trace's times.
_LATE_SECONDS = 0.25


def _disturbed(result: dict[str, Any]) -> list[str]:
    late = max((run["late_p99"] for run in result["runs"]), default=0.0)
    if not late > _LATE_SECONDS:
        return []
    return [
        f"This machine was too busy: requests were sent {late:.1f} s late (99th percentile). Believe no TTFT of this run; a lower "
        "--speedup needs less of the machine."
    ]


def summary(result: dict[str, Any], longest: int) -> str:
    """What was measured, in words; `longest` is the tokens of the longest prompt."""
    setup = result["setup"]
    engines = setup["engines"]
    lines = [
        f"{setup['requests']} requests, {setup['prompt_tokens'] / 1e6:.2f} M prompt tokens over {setup['trace_seconds']:.0f} s of the "
        f"trace, replayed at {setup['speedup']:g} times its speed to {engines} engine{'s' if engines != 1 else ''}.",
        *map(_compared, result["comparisons"]),
        *_disturbed(result),
        f"Hit rate: the share of prompt tokens found in a cache. One unlimited cache would find {result['ideal_hit_rate']:.3f}: "
        "the ideal.",
        "Balance: the most prompt tokens that an engine computed, over the mean of all engines; 1 is even.",
        "TTFT: by the engines' clock, from a request's arrival there to its first token. Here, with this machine's delays "
        f"times {setup['speedup']:g}, its mean was {_range(result, 'ttft_here_mean', 1)} s.",
        "Decision: the time to choose an engine, on a CPU that is shared with the engines, for prompts of up to "
        f"{longest / 1000:.0f} k tokens.",
        f"The 99th percentile of the delay with which requests were sent was {_range(result, 'late_p99', 1000)} ms.",
    ]
    lost = sum(run["lost"] for run in result["runs"])
    lines.append(f"Requests lost: {lost}. Time: {result['seconds']:.0f} s.")
    return "\n".join(lines)
