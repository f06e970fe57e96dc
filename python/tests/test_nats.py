"""Both planes over a NATS server, discovery in a directory and in etcd: workers and routers of one loop, and what Dynamo's documentation begins with."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import echo, run
from ports import free_port
from servers import Etcd, nats

from dynamo_go import (
    DistributedRuntime,
    KvEventPublisher,
    KvRouter,
    KvRouterConfig,
    ModelInput,
    ModelType,
    register_model,
)

BLOCK = 16


@pytest.fixture(params=["file", "etcd"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
    for name in ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"):
        monkeypatch.setenv(name, "127.0.0.1")
    with nats() as address:
        monkeypatch.setenv("NATS_SERVER", address)
        if request.param == "file":
            yield "file"
            return
        etcd = Etcd(tmp_path / "etcd")
        etcd.start()
        monkeypatch.setenv("ETCD_ENDPOINTS", etcd.url)
        yield "etcd"
        etcd.kill()


def test_worker_and_router_over_nats(deployment: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        worker = DistributedRuntime(loop, deployment, "nats", event_plane="nats")
        endpoint = worker.endpoint("ns.backend.generate")
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)

        async def generate(request: Any) -> AsyncIterator[Any]:
            tokens = request["token_ids"]
            publisher.publish_stored(tokens, [BLOCK] * (len(tokens) // BLOCK), list(range(1, 1 + len(tokens) // BLOCK)))
            for i in range(3):
                yield {"token_ids": [i]}

        await register_model(
            ModelInput.Tokens,
            ModelType.Completions,
            endpoint,
            "m",
            "m",
            kv_cache_block_size=BLOCK,
            skip_model_assets=True,
        )
        endpoint.serve_endpoint(generate)

        runtime = DistributedRuntime(loop, deployment, "nats", event_plane="nats")
        router = KvRouter(runtime.endpoint("ns.backend.generate"), BLOCK, KvRouterConfig())
        client = await runtime.endpoint("ns.backend.generate").client()
        assert await asyncio.wait_for(client.wait_for_instances(), 60) == [endpoint.connection_id()]
        tokens = list(range(4 * BLOCK))

        async def joined() -> None:  # its model card comes by another record than the instance
            while not await router.get_potential_loads([]):
                await asyncio.sleep(0.01)

        await asyncio.wait_for(joined(), 60)
        stream = await asyncio.wait_for(router.generate(tokens, "m"), 60)
        assert [item["token_ids"] async for item in stream] == [[0], [1], [2]]

        async def known() -> None:
            while (await router.best_worker(tokens))[2] != 4:
                await asyncio.sleep(0.01)

        await asyncio.wait_for(known(), 60)
        runtime.shutdown()
        worker.shutdown()

    asyncio.run(main())


# What the documentation of Dynamo's KvRouter shows first: nothing waits for anything but the answer.
PROGRAM = """
import asyncio
{imports}

async def route():
    runtime = DistributedRuntime(asyncio.get_running_loop(), "etcd", "nats")
    router = KvRouter(
        endpoint=runtime.endpoint("dynamo.backend.generate"), block_size=16, kv_router_config=KvRouterConfig()
    )
    stream = await router.generate(
        token_ids=list(range(1, 11)),
        model="a-model",
        stop_conditions={{"max_tokens": 20, "ignore_eos": True}},
        sampling_options={{"temperature": 0.7, "top_p": 0.9}},
        router_config_override={{"overlap_score_credit": 1.0, "router_temperature": 0.5}},
    )
    tokens = []
    async for item in stream:
        tokens.extend(item["token_ids"])
    print(len(tokens), "tokens")

asyncio.run(route())
"""
IMPORTS = {
    "dynamo_go": "from dynamo_go import DistributedRuntime, KvRouter, KvRouterConfig",
    "compat": "from dynamo_go.compat.llm import KvRouter, KvRouterConfig\n"
    "from dynamo_go.compat.runtime import DistributedRuntime",
}


@pytest.mark.parametrize("deployment", ["etcd"], indirect=True)
def test_program_that_asks_at_once(deployment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", deployment)
    monkeypatch.setenv("DYN_REQUEST_PLANE", "nats")
    worker = subprocess.Popen(
        [sys.executable, "-m", "dynamo_go", "worker", "--mocker", "--endpoint", "dynamo.backend.generate"],
        stdout=subprocess.DEVNULL,
    )

    async def joined() -> None:
        runtime = DistributedRuntime(asyncio.get_running_loop())  # the environment says where
        router = KvRouter(runtime.endpoint("dynamo.backend.generate"), BLOCK, KvRouterConfig())
        while not await router.get_potential_loads([]):
            await asyncio.sleep(0.01)
        runtime.shutdown()

    try:
        asyncio.run(asyncio.wait_for(joined(), 60))
        for imports in IMPORTS.values():
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM.format(imports=imports)], capture_output=True, text=True, timeout=60
            )
            assert done.stdout == "20 tokens\n", done.stderr
    finally:
        worker.kill()
        worker.wait()


def test_a_server_that_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What etcd knows does not wait for a NATS server that is not there, nor fails for it."""
    etcd = Etcd(tmp_path / "etcd")
    etcd.start()
    monkeypatch.setenv("ETCD_ENDPOINTS", etcd.url)
    monkeypatch.setenv("NATS_SERVER", f"nats://127.0.0.1:{free_port()}")
    for name in ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"):
        monkeypatch.setenv(name, "127.0.0.1")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        worker = DistributedRuntime(loop, "etcd", "tcp")
        endpoint = worker.endpoint("ns.backend.generate")
        await register_model(ModelInput.Tokens, ModelType.Completions, endpoint, "m", kv_cache_block_size=BLOCK)
        endpoint.serve_endpoint(echo)
        runtime = DistributedRuntime(loop, "etcd", "nats")
        router = KvRouter(runtime.endpoint("ns.backend.generate"), BLOCK, KvRouterConfig())
        while "error" not in json.loads(runtime._hub.native.info()):
            await asyncio.sleep(0.001)
        while not await router.get_potential_loads([]):
            await asyncio.sleep(0.001)
        stream = await router.generate([1, 2, 3], "m")
        assert [item["token_ids"] async for item in stream] == [[1], [2]]
        runtime.shutdown()
        worker.shutdown()

    try:
        run(main(), 60)
    finally:
        etcd.kill()


def test_commands_say_that_the_server_is_not_there(tmp_path: Path) -> None:
    """They serve nevertheless, as it may come later."""
    url = f"nats://127.0.0.1:{free_port()}"
    variables = {"DYN_FILE_KV": str(tmp_path), "DYN_REQUEST_PLANE": "nats", "NATS_SERVER": url}
    command = [sys.executable, "-m", "dynamo_go", "worker", "--mocker", "--discovery-backend", "file"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        assert "worker_id" in json.loads(process.stdout.readline())
        told = process.stderr.readline()
        assert told.startswith("worker: not connected to NATS (NATS_SERVER), what goes by it waits: ") and url in told
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=50) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
