"""What type checkers see of the package. Never run: test_typing.py has mypy check it, wrong uses included.

``assert_type`` fails on any other type; an ignore that is not needed is an error, so each marked line must be one.
"""

import asyncio
from typing import Any

from typing_extensions import assert_type

from dynamo_go import (
    AsyncResponseStream,
    Client,
    Context,
    DistributedRuntime,
    Endpoint,
    KvEventPublisher,
    KvRouter,
    KvRouterConfig,
    PotentialLoad,
    Router,
    RoutingConstraints,
)


def config() -> None:
    config = KvRouterConfig(overlap_score_weight=1, router_temperature=0.5, router_queue_threshold=None)
    assert_type(config.router_temperature, float)
    assert_type(config.use_kv_events, bool)
    assert_type(config.router_event_threads, int)
    assert_type(config.router_queue_policy, str)
    assert_type(config.router_queue_threshold, float | None)
    assert_type(config.overlap_score_weight, float)
    assert_type(config.copy().with_overrides(overlap_score_credit=2), KvRouterConfig)
    assert_type(KvRouterConfig.from_json(config.to_json()), KvRouterConfig)
    config.router_temperature = 1
    config.router_temperature = "1"  # type: ignore[assignment]
    config.bogus = 1  # type: ignore[attr-defined]
    KvRouterConfig(router_temperature="1")  # type: ignore[arg-type]
    KvRouterConfig(bogus=1)  # type: ignore[call-arg]
    KvRouterConfig(None, 0.75, 0.25, 0.0, True, False)  # type: ignore[call-arg]


def synchronous(tokens: list[int]) -> None:
    with Router(16, KvRouterConfig(), seed=1) as router:
        assert_type(router.best_worker(tokens, request_id="r"), tuple[int, int, int])
        assert_type(router.get_potential_loads(tokens), list[PotentialLoad])
        router.best_worker("text")  # type: ignore[arg-type]


async def runtime(endpoint: Endpoint) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    assert_type(runtime.endpoint("a.b.c"), Endpoint)
    assert_type(endpoint.connection_id(), int)
    assert_type(endpoint.serve_endpoint(lambda request: request), asyncio.Future[None])
    client = await endpoint.client()
    assert_type(client, Client)
    assert_type(client.instance_ids(), list[int])
    assert_type(await client.random({}, context=Context()), AsyncResponseStream)
    publisher = KvEventPublisher(endpoint, kv_block_size=16)
    publisher.publish_stored([1] * 16, [16], [1], parent_hash=None)
    publisher.publish_removed(1)  # type: ignore[arg-type]
    served = KvEventPublisher("tcp://*:5557", 7, 16, query_endpoint="tcp://*:7557", zmq_endpoint="tcp://engine:5557")
    assert_type(served.info(), dict[str, Any])
    KvEventPublisher(5)  # type: ignore[arg-type]
    DistributedRuntime("mem", "tcp")  # type: ignore[arg-type]


async def routed(endpoint: Endpoint, tokens: list[int]) -> None:
    async with KvRouter(endpoint, 16, KvRouterConfig()) as router:
        assert_type(router, KvRouter)
        assert_type(router.best_worker(tokens), asyncio.Future[tuple[int, int, int]])
        assert_type(await router.best_worker(tokens, None, "r", False), tuple[int, int, int])
        assert_type(await router.get_potential_loads(tokens), list[PotentialLoad])
        assert_type(await router.get_overlap_scores(tokens), dict[str, Any])
        assert_type(await router.dump_events(), str)
        assert_type(router.free("r"), asyncio.Future[None])
        stream = await router.generate(tokens, "m", worker_id=1, routing_constraints=RoutingConstraints({"t"}))
        assert_type(stream, AsyncResponseStream)
        async for item in stream:
            assert_type(item, Any)
        router.best_worker(tokens, request_id=1)  # type: ignore[arg-type]
        router.generate(tokens)  # type: ignore[call-arg]
        router.best_worker(tokens, routing_constraints={})  # type: ignore[arg-type]
        asyncio.create_task(router.best_worker(tokens))  # type: ignore[arg-type]
