"""``python -m dynamo_go explain``: why a prompt goes to which worker, as a table."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ._errors import DynamoError, Timeout
from ._router import Router

_EXAMPLES = """\
what it reads, all of it JSON, is what a router gives:

  events    router.dump_events(): what the ranks hold
  loads     router.get_potential_loads([]): what they are busy with
  workers   router.workers(): taints, adapters, sizes; without it, the workers of the events and loads
  tokens    the prompt: a JSON list, or numbers between spaces or commas

examples:
  python -m dynamo_go explain --tokens prompt.json --events events.json --loads loads.json
  echo 1 2 3 4 | python -m dynamo_go explain --tokens - --events events.json --block-size 4
  python -m dynamo_go explain --explanation logged.json     what router.explain(...) gave, logged in production
"""


_EVENTS = "what Router.dump_events gives"
_LOADS = "what Router.get_potential_loads gives for an empty prompt"


def main(arguments: Sequence[str]) -> int:
    """Run the command; gives its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.explanation is None) == (options.tokens is None):
        parser.error("give either --explanation, or --tokens and what the router knows")
    try:
        with _reading(options.explanation, "what Router.explain gives"):
            shown = _json(options.explanation) if options.explanation else _explained(options)
            if not isinstance(shown, dict):
                raise ValueError("expected an object")
            text = json.dumps(shown, indent=2) if options.json else table(shown)
    except (OSError, DynamoError, NotImplementedError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"explain: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dynamo_go explain",
        description="Show what a router would weigh for a prompt, worker by worker, and which it would pick.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--explanation", metavar="FILE", help="what Router.explain gave; nothing else is read")
    add("--tokens", metavar="FILE", help="the prompt's token ids; - is standard input")
    add("--events", metavar="FILE", help="what the ranks hold")
    add("--loads", metavar="FILE", help="what the ranks are busy with")
    add("--workers", metavar="FILE", help="the workers")
    add("--config", metavar="FILE", help="fields of KvRouterConfig")
    add("--block-size", type=int, default=16, metavar="N", help="tokens per KV block (default 16)")
    add("--lora-name", metavar="NAME", help="LoRA adapter of the prompt")
    add("--cache-namespace", metavar="SALT", help="cache salt of the prompt")
    add("--worker-id", type=int, metavar="ID", help="only this worker")
    add("--dp-rank", type=int, metavar="RANK", help="only this rank")
    add("--override", default=None, metavar="JSON", help="router_config_override")
    add("--constraints", default=None, metavar="JSON", help="routing_constraints")
    add("--json", action="store_true", help="print the explanation as JSON")
    return parser


@contextlib.contextmanager
def _reading(path: str | None, what: str) -> Iterator[None]:
    """Say of a wrong file which it is, and what it should be."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if path is None or isinstance(error, DynamoError):
            raise
        why = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is not {what}: {why}") from error


def _json(path: str) -> Any:
    return json.loads(sys.stdin.read() if path == "-" else Path(path).read_text())


def _tokens(path: str) -> list[int]:
    text = sys.stdin.read() if path == "-" else Path(path).read_text()
    if text.lstrip().startswith("["):
        return cast("list[int]", json.loads(text))
    words = [word for word in re.split(r"[\s,]+", text.strip()) if word]
    for word in words:
        if not re.fullmatch(r"[0-9]+", word):
            raise ValueError(f"{word!r} is not a token id")
    return [int(word) for word in words]


def _parsed(option: str, text: str | None) -> Any:
    with _reading(option, "JSON"):
        return None if text is None else json.loads(text)


def _require_rows(given: Any) -> None:
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise ValueError("expected a list of objects")


def _explained(options: argparse.Namespace) -> dict[str, Any]:
    events: Any = []
    with _reading(options.events, _EVENTS):
        if options.events is not None:
            events = _json(options.events)
            if isinstance(events, str):  # Router.dump_events gives text, which json.dump has put into quotes
                events = json.loads(events)
        _require_rows(events)
        _require_rows([event["event"] for event in events])
        ranks = [(event["worker_id"], event["event"].get("dp_rank", 0)) for event in events]
    loads: Any = []
    with _reading(options.loads, _LOADS):
        if options.loads is not None:
            loads = _json(options.loads)
        _require_rows(loads)
        ranks += [(row["worker_id"], row["dp_rank"]) for row in loads]
    with _reading(options.config, "an object with fields of KvRouterConfig"):
        config = None if options.config is None else _json(options.config)
        router = Router(options.block_size, config)
    with router:
        with _reading(options.workers, "what Router.workers gives"):
            for worker in _workers(options, ranks):
                router.add_worker(**worker)
        with _reading(options.events, _EVENTS):
            router.load_events(events)
        with _reading(options.loads, _LOADS):
            _load(router, loads)
        with _reading(options.tokens, "a prompt: a JSON list of token ids, or numbers between spaces or commas"):
            tokens = _tokens(options.tokens)
        return router.explain(
            tokens,
            _parsed("--override", options.override),
            lora_name=options.lora_name,
            cache_namespace=options.cache_namespace,
            worker_id=options.worker_id,
            dp_rank=options.dp_rank,
            routing_constraints=_parsed("--constraints", options.constraints),
        )


def _workers(options: argparse.Namespace, ranks: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Give what add_worker takes. Endpoints are left out: nothing is to be followed."""
    if options.workers is not None:
        names = ("dp_start", "dp_size", "max_num_batched_tokens", "total_kv_blocks", "taints", "adapters")
        rows = _json(options.workers)
        _require_rows(rows)
        return [{"worker_id": row["worker_id"]} | {name: row[name] for name in names if name in row} for row in rows]
    spans: dict[int, tuple[int, int]] = {}
    for worker_id, rank in ranks:
        low, high = spans.get(worker_id, (rank, rank))
        spans[worker_id] = min(low, rank), max(high, rank)
    return [
        {"worker_id": worker_id, "dp_start": low, "dp_size": high - low + 1}
        for worker_id, (low, high) in sorted(spans.items())
    ]


