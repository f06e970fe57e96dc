"""Routers of the same workers share their load."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from test_router import load

from dynamo_go import CannotConnect, Closed, InvalidArgument, Router


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_each_counts_what_the_other_placed() -> None:
    with Router(4) as one, Router(4) as two:
        for router in (one, two):
            router.add_worker(1)
            router.add_worker(2)
        endpoint, number = one.replicate("tcp://127.0.0.1:0", model="m", replica_id=2**64 - 1)
        assert number == 2**64 - 1
        two.replicate(connect=[endpoint], model="m")
        until(lambda: (one.stats()["replicas"] or {})["peers_listening"] == 1)
        one.best_worker(range(40), request_id="a", worker_id=1)
        until(lambda: load(two, 1) == (40, 10, 1))
        assert two.best_worker(range(40))[0] == 2
        one.mark_prefill_complete("a")
        until(lambda: load(two, 1) == (0, 10, 1))
        one.free("a")
        until(lambda: load(two, 1) == (0, 0, 0))


def test_what_cannot_be() -> None:
    with Router(4) as router:
        assert router.stats()["replicas"] is None
        with pytest.raises(InvalidArgument):
            router.replicate()
        with pytest.raises(InvalidArgument, match="nowhere"):
            router.replicate("nowhere")
        with pytest.raises(TypeError):
            router.replicate(connect="tcp://127.0.0.1:1")
        with pytest.raises(CannotConnect):
            router.replicate("tcp://203.0.113.1:5600")
        endpoint, number = router.replicate("tcp://127.0.0.1:0")
        assert endpoint.startswith("tcp://127.0.0.1:") and number > 0
        with pytest.raises(InvalidArgument, match="already"):
            router.replicate("tcp://127.0.0.1:0")
    with pytest.raises(Closed):
        router.replicate("tcp://127.0.0.1:0")
