"""The engines: mockers, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass
from typing import Any

START_SECONDS = 30.0
STOP_SECONDS = 5.0


class EngineFailed(Exception):
    """An engine did not start, or ended by itself; the message has its last words."""


@dataclass(frozen=True)
class Address:
    """Where an engine listens."""

    host: str
    port: int
    kv_events: str
    replay: str


class Engines:
    """The processes, from :meth:`start` to :meth:`stop`; an asynchronous context manager."""

    def __init__(self, count: int, config: dict[str, Any]) -> None:
        self._count = count
        self._config = config
        self._processes: list[asyncio.subprocess.Process] = []
        self.addresses: list[Address] = []

    async def __aenter__(self) -> Engines:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start all, and wait until all are ready."""
        for number in range(self._count):
            # Engines name their blocks differently, as real ones with random seeds do.
            config = {**self._config, "hash_seed": f"engine {number}"}
            arguments = [part for name, value in config.items() for part in (f"--{name.replace('_', '-')}", str(value))]
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "dynamo_go", "mocker", *arguments),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
            )
        self.addresses = [await self._ready(number) for number in range(self._count)]

    async def _ready(self, number: int) -> Address:
        process = self._processes[number]
        assert process.stdout is not None and process.stderr is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        except asyncio.TimeoutError:
            raise EngineFailed(f"engine {number} was not ready after {START_SECONDS:.0f} s") from None
        if not line:
            words = (await process.stderr.read()).decode(errors="replace").strip()
            raise EngineFailed(f"engine {number} did not start: {words or 'it said nothing'}")
        info = json.loads(line)
        host, _, port = info["http"].removeprefix("http://").rpartition(":")
        return Address(host, int(port), info["kv_events"], info["replay"])

    def check(self) -> None:
        """Raise :class:`EngineFailed` if one has ended."""
        for number, process in enumerate(self._processes):
            if process.returncode is not None:
                raise EngineFailed(f"engine {number} ended with status {process.returncode}")

    async def stop(self) -> None:
        """End all, by SIGTERM, then by SIGKILL."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self._processes:
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        self._processes = []
