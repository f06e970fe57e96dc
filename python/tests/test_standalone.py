"""``python -m dynamo_go router`` and ``worker``: processes of a deployment, and the documented way to try them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import run, wheel

from dynamo_go import (
    Disconnected,
    DistributedRuntime,
    InvalidArgument,
    KvRouter,
    KvRouterConfig,
    WorkerError,
    _standalone,
    serve,
)
from dynamo_go._config import _BY_NAME
from dynamo_go.mocker import Mocker, MockWorker

PATH = "try.backend.generate"
CLIENT = Path(__file__).resolve().parents[2] / "testdata" / "peers" / "standalone" / "client.py"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "dynamo.md"
FAST = {"speedup": 100.0}


@pytest.fixture(autouse=True)
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a deployment of its own."""
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
    for name in ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"):
        monkeypatch.setenv(name, "127.0.0.1")
    return tmp_path


class Process:
    """A command that runs: what it said first, and what it tells."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._watchdog = threading.Timer(60, self._process.kill)
        self._watchdog.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.end()
        self.ready: dict[str, Any] = json.loads(line)

    def told(self) -> str:
        """The next line of standard error."""
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert line, "the process ended"
        return line.rstrip("\n")

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def end(self, signum: int | None = None) -> tuple[int, str]:
        """Wait for its end; gives its status, and what it told besides."""
        if signum is not None:
            self.signal(signum)
        try:
            rest = self._process.communicate()[1]
        finally:
            self._watchdog.cancel()
        return self._process.returncode, rest


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[Process]:
    process = Process([sys.executable, "-m", "dynamo_go", *arguments])
    try:
        yield process
    finally:
        if process._process.poll() is None:
            process.end(signal.SIGKILL)


def join() -> DistributedRuntime:
    return DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")


def test_the_documented_commands() -> None:
    """Exactly what the page says, in three terminals."""
    section = PAGE.read_text().split("## Try it without a GPU")[1].split("\n## ")[0]
    commands = [shlex.split(text) for text in re.findall(r"^```sh\n(.*?)\n```$", section, re.M | re.S)]
    (client,) = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    assert len(commands) == 2 and all(words[:3] == ["python", "-m", "dynamo_go"] for words in commands)
    with started(*commands[0][3:]) as worker, started(*commands[1][3:]) as router:
        assert router.ready["endpoints"] == [
            f"dynamo.router.{name}" for name in ("generate", "best_worker_id", "get_overlap_scores")
        ]
        assert worker.ready["endpoint"] == router.ready["worker_endpoint"] == "dynamo.backend.generate"
        while "1 worker of" not in router.told():
            pass
        rates: list[float] = []
        for _ in range(20):  # until the worker's event has come: soon, but not at once
            done = subprocess.run([sys.executable, "-c", client], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            lines = done.stdout.splitlines()
            assert len(lines) == 5
            assert f"'decode_worker_id': {worker.ready['worker_id']}" in lines[0]
            rates.append(float(re.search(r"'kv_hit_rate': ([\d.]+)", lines[-1])[1]))  # type: ignore[index]
            if rates[-1] == 1.0:
                break
        assert rates[0] == 0.0 and rates[-1] == 1.0
        assert router.end(signal.SIGINT) == (
            0,
            "router: stopping: requests in flight end first; again to end them now\n",
        )
        assert worker.end(signal.SIGTERM) == (0, "")


def test_a_request_in_flight_ends_before_its_router_and_its_worker() -> None:
    async def main() -> None:
        slow = ("--mocker", "--endpoint", PATH, "--inter-token-ms", "20")
        with started("worker", *slow) as worker, started("router", "--endpoint", PATH, "--block-size", "16") as router:
            client = await join().endpoint("try.router.generate").client()
            await client.wait_for_instances()
            while "1 worker of" not in router.told():
                pass
            request = {"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": 30}}
            stream = await client.generate(request, annotated=False)
            items = [await anext(stream)]
            router.signal(signal.SIGTERM)
            worker.signal(signal.SIGTERM)
            items += [item async for item in stream]
            assert len(items) == 30 and items[-1]["finish_reason"] == "length"
            assert (await asyncio.to_thread(router.end))[0] == 0
            status, told = await asyncio.to_thread(worker.end)
            assert status == 0 and told.startswith("worker: stopping: 1 requests end first")

    run(main(), timeout=120)


@pytest.mark.parametrize("name", ["router", "worker"])
def test_a_second_signal_ends_at_once(name: str) -> None:
    async def main() -> None:
        slow = ("--mocker", "--endpoint", PATH, "--inter-token-ms", "100")
        with started("worker", *slow) as worker, started("router", "--endpoint", PATH, "--block-size", "16") as router:
            client = await join().endpoint("try.router.generate").client()
            await client.wait_for_instances()
            while "1 worker of" not in router.told():
                pass
            request = {"token_ids": [1], "stop_conditions": {"max_tokens": 100_000}}
            stream = await client.generate(request, annotated=False)
            await anext(stream)
            process = {"router": router, "worker": worker}[name]
            process.signal(signal.SIGINT)
            while f"{name}: stopping" not in process.told():
                pass
            status, told = await asyncio.to_thread(process.end, signal.SIGINT)
            assert (status, told) == (-signal.SIGINT, "")
            with pytest.raises((Disconnected, WorkerError), match="before (the )?generation completed"):
                async for _ in stream:
                    pass

    run(main(), timeout=120)


def test_who_is_no_worker_is_told_of() -> None:
    with (
        started("worker", "--mocker", "--endpoint", PATH) as worker,
        started("router", "--endpoint", PATH) as router,
    ):
        assert router.ready["block_size"] == 128
        assert router.told() == f"router: no workers of {PATH}"
        told = router.told()
        assert told.startswith(f"router: instance {worker.ready['worker_id']} of {PATH} gets no requests")
        assert "128 tokens: give --router-block-size as it is there (worker --mocker and vLLM: 16)" in told


class Served:
    """A standalone router in this process, with a client of each endpoint."""

    async def start(self, workers: int = 1, **config: Any) -> Served:
        self.workers = [MockWorker(join().endpoint(PATH), **FAST, **config) for _ in range(workers)]
        runtime = join()
        self.router = KvRouter(runtime.endpoint(PATH), 16, KvRouterConfig())
        service = _standalone.Service(self.router)
        self.clients = {}
        for name in ("generate", "best_worker_id", "get_overlap_scores"):
            runtime.endpoint(f"try.router.{name}").serve_endpoint(getattr(service, name))
            self.clients[name] = await join().endpoint(f"try.router.{name}").client()
            await self.clients[name].wait_for_instances()
        while len(self.router._router.workers()) < workers:
            await asyncio.sleep(0.005)
        return self

    async def ask(self, name: str, request: Any) -> list[Any]:
        return [item async for item in await self.clients[name].generate(request, annotated=False)]


def test_endpoints_and_their_shapes() -> None:
    async def main() -> None:
        served = await Served().start(workers=2)
        prompt = list(range(64))
        packed = array("I", prompt).tobytes()
        for tokens in (prompt, packed):
            items = await served.ask("generate", {"token_ids": tokens, "stop_conditions": {"max_tokens": 3}})
            assert len(items) == 3 and items[-1]["finish_reason"] == "length"
        home = items[0]["routing_data"]["worker_id"]["decode_worker_id"]
        while await served.ask("best_worker_id", prompt) != [home]:
            await asyncio.sleep(0.005)
        for request in (packed, {"token_ids": prompt}, {"token_ids": packed, "router_config_override": {}}):
            assert await served.ask("best_worker_id", request) == [home]
        (scores,) = await served.ask("get_overlap_scores", {"token_ids": packed})
        assert scores["block_size"] == 16 and scores["num_blocks"] == 4
        assert {row["worker_id"]: row["device_blocks"] for row in scores["workers"]} == {
            worker.worker_id: 4 if worker.worker_id == home else 0 for worker in served.workers
        }
        for rank in ({"dp_rank": 0}, {"routing": {"backend_instance_id": home}}):
            assert await served.ask("generate", {"token_ids": [1], "stop_conditions": {"max_tokens": 1}, **rank})
        (item,) = await served.ask("generate", {"token_ids": prompt, "annotations": ["query_instance_id:"]})
        assert item["routing_data"]["worker_id"]["decode_worker_id"] == home

    run(main())


def test_wrong_requests_are_the_callers_fault() -> None:
    async def main() -> None:
        served = await Served().start()
        for name, request, message in (
            ("generate", [1, 2], "expected a dict with token_ids, got list"),
            ("generate", {"tokens": []}, "missing field `token_ids`"),
            ("generate", {"token_ids": "text"}, "token_ids"),
            ("generate", {"token_ids": [-1]}, "token_ids"),
            ("generate", {"token_ids": b"123"}, "multiple of 4"),
            ("generate", {"token_ids": [1], "stop_conditions": {"max_tokens": "x"}}, "max_tokens"),
            ("generate", {"token_ids": [1], "dp_rank": -1}, "dp_rank"),
            ("best_worker_id", None, "token_ids"),
            ("best_worker_id", {"token_ids": [1], "router_config_override": {"bogus": 1}}, "bogus"),
            ("get_overlap_scores", {"token_ids": [1.5]}, "token_ids"),
            ("get_overlap_scores", 5, "expected a dict with token_ids, got int"),
        ):
            with pytest.raises(WorkerError, match=f"^InvalidRequest: .*{message}"):
                await served.ask(name, request)
        with pytest.raises(WorkerError, match="^Internal: .*NoWorkers|^Internal: WorkerNotFound"):
            await served.ask("generate", {"token_ids": [1], "dp_rank": 7})

    run(main())


def test_what_an_engine_refuses_is_the_callers_fault_too() -> None:
    async def main() -> None:
        served = await Served().start(workers=0)
        with Mocker(speedup=100) as engine:
            info = engine.info
            at = join().endpoint(PATH)
            at.add_engine(info["http"], kv_events=info["kv_events"], replay=info["replay"], block_size=16)
            while not served.router._router.workers():
                await asyncio.sleep(0.005)
            with pytest.raises(WorkerError, match="^InvalidRequest: invalid argument: .*max_tokens is 0"):
                await served.ask("generate", {"token_ids": [1], "stop_conditions": {"max_tokens": 0}})

    run(main())


def test_who_goes_away_frees_the_worker() -> None:
    async def main() -> None:
        served = await Served().start(inter_token_ms=1000)
        (worker,) = served.workers
        stream = await served.clients["generate"].generate(
            {"token_ids": [1] * 32, "stop_conditions": {"max_tokens": 1000}}
        )
        await anext(stream)
        assert worker.busy() == 1
        await stream.aclose()
        while worker.busy():
            await asyncio.sleep(0.005)
        while any(row["active_requests"] for row in await served.router.get_potential_loads([])):
            await asyncio.sleep(0.005)

    run(main())


def test_a_mock_worker_leaves_and_closes() -> None:
    async def main() -> None:
        runtime = join()
        endpoint = runtime.endpoint(PATH)
        with MockWorker(endpoint, **FAST) as worker:
            with pytest.raises(InvalidArgument, match="served already"):
                MockWorker(endpoint)
            client = await join().endpoint(PATH).client()
            assert await client.wait_for_instances() == [worker.worker_id]
            worker.leave()
            worker.leave()
            while client.instance_ids():
                await asyncio.sleep(0.005)
        worker.close()
        alone = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp").endpoint(PATH)
        router = KvRouter(alone, 16)
        with MockWorker(alone, **FAST) as worker:
            while not await router.get_potential_loads([]):
                await asyncio.sleep(0.005)
            stream = await router.generate([1] * 40, "m", {"max_tokens": 5})
            assert len([item async for item in stream]) == 5
        late = MockWorker(runtime.endpoint(PATH))
        runtime.shutdown()
        late.close()

    run(main())


def test_every_keyword_has_a_flag_that_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the ones that Dynamo has none for, or that are this library's."""
    flags = {row[0] for row in (*_standalone._FLAGS.values(), *_standalone._DEFAULT_ONLY.values())}
    without = {name for name in _BY_NAME if name.startswith("conditional_disagg_") and name not in flags}
    assert flags | without | {"overlap_score_min_blocks", "record_decisions"} == set(_BY_NAME)

    def config(*arguments: str) -> KvRouterConfig:
        return _standalone._config(_standalone._parser().parse_args(arguments))

    assert config() == KvRouterConfig()
    monkeypatch.setenv("DYN_ROUTER_TEMPERATURE", "0.5")
    assert config().router_temperature == 0.5
    assert config("--router-temperature", "0.25").router_temperature == 0.25
    given = config("--no-kv-events", "--router-queue-policy", "lcfs", "--no-router-assume-kv-reuse")
    assert (given.use_kv_events, given.router_queue_policy, given.router_assume_kv_reuse) == (False, "lcfs", False)
    for arguments, environment in ((["--load-aware"], ""), ([], "true")):
        monkeypatch.setenv("DYN_ROUTER_LOAD_AWARE", environment)
        given = config(*arguments)
        assert (given.overlap_score_credit, given.use_kv_events, given.router_assume_kv_reuse) == (0.0, False, False)
    monkeypatch.setenv("DYN_ROUTER_LOAD_AWARE", "1")
    assert config("--no-load-aware").use_kv_events


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("DYN_ROUTER_TEMPERATURE", "hot", "a number"),
        ("DYN_ROUTER_QUEUE_THRESHOLD", "1_0", "a number"),
        ("DYN_ROUTER_EVENT_THREADS", "many", "an integer"),
        ("DYN_ROUTER_USE_KV_EVENTS", "maybe", "1, true, on, yes, or 0, false, off, no"),
        ("DYN_ROUTER_LOAD_AWARE", "maybe", "1, true, on, yes, or 0, false, off, no"),
        ("DYN_ROUTER_CONDITIONAL_DISAGG_POLICY", "best", "one of isl_bounding, prefill_load, isl_or_load"),
    ],
)
def test_variables_that_cannot_be_read_are_errors_of_commands(
    variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for parser, read, arguments in (
        (_standalone._parser(), _standalone._config, ["--endpoint", PATH]),
        (serve._parser("serve"), serve._settings, ["--engine", "http://x"]),
    ):
        monkeypatch.setenv(variable, value)
        with pytest.raises(InvalidArgument, match=f"^{variable}='{value}', expected {expected}$"):
            read(parser.parse_args(arguments))


def test_flags_that_have_only_their_defaults_are_behind_the_others() -> None:
    for parser in (_standalone._parser(), serve._parser("serve")):
        useful, others = parser.format_help().split("of Dynamo, taken with their defaults only:")
        assert "--router-temperature" in useful and "--shared-cache-type" not in useful
        for flag in _standalone._DEFAULT_ONLY:
            assert f"--{flag}" in others


def test_namespaces_are_dynamos(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _standalone._paths("dyn://a.b.c") == ("a", "a.b.c")
    monkeypatch.setenv("DYN_NAMESPACE_WORKER_SUFFIX", "blue")
    assert _standalone._paths("a.b.c") == ("a", "a-blue.b.c")
    monkeypatch.setenv("DYN_NAMESPACE", "n")
    assert _standalone._paths("a.b.c") == ("n", "n-blue.b.c")
    monkeypatch.delenv("DYN_NAMESPACE_WORKER_SUFFIX")
    assert _standalone._paths("a.b.c") == ("n", "n.b.c")


def test_a_worker_that_is_killed_leaves_within_its_lease(deployment: Path) -> None:
    """And what a deployment that died leaves behind does no harm to the next one."""

    async def main() -> None:
        fast = ("--mocker", "--endpoint", PATH, "--speedup", "100")
        served = await Served().start(workers=0)
        own = set(deployment.rglob("*"))
        with started("worker", *fast) as dead:
            while not served.router._router.workers():
                await asyncio.sleep(0.005)
            dead.end(signal.SIGKILL)
        left = [path for path in deployment.rglob("*") if path.is_file() and path not in own]
        assert any(f"{dead.ready['worker_id']:x}" in path.name for path in left)
        began = time.monotonic()
        while served.router._router.workers():
            await asyncio.sleep(0.05)
        assert time.monotonic() - began < 15, "10 s are the lease"
        for path in left:  # some were deleted meanwhile, by whoever looked
            path.touch()
            os.utime(path, (1, 1))
        with started("worker", *fast) as alive:
            items: list[Any] = []
            while not items:
                with contextlib.suppress(WorkerError):  # no worker yet
                    items = await served.ask("generate", {"token_ids": [1], "stop_conditions": {"max_tokens": 2}})
            assert items[0]["routing_data"]["worker_id"]["decode_worker_id"] == alive.ready["worker_id"]

    run(main(), timeout=120)


def test_dynamos_client_of_the_router() -> None:
    """The release's own client calls all of the router's endpoints, and is told of errors."""
    python = wheel()
    with (
        started("worker", "--mocker", "--endpoint", PATH, "--speedup", "100") as worker,
        started("router", "--endpoint", PATH, "--block-size", "16") as router,
    ):
        me = worker.ready["worker_id"]
        while "1 worker of" not in router.told():
            pass
        for _ in range(20):  # until the worker's event has come
            command = [python, str(CLIENT), "try", "64"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            told = json.loads(done.stdout.splitlines()[-1])
            ((scores,),) = told["get_overlap_scores"]
            if [row["device_blocks"] for row in scores["workers"]] == [4]:
                break
        items, wrong = told["generate"]
        assert [len(item["token_ids"]) for item in items] == [1, 1, 1]
        assert items[0]["routing_data"]["worker_id"]["decode_worker_id"] == me
        assert items[2]["finish_reason"] == "length" and "timing" in items[2]["routing_data"]
        assert "token_ids" in str(wrong)
        assert told["best_worker_id"] == [[me]]
        assert scores["block_size"] == 16 and scores["num_blocks"] == 4
        assert scores["workers"][0]["worker_id"] == me and scores["workers"][0]["device_blocks"] == 4
