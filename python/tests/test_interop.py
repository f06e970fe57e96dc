"""Programs written for Dynamo run with their imports changed, and find themselves among Dynamo's own processes.

The programs are a worker and a router of the Go tests' peers (core/internal/dynamotest). DGO_TEST_DYNAMO names a directory with an
environment for each release of Dynamo; ``./build.sh interop`` makes it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers import Etcd

import dynamo_go

SCRIPTS = Path(__file__).parents[2] / "core/internal/dynamotest"
PATH = "interop.backend.generate"
PATIENCE = 30.0
TOKENS = list(range(1000, 1128))  # eight blocks
RUNTIME = {"Context", "DistributedRuntime"}


def releases() -> dict[str, Path]:
    """The interpreters of Dynamo's releases, by name."""
    found = sorted(Path(os.environ.get("DGO_TEST_DYNAMO", "/nonexistent")).glob("*/bin/python"))
    return {python.parts[-3]: python for python in found}


def with_ours(text: str) -> str:
    """Change the imports of a program, and nothing else."""

    def ours(match: re.Match[str]) -> str:
        names = set(re.findall(r"\w+", match[1]))
        runtime, llm = ", ".join(sorted(names & RUNTIME)), ", ".join(sorted(names - RUNTIME))
        return f"from dynamo_go.compat.llm import {llm}\nfrom dynamo_go.compat.runtime import {runtime}\n"

    changed, n = re.subn(r"from dynamo\._core import (\([^)]*\)|[^\n]*)\n", ours, text)
    assert n == 1
    return changed


