"""KvRouter: construction, the parts of a request, requests end to end."""

from __future__ import annotations

import array
import asyncio
import collections
import contextlib
import gc
import json
import math
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kit import (
    BLOCK,
    PATH,
    KvEventPublisher,
    busy,
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
    AsyncResponseStream,
    Closed,
    Context,
    Disconnected,
    DuplicateRequest,
    DynamoError,
    InvalidArgument,
    KvRouter,
    KvRouterConfig,
    LoadThresholdConfig,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    NoWorkers,
    Overloaded,
    RequestNotFound,
    RoutingConstraints,
    WorkerError,
    WorkerNotFound,
    register_model,
)
from dynamo_go._call import Answer
from dynamo_go._deployment import RemoteCall

PROMPT = list(range(1000, 1064))  # four blocks
OTHER = list(range(5000, 5064))


def in_flight() -> int:
    """Ends of requests that are alive."""
    return len(live(RemoteCall)) + len(live(Answer))


async def register(endpoint: Any, **attributes: Any) -> None:
    config = ModelRuntimeConfig()
    for name, value in attributes.items():
        setattr(config, name, value)
    await register_model(ModelInput.Tokens, ModelType.Completions, endpoint, "m", runtime_config=config)


# -- construction


def test_positional_arguments_as_in_dynamo_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = runtime.endpoint(PATH)
        assert KvRouter(endpoint, 32, KvRouterConfig(), None, None).block_size == 32
        assert KvRouter(endpoint=endpoint).block_size == 16
        assert KvRouter(endpoint, load_threshold_config=LoadThresholdConfig()).block_size == 16
        monkeypatch.setenv("DYN_KV_CACHE_BLOCK_SIZE", "64")
        assert KvRouter(endpoint).block_size == 64
        assert KvRouter(endpoint, 8).block_size == 8
        monkeypatch.setenv("DYN_KV_CACHE_BLOCK_SIZE", "many")
        with pytest.warns(RuntimeWarning, match="DYN_KV_CACHE_BLOCK_SIZE='many'"):
            assert KvRouter(endpoint).block_size == 16
        monkeypatch.setenv("DYN_KV_CACHE_BLOCK_SIZE", "0")
        with pytest.raises(InvalidArgument):
            KvRouter(endpoint)

    run(main())


# https://github.com/ai-dynamo/dynamo/issues/1589
@pytest.mark.parametrize(
    ("keywords", "kind", "message"),
    [
        ({"block_size": 0}, InvalidArgument, "0"),
        ({"block_size": -1}, InvalidArgument, "-1"),
        ({"block_size": 1 << 32}, InvalidArgument, str(1 << 32)),
        ({"block_size": 1 << 70}, InvalidArgument, str(1 << 70)),
        ({"block_size": 16.0}, TypeError, "float"),
        ({"kv_router_config": {}}, TypeError, "kv_router_config.*dict"),
        ({"endpoint": PATH}, TypeError, "endpoint.*str"),
        (
            {"session_affinity_mode": "x"},
            InvalidArgument,
            "invalid session affinity mode 'x'; expected 'hard' or 'soft'",
        ),
        ({"session_affinity_ttl_secs": 0}, InvalidArgument, "between 1 and 31536000, got 0"),
        ({"ais_perf_config": {}}, NotImplementedError, "ais_perf_config"),
        ({"load_threshold_config": 0.5}, TypeError, "load_threshold_config"),
        ({"bogus": 1}, TypeError, "bogus"),
    ],
)
def test_constructor_arguments(keywords: dict[str, Any], kind: type[Exception], message: str) -> None:
    async def main() -> None:
        runtime = make_runtime()
        with pytest.raises(kind, match=message):
            KvRouter(**{"endpoint": runtime.endpoint(PATH), **keywords})

    run(main())


def test_load_thresholds() -> None:
    with pytest.raises(InvalidArgument, match="between 0 and 1, got 2"):
        LoadThresholdConfig(active_decode_blocks_threshold=2)
    with pytest.raises(InvalidArgument, match="at least 0, got -1"):
        LoadThresholdConfig(active_prefill_tokens_threshold=-1)
    with pytest.raises(InvalidArgument, match="finite"):
        LoadThresholdConfig(active_prefill_tokens_threshold_frac=math.inf)
    limits = LoadThresholdConfig(active_prefill_tokens_threshold=63)
    assert repr(limits) == "LoadThresholdConfig(active_prefill_tokens_threshold=63)"

    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        router = KvRouter(runtime.endpoint(PATH), BLOCK, load_threshold_config=limits)
        await router.best_worker(range(64), request_id="a")
        assert isinstance(await error_of(router.best_worker(range(64))), Overloaded)
        assert isinstance(await error_of(router.generate(range(64), "m")), Overloaded)
        await router.free("a")
        await router.best_worker(range(64))

    run(main())


def test_routers_count_each_others_requests() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        a, b = make_router(runtime), make_router(runtime)
        endpoint, _ = await a.replicate("tcp://127.0.0.1:0")
        assert (await b.replicate(connect=[endpoint]))[0] == ""
        await until(lambda: (a._router.stats()["replicas"] or {})["peers_listening"] == 1)
        stream = await a.generate(PROMPT, "m")
        while await busy(b) != [(64, 4, 1)]:
            await asyncio.sleep(0.001)
        await stream.aclose()
        while await busy(b):
            await asyncio.sleep(0.001)

    run(main())


