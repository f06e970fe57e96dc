"""Several prompts in one call: each has its own outcome."""

from __future__ import annotations

import asyncio
import collections
import signal
import threading
from array import array
from typing import Any

import pytest
from kit import busy, make_router, make_runtime, run, serve, silent

from dynamo_go import (
    Closed,
    DuplicateRequest,
    InvalidArgument,
    KvRouterConfig,
    NoWorkers,
    Router,
    Timeout,
)

TOKENS = list(range(64))


def make(workers: int = 4, **keywords: Any) -> Router:
    router = Router(16, KvRouterConfig(**keywords))
    for worker in range(workers):
        router.add_worker(worker)
    return router


def loads(router: Router) -> list[int]:
    return sorted(row["active_requests"] for row in router.get_potential_loads([]))


def test_choices_are_those_of_single_calls() -> None:
    with make() as batch, make() as single:
        prompts = [list(range(n, n + 64)) for n in range(0, 640, 64)]
        ids = [str(n) for n in range(10)]
        given = batch.best_workers(prompts, None, ids)
        assert all(isinstance(one, tuple) and one[1:] == (0, 0) for one in given)
        for prompt, name in zip(prompts, ids, strict=True):
            single.best_worker(prompt, request_id=name)
        assert loads(batch) == loads(single) == [2, 2, 3, 3], "each sees those before it"
        for name in ids:
            batch.free(name)
        assert batch.best_workers(iter([TOKENS, array("I", TOKENS), range(64)]), worker_id=2) == [(2, 0, 0)] * 3
        assert loads(batch) == [0] * 4
        assert batch.best_workers([]) == []


def test_batch_spreads_over_equal_workers() -> None:
    router = Router(16)
    for n in range(8):
        router.add_worker(n)
    chosen = router.best_workers([[n] * 40 for n in range(64)], request_ids=[str(n) for n in range(64)])
    counts = collections.Counter(one[0] for one in chosen if isinstance(one, tuple))
    assert len(counts) == 8
    assert all(7 <= n <= 9 for n in counts.values()), counts


def test_errors_are_of_their_item() -> None:
    with make() as router:
        router.best_worker(TOKENS, request_id="taken")
        prompts: list[Any] = [TOKENS, [1, -1], None, TOKENS, TOKENS, TOKENS]
        ids: list[Any] = ["a", "b", "c", "taken", 5, None]
        given = router.best_workers(prompts, None, ids)
        kinds = [tuple, InvalidArgument, TypeError, DuplicateRequest, TypeError, tuple]
        assert [type(one) for one in given] == kinds
        assert "token_ids[1]=-1" in str(given[1])
        assert "request_id: expected str or None, got int" in str(given[4])
        assert sum(loads(router)) == 2
        assert all(isinstance(one, Exception) for one in router.best_workers([TOKENS] * 3, worker_id=99))
    with make(workers=0) as router:
        assert [type(one) for one in router.best_workers([TOKENS] * 2)] == [NoWorkers] * 2
    with pytest.raises(Closed):
        router.best_workers([TOKENS])


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        (("abc",), {}, TypeError, "prompts: expected an iterable, got str"),
        ((5,), {}, TypeError, "int"),
        (([TOKENS], None, ["a", "b"]), {}, InvalidArgument, "request_ids has 2 elements, prompts has 1"),
        (([TOKENS], None, "a"), {}, TypeError, "request_ids: expected an iterable, got str"),
        (([TOKENS],), {"request_id": "a"}, TypeError, "'request_id'"),
        (([TOKENS],), {"worker": 1}, TypeError, "'worker'"),
        (([TOKENS],), {"worker_id": -1}, InvalidArgument, "worker_id=-1"),
        (([TOKENS], 5), {}, TypeError, "router_config_override: expected a mapping, got int"),
        (([()] * 65537,), {}, InvalidArgument, "more than 65536"),
    ],
)
def test_what_is_wrong_for_all_is_raised(arguments: Any, keywords: Any, error: type[Exception], message: str) -> None:
    with make() as router:
        with pytest.raises(error, match=message):
            router.best_workers(*arguments, **keywords)
        assert sum(loads(router)) == 0


def test_those_that_wait_do_so_together() -> None:
    with make(1, router_queue_threshold=0.0) as router:
        ids = [str(n) for n in range(3)]
        threading.Timer(0.05, router.free, ids[:1]).start()
        given = router.best_workers([TOKENS] * 3, None, ids, timeout=0.5)
        assert [type(one) for one in given] == [tuple, tuple, Timeout]


def test_interrupt_gives_up_those_that_wait() -> None:
    with make(1, router_queue_threshold=0.0) as router:
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Timer(0.05, lambda: signal.raise_signal(signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                router.best_workers([TOKENS] * 4, None, ["a", "b", "c", "d"])
        finally:
            signal.signal(signal.SIGINT, previous)
        router.free("a")
        assert router.best_workers([TOKENS], None, ["e"], timeout=1.0) == [(0, 0, 0)]
        assert sum(loads(router)) == 1


def test_kv_router_awaits_a_batch() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime, silent)
        worker = endpoint.connection_id()
        router = make_router(runtime)
        given = await router.best_workers([TOKENS, [1, -1]], None, ["a", "b"])
        assert given[0] == (worker, 0, 0)
        assert isinstance(given[1], InvalidArgument)
        assert len(await busy(router)) == 1
        with pytest.raises(InvalidArgument):
            router.best_workers([TOKENS], None, [])
        router.close()
        assert isinstance((await asyncio.gather(router.best_workers([TOKENS]), return_exceptions=True))[0], Closed)

    run(main())


@pytest.mark.parametrize("cancel", [False, True])
def test_kv_router_awaits_those_that_wait(cancel: bool) -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        router = make_router(runtime, router_queue_threshold=0.0)
        waiting = router.best_workers([TOKENS] * 3, None, ["a", "b", "c"], timeout=0.3)
        await asyncio.sleep(0)
        assert not waiting.done()
        if cancel:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await router.free("a")
            await router.best_worker(TOKENS, request_id="d")
            assert len(await busy(router)) == 1
        else:
            await router.free("a")
            assert [type(one) for one in await waiting] == [tuple, tuple, Timeout]
        router.close()

    run(main())