class Peer:
    """A program that tells what happens in lines of JSON."""

    def __init__(
        self,
        place: Path,
        python: Path | str,
        name: str,
        ours: bool,
        uvloop: bool,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        text = (SCRIPTS / f"{name}.py").read_text()
        if ours:
            text = with_ours(text)
        if not uvloop:
            text = text.replace("import uvloop\n", "").replace("uvloop.run(", "asyncio.run(")
        script = place / f"{name}-{time.monotonic_ns()}.py"
        script.write_text(text)
        environment = {**os.environ, "DYN_FILE_KV": str(place / "store"), "DYN_LOG": "warn", "PLANES": "file tcp zmq"}
        environment.update(variables or {})
        for variable in ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST"):
            environment[variable] = "127.0.0.1"
        if ours:
            environment["DYN_TCP_RESPONSE_STREAM_HOST"] = "127.0.0.1"  # Dynamo's means the name of an interface
            environment["PYTHONPATH"] = str(Path(dynamo_go.__file__).parents[1])
        self.log = script.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(python), str(script), *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._lines: list[dict[str, Any]] = []
        self._grown = threading.Condition()
        self._n = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self._lines.append(json.loads(line))
                self._grown.notify_all()

    def find(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a line."""

        def found() -> dict[str, Any] | None:
            return next((line for line in self._lines if wanted(line)), None)

        with self._grown:
            line = self._grown.wait_for(found, PATIENCE)
        assert line is not None, f"{self._lines[-5:]}\n{self.log.read_text()[-3000:]}"
        return line

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        """Have a router do something, and give its answer."""
        self._n += 1
        n = self._n
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"n": n, "do": do, **command}) + "\n")
        self.process.stdin.flush()
        answer = self.find(lambda line: line.get("n") == n)
        assert "failed" not in answer, answer
        return answer

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def pair(place: Path, python: Path | str, our: str, uvloop: bool) -> Iterator[tuple[Peer, Peer]]:
    """A router and a worker; `our` says which of them is this library's: "router", "worker" or "both"."""
    worker = Peer(place, python, "worker", our != "router", uvloop, PATH)
    try:
        router = Peer(place, python, "router", our != "worker", uvloop, PATH, "16")
        try:
            yield router, worker
        finally:
            router.end()
    finally:
        worker.end()


def hears(router: Peer, model: str, size: int = 16) -> None:
    """Wait until a router's subscription to a worker's events is there: until then what is published is lost, and noticed only by what follows."""
    first = 1_000_000

    def heard() -> bool:
        nonlocal first
        first += size
        tokens = list(range(first, first + size))
        assert router.ask("generate", tokens=tokens, model=model)["error"] is None
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            if router.ask("best", tokens=tokens)["overlap"] == 1:
                return True
        return False

    until(heard)  # or it has just asked what there is, as it does once
    until(heard)


def work_together(router: Peer, worker: Peer, says_why: bool) -> None:
    me = worker.find(lambda line: line.get("ready") is True)["worker"]
    router.find(lambda line: line.get("ready") is True)
    until(lambda: router.ask("instances")["ids"] == [me])
    until(lambda: len(router.ask("loads", tokens=[])["rows"]) == 1)
    hears(router, "ok")
    for length, before in ((64, 0), (128, 4), (128, 8)):
        tokens = TOKENS[:length]
        until(lambda: router.ask("best", tokens=tokens)["overlap"] == before)  # noqa: B023
        answer = router.ask("generate", tokens=tokens, model="ok")
        assert answer["error"] is None
        assert [item["token_ids"] for item in answer["items"]] == [[1000], [1001], [1002]]
        first, last = answer["items"][0], answer["items"][-1]
        assert last["finish_reason"] == "length"
        if says_why:
            assert first["routing_data"]["worker_id"]["decode_worker_id"] == me
            assert last["routing_data"]["timing"]["kv_hit_rate"] == pytest.approx(before * 16 / length)
    answer = router.ask("generate", tokens=TOKENS, model="slow", stop_after=3)
    assert [item["token_ids"] for item in answer["items"]] == [[1000], [1001], [1002]]
    worker.find(lambda line: type(line.get("stopped")) is int)
    for model, items in (("err0", 0), ("errmid", 1)):
        answer = router.ask("generate", tokens=TOKENS, model=model)
        assert len(answer["items"]) == items and "boom" in answer["error"]
    until(lambda: all(row.get("active_requests", 0) == 0 for row in router.ask("loads", tokens=[])["rows"]))
    worker.process.send_signal(signal.SIGTERM)
    worker.find(lambda line: line.get("stopped") is True)
    until(lambda: router.ask("instances")["ids"] == [])


def test_programs_run_with_their_imports_changed(tmp_path: Path) -> None:
    with pair(tmp_path, sys.executable, "both", uvloop=False) as (router, worker):
        work_together(router, worker, says_why=True)


CASES = [
    (release, our, uvloop)
    for release in releases()
    for our in ("router", "worker")
    for uvloop in ((False, True) if release == max(releases()) else (our == "router",))
]


@pytest.mark.skipif(not CASES, reason="no release of Dynamo in DGO_TEST_DYNAMO: use ./build.sh interop")
@pytest.mark.parametrize(("release", "our", "uvloop"), CASES or [("", "", False)])
def test_with_dynamos_own(release: str, our: str, uvloop: bool, tmp_path: Path) -> None:
    with pair(tmp_path, releases()[release], our, uvloop) as (router, worker):
        work_together(router, worker, says_why=release >= "1.6")


@pytest.mark.skipif(not CASES, reason="no release of Dynamo in DGO_TEST_DYNAMO: use ./build.sh interop")
def test_dynamos_router_of_a_mock_worker_in_etcd(tmp_path: Path) -> None:
    """The command finds Dynamo's own router where a deployment of several machines does."""
    _, python = max(releases().items())
    etcd = Etcd(tmp_path / "etcd")
    etcd.start()
    variables = {"ETCD_ENDPOINTS": etcd.url, "PLANES": "etcd tcp zmq"}
    here = dict.fromkeys(("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"), "127.0.0.1")
    command = [sys.executable, "-m", "dynamo_go", "worker", "--mocker", "--endpoint", PATH, "--speedup", "100"]
    worker = subprocess.Popen(
        [*command, "--discovery-backend", "etcd"], env={**os.environ, **here, **variables}, stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    try:
        me = json.loads(worker.stdout.readline())
        router = Peer(tmp_path, python, "router", False, True, PATH, str(me["block_size"]), variables=variables)
        try:
            router.find(lambda line: line.get("ready") is True)
            until(lambda: router.ask("instances")["ids"] == [me["worker_id"]])
            until(lambda: len(router.ask("loads", tokens=[])["rows"]) == 1)
            hears(router, me["model"], me["block_size"])
            blocks = 8
            for n in range(20):
                tokens = [*range(blocks * me["block_size"]), n]
                answer = router.ask("generate", tokens=tokens, model=me["model"])
                assert answer["error"] is None and answer["items"][-1]["finish_reason"] == "length"
                until(lambda: router.ask("best", tokens=tokens)["overlap"] == blocks)  # noqa: B023
            worker.send_signal(signal.SIGTERM)
            until(lambda: router.ask("instances")["ids"] == [])
        finally:
            router.end()
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
        etcd.kill()
