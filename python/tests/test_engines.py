"""HTTP engines as workers of an endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import run, until

from dynamo_go import (
    DistributedRuntime,
    DuplicateWorker,
    Endpoint,
    FileError,
    InvalidArgument,
    KvRouter,
    Timeout,
    WorkerNotFound,
)
from dynamo_go.mocker import Mocker

BLOCK = 16
PATH = "ns.backend.generate"


@pytest.fixture(autouse=True)
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give each test a deployment of its own."""
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "kv"))
    for name in ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"):
        monkeypatch.setenv(name, "127.0.0.1")
    yield tmp_path


def join(discovery: str = "file") -> DistributedRuntime:
    return DistributedRuntime(asyncio.get_running_loop(), discovery, "tcp", event_plane="zmq")


def add(endpoint: Endpoint, engine: Mocker, **more: Any) -> int:
    info = engine.info
    return endpoint.add_engine(
        info["http"], kv_events=info["kv_events"], replay=info["replay"], block_size=BLOCK, **more
    )


def engines(count: int, **more: Any) -> list[Mocker]:
    return [Mocker(speedup=50, **more) for _ in range(count)]


async def answer(router: KvRouter, prompt: list[int], tokens: int, **more: Any) -> list[dict[str, Any]]:
    stream = await router.generate(prompt, "mock-8b", stop_conditions={"max_tokens": tokens}, **more)
    return [item async for item in stream]


async def workers(router: KvRouter, count: int) -> None:
    while len(await router.get_potential_loads([])) != count:
        await asyncio.sleep(0.005)


def where(items: list[dict[str, Any]]) -> int:
    number: int = items[0]["routing_data"]["worker_id"]["decode_worker_id"]
    return number


@pytest.mark.parametrize("discovery", ["file", "mem"])
def test_bare_engines_are_routed_to_by_what_they_hold(discovery: str) -> None:
    async def body() -> None:
        mocks = engines(3)
        runtime = join(discovery)
        endpoint = runtime.endpoint(PATH)
        ids = [add(endpoint, mock) for mock in mocks]
        router = KvRouter(endpoint, BLOCK)
        await workers(router, 3)
        for i in range(3):
            prompt = list(range(i * 1000, i * 1000 + 20 * BLOCK))
            items = await answer(router, prompt, 5)
            assert sum(len(item["token_ids"]) for item in items) == 5
            assert items[-1]["finish_reason"] == "length"
            assert items[-1]["completion_usage"]["prompt_tokens"] == len(prompt)
            first = where(items)
            assert first in ids

            async def held(prompt: list[int] = prompt, first: int = first) -> bool:
                rows = (await router.get_overlap_scores(prompt))["workers"]
                return any(row["worker_id"] == first and row["device_blocks"] >= 19 for row in rows)

            for _ in range(1000):
                if await held():
                    break
                await asyncio.sleep(0.01)
            assert await held()
            assert where(await answer(router, prompt, 1)) == first
        assert {engine["state"] for engine in endpoint.engines()} == {"healthy"}
        assert all(engine["listed"] and engine["active"] == 0 and not engine["error"] for engine in endpoint.engines())
        runtime.shutdown()
        for mock in mocks:
            mock.close()

    run(body())


def test_one_that_dies_or_drains_is_withdrawn() -> None:
    async def body() -> None:
        mocks = engines(2)
        runtime = join()
        endpoint = runtime.endpoint(PATH)
        ids = [add(endpoint, mock) for mock in mocks]
        router = KvRouter(endpoint, BLOCK)
        await workers(router, 2)
        await endpoint.drain(ids[0], timeout=5)
        await until(
            lambda: (
                [e["listed"] for e in sorted(endpoint.engines(), key=lambda e: ids.index(e["worker_id"]))]
                == [False, True]
            )
        )
        await workers(router, 1)  # it hears of it a moment later, and until then may choose it
        for i in range(4):
            assert where(await answer(router, list(range(i * 100, i * 100 + 40)), 1)) == ids[1]
        endpoint.resume(ids[0])
        await workers(router, 2)
        mocks[1].close()
        for i in range(8):  # whoever is sent there before it is noticed goes elsewhere
            assert where(await answer(router, list(range(i * 100, i * 100 + 40)), 1)) == ids[0]
        await until(lambda: next(e for e in endpoint.engines() if e["worker_id"] == ids[1])["state"] == "ejected")
        endpoint.remove_engine(ids[1])
        await until(lambda: len(endpoint.engines()) == 1)
        with pytest.raises(WorkerNotFound):
            endpoint.remove_engine(ids[1])
        with pytest.raises(WorkerNotFound):
            await endpoint.drain(ids[1])
        runtime.shutdown()
        mocks[0].close()

    run(body())


