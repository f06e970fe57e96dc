"""``python -m dynamo_go events``: what an engine says of its KV cache, decoded."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence

from . import _native
from ._errors import DynamoError, InvalidArgument

# Longest wait in the library, and so the longest that a signal has to wait: the C interface's limit.
_WAIT_MS = 100


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dynamo_go events",
        description="Prints the KV cache events of an inference engine (vLLM, SGLang), one JSON object per event: seq, ts, "
        "dp_rank, type (stored, removed, cleared), block_hashes, parent_hash, token_ids, block_size, medium, lora_name, "
        'cache_salt, group_idx. An event that cannot be decoded is {"error", "type"}.',
        epilog="examples:\n"
        "  python -m dynamo_go events tcp://10.0.0.5:5557\n"
        "  python -m dynamo_go events tcp://10.0.0.5:5557 --replay tcp://10.0.0.5:6557 | jq 'select(.type == \"removed\")'\n"
        "  echo 93cb41d954fc401000009191b0416c6c426c6f636b73436c656172656400 | python -m dynamo_go events --from-hex\n\n"
        "The endpoint need not answer yet: connections are made, and made again, in the background. It ends on SIGINT,\n"
        "SIGTERM, or when nobody reads its output.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "endpoint", nargs="?", metavar="ENDPOINT", help="the engine's event socket: tcp://HOST:PORT or ipc://PATH"
    )
    parser.add_argument("--replay", metavar="ENDPOINT", help="its replay socket: what it still holds is printed first")
    parser.add_argument("--topic", metavar="TEXT", help="follow only topics that begin so (default: all)")
    parser.add_argument(
        "--from-hex",
        action="store_true",
        help="decode payloads from standard input instead, in hex, one per line; seq is null",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print events until a signal or the end of the input; gives the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.from_hex == (options.endpoint is not None):
        parser.error("give either an ENDPOINT or --from-hex")
    if options.from_hex and (options.replay or options.topic):
        parser.error("--replay and --topic go with an ENDPOINT")
    try:
        if options.from_hex:
            _decode(sys.stdin.buffer)
        else:
            _follow(options.endpoint, options.replay, options.topic)
    except BrokenPipeError:
        # Python flushes standard output once more as it exits: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except DynamoError as error:
        print(f"events: {error}", file=sys.stderr)
        return 2
    return 0


def _decode(lines: Iterable[bytes]) -> None:
    """Decode payloads in hex; empty lines are skipped."""
    for line in lines:
        text = line.decode("ascii", "replace").strip()
        if not text:
            continue
        try:
            _print(_native.decode_batch(bytes.fromhex(text), None))
        except (InvalidArgument, ValueError) as error:  # not a batch, or not hex
            _print(json.dumps({"error": str(error), "type": None}, separators=(",", ":")) + "\n")


def _follow(endpoint: str, replay: str | None, topic: str | None) -> None:
    """Print an engine's events until a signal comes."""
    signal.signal(signal.SIGTERM, _interrupt)
    reader = _native.EventReader(endpoint, replay, topic)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                lines = reader.next(_WAIT_MS)
                if lines is not None:
                    _print(lines)
    finally:
        reader.close()


def _print(lines: str) -> None:
    sys.stdout.buffer.write(lines.encode())  # UTF-8 whatever the terminal is
    sys.stdout.buffer.flush()


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
