"""Runtimes of a deployment: discovery in a directory, requests by tcp, events by ZeroMQ."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import BLOCK, PATH, echo, run, until

from dynamo_go import (
    Cancelled,
    Closed,
    Context,
    Disconnected,
    DistributedRuntime,
    Endpoint,
    InvalidArgument,
    KvEventPublisher,
    KvRouter,
    KvRouterConfig,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    NoWorkers,
    WorkerError,
    WorkerMetricsPublisher,
    WorkerNotFound,
    register_model,
)
from dynamo_go.compat import llm

PROMPT = list(range(4 * BLOCK))


@pytest.fixture(autouse=True)
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give each test a deployment of its own."""
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
    for name in ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"):
        monkeypatch.setenv(name, "127.0.0.1")
    yield tmp_path


def join() -> DistributedRuntime:
    return DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")


class Worker:
    """A worker that does what a request's model says, and remembers what it was asked."""

    def __init__(self, runtime: DistributedRuntime, path: str = PATH) -> None:
        self.runtime = runtime
        self.endpoint = runtime.endpoint(path)
        self.publisher = KvEventPublisher(self.endpoint, kv_block_size=BLOCK, enable_local_indexer=True)
        self.requests: list[Any] = []
        self.contexts: list[Any] = []
        self.yielded = 0
        self.ended: list[tuple[bool, bool]] = []
        self.served: asyncio.Future[None] | None = None

    @property
    def id(self) -> int:
        return self.endpoint.connection_id()

    async def start(self, config: ModelRuntimeConfig | None = None) -> Worker:
        await register_model(
            ModelInput.Tokens,
            ModelType.Completions,
            self.endpoint,
            "m",
            kv_cache_block_size=BLOCK,
            runtime_config=config,
        )
        self.served = self.endpoint.serve_endpoint(self.handle)
        return self

    async def handle(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.requests.append(request)
        self.contexts.append(context)
        model = request["model"]
        if model == "early":
            raise ValueError("boom")
        try:
            for i in range(1_000_000):
                if context.is_stopped():
                    return
                self.yielded += 1
                if model == "ok":
                    last = i == 2
                    yield {"token_ids": [i], "finish_reason": "length"} if last else {"token_ids": [i]}
                    if last:
                        break
                elif model == "large":
                    yield {"token_ids": [i], "text": "x" * (256 << 10)}
                else:
                    yield {"token_ids": [i]}
                    await asyncio.sleep(0.001)
                if model == "late":
                    raise RuntimeError("boom")
                if model == "odd":
                    yield {"token_ids": [1], "what": object()}
        finally:
            self.ended.append((context.is_stopped(), context.is_killed()))
        tokens = request["token_ids"]
        n = len(tokens) // BLOCK
        self.publisher.publish_stored(tokens[: n * BLOCK], [BLOCK] * n, [hash(tuple(tokens[:k])) for k in range(n)])


async def ready(router: KvRouter, workers: int = 1) -> KvRouter:
    while len(await router.get_potential_loads([])) < workers:
        await asyncio.sleep(0.005)
    return router


async def idle(router: KvRouter) -> None:
    while any(row["active_requests"] for row in await router.get_potential_loads([])):
        await asyncio.sleep(0.005)


def of(runtime: DistributedRuntime, path: str = PATH, **config: Any) -> KvRouter:
    return KvRouter(runtime.endpoint(path), BLOCK, KvRouterConfig(**config))


def test_generate() -> None:
    """A request from one process to another, and the overlap that its events bring."""

    async def main() -> None:
        worker = await Worker(join()).start()
        runtime = join()
        router = await ready(of(runtime))
        me = worker.endpoint.connection_id()
        stream = await router.generate(
            PROMPT, "ok", {"max_tokens": 3}, {"temperature": 0.5}, None, extra_args={"a": [1, None]}
        )
        items = [item async for item in stream]
        assert [item["token_ids"] for item in items] == [[0], [1], [2]]
        assert items[0]["routing_data"] == {
            "worker_id": {"prefill_worker_id": me, "prefill_dp_rank": 0, "decode_worker_id": me, "decode_dp_rank": 0}
        }
        assert "routing_data" not in items[1]
        assert items[1]["finish_reason"] is None and items[1]["output_type"] == "text"
        timing = items[2]["routing_data"]["timing"]
        assert timing["kv_hit_rate"] == 0 and timing["router_queue_depth"] == 0
        assert 0 < timing["prefill_wait_time_ms"] <= timing["ttft_ms"] <= timing["total_time_ms"]
        (request,) = worker.requests
        assert request["token_ids"] == PROMPT and request["routing"] == {"dp_rank": 0}
        assert request["stop_conditions"]["max_tokens"] == 3 and request["stop_conditions"]["stop"] is None
        assert request["sampling_options"]["temperature"] == 0.5 and request["extra_args"] == {"a": [1, None]}
        while await router.best_worker(PROMPT) != (me, 0, 4):
            await asyncio.sleep(0.005)
        stream = await router.generate(PROMPT, "ok", worker_id=me)
        last = [item async for item in stream][-1]
        assert last["routing_data"]["timing"]["kv_hit_rate"] == 1.0
        assert worker.requests[-1]["routing"] == {"dp_rank": 0, "backend_instance_id": me}
        await idle(router)
        stream = await router.generate_from_request({"token_ids": [1], "annotations": ["query_instance_id:"]})
        (item,) = [item async for item in stream]
        assert item["routing_data"]["token_ids"] == [1] and len(worker.requests) == 2
        late = await ready(of(join()))
        while await late.best_worker(PROMPT) != (me, 0, 4):
            await asyncio.sleep(0.005)

    run(main())


def test_other_prompts_for_routing() -> None:
    async def main() -> None:
        worker = await Worker(join()).start()
        router = await ready(of(join()))
        mm = {"routing_token_ids": PROMPT, "block_mm_infos": [None] * 4}
        async for _ in await router.generate([7, 8], "ok", mm_routing_info=mm):
            pass
        assert worker.requests[0]["token_ids"] == [7, 8]
        assert worker.requests[0]["mm_routing_info"] == mm

    run(main())


def test_failures() -> None:
    async def main() -> None:
        worker = await Worker(join()).start()
        router = await ready(of(join()))
        for model, items, message in (
            ("early", 0, "ValueError: boom"),
            ("late", 1, "RuntimeError: boom"),
            ("odd", 1, "object cannot be sent"),
        ):
            seen = 0
            with pytest.raises(WorkerError, match=message):
                async for _ in await router.generate(PROMPT, model):
                    seen += 1
            assert seen == items, model
        await idle(router)
        with pytest.raises(WorkerNotFound):
            await router.generate(PROMPT, "ok", worker_id=12345)
        with pytest.raises(TypeError, match="token_ids"):
            router.generate("x", "ok")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="cannot be sent"):
            router.generate(PROMPT, "ok", extra_args=object())
        with pytest.raises(InvalidArgument, match="non-negative"):
            router.generate(PROMPT, "ok", response_buffer_size=-1)
        none = of(join(), "test.backend.other")
        with pytest.raises(NoWorkers):
            await none.generate(PROMPT, "ok")
        assert worker.served is not None and not worker.served.done()

    run(main())


