"""Both planes over a NATS server, discovery in a directory and in etcd: workers and routers of one loop, and the example of Dynamo's documentation."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo_go import (
    DistributedRuntime,
    KvEventPublisher,
    KvRouter,
    KvRouterConfig,
    ModelInput,
    ModelType,
    register_model,
)

SERVERS = Path(__file__).parents[2] / "build" / "servers"
BLOCK = 16


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def serving(port: int, *command: str) -> Iterator[None]:
    """Run a server until the block ends."""
    path = SERVERS / command[0]
    assert path.exists(), f"{path} is not there: ./build.sh servers"
    with subprocess.Popen([str(path), *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield
        finally:
            process.kill()


@pytest.fixture(params=["file", "etcd"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    port = free_port()
    monkeypatch.setenv("NATS_SERVER", f"nats://127.0.0.1:{port}")
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
    for name in ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"):
        monkeypatch.setenv(name, "127.0.0.1")
    with contextlib.ExitStack() as stack:
        stack.enter_context(serving(port, "nats-server", "-a", "127.0.0.1", "-p", str(port)))
        if request.param == "etcd":
            client, peer = free_port(), free_port()
            url, other = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
            monkeypatch.setenv("ETCD_ENDPOINTS", url)
            stack.enter_context(
                serving(
                    client, "etcd", "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
                    "--listen-peer-urls", other, "--initial-advertise-peer-urls", other, "--initial-cluster", f"default={other}", "--unsafe-no-fsync",
                )
            )  # fmt: skip
        yield request.param
        shutil.rmtree(tmp_path / "etcd", ignore_errors=True)


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

        # The example of Dynamo's documentation.
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
