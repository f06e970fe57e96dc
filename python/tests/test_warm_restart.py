"""A router saves what it knows, and another one starts warm with it."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from test_router import BIG, overlap, remove, store

from dynamo_go import Closed, FileError, InvalidArgument, Router, SnapshotRefused, WorkerNotFound
from dynamo_go.mocker import Mocker


def test_a_restarted_router_answers_alike(tmp_path: Path) -> None:
    path = tmp_path / "router.snapshot"
    with Router(4) as router:
        router.add_worker(BIG, dp_start=1, dp_size=2)
        router.add_worker(1)
        store(router, 1, range(40))
        store(router, 1, range(40))  # a second reference
        router.save(path)
        router.save(str(path))  # it is replaced
        dump, scores = router.dump_events(), router.get_overlap_scores(range(40))
    with Router(4) as router:
        assert router.load(path) == 3
        assert router.stats()["waiting_ranks"] == 3
        router.add_worker(BIG, dp_start=1, dp_size=2)
        router.add_worker(1)
        assert router.stats()["waiting_ranks"] == 0
        assert (router.dump_events(), router.get_overlap_scores(range(40))) == (dump, scores)
        remove(router, 1, *range(1, 11))
        assert overlap(router, range(40), 1) == 10
        remove(router, 1, *range(1, 11))
        assert overlap(router, range(40), 1) == 0


def test_what_is_loaded_waits_until_it_is_added_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "router.snapshot"
    with Router(4) as router:
        router.add_worker(1)
        store(router, 1, range(40))
        router.save(path)
    with Router(4) as router:
        router.load(path)
        router.remove_worker(1)
        with pytest.raises(WorkerNotFound):
            router.remove_worker(1)
        router.add_worker(1)
        assert overlap(router, range(40), 1) == 0


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "router.snapshot"
    with Router(4) as router:
        router.add_worker(1)
        store(router, 1, range(40))
        with pytest.raises(FileError, match="none") as caught:
            router.save(tmp_path / "none" / "x")
        assert isinstance(caught.value, OSError)
        with pytest.raises(FileError):
            router.load(tmp_path / "none")
        router.save(path)
        whole = path.read_bytes()
        for bad, why in ((b"[]", "not a snapshot"), (whole[:-1], "ends early"), (whole[:-1] + b"\0", "corrupt")):
            path.write_bytes(bad)
            with Router(4) as other:
                with pytest.raises(SnapshotRefused, match=why):
                    other.load(path)
                assert other.stats()["pairs"] == 0
        path.write_bytes(whole)
        with Router(16) as other, pytest.raises(SnapshotRefused, match="blocks of 4 tokens, the router's have 16"):
            other.load(path)
        with pytest.raises(TypeError):
            router.load(7)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            router.load("\udc80")
        for call in (router.save, router.load):
            with pytest.raises(FileError, match=r"one\\x00two: invalid argument"):
                call(str(tmp_path / "one\0two"))
    with pytest.raises(Closed):
        router.save(path)
    with pytest.raises(Closed):
        router.load(path)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with Router(4) as router:
        for call in (router.save, router.load):
            with pytest.raises(FileError, match="expected a regular file"):
                call(path)
        assert path.is_fifo()
        router.add_worker(1)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_followed_engine_is_exact_again_without_its_history(tmp_path: Path) -> None:
    path = tmp_path / "router.snapshot"
    with Mocker(buffer_steps=4, speedup=1000.0) as engine:

        def follow(router: Router) -> None:
            router.add_worker(1, kv_events=engine.info["kv_events"], replay=engine.info["replay"])

        with Router(16) as router:
            follow(router)
            until(lambda: router.health()[0]["state"] == "exact")
            for i in range(20):
                complete(engine, range(i * 1000, i * 1000 + 64))
                until(lambda: overlap(router, range(i * 1000, i * 1000 + 64), 1) == 4)  # noqa: B023
            router.save(path)
        complete(engine, range(50_000, 50_064))  # nobody listens
        with Router(16) as router:
            assert router.load(path) == 1
            follow(router)
            assert overlap(router, range(64), 1) == 4, "before the engine answered"
            until(lambda: router.health()[0]["state"] == "exact")
            assert overlap(router, range(64), 1) == 4, "far beyond what the engine can replay"
            assert overlap(router, range(50_000, 50_064), 1) == 4, "what came meanwhile"
    with Mocker() as engine, Router(16) as router:
        assert router.load(path) == 1
        router.add_worker(1, kv_events=engine.info["kv_events"], replay=engine.info["replay"])
        until(lambda: router.health()[0]["state"] == "exact")
        assert overlap(router, range(64), 1) == 0, "another engine: nothing is proven"


def complete(engine: Mocker, prompt: range) -> None:
    """Let an engine serve a prompt."""
    body = json.dumps({"model": "mock-8b", "prompt": list(prompt), "max_tokens": 1}).encode()
    request = urllib.request.Request(engine.info["http"] + "/v1/completions", body, method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.status == 200