def test_sessions_stay_together() -> None:
    async def main() -> None:
        runtime = make_runtime()
        for _ in range(4):
            serve(runtime)
        router = KvRouter(runtime.endpoint(PATH), BLOCK, session_affinity_ttl_secs=60)
        home = (await router.best_worker(range(64), request_id="a", session_id="s"))[0]
        for n in range(20):
            assert (await router.best_worker(range(n), session_id="s"))[0] == home
        stream = await router.generate(range(8), "m", session_id="s")
        first = (await collect(stream))[0]
        assert first["routing_data"]["worker_id"]["decode_worker_id"] == home

    run(main())


def test_output_blocks_are_booked_as_they_come() -> None:
    async def main() -> None:
        runtime = make_runtime()
        gate = asyncio.Event()

        async def answer(request: Any, context: Any) -> Any:
            yield {"token_ids": [1]}
            yield {"token_ids": [2] * 16}
            gate.set()
            await context.async_killed_or_stopped()

        serve(runtime, answer)
        for track, blocks in ((False, 2), (True, 4)):
            gate.clear()
            router = make_router(runtime, router_track_output_blocks=track)
            stream = await router.generate(range(32), "m")
            await anext(stream)
            await gate.wait()
            await anext(stream)
            assert [b for _, b, _ in await busy(router)] == [blocks]
            await stream.aclose()
            assert await busy(router) == []

    run(main())


def test_predicted_and_actual_hits() -> None:
    """A worker's usage says what its engine found; it is kept beside what the router expected."""

    async def main() -> None:
        runtime = make_runtime()

        async def answer(request: Any, context: Any) -> Any:
            yield {"token_ids": [1], "completion_usage": None}
            usage = {"prompt_tokens": 64, "prompt_tokens_details": {"cached_tokens": 32}}
            yield {"token_ids": [2], "finish_reason": "stop", "completion_usage": usage}

        endpoint = serve(runtime, answer)
        router = make_router(runtime, record_decisions=2)
        prompt = list(range(64))
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        publish(publisher, prompt[:48])
        while (await router.get_overlap_scores(prompt))["workers"][0]["device_blocks"] != 3:
            await asyncio.sleep(0.001)
        assert await router.decisions() == []
        await collect(await router.generate(prompt, "m"))
        await router.best_worker(prompt, request_id="mine")
        first, second = await router.decisions()
        assert first["request_id"] is not None
        assert (first["predicted_cached_tokens"], first["actual_cached_tokens"]) == (48, 32)
        assert (first["number"], first["worker_id"], first["prompt_tokens"]) == (1, endpoint.connection_id(), 64)
        assert (second["request_id"], second["actual_cached_tokens"]) == ("mine", None)
        await router.report_cached_tokens("mine", 0)
        await router.free("mine")
        await router.best_worker(prompt)
        assert [row["request_id"] for row in await router.decisions()] == ["mine", None]
        assert [row["number"] for row in await router.decisions(2)] == [3]
        assert (await router.decisions())[0]["actual_cached_tokens"] == 0
        assert isinstance(await error_of(router.report_cached_tokens("nobody", 1)), RequestNotFound)
        page = await router.metrics()
        for row in ("reports_total 2", 'blocks_total{what="predicted"} 6', 'blocks_total{what="actual"} 2'):
            assert f"dynamo_go_hit_{row}" in page

    run(main())


def test_block_size_one() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime)
        router = KvRouter(runtime.endpoint(PATH), 1)
        publisher = KvEventPublisher(endpoint, kv_block_size=1)
        publisher.publish_stored([7] * 4, [1] * 4, [1, 2, 3, 4])
        caught_up(router)
        assert await router.best_worker([7, 7, 7, 7]) == (endpoint.connection_id(), 0, 4)

    run(main())


# -- calls


def test_calls_give_futures_and_need_a_loop() -> None:
    made: list[KvRouter] = []

    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        router = make_router(runtime)
        made.append(router)
        calls: list[asyncio.Future[Any]] = [
            router.best_worker(PROMPT, request_id="a"),
            router.mark_prefill_complete("a"),
            router.get_potential_loads(PROMPT),
            router.get_overlap_scores(PROMPT),
            router.dump_events(),
            router.free("a"),
        ]
        assert all(asyncio.isfuture(call) for call in calls)
        done, pending = await asyncio.wait(calls)
        assert len(done) == len(calls) and not pending
        answers = await asyncio.gather(*calls)
        assert answers[1] is None and answers[5] is None and answers[4] == "[]"
        query = router.best_worker(PROMPT)
        query.cancel()
        assert await busy(router) == []

    run(main())
    with pytest.raises(RuntimeError, match="no running event loop"):
        made[0].best_worker(PROMPT)
    with pytest.raises(RuntimeError, match="no running event loop"):
        made[0].dump_events()


