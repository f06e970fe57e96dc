"""Routing without events: blocks are presumed to be where requests went."""

from __future__ import annotations

import json

import pytest
from kit import BLOCK, PATH, collect, make_router, make_runtime, overlaps, run, serve
from test_router import overlap, store

from dynamo_go import InvalidArgument, KvRouter, KvRouterConfig, Router

PROMPT = list(range(40))


def test_blocks_are_presumed_where_a_request_went() -> None:
    with Router(4, KvRouterConfig(use_kv_events=False), seed=1) as router:
        router.add_worker(1, kv_events="tcp://127.0.0.1:1")
        router.add_worker(2)
        router.best_worker(PROMPT)
        assert [overlap(router, PROMPT, worker) for worker in (1, 2)] == [0, 0]
        holder, _, _ = router.best_worker(PROMPT, update_indexer=True)
        assert overlap(router, PROMPT, holder) == 10
        assert router.best_worker([*PROMPT, 7]) == (holder, 0, 10)
        assert {row["state"] for row in router.health()} == {"presumed"}
        assert router.stats()["presumed_blocks"] == router.stats()["pairs"] == 10
        assert {event["worker_id"] for event in json.loads(router.dump_events())} == {holder}
        store(router, 3 - holder, PROMPT)  # an event that comes all the same
        assert overlap(router, PROMPT, 3 - holder) == 0
        assert router.stats()["ignored_events"] == 1


def test_a_time_of_zero_presumes_nothing() -> None:
    with Router(4, KvRouterConfig(use_kv_events=False, router_ttl_secs=0)) as router:
        router.add_worker(1)
        router.best_worker(PROMPT, update_indexer=True)
        assert overlap(router, PROMPT, 1) == 0


def test_least_recently_used() -> None:
    config = KvRouterConfig(use_kv_events=False, router_approximate_cache_policy="lru")
    with Router(4, config) as router:
        router.add_worker(1, total_kv_blocks=15)
        router.best_worker(PROMPT, request_id="a", update_indexer=True)
        other = [n + 1000 for n in PROMPT]
        router.best_worker(other, request_id="b", update_indexer=True)
        assert [overlap(router, prompt, 1) for prompt in (PROMPT, other)] == [10, 10], "both in use"
        router.free("a")
        assert [overlap(router, prompt, 1) for prompt in (PROMPT, other)] == [5, 10]


def test_predicted_blocks_beside_events() -> None:
    with Router(4, KvRouterConfig(router_predicted_ttl_secs=60)) as router:
        router.add_worker(1)
        store(router, 1, PROMPT[:20])
        router.best_worker(PROMPT, update_indexer=True)
        assert overlap(router, PROMPT, 1) == 10
        with Router(4) as plain:
            plain.add_worker(1)
            plain.best_worker(PROMPT, update_indexer=True)
            assert overlap(plain, PROMPT, 1) == 0


def test_kv_router_takes_a_bound() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime)
        async with KvRouter(runtime.endpoint(PATH), BLOCK, max_bytes=1 << 26) as router:
            assert "dynamo_go_index_bytes" in await router.metrics()
        with pytest.raises(InvalidArgument, match="max_bytes=5"):
            KvRouter(runtime.endpoint(PATH), BLOCK, max_bytes=5)

    run(main())


def test_kv_router_presumes_by_itself() -> None:
    async def main() -> None:
        runtime = make_runtime()
        workers = [serve(runtime) for _ in range(3)]
        async with make_router(runtime, use_kv_events=False) as router:
            prompt = list(range(4 * BLOCK))
            await router.best_worker(prompt)
            assert await overlaps(router, prompt) == {}
            items = await collect(await router.generate(prompt, "m"))
            holder = items[0]["routing_data"]["worker_id"]["decode_worker_id"]
            assert await overlaps(router, prompt) == {holder: 4}
            other = [n + 1000 for n in prompt]
            worker_id, _, _ = await router.best_worker(other, update_indexer=True)
            assert await overlaps(router, other) == {worker_id: 4}
        assert len(workers) == 3

    run(main())
