"""Requests that wait: in order, cancelled, out of time, with the GIL and the loop free meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import BLOCK, PATH, busy, collect, error_of, make_router, make_runtime, run, serve, silent, until

from dynamo_go import CannotConnect, Closed, KvRouter, KvRouterConfig, NoWorkers, QueueLimitExceeded, Router, Timeout

TOKENS = list(range(64))

POLICY = """
default_policy_family: standard
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: few, policy_family: standard, cache_bucket: all, quantum: 1, prefill_busy_threshold: 0, request_queue_limit_per_worker: 1}
  - {name: vip, quantum: 1, prefill_busy_threshold: 0}
"""


def make(**keywords: Any) -> Router:
    router = Router(16, KvRouterConfig(**{"router_queue_threshold": 0.0, **keywords}))
    router.add_worker(1)
    router.best_worker(TOKENS, request_id="first")
    return router


# https://github.com/ai-dynamo/dynamo/pull/8163 https://github.com/ai-dynamo/dynamo/pull/10887
# https://github.com/ai-dynamo/dynamo/pull/11599 https://github.com/ai-dynamo/dynamo/pull/8144
def test_each_release_lets_exactly_one_go() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        router = make_router(runtime, router_queue_threshold=0.0)
        asked = [router.best_worker(TOKENS, request_id=str(n)) for n in range(6)]
        assert [f.done() for f in asked] == [True] + [False] * 5
        asked[2].cancel()
        await asyncio.sleep(0)
        for gone, next_ in ((0, 1), (1, 3), (3, 4), (4, 5)):
            await (router.free if gone % 3 else router.mark_prefill_complete)(str(gone))
            await asked[next_]
            assert [f.done() for f in asked] == [True, True, True] + [n <= next_ for n in range(3, 6)]
        for gone in (0, 3, 5):
            await router.free(str(gone))
        assert await busy(router) == []
        router.close()

    run(main())


def test_generate_waits_for_its_turn() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime)
        router = make_router(runtime, router_queue_threshold=0.0)
        await router.best_worker(TOKENS, request_id="first")
        streams = [asyncio.ensure_future(router.generate(TOKENS, "m")) for _ in range(3)]
        given_up = router.generate(TOKENS, "m")
        late = router.generate(TOKENS, "m", timeout=0.01)
        query = router.generate_from_request({"token_ids": TOKENS, "annotations": ["query_instance_id:"]})
        assert isinstance(await error_of(late), Timeout)
        given_up.cancel()
        await router.free("first")
        for stream in streams:
            items = await collect(await stream)
            assert items[-1]["finish_reason"] == "stop"
            assert items[0]["routing_data"]["worker_id"]["decode_worker_id"] == endpoint.connection_id()
        assert len(await collect(await query)) == 1
        assert await busy(router) == []

    run(main())


def test_worker_that_leaves_with_a_choice() -> None:
    async def main() -> None:
        runtime = make_runtime()
        endpoint = serve(runtime)
        router = make_router(runtime, router_queue_threshold=0.0)
        await router.best_worker(TOKENS, request_id="first")
        stream = router.generate(TOKENS, "m")
        await asyncio.sleep(0)
        router._router.free("first")  # the request is chosen for, and its task has not heard of it
        router._hub.leave(*endpoint._own())
        # The library chooses and sends meanwhile. What it finds: nobody any more; or it has sent, and the worker leaves before it is known to have
        # begun; or it has begun, and then it answers, as it is only not found any more.
        with contextlib.suppress(NoWorkers, CannotConnect):
            items = await collect(await stream)
            assert items[-1]["finish_reason"] == "stop"
        assert await busy(router) == []

    run(main())


def test_closing_ends_every_wait() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        router = make_router(runtime, router_queue_threshold=0.0)
        await router.best_worker(TOKENS, request_id="first")
        waits: list[asyncio.Future[Any]] = [router.best_worker(TOKENS), router.generate(TOKENS, "m")]
        await asyncio.sleep(0)
        router.close()
        for wait in waits:
            assert isinstance(await error_of(wait), Closed)

    run(main())


async def lag_while(begin: Callable[[], Callable[[], bool]]) -> float:
    """The longest that a loop is late for a timer of 10 ms, in seconds, while somebody waits: from before he begins."""
    loop, worst = asyncio.get_running_loop(), 0.0
    due = loop.time() + 0.01
    waits = begin()
    while True:
        await asyncio.sleep(due - loop.time())
        worst = max(worst, loop.time() - due)
        if not waits():
            return worst
        due = loop.time() + 0.01


# https://github.com/go-python/gopy/pull/285 https://github.com/go-python/gopy/issues/74
def test_event_loop_is_not_late_while_a_request_waits() -> None:
    """A thread waits in the synchronous call, and the loop for a future: neither delays the loop's timers."""

    async def thread() -> float:
        router = make()
        asked = threading.Thread(target=lambda: error_in(lambda: router.best_worker(TOKENS, timeout=0.5)))

        def begin() -> Callable[[], bool]:
            asked.start()
            return asked.is_alive

        return await lag_while(begin)

    async def future() -> float:
        runtime = make_runtime()
        serve(runtime, silent)
        kv = make_router(runtime, router_queue_threshold=0.0)
        await kv.best_worker(TOKENS, request_id="first")
        asked: list[asyncio.Future[Any]] = []

        def begin() -> Callable[[], bool]:
            asked.append(kv.best_worker(TOKENS, timeout=0.5))
            return lambda: not asked[0].done()

        lag = await lag_while(begin)
        assert isinstance(await error_of(asked[0]), Timeout)
        kv.close()
        return lag

    for wait in (thread, future):
        # A wait that holds the GIL or the loop is late by all of its half second, each time; a busy machine is late now and then.
        lags: list[float] = []
        while not lags or lags[-1] >= 0.1 and len(lags) < 5:
            lags.append(run(wait()))
        assert lags[-1] < 0.1, lags