@pytest.mark.parametrize(
    ("arguments", "keywords", "kind"),
    [
        (([-1],), {}, InvalidArgument),
        (([1 << 32],), {}, InvalidArgument),
        (([1.5],), {}, TypeError),
        (("text",), {}, TypeError),
        ((None,), {}, TypeError),
        (((t for t in [1]),), {}, TypeError),
        ((PROMPT, {"router_temperature": -1}), {}, InvalidArgument),
        ((PROMPT, {"overlap_score_credit": float("nan")}), {}, InvalidArgument),
        ((PROMPT, {"router_temperature": "x"}), {}, (TypeError, InvalidArgument)),
        ((PROMPT, {"bogus": 1}), {}, InvalidArgument),
        ((PROMPT, "text"), {}, TypeError),
        ((PROMPT, {1: 2}), {}, (TypeError, InvalidArgument)),
        ((PROMPT, None, 7), {}, TypeError),
        ((PROMPT,), {"strict_priority": -1}, (OverflowError, InvalidArgument)),
        ((PROMPT,), {"strict_priority": 1 << 40}, (OverflowError, InvalidArgument)),
        ((PROMPT,), {"routing_constraints": {}}, TypeError),
        ((PROMPT,), {"foo": 1}, TypeError),
    ],
)
@pytest.mark.parametrize("minimum", ["0", "5"])
def test_wrong_arguments_raise_at_the_call(
    arguments: Any, keywords: Any, kind: Any, minimum: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_ROUTER_MIN_INITIAL_WORKERS", minimum)

    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        router = make_router(runtime)
        with pytest.raises(kind):
            router.best_worker(*arguments, **keywords)

    run(main())


def test_tokens_of_every_form() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime)
        router = make_router(runtime)
        publish(publisher := KvEventPublisher(endpoint, kv_block_size=BLOCK), PROMPT)
        caught_up(router)
        for tokens in (PROMPT, tuple(PROMPT), range(1000, 1064), array.array("I", PROMPT)):
            assert await router.best_worker(tokens) == (endpoint.connection_id(), 0, 4)
            (item, *_) = await collect(await router.generate(tokens, "m"))
            assert item["token_ids"] == [1]
        assert (await router.best_worker([]))[2] == 0
        assert (await router.best_worker(bytes(40)))[2] == 0
        assert (await router.best_worker([(1 << 32) - 1] * 20))[2] == 0
        publisher.shutdown()

    run(main())


# https://github.com/ai-dynamo/dynamo/pull/1895
def test_lifecycle_by_hand() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime)
        router = make_router(runtime)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        publish(publisher, PROMPT)
        caught_up(router)
        prompt = [*PROMPT, *OTHER, *range(32)]
        assert await router.best_worker(prompt, request_id="r") == (endpoint.connection_id(), 0, 4)
        assert await busy(router) == [(96, 10, 1)]
        assert isinstance(await error_of(router.best_worker(prompt, request_id="r")), DuplicateRequest)
        assert await busy(router) == [(96, 10, 1)]
        await router.mark_prefill_complete("r")
        await router.mark_prefill_complete("r")
        assert await busy(router) == [(0, 10, 1)]
        await router.free("r")
        assert await busy(router) == []
        assert isinstance(await error_of(router.free("r")), RequestNotFound)
        assert isinstance(await error_of(router.mark_prefill_complete("r")), RequestNotFound)

    run(main())


# https://github.com/ai-dynamo/dynamo/pull/7795
def test_request_to_a_worker_that_has_just_come() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        for n in range(20):
            endpoint = runtime.endpoint(PATH)
            served = endpoint.serve_endpoint(echo)
            assert (await router.best_worker(PROMPT, request_id=str(n)))[0] == endpoint.connection_id()
            assert await busy(router) == [(64, 4, 1)]
            await router.mark_prefill_complete(str(n))
            await router.free(str(n))
            assert await busy(router) == []
            served.cancel()

    run(main())


# https://github.com/ai-dynamo/dynamo/pull/2798
def test_asking_does_not_book() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        router = make_router(runtime)
        before = await router.dump_events()
        for _ in range(100):
            await router.best_worker(PROMPT)
            await router.get_potential_loads(PROMPT)
        assert await busy(router) == [] and await router.dump_events() == before

    run(main())


# https://github.com/ai-dynamo/dynamo/pull/5105
def test_lifecycle_calls_out_of_order() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        router, other = make_router(runtime), make_router(runtime)
        for name in ("unknown", "", "é" * 100):
            assert isinstance(await error_of(router.free(name)), RequestNotFound)
            assert isinstance(await error_of(router.mark_prefill_complete(name)), RequestNotFound)
        await router.best_worker(PROMPT, request_id="")
        assert isinstance(await error_of(other.free("")), RequestNotFound)
        await router.free("")
        for wrong in (None, 3, b"x"):
            with pytest.raises(TypeError):
                router.free(wrong)  # type: ignore[arg-type]
        assert await busy(router) == []

    run(main())


def test_no_workers_at_once_and_it_works_when_one_comes() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        assert isinstance(await error_of(router.best_worker(PROMPT)), NoWorkers)
        assert isinstance(await error_of(router.generate(PROMPT, "m")), NoWorkers)
        assert await router.get_potential_loads(PROMPT) == []
        assert (await router.get_overlap_scores(PROMPT))["workers"] == []
        serve(runtime)
        assert len(await collect(await router.generate(PROMPT, "m"))) == 2

    run(main())