def test_draining_waits_for_what_runs() -> None:
    async def body() -> None:
        mock = Mocker(inter_token_ms=20)
        runtime = join()
        endpoint = runtime.endpoint(PATH)
        worker = add(endpoint, mock)
        router = KvRouter(endpoint, BLOCK)
        await workers(router, 1)
        stream = await router.generate(list(range(40)), "mock-8b", stop_conditions={"max_tokens": 100})
        first = await anext(stream)
        assert first["token_ids"]
        with pytest.raises(Timeout, match="1 requests still run"):
            await endpoint.drain(worker, timeout=0)
        del stream  # dropped: the engine's work ends, too
        await endpoint.drain(worker, timeout=2)
        runtime.shutdown()
        mock.close()

    run(body())


def test_a_file_of_engines_is_followed(tmp_path: Path) -> None:
    async def body() -> None:
        mocks = engines(2)
        runtime = join()
        endpoint = runtime.endpoint(PATH)
        path = tmp_path / "engines.json"
        with pytest.raises(FileError):
            endpoint.add_engines(path)
        assert endpoint.engines_file() is None

        def put(*some: Mocker) -> None:
            entries = [
                {
                    "url": m.info["http"],
                    "kv_events": m.info["kv_events"],
                    "replay": m.info["replay"],
                    "block_size": BLOCK,
                }
                for m in some
            ]
            path.write_text(json.dumps({"engines": entries}))

        put(mocks[0])
        endpoint.add_engines(path)
        router = KvRouter(endpoint, BLOCK)
        await workers(router, 1)
        put(*mocks)
        await workers(router, 2)
        path.write_text("engines: [{url: http://h, colour: red}]")
        await until(lambda: "colour" in (endpoint.engines_file() or {})["error"])
        assert len(endpoint.engines()) == 2
        put(mocks[1])
        await until(lambda: [e["url"] for e in endpoint.engines()] == [mocks[1].info["http"]])
        assert (endpoint.engines_file() or {})["error"] == ""
        runtime.shutdown()
        for mock in mocks:
            mock.close()

    run(body())


def test_arguments_are_checked() -> None:
    async def body() -> None:
        runtime = join()
        endpoint = runtime.endpoint(PATH)
        wrongs: list[dict[str, Any]] = [
            {"url": 3},
            {"url": "http://h", "kv_events": 3},
            {"url": "http://h", "dp_size": "1"},
            {"url": "http://h", "taints": "a"},
            {"url": "http://h", "headers": {"a": 3}},
        ]
        for wrong in wrongs:
            with pytest.raises(TypeError):
                endpoint.add_engine(**wrong)
        refusals: list[tuple[dict[str, Any], str]] = [
            ({"url": "h:8000"}, "expected"),
            ({"url": "http://h", "kind": "tgi"}, "vllm, sglang"),
            ({"url": "http://h", "kv_events": "udp://h:1"}, "udp"),
            ({"url": "http://h", "replay": "tcp://h:1"}, "replay without kv_events"),
            ({"url": "http://h", "dp_size": 1 << 20}, "dp_size"),
        ]
        for refused, why in refusals:
            with pytest.raises(InvalidArgument, match=why):
                endpoint.add_engine(**refused)
        worker = endpoint.add_engine(
            "http://127.0.0.1:1", worker_id=7, kv_events={0: "tcp://*:5557"}, headers={"Authorization": "x"}
        )
        assert worker == 7
        with pytest.raises(DuplicateWorker):
            endpoint.add_engine("http://127.0.0.1:2", worker_id=7)
        await until(lambda: "refused" in endpoint.engines()[0]["reason"])
        assert endpoint.engines()[0]["state"] == "starting"
        endpoint.remove_engine(7, kill=True)
        runtime.shutdown()

    run(body())
