"""A runtime in memory: endpoints, workers that come and go, clients, models, publishers."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kit import (
    BLOCK,
    PATH,
    KvEventPublisher,
    caught_up,
    collect,
    echo,
    error_of,
    held,
    live,
    make_router,
    make_runtime,
    overlaps,
    publish,
    run,
    serve,
    silent,
    until,
)

from dynamo_go import (
    Closed,
    Context,
    Disconnected,
    DistributedRuntime,
    EventRefused,
    InvalidArgument,
    KvRouter,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    NoWorkers,
    WorkerError,
    WorkerNotFound,
    WorkerType,
    compute_block_hash_for_seq,
    register_model,
)
from dynamo_go._call import STOP_GRACE_SECONDS, Answer
from dynamo_go._deployment import Deployment, RemoteCall

PROMPT = list(range(100, 164))  # four blocks


async def register(endpoint: Any, block_size: int | None = None, **attributes: Any) -> None:
    config = ModelRuntimeConfig()
    for name, value in attributes.items():
        setattr(config, name, value)
    await register_model(
        ModelInput.Tokens, ModelType.Completions, endpoint, "m", "m", block_size, runtime_config=config
    )


# -- construction


@pytest.mark.parametrize(
    ("arguments", "keywords", "kind", "message"),
    [
        (("bogus", "tcp"), {}, InvalidArgument, "'bogus'. Valid values: 'mem', 'file', 'etcd'$"),
        (("mem", "bogus"), {}, InvalidArgument, "Invalid request plane mode: 'bogus'"),
        (("mem", "zmq"), {}, InvalidArgument, "Invalid request plane mode: 'zmq'"),
        (("mem", "tcp"), {"event_plane": "bogus"}, InvalidArgument, "Invalid event_plane value 'bogus'"),
        (("mem", "tcp"), {"response_plane": "bogus"}, InvalidArgument, "Invalid response_plane value 'bogus'"),
        (
            ("kubernetes", "tcp"),
            {},
            NotImplementedError,
            "'kubernetes' is not there, only 'mem', 'file', 'etcd': in a cluster.*etcd",
        ),
        (("mem", "tcp"), {"response_plane": "quic"}, NotImplementedError, "response_plane='quic'.*'tcp'"),
        ((7, "tcp"), {}, TypeError, "discovery_backend"),
        (("mem", 7), {}, TypeError, "request_plane"),
    ],
)
def test_back_ends(arguments: Any, keywords: Any, kind: type[Exception], message: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(kind, match=message):
            DistributedRuntime(loop, *arguments, **keywords)
        DistributedRuntime(loop, "mem", "tcp", False, event_plane="zmq", response_plane="tcp")
        with pytest.raises(TypeError, match="event_loop"):
            DistributedRuntime(None, "mem", "tcp")  # type: ignore[arg-type]

    run(main())


@pytest.mark.parametrize(
    ("variable", "value", "kind", "message"),
    [
        (
            "DYN_DISCOVERY_BACKEND",
            "bogus",
            InvalidArgument,
            "DYN_DISCOVERY_BACKEND: Unknown key-value store type 'bogus'",
        ),
        ("DYN_DISCOVERY_BACKEND", "kubernetes", NotImplementedError, "DYN_DISCOVERY_BACKEND='kubernetes'"),
        ("DYN_REQUEST_PLANE", "bogus", InvalidArgument, "DYN_REQUEST_PLANE: Invalid request plane mode: 'bogus'"),
        ("DYN_EVENT_PLANE", "bogus", InvalidArgument, "DYN_EVENT_PLANE: Invalid event_plane value 'bogus'"),
        ("DYN_RESPONSE_PLANE", "quic", NotImplementedError, "DYN_RESPONSE_PLANE='quic'"),
    ],
)
def test_back_ends_of_the_environment(
    variable: str, value: str, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(kind, match=message):
            DistributedRuntime(loop)
        monkeypatch.setenv(variable, "")
        monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
        DistributedRuntime(loop).shutdown()

    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "mem")
    monkeypatch.setenv("DYN_EVENT_PLANE", " ZMQ ")
    monkeypatch.setenv(variable, value)
    run(main())


def test_endpoint_paths() -> None:
    async def main() -> None:
        runtime = make_runtime()
        for bad in ("a.b", "a.b.c.d", "", "..", "a..c"):
            with pytest.raises(InvalidArgument, match="Expected format: 'namespace.component.endpoint'"):
                runtime.endpoint(bad)
        with pytest.raises(TypeError):
            runtime.endpoint(3)  # type: ignore[arg-type]
        serve(runtime, path="dyn://A b.c.d")
        client = await runtime.endpoint("A b.c.d").client()
        assert len(client.instance_ids()) == 1

    run(main())


def test_connection_id() -> None:
    async def main() -> None:
        runtime = make_runtime()
        first, second = runtime.endpoint(PATH), runtime.endpoint(PATH)
        assert first.connection_id() == first.connection_id() != second.connection_id()
        assert runtime.endpoint("other.path.here").connection_id() == first.connection_id(), "one worker, two endpoints"
        assert make_runtime().endpoint(PATH).connection_id() != first.connection_id()
        assert all(0 <= e.connection_id() < 1 << 64 for e in (first, second))

    run(main())


# -- serving


def test_serving_makes_a_candidate_at_once_and_stopping_ends_it_at_once() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        client = await runtime.endpoint(PATH).client()
        endpoint = runtime.endpoint(PATH)
        served = endpoint.serve_endpoint(echo)
        assert client.instance_ids() == [endpoint.connection_id()] == await client.wait_for_instances()
        assert (await router.best_worker(PROMPT))[0] == endpoint.connection_id()
        served.cancel()
        assert client.instance_ids() == []
        assert isinstance(await error_of(router.best_worker(PROMPT)), NoWorkers)
        assert served.cancelled()
        again = endpoint.serve_endpoint(echo)
        assert (await router.best_worker(PROMPT))[0] == endpoint.connection_id()
        task = asyncio.ensure_future(asyncio.wait_for(again, 60))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.instance_ids() == []

    run(main())


def test_one_endpoint_served_twice_is_two_workers() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = runtime.endpoint(PATH)
        await register(endpoint, taints={"t"})
        served = [endpoint.serve_endpoint(echo) for _ in range(3)]
        router = make_router(runtime)
        await register(endpoint, data_parallel_size=2, taints={"t"})
        assert len(await router.get_potential_loads([])) == 6, "all of them have the configuration"
        client = await endpoint.client()
        ids = client.instance_ids()
        assert len(set(ids)) == 3 and endpoint.connection_id() in ids
        served[0].cancel()
        assert client.instance_ids() == [each for each in ids if each != endpoint.connection_id()]

    run(main())


def test_unregister_and_register() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = serve(runtime)
        await endpoint.unregister_endpoint_instance()
        await endpoint.unregister_endpoint_instance()
        assert isinstance(await error_of(router.best_worker([])), NoWorkers)
        await endpoint.register_endpoint_instance()
        assert (await router.best_worker([]))[0] == endpoint.connection_id()

    run(main())


def test_wait_for_instances() -> None:
    async def main() -> None:
        runtime = make_runtime()
        client = await runtime.endpoint(PATH).client()
        waiting = asyncio.ensure_future(client.wait_for_instances())
        given_up = asyncio.ensure_future(client.wait_for_instances())
        await asyncio.sleep(0)
        assert not waiting.done()
        given_up.cancel()
        endpoint = serve(runtime)
        assert await waiting == [endpoint.connection_id()]
        other = await runtime.endpoint("a.b.c").client()
        late = asyncio.ensure_future(other.wait_for_instances())
        await asyncio.sleep(0)
        runtime.shutdown()
        assert isinstance(await error_of(late), Closed)

    run(main())


def test_shutdown_lets_requests_end_first() -> None:
    async def main() -> None:
        runtime = make_runtime()
        go = asyncio.Event()

        async def slow(request: Any) -> AsyncIterator[Any]:
            yield 1
            await go.wait()
            yield 2

        graceful, abrupt = runtime.endpoint(PATH), runtime.endpoint("other.path.here")
        served = [graceful.serve_endpoint(slow), abrupt.serve_endpoint(slow, graceful_shutdown=False)]
        streams = [await (await e.client()).random({}, annotated=False) for e in (graceful, abrupt)]
        for stream in streams:
            assert await anext(stream) == 1
        client = await graceful.client()
        runtime.shutdown()
        runtime.shutdown()
        assert client.instance_ids() == []
        assert not served[0].done() and served[1].done()
        assert isinstance(await error_of(anext(streams[1])), Disconnected)
        go.set()
        assert await collect(streams[0]) == [2]
        await served[0]
        with pytest.raises(Closed):
            graceful.serve_endpoint(echo)
        with pytest.raises(Closed):
            KvEventPublisher(graceful, kv_block_size=BLOCK)
        assert isinstance(await error_of(client.random({})), Closed)

    run(main())


@pytest.mark.parametrize("caller", ["thread", "signal handler"])
def test_shutdown_from_elsewhere_ends_serving(caller: str) -> None:
    async def main() -> None:
        runtime = make_runtime()
        served = runtime.endpoint(PATH).serve_endpoint(echo)
        old = signal.signal(signal.SIGUSR1, lambda *_: runtime.shutdown())
        try:
            if caller == "thread":
                timer = threading.Timer(0.05, runtime.shutdown)
            else:
                timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            begin = time.monotonic()
            await served
            assert time.monotonic() - begin < 15, "the loop slept on until the test's limit woke it"
        finally:
            signal.signal(signal.SIGUSR1, old)

    run(main(), 20)


def test_shutdown_after_the_loop_was_closed() -> None:
    async def main() -> tuple[Any, ...]:
        runtime = make_runtime()
        serve(runtime, silent)
        router = make_router(runtime)
        return runtime, router, await router.generate(PROMPT, "m")

    loop = asyncio.new_event_loop()
    runtime, router, stream = loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.close()
    runtime.shutdown()
    router.close()
    del stream


def test_serve_refuses_what_cannot_be_called() -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="handler"):
            make_runtime().endpoint(PATH).serve_endpoint(None)  # type: ignore[arg-type]

    run(main())


def test_calls_need_the_runtimes_loop() -> None:
    async def other(endpoint: Any) -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            endpoint.serve_endpoint(echo)

    async def main() -> None:
        endpoint = make_runtime().endpoint(PATH)
        thread = threading.Thread(target=lambda: failures.append(asyncio.run(other(endpoint))))
        thread.start()
        await until(lambda: not thread.is_alive())

    failures: list[None] = []
    run(main())
    assert failures == [None]


# -- clients


def test_client_modes() -> None:
    async def main() -> None:
        runtime = make_runtime()

        def named(name: int) -> Any:
            async def handler(request: Any) -> AsyncIterator[Any]:
                yield {"worker": name, "request": request}

            return handler

        endpoints = [serve(runtime, named(i)) for i in range(3)]
        client = await endpoints[0].client()

        async def who(stream: Any) -> int:
            (item,) = await collect(await stream)
            assert not item.is_error() and item.comments() == [] and item.data()["request"] == {"x": 1}
            worker: int = item.data()["worker"]
            return worker

        assert sorted([await who(client.round_robin({"x": 1})) for _ in range(6)]) == [0, 0, 1, 1, 2, 2]
        assert sorted([await who(client.generate({"x": 1})) for _ in range(3)]) == [0, 1, 2]
        assert {await who(client.random({"x": 1})) for _ in range(100)} == {0, 1, 2}
        assert await who(client.direct({"x": 1}, endpoints[1].connection_id())) == 1
        assert isinstance(await error_of(client.direct({}, 7)), WorkerNotFound)
        nobody = await runtime.endpoint("no.body.here").client()
        assert isinstance(await error_of(nobody.random({})), NoWorkers)
        with pytest.raises(NotImplementedError, match="router_mode='kv'"):
            await endpoints[0].client("kv")

    run(main())


def test_client_sees_a_handlers_error() -> None:
    async def main() -> None:
        runtime = make_runtime()

        async def boom(request: Any) -> AsyncIterator[Any]:
            yield 1
            raise ValueError("boom")

        client = await serve(runtime, boom).client()
        first, error = await collect(await client.random({}))
        assert (first.data(), first.is_error()) == (1, False)
        assert (error.data(), error.is_error()) == (None, True) and "ValueError: boom" in error.comments()[0]
        stream = await client.random({}, annotated=False)
        assert await anext(stream) == 1
        failure = await error_of(anext(stream))
        assert isinstance(failure, WorkerError) and "ValueError: boom" in str(failure)
        assert await collect(stream) == []

    run(main())


@pytest.mark.parametrize("handler", [lambda request: None, lambda: None, lambda request: [1]])
def test_client_calls_something_that_is_no_handler(handler: Any) -> None:
    async def main() -> None:
        runtime = make_runtime()
        client = await serve(runtime, handler).client()
        (item,) = await collect(await client.random({}))
        assert item.is_error()

    run(main())


def test_context() -> None:
    async def main() -> None:
        runtime = make_runtime()
        seen: list[Context] = []

        async def handler(request: Any, context: Context) -> AsyncIterator[Any]:
            seen.append(context)
            yield context.id()
            assert await context.async_killed_or_stopped()
            yield "stopped"

        client = await serve(runtime, handler).client()
        context = Context("mine")
        stream = await client.random({}, annotated=False, context=context)
        assert await anext(stream) == "mine"
        assert seen[0].id() == "mine" and not seen[0].is_stopped() and not seen[0].is_killed()
        context.stop_generating()
        assert await collect(stream) == []
        assert seen[0].is_stopped() and not seen[0].is_killed()
        assert context.is_stopped() and not context.is_killed() and "mine stopped" in repr(context)
        assert Context().id() != Context().id()

    run(main())


def test_abandoned_handler_may_run_to_its_next_item() -> None:
    async def main() -> None:
        runtime = make_runtime()
        ends: list[str] = []

        async def polite(request: Any, context: Context) -> AsyncIterator[Any]:
            while not context.is_stopped():
                yield 1
                await asyncio.sleep(0)
            ends.append("stopped")

        async def rude(request: Any) -> AsyncIterator[Any]:
            try:
                while True:
                    yield 1
                    await asyncio.sleep(0)
            finally:
                ends.append("closed")

        for handler in (polite, rude):
            client = await serve(runtime, handler, f"a.b.{handler.__name__}").client()
            stream = await client.random({})
            await anext(stream)
            await stream.aclose()
            count = len(ends)
            await until(lambda: len(ends) > count)  # noqa: B023
            assert await collect(stream) == []
        assert ends == ["stopped", "closed"]

    run(main())


def test_abandoned_handler_that_hangs_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert STOP_GRACE_SECONDS > 0
    monkeypatch.setattr("dynamo_go._call.STOP_GRACE_SECONDS", 0.01)

    async def main() -> None:
        runtime = make_runtime()
        contexts: list[Context] = []
        cancelled: list[bool] = []

        async def hangs(request: Any, context: Context) -> AsyncIterator[Any]:
            contexts.append(context)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(context.is_killed())
                raise
            yield

        client = await serve(runtime, hangs).client()
        stream = await client.random({})
        await until(lambda: bool(contexts))
        del stream
        await until(lambda: bool(cancelled))
        assert cancelled == [True]

    run(main())


# -- models


def test_model_configuration_reaches_the_routers() -> None:
    async def main() -> None:
        runtime = make_runtime()
        early = make_router(runtime)
        endpoint = serve(runtime)
        await register(
            endpoint,
            BLOCK,
            total_kv_blocks=1000,
            max_num_batched_tokens=2048,
            data_parallel_start_rank=2,
            data_parallel_size=3,
            taints={"gpu=h100"},
        )
        for router in (early, make_router(runtime)):
            rows = await router.get_potential_loads([])
            assert sorted(row["dp_rank"] for row in rows) == [2, 3, 4]
            (worker,) = router._router.workers()
            assert (worker["total_kv_blocks"], worker["max_num_batched_tokens"]) == (1000, 2048)
            assert worker["taints"] == ["gpu=h100"]
        await register(endpoint, BLOCK)
        assert [row["dp_rank"] for row in await early.get_potential_loads([])] == [0]

    run(main())


# https://github.com/ai-dynamo/dynamo/issues/1232
def test_block_size_that_differs_is_refused() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime)
        router = make_router(runtime)
        with pytest.raises(InvalidArgument, match=f"block_size=64.*{BLOCK}"):
            await register(endpoint, 64)
        with pytest.raises(InvalidArgument, match="64"):
            KvEventPublisher(endpoint, kv_block_size=64)
        assert (await router.best_worker([]))[0] == endpoint.connection_id(), "what was refused changed nothing"
        router.close()
        await register(endpoint, 64)
        with pytest.raises(InvalidArgument, match=f"block_size={BLOCK}.*64"):
            make_router(runtime)
        KvRouter(runtime.endpoint(PATH), 64).close()

        other = runtime.endpoint("a.b.c")
        await register(other, 64)
        router = make_router(runtime, "a.b.c")
        with pytest.raises(InvalidArgument, match="64"):
            other.serve_endpoint(echo)
        assert await router.get_potential_loads([]) == []

    run(main())


@pytest.mark.parametrize(
    ("attributes", "kind", "message"),
    [
        ({"data_parallel_size": 0}, InvalidArgument, "data_parallel_size=0"),
        ({"data_parallel_size": 1 << 40}, InvalidArgument, "data_parallel_size"),
        ({"data_parallel_size": 4097}, InvalidArgument, "data_parallel_size=4097"),
        ({"data_parallel_start_rank": (1 << 32) - 1}, InvalidArgument, "data_parallel"),
        ({"data_parallel_start_rank": -1}, InvalidArgument, "data_parallel_start_rank=-1"),
        ({"data_parallel_start_rank": (1 << 32) - 1, "data_parallel_size": 2}, InvalidArgument, "data_parallel"),
        ({"total_kv_blocks": -1}, InvalidArgument, "total_kv_blocks=-1"),
        ({"max_num_batched_tokens": 1 << 64}, InvalidArgument, "max_num_batched_tokens"),
        ({"total_kv_blocks": "many"}, TypeError, "total_kv_blocks"),
        ({"taints": "abc"}, TypeError, "taints"),
        ({"taints": {1}}, TypeError, "taints"),
        ({"enable_eagle": True}, NotImplementedError, "enable_eagle=True"),
        ({"topology_domains": {"zone": "a"}}, NotImplementedError, "topology_domains"),
    ],
)
def test_model_configuration_is_checked(attributes: Any, kind: type[Exception], message: str) -> None:
    async def main() -> None:
        with pytest.raises(kind, match=message):
            await register(make_runtime().endpoint(PATH), **attributes)

    run(main())


def test_configuration_that_a_router_refuses_changes_nothing() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = serve(runtime)
        await register(endpoint, taints={"good"})
        with pytest.raises(InvalidArgument):
            await register(endpoint, 64, data_parallel_size=2, taints={"bad"})
        with pytest.raises(InvalidArgument, match="model card of"):
            await register(endpoint, taints={"x" * (1 << 20)})
        for each in (router, make_router(runtime)):
            (worker,) = each._router.workers()
            assert (worker["taints"], worker["dp_size"]) == (["good"], 1)

    run(main())


def test_worker_that_a_router_refuses_does_not_serve() -> None:
    async def main() -> None:
        runtime = make_runtime()
        routers = [make_router(runtime), make_router(runtime)]
        refused = runtime.endpoint(PATH)
        await register(refused, 64, taints={"x"})
        with pytest.raises(InvalidArgument, match="block_size=64"):
            refused.serve_endpoint(echo)
        client = await refused.client()
        assert client.instance_ids() == []
        for router in routers:
            assert await router.get_potential_loads([]) == []
        await register(refused, taints={"x"})
        refused.serve_endpoint(echo)
        assert client.instance_ids() == [refused.connection_id()]

    run(main())


def test_largest_ranks_that_can_be_registered_can_be_routed() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = runtime.endpoint(PATH)
        await register(endpoint, data_parallel_start_rank=(1 << 32) - 4097, data_parallel_size=4096)
        endpoint.serve_endpoint(echo)
        assert len(await router.get_potential_loads([])) == 4096

    run(main())


def test_adapters_reach_the_routers() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        first, second = serve(runtime), serve(runtime)
        await register_model(ModelInput.Tokens, ModelType.Chat, first, "m", lora_name="My/Adapter", base_model_path="m")
        for name, ids in ("My/Adapter", {first.connection_id()}), ("b", {e.connection_id() for e in (first, second)}):
            assert {(await router.best_worker(PROMPT, lora_name=name))[0] for _ in range(40)} == ids
        for _ in range(4):
            items = await collect(await router.generate(PROMPT, "m", lora_name="My/Adapter"))
            assert items[0]["routing_data"]["worker_id"]["decode_worker_id"] == first.connection_id()
        with pytest.raises(InvalidArgument, match="my_adapter"):
            await register_model(
                ModelInput.Tokens, ModelType.Chat, first, "m", lora_name="my adapter", base_model_path="m"
            )

    run(main())


def test_model_of_a_kind_that_cannot_be_routed() -> None:
    async def main() -> None:
        endpoint = make_runtime().endpoint(PATH)
        with pytest.raises(NotImplementedError, match="ModelInput.Text"):
            await register_model(ModelInput.Text, ModelType.Chat, endpoint, "m")
        with pytest.raises(NotImplementedError, match="WorkerType.Prefill"):
            await register_model(ModelInput.Tokens, ModelType.Chat, endpoint, "m", worker_type=WorkerType.Prefill)
        for adapter in ({"lora_name": "l"}, {"base_model_path": "m"}):
            with pytest.raises(InvalidArgument, match="both"):
                await register_model(ModelInput.Tokens, ModelType.Chat, endpoint, "m", **adapter)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="letter or digit"):
            await register_model(ModelInput.Tokens, ModelType.Chat, endpoint, "m", lora_name="é", base_model_path="m")
        with pytest.raises(TypeError, match="endpoint"):
            await register_model(ModelInput.Tokens, ModelType.Chat, PATH, "m")  # type: ignore[arg-type]
        both = ModelType.Chat | ModelType.Completions
        await register_model(ModelInput.Tokens, both, endpoint, "m", worker_type=WorkerType.Aggregated)
        with pytest.raises(InvalidArgument, match="kv_cache_block_size=0"):
            await register(endpoint, 0)

    run(main())


# -- publishers


def test_events_reach_every_router_of_the_runtime_and_no_other() -> None:
    async def main() -> None:
        runtime, elsewhere = make_runtime(), make_runtime()
        endpoint, idle = serve(runtime), serve(runtime)
        serve(runtime, path="other.path.here")
        routers = [make_router(runtime), make_router(runtime)]
        strangers = [make_router(runtime, "other.path.here"), make_router(elsewhere)]
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        publish(publisher, PROMPT)
        routers.append(make_router(runtime))
        for router in routers:
            assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 4}
            assert (await router.best_worker(PROMPT))[::2] == (endpoint.connection_id(), 4)
        for router in strangers:
            assert await overlaps(router, PROMPT) == {}
        publisher.publish_removed([3])
        for router in routers:
            assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 2}
        publisher.publish_cleared()
        for router in [*routers, make_router(runtime)]:
            assert await overlaps(router, PROMPT) == {}
        assert idle.connection_id() != endpoint.connection_id()

    run(main())


def test_events_from_before_the_worker_serves_and_after_it_comes_back() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = runtime.endpoint(PATH)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        publish(publisher, PROMPT)
        assert await overlaps(router, PROMPT) == {}
        served = endpoint.serve_endpoint(echo)
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 4}
        served.cancel()
        assert await router.dump_events() == "[]"
        publisher.publish_removed([4])
        endpoint.serve_endpoint(echo)
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 3}

    run(main())


# https://github.com/ai-dynamo/dynamo/pull/7795
def test_events_of_a_rank_whose_configuration_comes_later() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = serve(runtime)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK, dp_rank=1)
        publish(publisher, PROMPT)
        assert await overlaps(router, PROMPT) == {}
        await register(endpoint, BLOCK, data_parallel_size=2)
        caught_up(router)
        assert (await router.best_worker(PROMPT)) == (endpoint.connection_id(), 1, 4)
        publisher.publish_removed([4])
        caught_up(router)
        assert (await router.best_worker(PROMPT)) == (endpoint.connection_id(), 1, 3)

    run(main())


def test_blocks_stored_twice_are_removed_by_the_second_removal() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = serve(runtime)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        for _ in range(2):
            publish(publisher, PROMPT)
        late = make_router(runtime)
        publisher.publish_removed([4])
        for each in (router, late):
            assert await overlaps(each, PROMPT) == {endpoint.connection_id(): 4}
        publisher.publish_removed([4])
        for each in (router, late):
            assert await overlaps(each, PROMPT) == {endpoint.connection_id(): 3}
        assert publisher.unknown_removals == 0
        publisher.publish_removed([4, 3])
        assert publisher.unknown_removals == 1
        publisher.publish_removed([3])
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 2}

    run(main())


def test_publishers_of_one_rank_share_their_references() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = serve(runtime)
        one, two = KvEventPublisher(endpoint, kv_block_size=BLOCK), KvEventPublisher(endpoint, kv_block_size=BLOCK)
        publish(one, PROMPT)
        publish(two, PROMPT)
        one.publish_removed([4])
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 4}
        two.publish_removed([4])
        one.shutdown()
        two.publish_removed([3])
        for each in (router, make_router(runtime)):
            assert await overlaps(each, PROMPT) == {endpoint.connection_id(): 3}
        two.publish_removed([3])
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 2}
        router.close()
        del router, each
        gc.collect()
        with pytest.raises(InvalidArgument, match="blocks of 32 tokens.*16"):
            KvEventPublisher(endpoint, kv_block_size=32)

    run(main())


def test_hash_used_again_for_another_block_has_one_reference() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        publisher = KvEventPublisher(serve(runtime), kv_block_size=BLOCK)
        publisher.publish_stored(PROMPT[:16], [16], [1])
        publisher.publish_stored(PROMPT[16:32], [16], [1])
        publisher.publish_removed([1])
        assert await held(router) == set()

    run(main())


def test_block_behind_a_hash_used_again_is_another_block() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        publisher = KvEventPublisher(serve(runtime), kv_block_size=BLOCK)
        for first in (0, 16):  # 1 is another block, so 2 is another too, although its own tokens are the same
            publisher.publish_stored(PROMPT[first : first + 16], [16], [1])
            publisher.publish_stored(PROMPT[32:48], [16], [2], parent_hash=1)
        publisher.publish_removed([2])
        assert await held(router) == {(publisher.rank[0], 0, 1)}

        publisher.publish_stored(PROMPT[16:48], [16, 16], [3, 2])  # 3 and 1 name the same block
        publisher.publish_stored(PROMPT[32:48], [16], [2], parent_hash=1)
        publisher.publish_removed([2])
        assert len(await held(router)) == 3, "stored twice, removed once"

    run(main())


def test_late_router_never_holds_what_the_worker_does_not() -> None:
    async def main() -> None:
        runtime = make_runtime()
        publisher = KvEventPublisher(serve(runtime), kv_block_size=BLOCK)
        other = [7] * BLOCK
        publish(publisher, PROMPT)
        publisher.publish_stored(other, [BLOCK], [9])
        publisher.publish_removed([2])  # hides 3 and 4, so the late router knows 1 and 9
        late = make_router(runtime)
        assert len(await overlaps(late, other)) == 1
        publisher.publish_stored([8] * BLOCK, [BLOCK], [9], parent_hash=4)  # 9 is now a block that is hidden too
        assert await overlaps(late, other) == {}
        assert list((await overlaps(late, PROMPT)).values()) == [1]

    run(main())


# https://github.com/ai-dynamo/dynamo/issues/3169
def test_engine_hashes_of_every_form() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        publisher = KvEventPublisher(serve(runtime), kv_block_size=BLOCK)
        for name in (13360216285664366642, -1, -(1 << 63), (1 << 64) - 1, 0):
            publisher.publish_stored(PROMPT[:16], [16], [name])
            assert list((await overlaps(router, PROMPT)).values()) == [1]
            publisher.publish_removed([name])
            assert await overlaps(router, PROMPT) == {}
        for name in (1 << 64, -(1 << 63) - 1):
            with pytest.raises(OverflowError, match=str(name)):
                publisher.publish_stored(PROMPT[:16], [16], [name])
        with pytest.raises(TypeError):
            publisher.publish_removed(["x"])  # type: ignore[list-item]

    run(main())


def test_identity_of_published_blocks() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        publisher = KvEventPublisher(serve(runtime), kv_block_size=BLOCK)
        publisher.publish_stored(PROMPT, [BLOCK] * 4, [1, 2, 3, 4], lora_name="a", cache_salt="s")
        assert await overlaps(router, PROMPT) == {}
        found = await router.get_overlap_scores(PROMPT, lora_name="a", cache_namespace="s")
        assert [row["device_blocks"] for row in found["workers"]] == [4]
        infos = [{"mm_objects": [{"mm_hash": 42, "offsets": [[0, 4]]}]}]
        publisher.publish_stored(PROMPT[:16], [BLOCK], [9], block_mm_infos=infos)
        caught_up(router)
        found = await router.get_overlap_scores(PROMPT[:16], block_mm_infos=infos)
        assert [row["device_blocks"] for row in found["workers"]] == [1]
        publisher.publish_stored(PROMPT[:17], [BLOCK], [10], is_eagle=True)
        caught_up(router)
        events = json.loads(await router.dump_events())
        stored = [b for e in events for b in e["event"]["data"]["stored"]["blocks"] if b["block_hash"] == 10]
        assert [b["tokens_hash"] for b in stored] == compute_block_hash_for_seq(PROMPT[:17], BLOCK, is_eagle=True)

    run(main())


def test_publisher_used_wrongly() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = serve(runtime)
        with pytest.raises(InvalidArgument, match="kv_block_size cannot be 0"):
            KvEventPublisher(endpoint)
        with pytest.raises(TypeError, match="endpoint"):
            KvEventPublisher(5, kv_block_size=BLOCK)  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError, match="query_endpoint='tcp://x:1'"):
            KvEventPublisher(endpoint, kv_block_size=BLOCK, query_endpoint="tcp://x:1")
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        wrong: Any
        for wrong in ({"kv_block_size": 16.0}, {"dp_rank": 0.0}, {"worker_id": float(endpoint.connection_id())}):
            with pytest.raises(TypeError, match=next(iter(wrong))):
                KvEventPublisher(endpoint, **{"kv_block_size": BLOCK, **wrong})
        tokens = PROMPT[:32]
        with pytest.raises(InvalidArgument, match="token_ids has 31 tokens, expected 32"):
            publisher.publish_stored(tokens[:31], [16, 16], [1, 2])
        with pytest.raises(InvalidArgument, match="num_block_tokens has 1 blocks, block_hashes 2"):
            publisher.publish_stored(tokens, [16], [1, 2])
        with pytest.raises(InvalidArgument, match="a block of 8, expected 16"):
            publisher.publish_stored(tokens[:24], [16, 8], [1, 2])
        with pytest.raises(InvalidArgument, match="block_mm_infos has 1"):
            publisher.publish_stored(tokens, [16, 16], [1, 2], block_mm_infos=[None])
        with pytest.raises(InvalidArgument, match="expected 33.*the one after"):
            publisher.publish_stored(tokens, [16, 16], [1, 2], is_eagle=True)
        with pytest.raises(InvalidArgument, match="-1"):
            publisher.publish_stored([-1] * 16, [16], [1])
        with pytest.raises(EventRefused):
            publisher.publish_stored(tokens, [16, 16], [1, 2], parent_hash=99)
        with pytest.raises(EventRefused):
            publisher.publish_stored(tokens, [16, 16], [1, 1])
        assert await held(router) == set()
        publisher.publish_stored(tokens, [16, 16], [1, 2])
        with pytest.raises(EventRefused):
            publisher.publish_stored(tokens[:16], [16], [2], parent_hash=2)
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 2}

    run(main())


def test_batch() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = serve(runtime)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        first = {"type": "stored", "token_ids": PROMPT[:16], "num_block_tokens": [16], "block_hashes": [1]}
        second = {**first, "token_ids": PROMPT[16:32], "block_hashes": [2], "parent_hash": 1}
        publisher.publish_batch([])
        for bad, message in (
            ({"type": "x"}, "unknown variant `x`"),
            ({}, "unknown variant"),
            ({"type": "removed"}, "missing field `block_hashes`"),
            ({**first, "bogus": 1}, "unknown field `bogus`"),
            ({**first, "block_hashes": [1, 2]}, "num_block_tokens has 1"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                publisher.publish_batch([first, bad])
            assert await held(router) == set(), "nothing of a malformed batch"
        with pytest.raises(TypeError):
            publisher.publish_batch([3])  # type: ignore[list-item]
        orphan = {**second, "parent_hash": 99, "block_hashes": [7]}
        with pytest.raises(EventRefused):
            publisher.publish_batch([first, orphan, second])
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 2}, "its neighbours are published"
        publisher.publish_batch([{"type": "removed", "block_hashes": [2]}])
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 1}
        publisher.publish_batch([{"type": "cleared"}, first])
        assert await held(router) == {(endpoint.connection_id(), 0, 1)}

    run(main())


def test_shut_down_publisher_is_silent_and_what_it_said_stays_until_the_worker_stops() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = runtime.endpoint(PATH)
        served = endpoint.serve_endpoint(echo)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        publish(publisher, PROMPT)
        caught_up(router)
        publisher.shutdown()
        publisher.shutdown()
        publisher.publish_removed([1])
        publisher.publish_cleared()
        publish(publisher, PROMPT[:16], 9)
        assert await overlaps(router, PROMPT) == {endpoint.connection_id(): 4}
        assert publisher.unknown_removals == 0
        with pytest.raises(Closed):
            publisher.info()
        assert await overlaps(make_router(runtime), PROMPT) == {}, "nobody is there to be asked"
        served.cancel()
        endpoint.serve_endpoint(echo)
        assert await overlaps(router, PROMPT) == {}

    run(main())


def test_dropped_publisher_leaves_nothing_behind() -> None:
    async def main() -> None:
        runtime = make_runtime()
        publish(KvEventPublisher(runtime.endpoint(PATH), kv_block_size=BLOCK), PROMPT)
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            publish(KvEventPublisher(runtime.endpoint(PATH), kv_block_size=BLOCK), PROMPT)
        assert live(KvEventPublisher) == []
        assert len(os.listdir("/proc/self/fd")) <= before, "a socket each"

    run(main())


@pytest.mark.parametrize("end", ["sys.exit()", "x = None; gc.collect()"])
def test_forked_child_with_a_publisher_ends_quietly(end: str) -> None:
    program = f"""