def test_worker_that_leaves_takes_its_bookings_and_comes_back_idle() -> None:
    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        endpoint = runtime.endpoint(PATH)
        served = endpoint.serve_endpoint(silent)
        await router.best_worker(PROMPT, request_id="by hand")
        stream = await router.generate(PROMPT, "m")
        assert await busy(router) == [(128, 4, 2)]
        served.cancel()
        assert await router.get_potential_loads([]) == []
        assert isinstance(await error_of(anext(stream)), Disconnected)
        endpoint.serve_endpoint(silent)
        assert await busy(router) == []
        await router.free("by hand")
        assert isinstance(await error_of(router.free("by hand")), RequestNotFound)

    run(main())


def test_constraints() -> None:
    async def main() -> None:
        runtime = make_runtime()
        plain, special = serve(runtime), serve(runtime)
        await register(special, taints={"gpu", "eu"})
        router = make_router(runtime)
        for _ in range(20):
            want = RoutingConstraints({"gpu"}, {"eu": 1.0})
            assert (await router.best_worker(PROMPT, routing_constraints=want))[0] == special.connection_id()
            avoid = RoutingConstraints(preferred_taints={"gpu": -5.0})
            assert (await router.best_worker(PROMPT, routing_constraints=avoid))[0] == plain.connection_id()
            stream = await router.generate(PROMPT, "m", routing_constraints=want)
            first, _ = await collect(stream)
            assert first["routing_data"]["worker_id"]["decode_worker_id"] == special.connection_id()
        nowhere = RoutingConstraints({"moon"})
        assert isinstance(await error_of(router.best_worker(PROMPT, routing_constraints=nowhere)), NoWorkers)
        with pytest.raises(TypeError, match="required_taints"):
            RoutingConstraints(["gpu"])  # type: ignore[arg-type]

    run(main())


@pytest.mark.parametrize("way", ["best_worker", "generate", "generate_from_request"])
@pytest.mark.parametrize(
    "override",
    [
        {"overlap_score_credit": 0.0, "router_temperature": 0.0},
        {"overlap_score_weight": 0.0},
        {"prefill_load_scale": 0},
    ],
)
def test_overrides_act_in_every_path(way: str, override: dict[str, float]) -> None:
    async def main() -> None:
        runtime = make_runtime()

        async def handler(request: Any, context: Context) -> AsyncIterator[Any]:
            yield {"token_ids": [1]}
            if request["model"] == "long":
                await context.async_killed_or_stopped()

        holder, idle = serve(runtime, handler), serve(runtime, handler)
        router = make_router(runtime)
        publisher = KvEventPublisher(holder, kv_block_size=BLOCK)
        publish(publisher, PROMPT)
        caught_up(router)
        stream = await router.generate(OTHER[:32], "long", worker_id=holder.connection_id())
        await anext(stream)
        # Of the prompt's 4 blocks the holder has all, and decodes 2 others: it costs 6, the idle one 8.
        # Without credit: 10 and 8. Without prompt load: 6 and 4.

        async def choose(override: Any) -> int:
            if way == "best_worker":
                return (await router.best_worker(PROMPT, override))[0]
            if way == "generate":
                answer = await router.generate(PROMPT, "m", router_config_override=override)
            else:
                answer = await router.generate_from_request({"token_ids": PROMPT, "router_config_override": override})
            (only,) = await collect(answer)
            worker: int = only["routing_data"]["worker_id"]["decode_worker_id"]
            return worker

        for _ in range(10):
            assert await choose(None) == holder.connection_id()
            assert await choose(override) == idle.connection_id()
        await stream.aclose()

    run(main())


@pytest.mark.parametrize("way", ["query", "booked"])
def test_override_of_what_is_booked(way: str) -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        router = make_router(runtime)
        await router.best_worker(PROMPT, {"track_prefill_tokens": False}, request_id="a")
        assert await busy(router) == [(0, 4, 1)]
        await router.best_worker(PROMPT, {"assume_kv_reuse": False}, request_id="b")
        assert await busy(router) == [(64, 8, 2)]

    run(main())


def test_overlap_scores_and_dump() -> None:
    async def main() -> None:
        runtime = make_runtime()
        holder, other = serve(runtime), serve(runtime)
        router = make_router(runtime)
        publisher = KvEventPublisher(holder, kv_block_size=BLOCK)
        publish(publisher, PROMPT)
        caught_up(router)
        scores = await router.get_overlap_scores(PROMPT)
        assert (scores["block_size"], scores["num_blocks"]) == (16, 4)
        assert {row["worker_id"] for row in scores["workers"]} == {holder.connection_id(), other.connection_id()}
        assert scores["shared_cache"]["enabled"] is False
        assert await held(router) == {(holder.connection_id(), 0, n) for n in (1, 2, 3, 4)}
        (event,) = json.loads(await router.dump_events())
        assert (event["storage_tier"], event["residency_domain"]) == ("device", "worker")

    run(main())


# -- starting and ending