def test_streams_that_are_given_up() -> None:
    """Dropped, closed or cancelled: the booking goes, and the handler sees it."""

    async def main() -> None:
        worker = await Worker(join()).start()
        router = await ready(of(join()))
        for way in ("drop", "close", "cancel", "unread"):
            stream = await router.generate(PROMPT, "slow")
            if way != "unread":
                assert (await stream.__anext__())["token_ids"] == [0]
            assert (await router.get_potential_loads([]))[0]["active_requests"] == 1
            if way == "close":
                await stream.aclose()
                with pytest.raises(StopAsyncIteration):
                    await stream.__anext__()
            elif way == "cancel":

                async def read(stream: Any) -> None:
                    async for _ in stream:
                        pass

                task = asyncio.ensure_future(read(stream))
                await asyncio.sleep(0.02)
                task.cancel()
                await asyncio.wait([task])
                del task
            del stream
            gc.collect()
            await idle(router)
            await until(lambda: len(worker.ended) > 0)
            assert worker.ended.pop() == (True, True), way
        pending = router.generate(PROMPT, "slow")
        pending.cancel()
        await asyncio.sleep(0)
        await idle(router)

    run(main())


def test_context_stops_gracefully() -> None:
    async def main() -> None:
        worker = await Worker(join()).start()
        client = await join().endpoint(PATH).client()
        (me,) = await client.wait_for_instances()
        assert me == worker.endpoint.connection_id()
        context = Context("my-id", {"k": "v"})
        seen = 0
        async for item in await client.direct({"model": "slow"}, me, context=context):
            assert not item.is_error()
            seen += 1
            if seen == 3:
                context.stop_generating()
        assert worker.contexts[0].id() == "my-id" and worker.contexts[0].metadata == {"k": "v"}
        await until(lambda: worker.ended == [(True, False)])
        stopped = Context()
        stopped.stop_generating()
        assert [item async for item in await client.random({"model": "slow"}, context=stopped)] == []
        items = [item async for item in await client.round_robin({"model": "late"})]
        assert [item.is_error() for item in items] == [False, True]
        assert items[1].comments() == ["Internal: RuntimeError: boom"]
        with pytest.raises(WorkerError):
            [item async for item in await client.random({"model": "early"}, annotated=False)]
        with pytest.raises(WorkerNotFound):
            await client.direct({}, 5)
        other = await worker.runtime.endpoint("test.backend.none").client()
        with pytest.raises(NoWorkers):
            await other.random({})

    run(main())


