"""``python -m dynamo_go``: commands, and events from hex and live."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import IO, Any

import pytest

from dynamo_go import InvalidArgument, _events
from dynamo_go.mocker import Mocker

GOLDEN = Path(__file__).resolve().parents[2] / "testdata" / "golden" / "engine-events"
KINDS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
FIELDS = [
    "seq",
    "ts",
    "dp_rank",
    "type",
    "block_hashes",
    "parent_hash",
    "token_ids",
    "block_size",
    "medium",
    "lora_name",
    "cache_salt",
    "group_idx",
]


def command(*arguments: str, text: str | bytes = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "dynamo_go", *arguments],
        input=text.encode() if isinstance(text, str) else text,
        capture_output=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("arguments", [("version",), ("events", "--help"), ("--help",)])
def test_who_reads_may_go(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "dynamo_go", *arguments], stdout=out, stderr=subprocess.PIPE, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, b"")


def decode(text: str | bytes, **environment: str) -> list[dict[str, Any]]:
    done = command("events", "--from-hex", text=text, **environment)
    assert done.returncode == 0 and done.stderr == b"", done.stderr
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def engine_hash(value: Any) -> int:
    if isinstance(value, dict):
        return int.from_bytes(bytes.fromhex(value["bin"])[-8:], "big")
    number: int = value
    return number & ((1 << 64) - 1)


def told(event: Any) -> dict[str, Any]:
    """What an event of the golden data says, of the fields that have the same place in every release."""
    if isinstance(event, list):
        names = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"]
        if event[0] == "BlockRemoved":
            names = ["type", "block_hashes", "medium"]
        event = dict(zip(names, event, strict=False))
    found: dict[str, Any] = {"type": KINDS[event["type"]], "medium": event.get("medium")}
    if found["type"] != "cleared":
        found["block_hashes"] = [engine_hash(value) for value in event["block_hashes"]]
    if found["type"] == "stored":
        parent = event["parent_block_hash"]
        found["parent_hash"] = None if parent is None else engine_hash(parent)
        found["block_size"] = event["block_size"]
        if all(isinstance(token, int) for token in event["token_ids"]):
            found["token_ids"] = event["token_ids"]
        if "lora_name" in event:
            found["lora_name"] = event["lora_name"]
    return found


def test_golden_payloads_from_hex() -> None:
    payloads: list[str] = []
    expected: list[tuple[str, Any, dict[str, Any]]] = []
    for path in sorted(GOLDEN.glob("*-*.json")):
        for message in json.loads(path.read_text())["live"]:
            payloads.append(message["frames_hex"][-1])
            ts, events, *rank = message["decoded"]
            expected += [(f"{path.name}: {message['meaning']}", (ts, rank), told(event)) for event in events]
    assert len(payloads) > 400
    lines = decode("\n".join(payloads))
    assert len(lines) == len(expected), "a line per event, none for an empty batch"
    for line, (where, (ts, rank), event) in zip(lines, expected, strict=True):
        assert list(line) == FIELDS, where
        assert line["seq"] is None and line["ts"] == ts, where
        assert rank in ([], [None]) or line["dp_rank"] == rank[0], where
        assert {name: line[name] for name in event} == event, where


def test_hex_that_is_not_a_batch() -> None:
    empty_batch = "93cb41d954fc401000009000"
    cleared = "93cb41d954fc401000009191b0416c6c426c6f636b73436c656172656400"
    unknown_event = "93cb41d954fc401000009191a3466f6f00"
    text = "\n".join([empty_batch, "", "zz", "ff", "abc", cleared.upper(), " " + cleared + "\r", "é", unknown_event])
    lines = decode(text)
    assert [set(line) for line in lines[:3]] == [{"error", "type"}] * 3
    assert all(line["type"] is None and line["error"] for line in lines[:3])
    assert [line.get("type") for line in lines[3:5]] == ["cleared", "cleared"]
    assert set(lines[5]) == {"error", "type"}
    assert lines[6]["type"] == "Foo" and "error" in lines[6]
    assert len(lines) == 7
    assert decode("") == []
    (line,) = decode(b"\xff\xfe\n")
    assert set(line) == {"error", "type"}


def test_output_is_utf8_whatever_the_terminal() -> None:
    # [ts, [{"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1, "lora_name": "é"}]]
    payload = (
        "92cb41d954fc4010000091"
        "85a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739101a9746f6b656e5f6964739101"
        "aa626c6f636b5f73697a6501a96c6f72615f6e616d65a2c3a9"
    )
    (line,) = decode(payload, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert line["lora_name"] == "é"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, b"COMMAND"),
        (["mocker", "--blocks", "0"], 2, b"mocker: bad configuration: blocks is 0"),
        (["mocker", "--http", "nonsense"], 2, b"mocker: cannot"),
        (["router"], 2, b"--endpoint is required"),
        (["router", "--endpoint", "a.b"], 2, b"router: Invalid endpoint format: 'a.b'"),
        (["router", "--endpoint", "a.b.c", "--block-size", "0"], 2, b"router: --router-block-size is '0'"),
        (
            ["router", "--endpoint", "a.b.c", "--router-temperature", "-1"],
            2,
            b"router: router_temperature must be finite",
        ),
        (["router", "--endpoint", "a.b.c", "--serve-indexer"], 2, b"router: serve_indexer=True is not implemented"),
        (
            ["router", "--endpoint", "a.b.c", "--request-plane", "smoke"],
            2,
            b"router: Invalid request plane mode: 'smoke'",
        ),
        (["router", "--endpoint", "a.b.c", "--router-queue-policy", "x"], 2, b"unknown queue policy"),
        (["worker"], 2, b"--mocker is required"),
        (["worker", "--mocker", "--endpoint", "a"], 2, b"worker: Invalid endpoint path 'a'"),
        (["worker", "--mocker", "--blocks", "0"], 2, b"worker: bad configuration: blocks is 0"),
        (["worker", "--mocker", "--discovery-backend", "mem"], 2, b"worker: --discovery-backend is 'mem'"),
        (["bogus"], 2, b"invalid choice: 'bogus'"),
        (["events"], 2, b"either an ENDPOINT or --from-hex"),
        (["events", "tcp://127.0.0.1:1", "--from-hex"], 2, b"either an ENDPOINT or --from-hex"),
        (["events", "--from-hex", "--replay", "tcp://127.0.0.1:1"], 2, b"--replay"),
        (["events", "udp://127.0.0.1:1"], 2, b"udp://127.0.0.1:1"),
        (["events", "tcp://127.0.0.1:0"], 2, b"tcp://127.0.0.1:0"),
        (["events", "tcp://127.0.0.1:70000"], 2, b"70000"),
        (["events", "tcp://127.0.0.1:5557", "--replay", "nonsense"], 2, b"nonsense"),
    ],
)
def test_wrong_arguments(arguments: list[str], status: int, message: bytes) -> None:
    done = command(*arguments)
    assert done.returncode == status and message in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["", "events", "router", "worker", "mocker", "demo", "version"])
def test_help(name: str) -> None:
    done = command(*([name] if name else []), "--help")
    assert done.returncode == 0 and b"usage: python -m dynamo_go" in done.stdout


def test_commands_load_only_what_they_need() -> None:
    program = "import sys, dynamo_go.__main__; print([m for m in sys.modules if m.startswith('dynamo_go.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['dynamo_go.__main__']"


def test_nothing_to_do_shows_the_help() -> None:
    done = command()
    assert done.returncode == 2 and done.stdout == b""
    assert done.stderr == command("--help").stdout


def test_help_of_the_mocker_has_ranges_that_hold() -> None:
    text = " ".join(command("mocker", "--help").stdout.decode().split())
    found = re.findall(r"--([a-z-]+) [NX] [^()]*?([\d.e]+) \.\. ([\d.e]+) \(", text)
    assert len(found) == 13
    for name, low, high in found:
        config = {name.replace("-", "_"): json.loads(high) * 2 if name != "prefill-tokens-per-second" else 2e9}
        with pytest.raises(InvalidArgument, match=name.replace("-", "_")) as refused:
            Mocker(**config)
        told = re.search(r"in ([\d.e+]+)\.\.([\d.e+]+)", str(refused.value))
        assert told is None or (float(told[1]), float(told[2])) == (float(low), float(high)), name
        assert told is not None or name == "dp-rank", name
    assert "curl http://" in text


def test_help_of_events_fits_a_terminal() -> None:
    assert max(map(len, command("events", "--help", COLUMNS="80").stdout.decode().splitlines())) <= 100


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version(argument: str) -> None:
    done = command(argument)
    assert done.returncode == 0 and b"library " in done.stdout and b"ABI 1" in done.stdout


# -- live


def complete(engine: Mocker, tokens: list[int]) -> None:
    body = json.dumps({"model": "mock-8b", "prompt": tokens, "max_tokens": 1}).encode()
    request = urllib.request.Request(
        engine.info["http"] + "/v1/completions", body, {"content-type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=30).read()


class Events:
    """A process that follows an engine."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dynamo_go", "events", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.out: IO[bytes] = self._process.stdout
        self._watchdog = threading.Timer(30, self._process.kill)
        self._watchdog.start()

    def next(self) -> dict[str, Any]:
        line = self.out.readline()
        assert line, f"the process ended: {self._process.stderr.read()!r}"  # type: ignore[union-attr]
        event: dict[str, Any] = json.loads(line)
        return event

    def told(self) -> str:
        """The next line of standard error."""
        assert self._process.stderr is not None
        return self._process.stderr.readline().decode()

    def end(self, signum: int | None = None) -> tuple[int, bytes]:
        if signum is not None:
            self._process.send_signal(signum)
        try:
            rest = self._process.communicate()[1]
        finally:
            self._watchdog.cancel()
        return self._process.returncode, rest


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_events_of_an_engine_replayed_then_live(signum: int) -> None:
    with Mocker(speedup=1000) as engine:
        complete(engine, list(range(32)))
        events = Events(engine.info["kv_events"], "--replay", engine.info["replay"])
        first = events.next()
        assert (first["seq"], first["type"], first["parent_hash"]) == (0, "stored", None)
        assert first["token_ids"] == list(range(len(first["token_ids"])))
        stop = threading.Event()

        # The subscription may come into effect after the replay, and what falls between is not heard.
        def complete_more() -> None:
            for n in itertools.count(1):
                complete(engine, list(range(1000 * n, 1000 * n + 16)))
                if stop.wait(0.05):
                    return

        completing = threading.Thread(target=complete_more)
        completing.start()
        while (event := events.next())["token_ids"][0] % 1000 != 0 or event["token_ids"][0] == 0:
            assert list(event) == FIELDS
        stop.set()
        completing.join()
        assert event["seq"] > 0 and event["block_size"] == 16
        told = f"events: connected to {engine.info['kv_events']}\n".encode()
        assert events.end(signum) == (0, told)