def test_min_initial_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_ROUTER_MIN_INITIAL_WORKERS", "2")

    async def main() -> None:
        runtime = make_runtime()
        router = make_router(runtime)
        prompt = list(PROMPT)
        best = router.best_worker(prompt, request_id="a")
        cancelled = router.best_worker(prompt, request_id="b")
        stream = router.generate(prompt, "m")
        loads = router.get_potential_loads([])
        first = serve(runtime)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not best.done() and not stream.done() and not loads.done()
        cancelled.cancel()
        assert isinstance(await error_of(router.free("never booked")), RequestNotFound)
        serve(runtime)
        await best
        assert len(await collect(await stream)) == 2
        assert len(await loads) == 2
        assert [load[2] for load in await busy(router)] == [1]
        first._own()[0].served.cancel()
        assert router.best_worker(prompt).done(), "it waits once"

        router = make_router(runtime)
        waits = router.best_worker(prompt)
        await asyncio.sleep(0)
        router.close()
        assert isinstance(await error_of(waits), Closed)
        waits = make_router(runtime).best_worker(prompt)
        await asyncio.sleep(0)
        runtime.shutdown()
        assert isinstance(await error_of(waits), Closed)

    run(main())


def test_close() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        async with make_router(runtime) as router:
            other = make_router(runtime)
            stream = await router.generate(PROMPT, "m")
        router.close()
        await router.aclose()
        for call in (
            router.best_worker(PROMPT),
            router.generate(PROMPT, "m"),
            router.free("x"),
            router.mark_prefill_complete("x"),
            router.get_potential_loads(PROMPT),
            router.get_overlap_scores(PROMPT),
            router.dump_events(),
        ):
            assert isinstance(await error_of(call), Closed)
        assert len(await collect(stream)) == 2, "streams go on"
        await other.best_worker(PROMPT)
        runtime.shutdown()
        assert isinstance(await error_of(other.best_worker(PROMPT)), Closed)
        with pytest.raises(Closed):
            make_router(runtime)

    run(main())


def test_routers_are_independent() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime)
        first, second = make_router(runtime), make_router(runtime)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        await first.best_worker(PROMPT, request_id="r")
        assert await busy(second) == []
        await second.best_worker(PROMPT, request_id="r")
        del first
        gc.collect()
        publish(publisher, PROMPT)
        assert await overlaps(second, PROMPT) == {endpoint.connection_id(): 4}
        assert await busy(second) == [(64, 4, 1)]

    run(main())


# -- generate


def test_generate_items_and_request() -> None:
    async def main() -> None:
        runtime = make_runtime()
        requests: list[Any] = []
        contexts: list[Context] = []

        async def handler(request: Any, context: Context) -> AsyncIterator[Any]:
            requests.append(request)
            contexts.append(context)
            yield {"token_ids": [5], "index": 0}
            yield {"token_ids": (6, 7), "custom": "kept"}
            yield {"finish_reason": "length"}

        endpoint = serve(runtime, handler)
        router = make_router(runtime)
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK)
        publish(publisher, PROMPT[:48])
        caught_up(router)
        before = time.time() * 1e3
        stream = await router.generate(
            array.array("I", PROMPT),
            "model",
            {"max_tokens": 3, "bogus": 1, "stop": ["a"]},
            {"temperature": -3, "n": 1},
            {"logprobs": 2},
            {"router_temperature": 0.5},
            extra_args={"x": 1},
        )
        assert isinstance(stream, AsyncResponseStream)
        items = await collect(stream)
        empty = {
            "tokens": None, "text": None, "output_type": "text", "cum_log_probs": None, "log_probs": None,
            "top_logprobs": None, "finish_reason": None, "index": None,
        }  # fmt: skip
        who = endpoint.connection_id()
        named = {"prefill_worker_id": who, "prefill_dp_rank": 0, "decode_worker_id": who, "decode_dp_rank": 0}
        assert items[0] == {**empty, "token_ids": [5], "index": 0, "routing_data": {"worker_id": named}}
        assert items[1] == {**empty, "token_ids": [6, 7], "custom": "kept"}
        timing = items[2].pop("routing_data")["timing"]
        assert items[2] == {**empty, "token_ids": [], "finish_reason": "length"}
        assert set(timing) == {
            "request_received_ms", "prefill_wait_time_ms", "prefill_time_ms", "ttft_ms", "total_time_ms", "kv_hit_rate",
            "router_queue_depth",
        }  # fmt: skip
        assert timing["kv_hit_rate"] == 0.75 and timing["router_queue_depth"] == 0
        assert before <= timing["request_received_ms"] <= time.time() * 1e3
        assert 0 <= timing["prefill_wait_time_ms"] <= timing["ttft_ms"] <= timing["total_time_ms"]

        (request,) = requests
        assert request["model"] == "model" and request["token_ids"] == PROMPT and type(request["token_ids"]) is list
        assert request["stop_conditions"] == {
            "max_tokens": 3, "stop": ["a"], "stop_token_ids": None, "stop_token_ids_visible": None,
            "stop_token_ids_hidden": None, "min_tokens": None, "ignore_eos": None, "max_thinking_tokens": None,
        }  # fmt: skip
        assert request["sampling_options"]["temperature"] == -3.0 and request["sampling_options"]["seed"] is None
        assert request["output_options"]["logprobs"] == 2
        assert request["router_config_override"] == {"router_temperature": 0.5}
        assert request["routing"] == {"dp_rank": 0} and request["extra_args"] == {"x": 1}
        assert (request["eos_token_ids"], request["mdc_sum"], request["annotations"]) == ([], None, [])
        assert "multi_modal_data" not in request
        assert len(contexts[0].id()) == 36

        async def one_item(request: Any) -> AsyncIterator[Any]:
            yield {"token_ids": [1], "finish_reason": "stop"}

        serve(runtime, one_item, "a.b.c")
        (only,) = await collect(await make_router(runtime, "a.b.c").generate_from_request({"token_ids": [1]}))
        assert set(only["routing_data"]) == {"worker_id", "timing"}

    run(main())


