"""The plot: an SVG written by hand, and a PNG too where matplotlib is installed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from .figures import Figures

_COLOURS = ("#2a6f97", "#e09f3e", "#9e2a2b")
_PANELS: tuple[tuple[str, Callable[[Figures], float], str], ...] = (
    ("prefix hit rate", lambda run: run.hit_rate, "{:.3f}"),
    ("mean TTFT, s", lambda run: run.ttft_mean, "{:.2f}"),
    ("p99 TTFT, s", lambda run: run.ttft_p99, "{:.1f}"),
    ("balance (max/mean computed tokens)", lambda run: run.spread, "{:.2f}"),
)
_WIDTH, _HEIGHT, _LEFT, _TOP, _BASE = 300, 300, 20, 60, 240  # of one panel


def write(folder: Path, runs: Sequence[Figures], titles: dict[str, str], ideal: float) -> list[Path]:
    """Write demo.svg, and demo.png if it can be, into a folder; gives the paths."""
    paths = [folder / "demo.svg"]
    paths[0].write_text(svg(runs, titles, ideal), encoding="utf-8")
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        return paths
    paths.append(folder / "demo.png")
    _png(paths[1], runs, titles, ideal)
    return paths


def _policies(runs: Sequence[Figures]) -> list[str]:
    return list(dict.fromkeys(run.policy for run in runs))


def svg(runs: Sequence[Figures], titles: dict[str, str], ideal: float) -> str:
    """The plot as SVG text."""
    width = _WIDTH * len(_PANELS)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>',
    ]
    for index, policy in enumerate(_policies(runs)):
        x = _LEFT + 140 * index
        out.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{_COLOURS[index % 3]}"/>')
        out.append(f'<text x="{x + 17}" y="22">{escape(policy)}</text>')
    for index in range(len(_PANELS)):
        out += _panel(index, runs, list(titles), ideal)
    return "\n".join([*out, "</svg>", ""])


def _panel(index: int, runs: Sequence[Figures], pools: list[str], ideal: float) -> list[str]:
    title, measure, form = _PANELS[index]

    def value(run: Figures) -> float:
        return measure(run) if math.isfinite(measure(run)) else 0.0

    left = index * _WIDTH + _LEFT
    top = max([value(run) for run in runs] + ([ideal] if index == 0 else [])) or 1.0
    scale = (_BASE - _TOP) / top
    room = (_WIDTH - 2 * _LEFT) / len(pools)
    policies = _policies(runs)
    bar = room * 0.8 / len(policies)
    out = [f'<text x="{left}" y="45" font-weight="bold">{escape(title)}</text>']
    for run in runs:
        x = left + pools.index(run.pool) * room + policies.index(run.policy) * bar
        height = value(run) * scale
        colour = _COLOURS[policies.index(run.policy) % 3]
        out.append(
            f'<rect x="{x:.1f}" y="{_BASE - height:.1f}" width="{bar * 0.9:.1f}" height="{height:.1f}" fill="{colour}"/>'
        )
        out.append(
            f'<text x="{x + bar * 0.45:.1f}" y="{_BASE - height - 3:.1f}" font-size="8" text-anchor="middle">'
            f"{form.format(value(run))}</text>"
        )
    for number, pool in enumerate(pools):
        x = left + (number + 0.4) * room
        out.append(f'<text x="{x:.1f}" y="{_BASE + 16}" font-size="10" text-anchor="middle">{escape(pool)}</text>')
    right = left + _WIDTH - 2 * _LEFT
    out.append(f'<line x1="{left}" y1="{_BASE}" x2="{right}" y2="{_BASE}" stroke="black"/>')
    if index == 0:
        y = _BASE - ideal * scale
        out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="gray" stroke-dasharray="4 3"/>')
        out.append(f'<text x="{right}" y="{y - 3:.1f}" fill="gray" text-anchor="end">ideal {ideal:.3f}</text>')
    return out


def _png(path: Path, runs: Sequence[Figures], titles: dict[str, str], ideal: float) -> None:
    pyplot = importlib.import_module("matplotlib.pyplot")
    pools, policies = list(titles), _policies(runs)
    figure, axes = pyplot.subplots(1, len(_PANELS), figsize=(3.2 * len(_PANELS), 3.4))
    for index, (axis, (title, value, _)) in enumerate(zip(axes, _PANELS)):
        for number, policy in enumerate(policies):
            mine = [run for run in runs if run.policy == policy]
            places = [pools.index(run.pool) + number * 0.27 for run in mine]
            axis.bar(places, [value(run) for run in mine], 0.25, label=policy, color=_COLOURS[number % 3])
        if index == 0:
            axis.axhline(ideal, color="gray", linestyle="--", label="ideal")
        axis.set_title(title, fontsize=9)
        axis.set_xticks([place + 0.27 for place in range(len(pools))], pools, fontsize=8)
    # Above the panels, where it covers nothing.
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=len(policies) + 1, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