def _load(router: Router, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make ranks as busy as rows of loads say, with requests that share nothing with the prompt.

    As few requests as can prefill the tokens, in equal parts, and begin as the others do: so they hold no more blocks than there
    are. What is missing of the blocks counts as generated.
    """
    for row in rows:
        name, tokens, blocks, requests = _busy(row)
        if requests == 0 and (tokens, blocks) != (0, 0):
            raise ValueError(
                f"loads of rank {name}: no requests cannot have {tokens} prompt tokens and {blocks} blocks"
            )
        longest = max((blocks + 1) * router.block_size - 1, 1)  # prompt of so many blocks
        prefill = min(requests, -(-tokens // longest))
        for n in reversed(range(requests)):  # those that prefill last: others may have to wait for them
            length = tokens // prefill + (n < tokens % prefill) if n < prefill else 0
            _book(router, f"{name}:{n}", range(length), row)
    booked = {name: blocks for name, _, blocks, _ in map(_busy, router.get_potential_loads([]))}
    for row in rows:
        name, tokens, blocks, requests = _busy(row)
        if blocks < booked[name]:
            raise ValueError(
                f"loads of rank {name}: {requests} requests with {tokens} prompt tokens hold {booked[name]} blocks at least, not {blocks}"
            )
        if blocks > booked[name]:
            router.add_output_block(f"{name}:0", blocks - booked[name])


def _book(router: Router, request_id: str, tokens: range, row: Mapping[str, Any]) -> None:
    where = {"worker_id": row["worker_id"], "dp_rank": row["dp_rank"]}
    try:
        router.best_worker(
            tokens,
            {"assume_kv_reuse": True, "track_prefill_tokens": True},
            request_id=request_id,
            cache_namespace=f"explain:{row['worker_id']}/{row['dp_rank']}",  # of its own: no block is one of the prompt's
            timeout=0,
            **where,
        )
    except Timeout:
        raise ValueError(
            f"loads of rank {row['worker_id']}/{row['dp_rank']}: with router_queue_threshold its requests would wait for each"
            " other now; log Router.explain(...) of the router itself, and give it as --explanation"
        ) from None


def _busy(row: Mapping[str, Any]) -> tuple[str, int, int, int]:
    """Give a rank's name, prompt tokens, blocks and requests."""
    name = f"{row['worker_id']}/{row['dp_rank']}"
    numbers = {key: int(row[key]) for key in _MOST}
    for key, number in numbers.items():
        if not 0 <= number <= _MOST[key]:
            raise ValueError(f"loads of rank {name}: {key} {number} is not between 0 and {_MOST[key]}")
    tokens, blocks, requests = numbers.values()
    return name, tokens, blocks, requests


# What a rank may be busy with.
_MOST = {"potential_prefill_tokens": 10**8, "potential_decode_blocks": 10**9, "active_requests": 10**6}

_COLUMNS = (
    ("worker", "worker_id"),
    ("rank", "dp_rank"),
    ("device", "overlap_blocks"),
    ("host", "host_pinned_blocks"),
    ("disk", "disk_blocks"),
    ("shared", "shared_beyond_blocks"),
    ("credit", "credit_blocks"),
    ("prefill", "prefill_cost"),
    ("decode", "decode_cost"),
    ("requests", "requests_cost"),
    ("taints", "taint_factor"),
    ("cost", "cost"),
    ("chance", "probability"),
)


def table(explanation: Mapping[str, Any]) -> str:
    """Give an explanation as text: a row per rank, the best chance marked with ``*``."""
    weights = ", ".join(f"{name}={value:g}" for name, value in explanation["weights"].items())
    lines = [
        f"{explanation['isl_tokens']} tokens, {explanation['num_blocks']} full blocks of {explanation['block_size']}",
        weights,
        f"track_prefill_tokens={explanation['track_prefill_tokens']} assume_kv_reuse={explanation['assume_kv_reuse']}",
        "",
    ]
    picks = {(pick["worker_id"], pick["dp_rank"]) for pick in explanation["picks"]}
    rows = [["", *(title for title, _ in _COLUMNS), "why not"]]
    for rank in explanation["workers"]:
        mark = "*" if (rank["worker_id"], rank["dp_rank"]) in picks else ""
        rows.append([mark, *(_cell(name, rank[name]) for _, name in _COLUMNS), rank["excluded"]])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    lines += ["", "in blocks: cost = (prefill + decode + requests) * taints; the lowest wins, ties at random"]
    if explanation.get("error"):
        lines.append(f"no rank: {explanation['error']}")
    elif explanation["must_wait"]:
        lines.append("every rank it may go to is busy, or others wait: it has to wait")
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "probability":
        return f"{value:.1%}"
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