@pytest.mark.parametrize("size", [0, 1, 100])
def test_back_pressure(size: int) -> None:
    """A reader that does not read holds its worker up, and nobody else; nothing is lost."""

    async def main() -> None:
        worker = await Worker(join()).start()
        router = await ready(of(join()))
        stream = await router.generate(PROMPT, "large", response_buffer_size=size)
        before = -1
        while before != worker.yielded:
            before = worker.yielded
            await asyncio.sleep(0.3)
        assert before < 400  # of 256 KiB: what fits buffers of sockets, and of the answer
        async for _ in await router.generate(PROMPT, "ok"):
            pass
        for i in range(before + 50):
            assert (await stream.__anext__())["token_ids"] == [i]

    run(main(), timeout=120)


def test_values_arrive_as_they_are() -> None:
    values = {
        "ints": [
            0,
            127,
            128,
            255,
            256,
            65535,
            65536,
            2**32 - 1,
            2**32,
            2**63,
            2**64 - 1,
            -1,
            -32,
            -33,
            -(2**31),
            -(2**63),
        ],
        "floats": [0.5, -1e300, math.inf],
        "texts": ["", "é" * 31, "x" * 300, "y" * 70000],
        "bytes": [b"", b"\0" * 300],
        "others": [None, True, False, {}, [], {"k" * 40: [[]]}],
        "many": list(range(70000)),
        "wide": {str(i): i for i in range(70000)},
    }

    async def echo(request: Any) -> AsyncIterator[Any]:
        yield request

    async def main() -> None:
        worker = join().endpoint(PATH)
        worker.serve_endpoint(echo)
        client = await join().endpoint(PATH).client()
        await client.wait_for_instances()
        (item,) = [item async for item in await client.random(values, annotated=False)]
        assert item == values
        (item,) = [item async for item in await client.random({"a": (1, bytearray(b"x"))}, annotated=False)]
        assert item == {"a": [1, b"x"]}
        nested: Any = []
        for _ in range(200):
            nested = [nested]
        for bad, kind in (
            (2**64, OverflowError),
            ({1: 2}, TypeError),
            (nested, ValueError),
            ("\ud800", UnicodeEncodeError),
        ):
            with pytest.raises(kind):
                await client.random({"bad": bad})

    run(main())


def test_worker_is_killed(deployment: Path) -> None:
    """A process that dies takes its streams with it at once, and is no candidate when its lease is over."""
    script = Path(__file__).with_name("deployment_worker.py")

    async def main() -> None:
        process = subprocess.Popen([sys.executable, str(script), PATH], env=dict(os.environ), stdout=subprocess.PIPE)
        try:
            router = await ready(of(join()))
            stream = await router.generate(PROMPT, "slow")
            await stream.__anext__()
            process.send_signal(signal.SIGKILL)
            with pytest.raises(Disconnected):
                async for _ in stream:
                    pass
            await idle(router)
            with pytest.raises(Exception) as raised:
                await router.generate(PROMPT, "ok")
            assert type(raised.value).__name__ in ("CannotConnect", "NoWorkers")
            while await router.get_potential_loads([]):
                await asyncio.sleep(0.1)
        finally:
            process.kill()
            process.communicate()

    run(main(), timeout=120)


