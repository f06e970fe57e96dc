"""What the commands have in common that are processes of a deployment: its planes, their progress, and their end by a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ._errors import DynamoError
from ._logging import level_of_command
from ._runtime import DistributedRuntime, Endpoint

# How long a server may be away until a person is told, and how often it is looked whether it is there.
_PATIENCE_SECONDS = 0.5

# Flag: variable of the environment, what it is without one, and its help.
_PLANES = {
    "discovery-backend": (
        "DYN_DISCOVERY_BACKEND",
        "file",
        "how processes find each other, file or etcd; of file, DYN_FILE_KV names the directory, else it is"
        " dynamo_store_kv among temporary files",
    ),
    "request-plane": ("DYN_REQUEST_PLANE", "tcp", "what carries requests"),
    "event-plane": ("DYN_EVENT_PLANE", None, "what carries events; unset, what goes with the discovery"),
}

PLANES_HELP = """\
environment, as Dynamo reads it: DYN_TCP_RPC_HOST and _PORT, DYN_TCP_RESPONSE_STREAM_HOST and _PORT,
DYN_EVENT_PLANE_HOST say where this process listens, if not at its first address that is not loopback.
"""


def add_planes(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how the process joins its deployment."""
    group = parser.add_argument_group("deployment")
    for flag, (variable, default, text) in _PLANES.items():
        told = f" ({variable}, {default})" if default else f" ({variable})"
        group.add_argument(f"--{flag}", metavar="NAME", default=os.environ.get(variable) or default, help=text + told)


def ready(**facts: Any) -> None:
    """Tell whoever started the process that it is ready, and what it is: one JSON line on standard output."""
    print(json.dumps(facts), flush=True)


def tell(command: str, text: str) -> None:
    """Tell a person how it goes."""
    print(f"{command}: {text}", file=sys.stderr, flush=True)


async def listed(command: str, endpoints: Iterable[Endpoint], stop: asyncio.Event) -> bool:
    """Wait until other processes find what serves at these endpoints; False if a signal comes first.

    Raises:
        CannotConnect: etcd cannot be reached, or refuses.
    """

    async def wait() -> None:
        for endpoint in endpoints:
            await endpoint._hub.listed(endpoint._path, endpoint.connection_id())

    waiting, stopping = asyncio.ensure_future(wait()), asyncio.ensure_future(stop.wait())
    try:
        ends = (waiting, stopping)
        done, _ = await asyncio.wait(ends, timeout=_PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            servers = os.environ.get("ETCD_ENDPOINTS") or "http://localhost:2379"
            seconds = os.environ.get("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS") or "120"
            tell(
                command,
                f"waiting for etcd at {servers} (ETCD_ENDPOINTS), up to {seconds} s (ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS)",
            )
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
        return not stop.is_set()
    finally:
        waiting.cancel()
        stopping.cancel()


async def _look_for_nats(command: str, runtime: DistributedRuntime) -> None:
    """Tell a person that NATS is not there when the process begins, and when it is."""
    told = False
    with contextlib.suppress(DynamoError):  # the runtime is closed
        while True:
            await asyncio.sleep(_PATIENCE_SECONDS)
            info = json.loads(runtime._hub.native.info())
            if info["connected"]:
                break
            error = info.get("error")
            if not told and info["discovered"] and error is not None and error != info.get("discovery_error"):
                told = True
                tell(command, f"not connected to NATS (NATS_SERVER), what goes by it waits: {error}")
        if told:
            tell(command, "connected to NATS")


def run(
    command: str,
    options: argparse.Namespace,
    serve: Callable[[DistributedRuntime, asyncio.Event], Awaitable[None]],
) -> int:
    """Run a process of a deployment until SIGINT or SIGTERM, and give its exit status.

    `serve` serves until the event is set, and then ends what it has; a second signal ends the process at once.
    """
    level_of_command(command)
    if options.discovery_backend == "mem":
        tell(command, "--discovery-backend is 'mem', where no other process finds this one: use file or etcd")
        return 2
    try:
        asyncio.run(_run(command, options, serve))
    except (DynamoError, NotImplementedError, OSError) as error:
        tell(command, str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def _run(
    command: str,
    options: argparse.Namespace,
    serve: Callable[[DistributedRuntime, asyncio.Event], Awaitable[None]],
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    ends = (signal.SIGINT, signal.SIGTERM)

    def signalled() -> None:
        stop.set()
        # The next one is the system's: KeyboardInterrupt would come up anywhere, also where it is not heard.
        for signum in ends:
            signal.signal(signum, signal.SIG_DFL)

    for signum in ends:
        loop.add_signal_handler(signum, signalled)
    runtime = DistributedRuntime(
        loop, options.discovery_backend, options.request_plane, event_plane=options.event_plane
    )
    looking = asyncio.ensure_future(_look_for_nats(command, runtime))
    try:
        await serve(runtime, stop)
    finally:
        looking.cancel()
        runtime.shutdown()
