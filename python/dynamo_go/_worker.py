"""``python -m dynamo_go worker``: a worker of a deployment as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence

from ._errors import InvalidArgument
from ._process import PLANES_HELP, add_planes, listed, ready, run, tell
from ._runtime import DistributedRuntime
from .mocker import MockWorker, add_options

# How long requests may go on after a signal, and how often it is looked whether they do.
_LEAVE_SECONDS = 30.0
_LOOK_SECONDS = 0.02

# The engine's own sockets, of which a worker has none.
_NOT_OF_WORKERS = ("kv_events", "replay", "topic")

_EPILOG = f"""\
Routers take it for a worker with a real engine: it has a model card, answers with random tokens, publishes what its prefix
cache stores and removes, has a local indexer, and tells its load. Prints one JSON line when it serves. SIGINT or SIGTERM
makes it leave the deployment, and ends it when its requests have ended, 30 s later at most; a second one at once.

{PLANES_HELP}
examples, each in a terminal of its own:
  python -m dynamo_go worker --mocker --endpoint dynamo.backend.generate
  python -m dynamo_go worker --mocker --endpoint dynamo.backend.generate --speedup 10 --blocks 5000
  python -m dynamo_go router --endpoint dynamo.backend.generate --router-block-size 16
"""


def main(arguments: Sequence[str]) -> int:
    """Run a worker; gives its exit status."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    if not options.pop("mocker"):
        parser.error("--mocker is required: an engine without a GPU is the only one that this command has")
    planes = argparse.Namespace(
        **{name: options.pop(name) for name in ("discovery_backend", "request_plane", "event_plane")}
    )
    path: str = options.pop("endpoint")

    async def serve(runtime: DistributedRuntime, stop: asyncio.Event) -> None:
        endpoint = runtime.endpoint(path)
        with MockWorker(endpoint, **options) as worker:
            if not await listed("worker", [endpoint], stop):
                return
            ready(worker_id=worker.worker_id, endpoint=path, model=worker.info["model"], block_size=worker.info["block_size"],
                  http=worker.info["http"])  # fmt: skip
            await stop.wait()
            worker.leave()
            if busy := worker.busy():
                tell("worker", f"stopping: {busy} requests end first; again to end them now")
            deadline = asyncio.get_running_loop().time() + _LEAVE_SECONDS
            while worker.busy() and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(_LOOK_SECONDS)

    try:
        return run("worker", planes, serve)
    except InvalidArgument as error:
        tell("worker", str(error))
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dynamo_go worker",
        usage="python -m dynamo_go worker --mocker [--endpoint PATH] [FLAGS]",
        description="A worker of a Dynamo deployment without a GPU, for trying and testing routers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--mocker", action="store_true", help="with an engine without a GPU; required")
    parser.add_argument(
        "--endpoint",
        metavar="PATH",
        default=os.environ.get("DYN_ENDPOINT") or "dynamo.backend.generate",
        help="what it serves, namespace.component.endpoint (DYN_ENDPOINT, dynamo.backend.generate)",
    )
    add_planes(parser)
    add_options(parser.add_argument_group("engine"), without=_NOT_OF_WORKERS)
    return parser
