"""An OpenAI endpoint over vLLM and SGLang servers: ``python -m dynamo_go serve``. See :class:`Server`.

All of the work is done by the library, on its own threads; Python parses flags, and tells how it goes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _native
from ._checks import expect, integer, number, shown, text, texts
from ._config import KvRouterConfig, not_a_config
from ._errors import Closed, DynamoError, InvalidArgument
from ._logging import configure_logging, level_of_command
from ._signals import interruptible
from ._standalone import _add, _config, add_routing

Encode = Callable[[str], Sequence[int]]

# The library's.
_DRAIN_MAX = 86400


class Server:
    """A running endpoint, in this process. It is a context manager; :meth:`close` stops it at once.

    It serves ``/v1/completions``, ``/v1/chat/completions``, ``/v1/models``, ``/health``, ``/live``, ``/engines`` and ``/metrics``. Each
    request goes to the engine that holds most of its prompt and is least busy; request and answer are handed on as they are.

    Args:
        engines: each ``"URL[,EVENTS[,REPLAY]][,FIELD=VALUE...]"``, as ``python -m dynamo_go serve --help`` tells.
        listen: ``"HOST:PORT"``; port 0 takes a free one, which :meth:`info` tells.
        block_size: tokens in a block of the engines' KV cache.
        router_mode: "kv", "round-robin", "random", "least-loaded", "power-of-two" or "direct".
        config: how the mode "kv" decides; None reads the environment, as ``KvRouterConfig()`` does.
        encode: gives the token ids of a text, for ``/v1/completions`` with text; it is called on a thread of its own. None: the engines'
            ``/tokenize`` does it. Messages are always the engines'.
        engines_file: a YAML or JSON file of engines, which is watched.
        limits: bounds by name, see ``docs/serve.md``.
        drain_seconds: for so long :meth:`stop` goes on to serve, while ``/health`` says that it ends.

    Raises:
        InvalidArgument: an argument cannot be used; the message names it.
        CannotConnect: the address cannot be listened on.
    """

    def __init__(
        self,
        engines: Sequence[str] = (),
        listen: str = "127.0.0.1:8000",
        block_size: int = 16,
        router_mode: str = "kv",
        config: KvRouterConfig | None = None,
        encode: Encode | None = None,
        *,
        engines_file: str | None = None,
        limits: dict[str, float] | None = None,
        drain_seconds: float = 0.0,
    ) -> None:
        if config is not None and not isinstance(config, KvRouterConfig):
            raise TypeError(not_a_config("config", config))
        if encode is not None and not callable(encode):
            raise TypeError(f"encode: expected a function, got {type(encode).__name__} ({shown(encode)})")
        settings = {
            "engines": texts(engines, "engines"),
            "engines_file": "" if engines_file is None else text(engines_file, "engines_file"),
            "listen": text(listen, "listen"),
            "block_size": integer(block_size, "block_size", low=1),
            "router_mode": text(router_mode, "router_mode"),
            "router": json.loads((config or KvRouterConfig()).to_json()),
            "tokenizer": "host" if encode is not None else "engine",
            "limits": {} if limits is None else _limits(expect(limits, dict, "limits"), {}),
            "drain_seconds": min(number(drain_seconds, "drain_seconds"), 1e9),
        }
        self._native = _native.Server(json.dumps(settings))
        if encode is not None:
            prompts = self._native.texts()
            threading.Thread(target=self._encode, args=(prompts, encode), name="dynamo_go texts", daemon=True).start()

    def _encode(self, texts: _native.Stream, encode: Encode) -> None:
        """Give token ids until the server is closed. A text that cannot be encoded is routed by load alone."""
        with contextlib.suppress(DynamoError):
            while (items := texts.take(100)) is not None:
                for item in items:
                    text = json.loads(item)
                    try:
                        self._native.tokens(text["id"], list(encode(text["text"])))
                    except Closed:
                        raise
                    except Exception:  # whatever the encoder has against it
                        self._native.tokens(text["id"], None)

    def info(self) -> dict[str, Any]:
        """How the server and its engines are: ``status``, ``listen``, ``inflight``, ``engines`` and counters, as ``GET /engines``."""
        info: dict[str, Any] = json.loads(self._native.info())
        return info

    def stop(self, grace_seconds: float = 30.0) -> None:
        """Begin to stop: after ``drain_seconds`` nothing new is taken; what runs has so long to end. ``info()["drained"]`` tells when it is over."""
        self._native.stop(int(min(number(grace_seconds, "grace_seconds"), 1e9) * 1000))

    def close(self) -> None:
        """End everything at once; streams that are cut off are told. Closing again does nothing; an interrupt leaves it to close by itself."""
        interruptible(self._native.close)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_MODES = ("kv", "round-robin", "random", "least-loaded", "power-of-two", "direct")

# Flags of Dynamo's frontend that mean nothing here, and why.
_OTHERS = {
    "discovery-backend": "engines are given by --engine or --engines-file, not discovered",
    "request-plane": "engines are asked over HTTP",
    "response-plane": "engines are asked over HTTP",
    "event-plane": "events come from the engines' own ZeroMQ sockets",
    "namespace": "engines are given by --engine or --engines-file",
    "namespace-prefix": "engines are given by --engine or --engines-file",
    "kserve-grpc-server": "only the OpenAI API is served",
    "grpc-metrics-port": "metrics are at /metrics of the one port",
    "tls-cert-path": "put a proxy that speaks TLS in front",
    "tls-key-path": "put a proxy that speaks TLS in front",
    "model-name": "the engines say which models they serve",
    "model-path": "the engines say which models they serve",
    "chat-processor": "the engines apply their chat templates",
    "preprocess-workers": "the engines tokenise",
    "migration-limit": "a request is sent to another engine until its answer began, and not after",
    "metrics-prefix": "metrics have the names of docs/serve.md",
    "enforce-disagg": "engines are all of one kind",
    "ais-perf-config": "there is no model of prefill times here",
}

# Limits: flag, name, its type and help.
_LIMITS = {
    "max-connections": ("connections", int, "connections of clients; more get 503 (8192)"),
    "max-requests": ("requests", int, "requests in flight; more get 503 (4096)"),
    "max-head-bytes": ("head_bytes", int, "the head of a request; more get 431 (16384)"),
    "max-body-bytes": ("body_bytes", int, "the body of a request; more get 413 (16777216)"),
    "read-timeout": ("read_seconds", float, "seconds for a request to come in (30)"),
    "write-timeout": ("write_seconds", float, "seconds in which a client takes nothing of its answer (30)"),
    "idle-timeout": ("idle_seconds", float, "seconds that a connection is kept between requests (75)"),
}


def _limits(limits: Mapping[str, Any], flags: Mapping[str, str]) -> dict[str, Any]:
    """Check what JSON has no words for, and 0, which is not the default that the library takes it for."""
    for name, value in limits.items():
        text(name, "limits")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise InvalidArgument(f"{flags.get(name, name)} is {value!r}, expected a number above 0")
    return dict(limits)


_EPILOG = """\
An engine is URL[,EVENTS[,REPLAY]][,FIELD=VALUE...]: the server's address, and where it publishes KV events and answers replays, if
it does not tell itself (SGLang and vLLM 0.33 do). EVENTS may be "none". Fields: kind (vllm, sglang), model, topic, dp_size, dp_start,
worker_id, total_kv_blocks, max_num_batched_tokens, health_path.