@pytest.mark.parametrize(
    ("keywords", "kind", "message"),
    [
        ({"stop_conditions": {"max_tokens": "x"}}, TypeError, "stop_conditions.*max_tokens.*'x'"),
        ({"stop_conditions": 3}, TypeError, "stop_conditions.*int"),
        ({"sampling_options": {"temperature": "hot"}}, TypeError, "temperature"),
        ({"output_options": {"skip_special_tokens": 1}}, TypeError, "skip_special_tokens"),
        ({"stop_conditions": {"stop": "abc"}}, TypeError, "stop"),
        ({"model": 3}, TypeError, "model"),
        ({"response_buffer_size": -1}, InvalidArgument, "response_buffer_size must be non-negative, got -1"),
        ({"response_buffer_size": 1.5}, TypeError, "float"),
        ({"router_config_override": {"bogus": 1}}, InvalidArgument, "bogus"),
        ({"worker_id": -1}, (OverflowError, InvalidArgument), "-1"),
        ({"worker_id": "x"}, TypeError, "str"),
        ({"dp_rank": 1 << 32}, (OverflowError, InvalidArgument), str(1 << 32)),
        ({"block_mm_infos": [{"mm_objects": [{"mm_hash": "x"}]}]}, (InvalidArgument, TypeError), "mm_hash"),
        ({"token_ids": [-1]}, InvalidArgument, "-1"),
    ],
)
def test_generate_refuses_wrong_arguments_at_the_call(keywords: Any, kind: Any, message: str) -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        router = make_router(runtime)
        with pytest.raises(kind, match=message):
            router.generate(**{"token_ids": PROMPT, "model": "m", **keywords})
        assert await busy(router) == []

    run(main())


def test_generate_from_request() -> None:
    async def main() -> None:
        runtime = make_runtime()
        seen: list[Any] = []

        async def handler(request: Any) -> AsyncIterator[Any]:
            seen.append(request)
            yield {"token_ids": [1]}

        endpoints = [serve(runtime, handler) for _ in range(3)]
        router = make_router(runtime)
        with pytest.raises(InvalidArgument, match="missing field `token_ids`"):
            router.generate_from_request({})
        with pytest.raises(TypeError, match="request"):
            router.generate_from_request([])  # type: ignore[arg-type]
        for field, value in (("annotations", "query_instance_id:"), ("annotations", None), ("mm_routing_info", [1])):
            with pytest.raises(TypeError, match=field):
                router.generate_from_request({"token_ids": PROMPT, field: value})
        for key in ("backend_instance_id", "decode_worker_id"):
            for endpoint in endpoints:
                routing = {"backend_instance_id": None, key: endpoint.connection_id(), "strict_priority": None}
                (item,) = await collect(await router.generate_from_request({"token_ids": PROMPT, "routing": routing}))
                assert item["routing_data"]["worker_id"]["decode_worker_id"] == endpoint.connection_id()
                assert seen[-1]["routing"]["backend_instance_id"] == endpoint.connection_id()
                assert seen[-1]["model"] == "" and seen[-1]["routing"]["dp_rank"] == 0
        count = len(seen)
        query = {"token_ids": PROMPT, "annotations": ["query_instance_id:"]}
        stream = await router.generate_from_request(query)
        assert await busy(router) == []
        (item,) = await collect(stream)
        assert item["token_ids"] == [] and item["routing_data"]["token_ids"] == PROMPT
        assert item["routing_data"]["worker_id"]["decode_worker_id"] in {e.connection_id() for e in endpoints}
        await stream.aclose()
        assert len(seen) == count, "a query is not sent"

    run(main())


def test_pins() -> None:
    async def main() -> None:
        runtime = make_runtime()
        one, two = serve(runtime), serve(runtime)
        await register(two, data_parallel_start_rank=4, data_parallel_size=2)
        router = make_router(runtime)
        publisher = KvEventPublisher(one, kv_block_size=BLOCK)
        publish(publisher, PROMPT)
        caught_up(router)

        async def pinned(**pin: Any) -> tuple[int, int]:
            first, _ = await collect(await router.generate(PROMPT, "m", **pin))
            who = first["routing_data"]["worker_id"]
            return who["decode_worker_id"], who["decode_dp_rank"]

        assert await pinned() == (one.connection_id(), 0)
        assert await pinned(worker_id=two.connection_id(), dp_rank=5) == (two.connection_id(), 5)
        assert await pinned(dp_rank=4) == (two.connection_id(), 4), "a rank alone is a pin, too"
        assert isinstance(await error_of(router.generate(PROMPT, "m", worker_id=12345)), WorkerNotFound)
        wrong = router.generate(PROMPT, "m", worker_id=one.connection_id(), dp_rank=3)
        assert isinstance(await error_of(wrong), DynamoError)
        assert await busy(router) == []
        stream = await router.generate(OTHER, "m", worker_id=one.connection_id(), response_buffer_size=0)
        assert await busy(router) == [(64, 4, 1)], "a pin books"
        await collect(stream)

    run(main())


