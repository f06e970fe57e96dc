"""Runtimes that find each other by etcd, a real one, and those that cannot reach it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import BLOCK, PATH, echo, run
from ports import free_port
from servers import Etcd

from dynamo_go import (
    CannotConnect,
    DistributedRuntime,
    InvalidArgument,
    KvRouter,
    KvRouterConfig,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    register_model,
)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    server = Etcd(tmp_path / "etcd")
    server.start()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("ETCD_"):
            monkeypatch.delenv(name)
    for name in ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"):
        monkeypatch.setenv(name, "127.0.0.1")


def join() -> DistributedRuntime:
    return DistributedRuntime(asyncio.get_running_loop(), "etcd", "tcp", event_plane="zmq")


async def work(runtime: DistributedRuntime) -> asyncio.Future[None]:
    endpoint = runtime.endpoint(PATH)
    await register_model(
        *(ModelInput.Tokens, ModelType.Completions, endpoint, "model"),
        kv_cache_block_size=BLOCK,
        runtime_config=ModelRuntimeConfig(),
        skip_model_assets=True,
    )
    return endpoint.serve_endpoint(echo)


async def answered(router: KvRouter) -> int:
    """Generate, and give the worker that answered."""
    items = [item async for item in await router.generate(list(range(BLOCK)), "model")]
    assert [item["token_ids"] for item in items] == [[1], [2]]
    return int(items[0]["routing_data"]["worker_id"]["decode_worker_id"])


def test_workers_and_routers_meet(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """They find each other, go on while etcd is away, and see who ends and who joins."""
    monkeypatch.setenv("ETCD_ENDPOINTS", etcd.url)

    async def main() -> None:
        workers, runtime = [join(), join()], join()
        for worker in workers:
            await work(worker)
        router = KvRouter(runtime.endpoint(PATH), BLOCK, KvRouterConfig())
        client = await runtime.endpoint(PATH).client()
        while len(await client.wait_for_instances()) < 2 or len(await router.get_potential_loads([])) < 2:
            await asyncio.sleep(0.01)
        seen = {await answered(router) for _ in range(20)}
        assert seen == set(client.instance_ids())
        etcd.kill()
        for _ in range(10):
            assert await answered(router) in seen
        workers.append(join())
        await work(workers[-1])
        etcd.start()
        while len(client.instance_ids()) < 3 or len(await router.get_potential_loads([])) < 3:
            await asyncio.sleep(0.01)
        workers[0].shutdown()
        while len(client.instance_ids()) > 2:
            await asyncio.sleep(0.01)
        assert await answered(router) in client.instance_ids()
        for one in (*workers, runtime):
            one.shutdown()

    run(main(), 60)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for it, and who waits anyway is told after the time that was asked for."""
    monkeypatch.setenv("ETCD_ENDPOINTS", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", "1")

    async def main() -> None:
        gaps: list[float] = []

        async def beat() -> None:
            while True:
                last = time.monotonic()
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - last)

        beating = asyncio.ensure_future(beat())
        runtime = join()
        served = await work(runtime)
        router = KvRouter(runtime.endpoint(PATH), BLOCK, KvRouterConfig())
        client = await runtime.endpoint(PATH).client()
        assert client.instance_ids() == []
        with pytest.raises(CannotConnect, match=r"could not be reached for 1s: .*connection refused"):
            await client.wait_for_instances()
        with pytest.raises(CannotConnect, match="could not be reached for 1s"):
            await served
        beating.cancel()
        assert gaps and max(gaps) < 0.9, "the loop stood still for as long as the connection was tried"
        del router
        runtime.shutdown()

    run(main())


@pytest.mark.parametrize(
    ("name", "value"),
    [("ETCD_ENDPOINTS", "ftp://x"), ("ETCD_LEASE_TTL", "0"), ("ETCD_AUTH_USERNAME", "alone"), ("ETCD_AUTH_CA", "x")],
)
def test_variables_that_cannot_be_used(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)

    async def main() -> Any:
        return join()

    with pytest.raises(InvalidArgument):
        run(main())


COMMANDS = [("worker", "--mocker", "--endpoint", PATH), ("router", "--endpoint", PATH)]


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs, in this test's deployment, until the block ends."""
    command = [sys.executable, "-m", "dynamo_go", *arguments, "--discovery-backend", "etcd"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_do_not_serve_without_a_server(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """They say what they wait for, and end with what is the matter; a signal ends them before that, without a word."""
    monkeypatch.setenv("ETCD_ENDPOINTS", url := f"http://127.0.0.1:{free_port()}")
    for seconds in (2, 60):
        monkeypatch.setenv("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", str(seconds))
        with started(*command) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == (
                f"{command[0]}: waiting for etcd at {url} (ETCD_ENDPOINTS), up to {seconds} s (ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS)\n"
            )
            if seconds == 60:
                process.send_signal(signal.SIGTERM)
            out, told = process.communicate(timeout=50)
            assert out == ""
            if seconds == 60:
                assert (process.returncode, told) == (0, "")
                continue
            assert process.returncode == 2
            assert told.startswith(
                f"{command[0]}: discovery is not available: etcd at {url} could not be reached for 2s: "
            )
            assert told.count("\n") == 1, told


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_serve_once_they_are_listed(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Etcd(tmp_path / "etcd")
    monkeypatch.setenv("ETCD_ENDPOINTS", server.url)
    with started(*command) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "waiting for etcd" in process.stderr.readline()
        server.start()
        try:
            ready = json.loads(process.stdout.readline())

            async def main() -> None:
                for path in ready.get("endpoints", [PATH]):
                    runtime = join()
                    client = runtime._hub._client(path)
                    await runtime._hub.reached()
                    assert json.loads(runtime._hub.native.instances(client.number)), f"{path} is not listed yet"
                    runtime.shutdown()

            run(main())
            process.send_signal(signal.SIGTERM)
            assert "Traceback" not in process.communicate(timeout=50)[1]
            assert process.returncode == 0
        finally:
            server.kill()