Clients get the engines' own answers and errors. Where a header X-Worker-Instance-Id (and X-Dp-Rank) names an engine, it goes there;
the mode "direct" needs it. Prints one JSON line when it serves. At SIGINT or SIGTERM /health says 503; after --drain-seconds nothing
is taken any more, and requests have --grace-seconds to end. A second signal ends it at once.

examples, the first two each in a terminal of its own, without a GPU:
  python -m dynamo_go mocker --http 127.0.0.1:8001 --kv-events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:6557
  python -m dynamo_go mocker --http 127.0.0.1:8002 --kv-events tcp://127.0.0.1:5558 --replay tcp://127.0.0.1:6558
  python -m dynamo_go serve --http-port 8000 \\
    --engine http://127.0.0.1:8001,tcp://127.0.0.1:5557,tcp://127.0.0.1:6557 \\
    --engine http://127.0.0.1:8002,tcp://127.0.0.1:5558,tcp://127.0.0.1:6558
  curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "hello"}]}'
"""


def _variable(name: str, default: str | None = None) -> str | None:
    return os.environ.get(name) or default


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} --engine URL[,EVENTS[,REPLAY]] [--engine ...] [--http-port N] [FLAGS]",
        description="An OpenAI endpoint over vLLM and SGLang servers as they are: each request goes to the engine that holds most of its\n"
        "prompt and is least busy. Flags of routing and their DYN_ROUTER_* variables are those of Dynamo's frontend.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--engine", action="append", default=[], metavar="ENGINE", help="an engine; once for each")
    add("--engines-file", metavar="PATH", help="YAML or JSON file of engines, which is watched (docs/serve.md)")
    add("--http-host", metavar="HOST", default=_variable("DYN_HTTP_HOST", "0.0.0.0"),
        help="address to listen on (DYN_HTTP_HOST, 0.0.0.0)")  # fmt: skip
    add("--http-port", metavar="N", default=_variable("DYN_HTTP_PORT", "8000"),
        help="port to listen on; 0 takes a free one (DYN_HTTP_PORT, 8000)")  # fmt: skip
    add("--router-mode", metavar="MODE", default=_variable("DYN_ROUTER_MODE", "kv"),
        help=f"{', '.join(_MODES)} (DYN_ROUTER_MODE, kv)")  # fmt: skip
    add("--kv-cache-block-size", metavar="N", default=_variable("DYN_KV_CACHE_BLOCK_SIZE", "16"),
        help="tokens in a KV block of the engines (DYN_KV_CACHE_BLOCK_SIZE, 16)")  # fmt: skip
    add("--tokenizer", metavar="FILE",
        help="tokenizer.json of the model: texts are tokenised here, by the library tokenizers, instead of by the engines")  # fmt: skip
    add("--drain-seconds", type=float, default=0.0, metavar="X",
        help="how long it goes on to serve when it is stopped, with /health at 503, for load balancers to see that (0)")  # fmt: skip
    add("--grace-seconds", type=float, default=30.0, metavar="X", help="for requests to end when it is stopped (30)")
    add("--log-level", metavar="LEVEL", help="log to standard error: off, error, warn, info, debug (DYN_LOG, warn)")
    group = parser.add_argument_group("limits of clients")
    for flag, (name, kind, told) in _LIMITS.items():
        group.add_argument(f"--{flag}", dest=f"limit_{name}", type=kind, metavar="N", help=told)
    group = parser.add_argument_group("routing, of the mode kv")
    _add(group, "record-decisions", "record_decisions", int,
         "keep so many decisions, to compare predicted hits with actual ones; 0: none (0)")  # fmt: skip
    add_routing(parser, group)
    return parser


def _foreign(arguments: Sequence[str]) -> str | None:
    """Say of the first flag that is Dynamo's and means nothing here why that is."""
    for argument in arguments:
        name = argument.split("=", 1)[0].removeprefix("--")
        if argument.startswith("--") and (why := _OTHERS.get(name.removeprefix("no-"))):
            return f"--{name} of Dynamo's frontend does not apply: {why}"
    return None