def test_multimodal_prompt_routes_by_its_hashes() -> None:
    async def main() -> None:
        runtime = make_runtime()
        holder = serve(runtime)
        serve(runtime)
        router = make_router(runtime)
        infos = [{"mm_objects": [{"mm_hash": 42, "offsets": [[0, 16]]}]}, None, None, None]
        publisher = KvEventPublisher(holder, kv_block_size=BLOCK)
        publisher.publish_stored(PROMPT, [BLOCK] * 4, [1, 2, 3, 4], block_mm_infos=infos)
        caught_up(router)
        for keywords in (
            {"block_mm_infos": infos},
            {"mm_routing_info": {"routing_token_ids": PROMPT, "block_mm_infos": infos}},
        ):
            for _ in range(10):
                tokens = PROMPT if "block_mm_infos" in keywords else [1, 2, 3]
                first, _ = await collect(await router.generate(tokens, "m", **keywords))
                assert first["routing_data"]["worker_id"]["decode_worker_id"] == holder.connection_id()

    run(main())


# https://github.com/ai-dynamo/dynamo/pull/6253
def test_concurrent_requests_spread_over_equal_workers() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoints = [serve(runtime, silent) for _ in range(8)]
        router = make_router(runtime)
        streams = await asyncio.gather(*(router.generate([n] * 40, "m") for n in range(64)))
        rows = await router.get_potential_loads([])
        assert {row["worker_id"] for row in rows} == {e.connection_id() for e in endpoints}
        assert all(7 <= row["active_requests"] <= 9 for row in rows), rows
        for stream in streams:
            await stream.aclose()
        assert await busy(router) == []

    run(main())


# https://github.com/ai-dynamo/dynamo/pull/6253
def test_concurrent_bookings_spread_over_equal_workers() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoints = [serve(runtime, silent) for _ in range(8)]
        router = make_router(runtime)
        got = await asyncio.gather(*(router.best_worker([n] * 40, request_id=str(n)) for n in range(64)))
        counts = collections.Counter(worker_id for worker_id, _, _ in got)
        assert set(counts) == {e.connection_id() for e in endpoints}
        assert all(7 <= n <= 9 for n in counts.values()), counts

    run(main())


def test_booked_when_dispatched_prefill_ends_at_the_first_item_and_all_at_the_end() -> None:
    async def main() -> None:
        runtime = make_runtime()
        steps = collections.deque([asyncio.Event(), asyncio.Event()])
        loads: list[Any] = []

        async def handler(request: Any) -> AsyncIterator[Any]:
            loads.append(await busy(router))
            await steps[0].wait()
            yield {"token_ids": [1]}
            await steps[1].wait()

        serve(runtime, handler)
        router = make_router(runtime)
        stream = await router.generate(PROMPT, "m")
        assert await busy(router) == [(64, 4, 1)]
        await until(lambda: bool(loads))
        assert loads == [[(64, 4, 1)]], "booked before it is sent"
        steps[0].set()
        await anext(stream)
        assert await busy(router) == [(0, 4, 1)]
        steps[1].set()
        assert await collect(stream) == []
        assert await busy(router) == []

    run(main())


@pytest.mark.parametrize(
    "end", ["aclose", "del", "cancel", "never read", "never awaited", "given up", "break", "timeout", "thread"]
)
def test_every_end_frees_and_stops_the_worker(end: str) -> None:
    async def main() -> None:
        runtime = make_runtime()
        contexts: list[Context] = []

        async def handler(request: Any, context: Context) -> AsyncIterator[Any]:
            contexts.append(context)
            if request["model"] == "talks":
                yield {"token_ids": [1]}
            await context.async_killed_or_stopped()

        serve(runtime, handler)
        router = make_router(runtime)
        before = in_flight()
        stream: Any = None
        task: Any = None

        async def consume(model: str) -> None:
            async for _ in await router.generate(PROMPT, model):
                if end == "break":
                    break

        if end in ("cancel", "timeout"):
            task = asyncio.ensure_future(consume("talks"))
            await until(lambda: bool(contexts))
            while await busy(router) != [(0, 4, 1)]:  # the first item has come, or will
                await asyncio.sleep(0.001)
            if end == "cancel":
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises((asyncio.TimeoutError, TimeoutError)):
                    await asyncio.wait_for(task, 0.01)
        elif end == "break":
            await consume("talks")
        elif end == "never awaited":
            router.generate(PROMPT, "m")
        elif end == "given up":
            asked = router.generate(PROMPT, "m")
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked
            del asked
        else:
            stream = await router.generate(PROMPT, "m")
            if end != "never read":
                await until(lambda: bool(contexts))
            if end == "aclose":
                await stream.aclose()
            elif end == "thread":
                holder = [stream]
                del stream
                thread = threading.Thread(target=holder.clear)
                thread.start()
                thread.join()
            else:
                del stream
        await asyncio.sleep(0)  # what was awaited is let go
        gc.collect()
        while end in ("thread", "never awaited", "given up") and await busy(router):
            await asyncio.sleep(0.001)
        assert await busy(router) == []
        stream = task = None  # before 3.11 a cancelled task keeps its exception, and that the frames
        await until(lambda: all(context.is_stopped() for context in contexts))
        await until(lambda: in_flight() == before)
        if end not in ("never read", "never awaited", "given up"):
            assert contexts[0].is_stopped()

    run(main())


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("text", 'yielded "text".*expected a map'),
        (None, "yielded null"),
        ([1], r"yielded \[1\]"),
        ({"token_ids": "abc"}, 'yielded {"token_ids":"abc"}'),
        ({"token_ids": [1.5]}, r"token_ids=\[1.5\]"),
        ({"token_ids": None}, "token_ids=None"),
        ({"token_ids": [1], "what": object()}, "object cannot be sent"),
        (ValueError("boom"), "ValueError: boom"),
        (GeneratorExit("boom"), "GeneratorExit: boom"),
        (BaseException("boom"), "BaseException: boom"),
    ],
)
def test_what_a_handler_does_wrong_is_a_worker_error(item: Any, message: str) -> None:
    async def main() -> None:
        runtime = make_runtime()

        async def handler(request: Any) -> AsyncIterator[Any]:
            yield {"token_ids": [1]}
            if isinstance(item, BaseException):
                raise item
            yield item

        serve(runtime, handler)
        router = make_router(runtime)
        stream = await router.generate(PROMPT, "m")
        assert (await anext(stream))["token_ids"] == [1]
        with pytest.raises(WorkerError, match=message):
            await anext(stream)
        assert await busy(router) == []
        assert await collect(stream) == []

    run(main())


