"""The router's dump equals what SGLang's own publisher says it stored, although a part of the live stream is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from dynamo_go import Router

PEER = Path(__file__).resolve().parents[2] / "testdata" / "peers" / "engine_publisher"
BATCHES = 3000


class Publisher:
    """SGLang's publisher in a process, commanded over its standard input."""

    def __init__(self, version: str, environment: dict[str, str]) -> None:
        self.live, self.replay = free_port(), free_port()
        self.process = subprocess.Popen(
            [sys.executable, str(PEER / "pub_sglang.py"), "--interactive", "--version", version]
            + ["--endpoint", f"tcp://*:{self.live}", "--replay", f"tcp://*:{self.replay}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def tell(self, command: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()


@contextmanager
def publisher(version: str) -> Iterator[Publisher]:
    cache = os.environ.get("DGO_TEST_CACHE", os.path.join(tempfile.gettempdir(), "dynamo-go-test-cache"))
    environment = {**os.environ, "WIRE_SRC": cache, "PYTHON": sys.executable}
    got = subprocess.run(["bash", str(PEER / "get.sh"), version], env=environment, capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"the sglang {version} wheel cannot be downloaded: {got.stderr[-200:]}")
    p = Publisher(version, environment)
    try:
        yield p
    finally:
        p.process.kill()
        p.process.communicate()


def names(router: Router, worker_id: int) -> set[int]:
    """Give the engine hashes that the router says a worker holds."""
    events = [
        row["event"]["data"]["stored"] for row in json.loads(router.dump_events()) if row["worker_id"] == worker_id
    ]
    return {block["block_hash"] for stored in events for block in stored["blocks"]}


def state(router: Router, worker_id: int) -> Any:
    return next(row for row in router.health() if row["worker_id"] == worker_id)


def wait(what: str, condition: Any) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


@pytest.mark.parametrize("version", ["0.5.21", "0.5.23"])  # replay answers without and with a topic
def test_dump_equals_the_publishers_state(version: str) -> None:
    rng = random.Random(3)
    with publisher(version) as engine, Router(block_size=16) as router:
        lost = [seq for seq in range(1, BATCHES - 1) if rng.random() < 0.03]
        engine.tell("drop " + ",".join(map(str, lost)))
        live, replay = f"tcp://127.0.0.1:{engine.live}", f"tcp://127.0.0.1:{engine.replay}"
        router.add_worker(1, kv_events=live, replay=replay)
        router.add_worker(2, kv_events=live)  # what the live stream alone gives
        wait("joined", lambda: state(router, 1)["state"] == "exact" and state(router, 2)["state"] == "partial")
        for _ in range(BATCHES // 500):
            engine.tell("chain 500 42")
            engine.tell("sync")
        want = set(engine.tell("state")["live"])
        for worker_id in (1, 2):
            wait("the last batch", lambda w=worker_id: state(router, w)["last_seq"] == BATCHES - 1)
        wait("exact", lambda: state(router, 1)["state"] == "exact")
        assert names(router, 1) == want
        assert names(router, 2) != want, "nothing was lost: the test shows nothing"
        assert state(router, 1)["counters"]["gaps"] > 0
        assert state(router, 2)["state"] == "partial"