def _number(text: str, flag: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise InvalidArgument(f"{flag} is {text!r}, expected {low} .. {high}")
    return value


def _encoder(path: str) -> Encode:
    """Give what encodes texts by a tokenizer's file, as engines do: with the special tokens in front."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InvalidArgument(
            "--tokenizer needs the library tokenizers: pip install 'dynamo-go[tokenizer]', or leave it to the engines"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # of the library, which has one type for all
        raise InvalidArgument(f"--tokenizer {path}: {error}") from None

    def encode(text: str) -> Sequence[int]:
        ids: Sequence[int] = tokenizer.encode(text).ids
        return ids

    return encode


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    if not options.engine and not options.engines_file:
        raise InvalidArgument("--engine is required, once for each engine, or --engines-file")
    if options.router_mode not in _MODES:
        raise InvalidArgument(f"--router-mode is {options.router_mode!r}, expected one of {', '.join(_MODES)}")
    if options.load_aware and options.router_mode != "kv":
        raise InvalidArgument("--load-aware is a preset of --router-mode kv")
    config = _config(options)
    if json.loads(config.to_json())["router_replica_sync"]:
        raise InvalidArgument(
            "--router-replica-sync (DYN_ROUTER_REPLICA_SYNC) does not apply: leave it out, each serve counts the load that it sends itself; "
            "routers of a Dynamo deployment share theirs, by python -m dynamo_go router --router-replica-sync"
        )
    port = _number(options.http_port, "--http-port", 0, 65535)
    host = f"[{options.http_host}]" if ":" in options.http_host else options.http_host
    named = {name: getattr(options, f"limit_{name}") for name, _, _ in _LIMITS.values()}
    return {
        "engines": options.engine,
        "engines_file": options.engines_file,
        "listen": f"{host}:{port}",
        "block_size": _number(options.kv_cache_block_size, "--kv-cache-block-size", 1, 1 << 16),
        "router_mode": options.router_mode,
        "config": config,
        "encode": _encoder(options.tokenizer) if options.tokenizer else None,
        "drain_seconds": options.drain_seconds,
        "limits": _limits(
            {name: value for name, value in named.items() if value is not None},
            {name: f"--{flag}" for flag, (name, _, _) in _LIMITS.items()},
        ),
    }


def main(arguments: Sequence[str] | None = None, prog: str = "python -m dynamo_go serve") -> int:
    """Serve until a signal; gives the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = prog.split()[-1].split(".")[-1]
    if why := _foreign(arguments):
        print(f"{command}: {why}", file=sys.stderr)
        return 2
    options = _parser(prog).parse_args(arguments)
    if not options.grace_seconds >= 0:
        print(f"{command}: --grace-seconds is {options.grace_seconds}, expected at least 0", file=sys.stderr)
        return 2
    if not 0 <= options.drain_seconds <= _DRAIN_MAX:
        print(f"{command}: --drain-seconds is {options.drain_seconds}, expected 0 .. {_DRAIN_MAX}", file=sys.stderr)
        return 2
    ends = {signal.SIGINT, signal.SIGTERM}
    # Blocked before the server starts its threads, so that none of them takes a signal meant for this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        level = level_of_command(command)
        if options.log_level or level is None:  # else the library follows DYN_LOG by itself
            configure_logging(level := options.log_level or "warn")
            _to_stderr()
        server = Server(**_settings(options))
    except (DynamoError, NotImplementedError, TypeError, ValueError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 2
    with server:
        info = server.info()
        print(json.dumps({"listen": info["listen"], "router_mode": info["router_mode"], "block_size": info["block_size"],
                          "engines": [engine["url"] for engine in info["engines"]]}), flush=True)  # fmt: skip
        _watch(server, command, ends, told=level in ("info", "debug", "trace"))
        draining = f"draining for {options.drain_seconds:g} s, then " if options.drain_seconds else ""
        print(
            f"{command}: {draining}stopping: requests in flight end first; again to end them now",
            file=sys.stderr,
            flush=True,
        )
        server.stop(options.grace_seconds)
        until = time.monotonic() + options.drain_seconds + options.grace_seconds
        until += 3  # what it takes to tell who is cut off
        while not server.info()["drained"] and time.monotonic() < until:
            if signal.sigtimedwait(ends, 0.05) is not None:
                break
    return 0


def _watch(server: Server, command: str, ends: set[signal.Signals], told: bool) -> None:
    """Tell a person when engines come and go, until a signal. `told`: the library's log does."""
    known: dict[str, tuple[str, str, str]] = {}
    ended = False
    while True:
        now: dict[str, tuple[str, str, str]] = {}
        for engine in server.info()["engines"]:
            lacks = f": {engine['error'] or engine['reason']}" if engine["error"] or engine["reason"] else ""
            now[engine["url"]] = ("serves" if engine["candidate"] else f"is {engine['state']}", engine["error"], lacks)
        for url in sorted({*now, *known}):
            state = now.get(url, ("is no engine any more", "", ""))
            if (
                not told and state[:2] != known.get(url, ("", ""))[:2]
            ):  # other words for why it is as it was are no news
                print(f"{command}: {url} {state[0]}{state[2]}", file=sys.stderr, flush=True)
        known = now
        if ended:
            return
        ended = signal.sigtimedwait(ends, 0.5) is not None


def _to_stderr() -> None:
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("dynamo_go").addHandler(handler)
