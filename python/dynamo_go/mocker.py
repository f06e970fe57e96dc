"""An inference engine without a GPU: ``python -m dynamo_go mocker``.

One process is one engine. It serves the OpenAI API (completions, chats, models) with what vLLM and SGLang have besides (token ids in
and out, ``/tokenize``, ``/server_info``), publishes the events of its prefix cache in vLLM's format on a ZeroMQ socket, and answers
replay requests on another. See :class:`Mocker`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _native
from ._checks import integer, shown
from ._errors import DynamoError
from ._signals import interruptible
from ._stream import ItemStream

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._native import Tokens
    from ._runtime import Endpoint


class Mocker:
    """A running engine, in this process. It is a context manager; :meth:`close` stops it.

    The keywords are the fields of the engine's configuration, all optional; ``python -m dynamo_go mocker --help`` tells
    their meaning and defaults. An unknown or unusable one raises :class:`dynamo_go.InvalidArgument`.
    """

    def __init__(self, **config: Any) -> None:
        self._native = _native.Mocker(json.dumps(config))

    @property
    def info(self) -> dict[str, Any]:
        """The addresses: ``http``, ``kv_events``, ``replay``; and ``model``, ``topic``, ``dp_rank``, ``block_size``, ``blocks``."""
        info: dict[str, Any] = json.loads(self._native.info())
        del info["stats"]
        return info

    def stats(self) -> dict[str, Any]:
        """What the engine did and does; the same as ``GET /stats``."""
        stats: dict[str, Any] = json.loads(self._native.info())["stats"]
        return stats

    def generate(self, token_ids: Tokens, max_tokens: int = 16, response_buffer_size: int = 100) -> ItemStream:
        """Serve a request without HTTP, as the engine behind a worker does.

        Args:
            token_ids: the prompt, at least one token.
            max_tokens: output tokens.
            response_buffer_size: items that may wait for the reader, 0 .. 1,048,576; 0 awaits each.

        Returns:
            An item for each output token, ``{"token_ids": [n]}``; the last has ``finish_reason`` too: "length", or
            "cancelled" after ``stop()``.

        Raises:
            InvalidArgument: the engine cannot serve the request.
            Overloaded: as many requests wait as may.
            Closed: the engine was closed.
        """
        options = {
            "max_tokens": integer(max_tokens, "max_tokens"),
            "response_buffer_size": integer(response_buffer_size, "response_buffer_size"),
        }
        return ItemStream(self._native.generate(token_ids, json.dumps(options)))

    def close(self) -> None:
        """Stop the engine; its requests end. Closing again does nothing; an interrupt leaves it to close by itself."""
        interruptible(self._native.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MockWorker(Mocker):
    """A worker of a deployment without a GPU: a running engine that serves an endpoint, with a model card, KV events and load.

    Routers of this library and of Dynamo take it for one with a real engine.

    Args:
        endpoint: what it serves; its worker id is the endpoint's ``connection_id()``.
        config: as of :class:`Mocker`; `kv_events`, `replay` and `topic` do not matter.

    Raises:
        InvalidArgument: a keyword cannot be used, or the worker serves already.
        Closed: the runtime is shut down.
    """

    def __init__(self, endpoint: Endpoint, **config: Any) -> None:
        from ._runtime import Endpoint

        if not isinstance(endpoint, Endpoint):
            raise TypeError(f"endpoint: expected Endpoint, got {type(endpoint).__name__} ({shown(endpoint)})")
        self._endpoint = endpoint  # whose runtime it needs
        self.worker_id = endpoint.connection_id()
        self._native = _native.Mocker(json.dumps(config), endpoint._hub.native, endpoint._path, self.worker_id)

    def leave(self) -> None:
        """Let routers find the worker no more. It goes on with what it has."""
        self._native.leave()

    def busy(self) -> int:
        """How many requests it has, those that wait included."""
        stats = self.stats()
        return int(stats["running"] + stats["waiting"])


# Keyword of the configuration: type, and its help.
_OPTIONS: Mapping[str, tuple[type, str]] = {
    "model": (str, "name the engine serves under (mock-8b)"),
    "http": (str, "HOST:PORT of the HTTP server; port 0 takes a free one (127.0.0.1:0)"),
    "kv_events": (str, "ZeroMQ endpoint of the event socket, a PUB (tcp://127.0.0.1:0)"),
    "replay": (str, "ZeroMQ endpoint of the replay socket, a ROUTER; empty for none (tcp://127.0.0.1:0)"),
    "topic": (str, "first frame of every event message (empty)"),
    "dp_rank": (int, "data-parallel rank told in the events, 0 .. 4294967295 (0)"),
    "buffer_steps": (int, "event batches kept for replay, 1 .. 1000000 (10000)"),
    "block_size": (int, "tokens in a block, 1 .. 65536 (16)"),
    "blocks": (int, "blocks in the pool, 1 .. 16777216 (25000)"),
    "prefill_tokens_per_second": (float, "prompt tokens computed in a second, 1 .. 1e9 (40000)"),
    "inter_token_ms": (float, "milliseconds between two tokens of a request, 0 .. 60000 (8)"),
    "max_num_batched_tokens": (int, "prompt tokens in one prefill step, 1 .. 16777216 (2048)"),
    "max_num_seqs": (int, "requests that run at once; others wait, 1 .. 65536 (256)"),
    "max_waiting": (int, "requests that wait; others get 429, 1 .. 65536 (4096)"),
    "max_model_len": (int, "prompt and output tokens of one request, 2 .. 16777216 (131072)"),
    "speedup": (float, "engine seconds in one second of this machine, 0.001 .. 1000 (1)"),
    "coalesce_ms": (
        float,
        "how long a due token may wait to be sent with the next ones, on this machine, 0 .. 10000 (0)",
    ),
    "max_body_bytes": (int, "largest HTTP request, 1024 .. 1073741824 (16777216)"),
    "hash_seed": (str, "engines with different seeds name the same block differently (empty)"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dynamo_go mocker",
        description="An inference engine without a GPU: prefix cache, timing, KV events as vLLM publishes them, and an\n"
        "OpenAI server: completions and chats, of text (by a toy tokenizer) or token ids. Prints one JSON line with its\n"
        "addresses when it is ready; stops on SIGINT or SIGTERM.",
        epilog="Ranges are LOW .. HIGH; defaults are in parentheses: an 8B model on one H100-class GPU.\n"
        "Routes: POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize; GET /v1/models, /health, /version,\n"
        "/server_info, /metrics, as engines have them; and GET /stats, POST /reset_prefix_cache, POST /fault (requests go\n"
        'wrong, for tests: {"requests": 2, "status": 503}, {"requests": 1, "cut_after": 3}, {"requests": 1,\n'
        '"delay_ms": 500}). Token ids are answered if "return_token_ids" is true.\n\n'
        "examples:\n"
        "  python -m dynamo_go mocker --http 127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558\n"
        '  curl http://127.0.0.1:8000/v1/completions -d \'{"prompt": [1, 2, 3], "max_tokens": 4}\'\n'
        '  curl http://127.0.0.1:8000/v1/chat/completions -d \'{"messages": [{"role": "user", "content": "hello"}]}\'',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    return parser


def add_options(parser: argparse._ActionsContainer, without: Sequence[str] = ()) -> None:
    """Add a flag for each keyword of the configuration; those that are not given stay out of the result."""
    for name, (kind, text) in _OPTIONS.items():
        if name not in without:
            metavar = {str: "TEXT", int: "N", float: "X"}[kind]
            parser.add_argument(
                "--" + name.replace("_", "-"), type=kind, default=argparse.SUPPRESS, metavar=metavar, help=text
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one engine until a signal; gives the exit status."""
    config = vars(_parser().parse_args(arguments))
    stop = {signal.SIGINT, signal.SIGTERM}
    # Blocked before the engine starts its threads, so that none of them takes a signal meant for sigwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    try:
        engine = Mocker(**config)
    except DynamoError as error:
        print(f"mocker: {error}", file=sys.stderr)
        return 2
    with engine:
        print(json.dumps(engine.info), flush=True)
        signal.sigwait(stop)
    return 0