def test_events_end_soon_after_their_reader() -> None:
    with Mocker(speedup=1000) as engine:
        complete(engine, list(range(32)))
        events = Events(engine.info["kv_events"], "--replay", engine.info["replay"])
        events.next()
        events.out.close()
        assert events._process.wait() == 0, "without another event; the watchdog would have killed it"
        events.end()


def test_events_of_an_engine_that_comes_later() -> None:
    with Mocker(speedup=1000) as engine:
        addresses = {name: engine.info[name] for name in ("kv_events", "replay")}
    events = Events(addresses["kv_events"], "--replay", addresses["replay"])
    cannot = events.told()
    assert cannot.startswith("events: cannot connect: ") and cannot.endswith("; trying again\n")
    with Mocker(speedup=1000, **addresses) as engine:
        complete(engine, list(range(16)))
        assert events.next()["token_ids"] == list(range(16))
        assert events.told() == f"events: connected to {addresses['kv_events']}\n"
    # Who looks late finds that trying again failed, too.
    assert events.told().startswith(("events: connection lost: ", "events: cannot connect: "))
    assert events.end(signal.SIGTERM)[0] == 0


def test_silence_is_explained_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    told = _events._Told("tcp://h:1", "kv")
    for clock[0], state in ((0, "connecting"), (20, "cannot connect: refused"), (25, "cannot connect: refused again")):
        told.silence(state)
    for clock[0] in (30, 39, 40, 41, 100):
        told.silence("connected")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["events: cannot connect: refused; trying again", "events: connected to tcp://h:1"]
    assert len(lines) == 3 and "no message for 10 s" in lines[2] and "'kv'" in lines[2] and "enabled" in lines[2]
    told = _events._Told("tcp://h:1", None)
    told.events()
    clock[0] = 200
    told.silence("connected")
    assert capsys.readouterr().err == "events: connected to tcp://h:1\n"