def error_in(call: Callable[[], Any]) -> None:
    with pytest.raises(Timeout):
        call()


def test_prompt_of_a_request_that_waits_is_decided_once() -> None:
    """Neither asked first and then submitted, which hashes and matches it twice, nor counted as refused."""
    router = make()
    threading.Timer(0.02, router.free, ["first"]).start()
    assert router.best_worker(TOKENS, request_id="second", timeout=60)[0] == 1
    page = router.metrics()
    assert 'dynamo_go_decisions_total{outcome="chosen"} 2' in page
    assert 'dynamo_go_decisions_total{outcome="timeout"} 0' in page


def test_waiting_holds_neither_the_gil_nor_the_loop() -> None:
    router = make()
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1
            if ticks == 50:
                router.free("first")

    ticker = threading.Thread(target=tick)
    ticker.start()
    assert router.best_worker(TOKENS, timeout=60) == (1, 0, 0)  # returns only because the other thread ran
    done.set()
    ticker.join()
    assert ticks >= 50

    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        kv = make_router(runtime, router_queue_threshold=0.0)
        await kv.best_worker(TOKENS, request_id="first")
        wait = kv.best_worker(TOKENS)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not wait.done()
        await kv.free("first")
        await wait

    run(main())


def test_timeout() -> None:
    router = make()
    for timeout in (0, 0.0, 0.03):
        with pytest.raises(Timeout):
            router.best_worker(TOKENS, request_id="late", timeout=timeout)
    with pytest.raises(TimeoutError):
        router.best_worker(TOKENS, timeout=0)
    router.free("first")
    assert router.best_worker(TOKENS, timeout=0)[0] == 1


def test_interrupt_ends_a_wait_soon() -> None:
    router = make()

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    timer = threading.Timer(0.05, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        router.best_worker(TOKENS, request_id="waits")
    timer.join()
    router.free("first")
    assert router.stats()["active_requests"] == 0, "it was given up"


def test_close_ends_a_wait_in_another_thread() -> None:
    router = make()
    threading.Timer(0.02, router.close).start()
    with pytest.raises(Closed):
        router.best_worker(TOKENS)


def test_classes_and_their_limits(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    router = make(router_queue_threshold=None, router_policy_config=str(path))
    order: list[str] = []

    def wait(name: str, **keywords: Any) -> threading.Thread:
        def ask() -> None:
            router.best_worker(TOKENS, request_id=name, **keywords)
            order.append(name)
            router.free(name)

        before = waiting()
        thread = threading.Thread(target=ask)
        thread.start()
        while waiting() == before:
            time.sleep(0.001)
        return thread

    def waiting() -> int:
        return sum(
            int(float(line.split()[-1]))
            for line in router.metrics().splitlines()
            if line.startswith("dynamo_frontend_router_queue_pending_requests")
        )

    threads = [wait("low", policy_class="vip"), wait("high", policy_class="vip", strict_priority=1), wait("few")]
    with pytest.raises(QueueLimitExceeded, match="few") as caught:
        router.best_worker(TOKENS)
    error = caught.value
    assert (error.policy_class, error.limit_kind, error.current, error.limit) == ("few", "requests", 1, 1)
    router.free("first")
    for thread in threads:
        thread.join()
    assert order.index("high") < order.index("low")
    router.close()


def test_dropped_router_stops_listening() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        router = KvRouter(runtime.endpoint(PATH), BLOCK, KvRouterConfig(router_queue_threshold=0.0))
        await router.best_worker(TOKENS, request_id="first")
        wait = router.best_worker(TOKENS)
        wait.cancel()
        await until(lambda: not router._waits)
        await router.free("first")
        assert await busy(router) == []

    run(main())


def test_cancelled_before_it_was_read_nothing_stays_booked() -> None:
    """The choice has come, and whoever awaits it is cancelled before he runs again: he cannot know of it."""

    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        router = make_router(runtime, router_queue_threshold=0.0)

        async def ask(name: str) -> tuple[int, int, int]:
            return await router.best_worker(TOKENS, request_id=name)

        async def both() -> None:
            await asyncio.gather(router.best_worker(TOKENS, request_id="now"), ask("later"))

        async def generate() -> None:
            await (await router.generate(TOKENS, "m")).aclose()

        for start in (lambda: ask("b"), generate):
            for yields in range(5):
                await router.best_worker(TOKENS, request_id="hold")
                task = asyncio.ensure_future(start())
                for _ in range(yields):
                    await asyncio.sleep(0)
                router.free("hold")  # now, in the same step
                await asyncio.sleep(0)
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(outcome, tuple):  # it was read
                    await router.free("b")
                else:
                    assert outcome is None or isinstance(outcome, asyncio.CancelledError)
                await asyncio.sleep(0.01)
                assert await busy(router) == []
        waiting = asyncio.ensure_future(both())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await busy(router) == []

        mine = router.best_worker(TOKENS, request_id="mine")
        await mine
        assert not mine.cancel(), "it was read"
        assert len(await busy(router)) == 1
        await router.free("mine")

    run(main())