def test_runtimes_do_not_disturb_each_other() -> None:
    async def main() -> None:
        worker = await Worker(join()).start()
        first, second = join(), join()
        a, b, c = await ready(of(first)), await ready(of(first)), await ready(of(second))
        kept = await a.generate(PROMPT, "slow")
        a.close()
        assert (await kept.__anext__())["token_ids"] == [0]
        with pytest.raises(Closed):
            await a.generate(PROMPT, "ok")
        for router in (b, c):
            assert len([item async for item in await router.generate(PROMPT, "ok")]) == 3
        first.shutdown()
        with pytest.raises((Closed, Cancelled, Disconnected)):
            while True:
                await kept.__anext__()
        with pytest.raises(Closed):
            await b.generate(PROMPT, "ok")
        assert len([item async for item in await c.generate(PROMPT, "ok")]) == 3
        assert worker.served is not None
        worker.runtime.shutdown()
        await worker.served
        while await c.get_potential_loads([]):
            await asyncio.sleep(0.005)

    run(main())


def test_shutdown_lets_requests_end() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def handle(request: Any) -> AsyncIterator[Any]:
            yield {"token_ids": [1]}
            await go.wait()
            yield {"token_ids": [2], "finish_reason": "stop"}

        runtime = join()
        served = runtime.endpoint(PATH).serve_endpoint(handle)
        client = await join().endpoint(PATH).client()
        await client.wait_for_instances()
        stream = await client.random({}, annotated=False)
        assert await stream.__anext__() == {"token_ids": [1]}
        runtime.shutdown()
        await until(lambda: client.instance_ids() == [])
        assert not served.done()
        go.set()
        assert [item async for item in stream] == [{"token_ids": [2], "finish_reason": "stop"}]
        await served

    run(main())


def test_replicas_agree() -> None:
    """Routers with router_replica_sync count each other's requests."""

    async def main() -> None:
        await Worker(join()).start()
        a = await ready(of(join(), router_replica_sync=True))
        b = await ready(of(join(), router_replica_sync=True))
        # What is placed before they know each other is not heard. Each hears itself, too.
        await until(lambda: all((r._router.stats()["replicas"] or {}).get("peers_listening") == 2 for r in (a, b)))

        async def count(n: int) -> None:
            while (await b.get_potential_loads([]))[0]["active_requests"] != n:
                await asyncio.sleep(0.005)

        stream = await a.generate(PROMPT, "slow")
        await count(1)
        await stream.aclose()
        await count(0)

    run(main())


def test_workers_configuration_and_metrics() -> None:
    async def main() -> None:
        config = ModelRuntimeConfig()
        config.data_parallel_size = 2
        config.taints = {"b", "a"}
        config.total_kv_blocks = 1000
        worker = await Worker(join()).start(config)
        router = await ready(of(join()), 2)
        rows = await router.get_potential_loads([])
        assert sorted(row["dp_rank"] for row in rows) == [0, 1]
        metrics = WorkerMetricsPublisher()
        metrics.publish(active_decode_blocks=1)
        await metrics.create_endpoint(worker.endpoint)
        metrics.publish(0, active_decode_blocks=7, kv_used_blocks=9)
        with pytest.raises(InvalidArgument):
            metrics.publish(0)
        with pytest.raises(InvalidArgument):
            metrics.publish(-1, 1)
        await worker.endpoint.unregister_endpoint_instance()
        while await router.get_potential_loads([]):
            await asyncio.sleep(0.005)
        await worker.endpoint.register_endpoint_instance()
        await ready(router, 2)
        assert worker.served is not None
        worker.served.cancel()
        while await router.get_potential_loads([]):
            await asyncio.sleep(0.005)

    run(main())