def test_handler_that_is_cancelled_before_it_began_ends_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        router = make_router(runtime)
        start = Answer.__init__

        def cancelled(self: Answer, *arguments: Any) -> None:
            start(self, *arguments)
            self._task.cancel()

        monkeypatch.setattr(Answer, "__init__", cancelled)
        stream = await router.generate(PROMPT, "m")
        with pytest.raises(Disconnected, match="stopped before"):
            await anext(stream)
        assert await busy(router) == []

    run(main())


@pytest.mark.parametrize("size", [0, 1, 5])
def test_back_pressure(size: int) -> None:
    async def main() -> None:
        runtime = make_runtime()
        made = 0

        async def handler(request: Any) -> AsyncIterator[Any]:
            nonlocal made
            for n in range(20):
                made += 1
                yield {"token_ids": [n]}

        serve(runtime, handler)
        router = make_router(runtime)
        stream = await router.generate(PROMPT, "m", response_buffer_size=size)
        await until(lambda: made == 20)  # what sockets hold, the worker may be ahead by
        for read in range(20):
            assert len(stream._call._items) <= size
            assert (await anext(stream))["token_ids"] == [read]
        assert await collect(stream) == []

    run(main())


def test_two_tasks_read_one_stream() -> None:
    async def main() -> None:
        runtime = make_runtime()

        async def handler(request: Any) -> AsyncIterator[Any]:
            for n in range(10):
                await asyncio.sleep(0)
                yield {"token_ids": [n]}

        serve(runtime, handler)
        router = make_router(runtime)
        stream = await router.generate(PROMPT, "m", response_buffer_size=0)
        halves = await asyncio.gather(collect(stream), collect(stream))
        assert sorted(item["token_ids"][0] for half in halves for item in half) == list(range(10))

    run(main())


def test_nothing_is_left_after_many_requests() -> None:
    async def main() -> None:
        runtime = make_runtime()
        for _ in range(4):
            serve(runtime)
        router = make_router(runtime)
        before = len(live(Context)), in_flight(), len(asyncio.all_tasks())
        for _ in range(5):
            streams = await asyncio.gather(*(router.generate([n] * 20, "m") for n in range(100)))
            await asyncio.gather(*(collect(stream) for stream in streams[:50]))
            del streams
        await until(lambda: len(asyncio.all_tasks()) == before[2])
        await until(lambda: in_flight() == before[1])
        assert len(live(Context)) == before[0]
        while await busy(router):
            await asyncio.sleep(0.001)
        assert router._router.stats()["active_requests"] == 0

    run(main())


def test_handler_that_never_waits_hears_that_its_caller_is_gone() -> None:
    async def main() -> None:
        runtime = make_runtime()
        ended = 0

        async def handler(request: Any, context: Context) -> AsyncIterator[Any]:
            nonlocal ended
            try:
                while True:
                    yield {"token_ids": [1]}
            finally:
                ended += 1

        serve(runtime, handler)
        stream = await make_router(runtime).generate(PROMPT, "m")
        await anext(stream)
        await stream.aclose()
        await until(lambda: ended == 1)

    run(main())


def test_handler_that_is_no_generator_is_told() -> None:
    async def forgot(request: Any) -> None:
        return None

    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, forgot)
        router = make_router(runtime)
        with pytest.raises(WorkerError, match="has it a yield"):
            async for _ in await router.generate([1, 2, 3], "m"):
                pass
        assert all(row["active_requests"] == 0 for row in await router.get_potential_loads([]))

    run(main())