import asyncio, gc, os, sys, warnings
from dynamo_go import DistributedRuntime, KvEventPublisher
warnings.simplefilter("ignore")

async def main():
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    return KvEventPublisher(runtime.endpoint("a.b.c"), kv_block_size=16)

x = asyncio.run(main())
child = os.fork()
if child == 0:
    {end}
else:
    sys.exit(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_publishing_from_threads() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoints = [serve(runtime) for _ in range(4)]
        publishers = [KvEventPublisher(endpoint, kv_block_size=BLOCK) for endpoint in endpoints]

        def work(publisher: KvEventPublisher, base: int) -> None:
            for round in range(50):
                tokens = list(range(base + round * BLOCK, base + (round + 1) * BLOCK))
                publish(publisher, tokens, round + 1)
                if round % 3 == 0:
                    publisher.publish_removed([round + 1])

        threads = [
            threading.Thread(target=work, args=(publisher, index << 16)) for index, publisher in enumerate(publishers)
        ]
        routers = [make_router(runtime)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            routers.append(make_router(runtime))
            await asyncio.sleep(0)
        expected = {(e.connection_id(), 0, r + 1) for e in endpoints for r in range(50) if r % 3}
        for router in routers:
            assert await held(router) == expected

    run(main())


def test_everything_of_a_dropped_runtime_is_collected() -> None:
    kinds = (DistributedRuntime, Deployment, KvRouter, KvEventPublisher, RemoteCall, Answer)
    before = [len(live(kind)) for kind in kinds]

    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        publish(publisher, PROMPT)
        router = make_router(runtime)
        await collect(await router.generate(PROMPT, "m"))
        serve(runtime, silent, "a.b.c")

    run(main())
    assert [len(live(kind)) for kind in kinds] == before