def test_adapters() -> None:
    """Requests for a LoRA adapter go to the workers that registered it, in decisions and from end to end."""

    async def main() -> None:
        first, second = [await Worker(join()).start() for _ in range(2)]
        router = await ready(of(join()), 2)
        name = "Org/My Adapter"

        async def chosen() -> set[int]:
            return {(await router.best_worker(PROMPT, lora_name=name))[0] for _ in range(40)}

        async def served() -> int:
            stream = await router.generate(PROMPT, "ok", lora_name=name)
            items = [item async for item in stream]
            return int(items[0]["routing_data"]["worker_id"]["decode_worker_id"])

        async def has(worker: Worker, adapters: list[str]) -> None:
            while {r["worker_id"]: r["adapters"] for r in router._router.workers()}[worker.id] != adapters:
                await asyncio.sleep(0.005)

        async def register(worker: Worker) -> None:
            await llm.register_model(
                ModelInput.Tokens,
                ModelType.Completions,
                worker.endpoint,
                "m",
                lora_name=name,
                base_model_path="m",
                max_gpu_lora_count=4,
            )

        assert await chosen() == {first.id, second.id}
        await register(first)
        await has(first, [name])
        assert await chosen() == {first.id}
        assert {await served() for _ in range(4)} == {first.id}
        assert first.requests[-1]["routing"]["lora_name"] == name
        assert not second.requests
        with pytest.raises(InvalidArgument, match="not registered"):
            await llm.unregister_model(first.endpoint, "another")
        await llm.unregister_model(first.endpoint, name)
        await has(first, [])
        await register(second)
        await has(second, [name])
        assert await served() == second.id
        # What the worker is like is said anew, and its adapters stay.
        await register_model(ModelInput.Tokens, ModelType.Completions, second.endpoint, "m", kv_cache_block_size=BLOCK)
        assert await served() == second.id
        await has(second, [name])

    run(main())


def test_concurrent_requests_spread_over_equal_workers() -> None:
    async def main() -> None:
        workers = [await Worker(join()).start() for _ in range(8)]
        router = await ready(of(join()), 8)
        streams = await asyncio.gather(*(router.generate([n] * 40, "slow") for n in range(64)))
        rows = await router.get_potential_loads([])
        assert {row["worker_id"] for row in rows} == {worker.id for worker in workers}
        assert all(7 <= row["active_requests"] <= 9 for row in rows), rows
        for stream in streams:
            await stream.aclose()
        await idle(router)

    run(main())


def test_nothing_is_left() -> None:
    """A runtime that nobody has any more is gone, and its descriptors with it."""

    async def once() -> None:
        worker = await Worker(join()).start()
        router = await ready(of(join()))
        async for _ in await router.generate(PROMPT, "ok"):
            pass
        worker.runtime.shutdown()
        assert worker.served is not None
        await worker.served

    async def main() -> None:
        def descriptors() -> int:
            return len(os.listdir("/proc/self/fd"))

        await once()
        gc.collect()
        before = descriptors()
        for _ in range(5):
            await once()
            gc.collect()
        while descriptors() > before + 5:
            gc.collect()
            await asyncio.sleep(0.05)

    run(main(), timeout=120)


def test_wrong_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    async def main() -> None:
        monkeypatch.setenv("DYN_FILE_KV", str(blocked))
        with pytest.raises(OSError, match="file"):
            join()
        monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
        monkeypatch.setenv("DYN_TCP_RPC_PORT", "x")
        with pytest.raises(InvalidArgument, match="DYN_TCP_RPC_PORT"):
            join()

    run(main())


def test_endpoint_type() -> None:
    """Names are the same kind of object in memory and in a deployment."""

    async def main() -> None:
        assert type(join().endpoint(PATH)) is Endpoint

    run(main())


def test_a_runtime_that_ended_keeps_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))

    async def main() -> None:
        for _ in range(10):
            runtime: Any = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
            runtime.endpoint("a.b.c").serve_endpoint(echo)
            runtime.shutdown()
            while runtime._hub._ending or runtime._hub._services:
                await asyncio.sleep(0.001)
            del runtime
        gc.collect()

    run(main())
    before = len(os.listdir("/proc/self/fd"))
    loop = asyncio.new_event_loop()  # one that goes on: nothing is let go because it ends
    loop.run_until_complete(main())
    after = len(os.listdir("/proc/self/fd"))
    loop.close()
    assert after - before < 10


def test_workers_are_waited_for_until_they_have_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks now and then: whoever waits is told, also of what a client does not see."""
    monkeypatch.setenv("DYN_ROUTER_MIN_INITIAL_WORKERS", "1")

    async def main() -> None:
        runtime, other = join(), join()
        router = KvRouter(runtime.endpoint(PATH), BLOCK, KvRouterConfig())
        best = router.best_worker(PROMPT)
        worker = Worker(other)
        worker.served = worker.endpoint.serve_endpoint(worker.handle)
        client = await runtime.endpoint(PATH).client()
        assert await client.wait_for_instances() == [worker.id]
        assert not best.done()
        await register_model(ModelInput.Tokens, ModelType.Completions, worker.endpoint, "m", kv_cache_block_size=BLOCK)
        assert (await best)[0] == worker.id
        other.shutdown()
        runtime.shutdown()

    run(main())
