"""``python -m dynamo_go events``: what an engine says of its KV cache, decoded."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import select
import signal
import sys
import time
from collections.abc import Iterable, Sequence

from . import _native
from ._errors import DynamoError, InvalidArgument

# Longest wait in the library, and so the longest that a signal has to wait: the C interface's limit.
_WAIT_MS = 100
# How long a connected engine may say nothing before a hint is given.
_QUIET_SECONDS = 10.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dynamo_go events",
        description="Prints the KV cache events of an inference engine (vLLM, SGLang), one JSON object per event:\n"
        "seq, ts, dp_rank, type (stored, removed, cleared), block_hashes, parent_hash, token_ids,\n"
        "block_size, medium, lora_name, cache_salt, group_idx.\n"
        'An event that cannot be decoded is {"error", "type"}.',
        epilog="examples:\n"
        "  python -m dynamo_go events tcp://10.0.0.5:5557\n"
        "  python -m dynamo_go events tcp://10.0.0.5:5557 --replay tcp://10.0.0.5:6557 |\n"
        "    jq 'select(.type == \"removed\")'\n"
        "  echo 93cb41d954fc401000009191b0416c6c426c6f636b73436c656172656400 |\n"
        "    python -m dynamo_go events --from-hex\n\n"
        "The endpoint need not answer yet: connections are made, and made again, in the background;\n"
        "standard error tells how that goes. It ends on SIGINT, SIGTERM, or when nobody reads its output.",
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
    """Print an engine's events until a signal comes, or the reader of the output goes away."""
    signal.signal(signal.SIGTERM, _interrupt)
    reader = _native.EventReader(endpoint, replay, topic)
    told = _Told(endpoint, topic)
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always told
    try:
        with contextlib.suppress(KeyboardInterrupt):
            while not output.poll(0):
                lines = reader.next(_WAIT_MS)
                if lines is not None:
                    told.events()
                    _print(lines)
                else:
                    told.silence(reader.state())
    finally:
        reader.close()


class _Told:
    """Says on standard error how the connection is, a line for each change, and once what silence may mean."""

    def __init__(self, endpoint: str, topic: str | None) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._state = "connecting"
        self._hint_at = math.inf  # time of the hint

    def events(self) -> None:
        """Events came, so there is a connection, and nothing to hint at."""
        self._change("connected", "")
        self._hint_at = math.nan

    def silence(self, state: str) -> None:
        """Nothing came for a while; `state` is the reader's."""
        kind, _, reason = state.partition(": ")
        self._change(kind, reason)
        if time.monotonic() >= self._hint_at:
            self._hint_at = math.nan
            topic = "" if self._topic is None else f" Does its topic begin with {self._topic!r} (--topic)?"
            _say(
                f"connected, but no message for {_QUIET_SECONDS:.0f} s: an engine publishes only when its cache changes, so "
                f"send it a request.{topic} Are its KV events enabled (--kv-events-config), and is this its event socket?"
            )

    def _change(self, kind: str, reason: str) -> None:
        if kind == self._state:
            return
        self._state = kind
        if kind == "connected":
            _say(f"connected to {self._endpoint}")
            if not math.isnan(self._hint_at):
                self._hint_at = time.monotonic() + _QUIET_SECONDS
        else:
            _say(f"{kind}: {reason}; trying again")
            if not math.isnan(self._hint_at):
                self._hint_at = math.inf


def _say(text: str) -> None:
    print(f"events: {text}", file=sys.stderr, flush=True)


def _print(lines: str) -> None:
    sys.stdout.buffer.write(lines.encode())  # UTF-8 whatever the terminal is
    sys.stdout.buffer.flush()


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
