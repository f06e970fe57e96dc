"""The demo on a short slice: its figures add up, and it fails when it should. No times are checked."""

from __future__ import annotations

import argparse
import asyncio
import codecs
import contextlib
import gzip
import json
import math
import os
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dynamo_go.demo import cli, report, trace
from dynamo_go.demo.engines import EngineFailed, Engines
from dynamo_go.demo.figures import figures, percentile
from dynamo_go.demo.replay import Outcome

REQUESTS = 60
BLOCK = 16
POLICIES = ["KV routing", "round robin", "random"]


def slice_lines(count: int) -> list[dict[str, Any]]:
    data = resources.files("dynamo_go.demo").joinpath("data/conversation_1000.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(data).splitlines()[:count]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "dynamo_go", "demo", "--requests", str(REQUESTS), "--speedup", "100"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def result(ran: tuple[Path, str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((ran[0] / "demo.json").read_text())
    return value


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the demo says of a busy machine is not part of what is compared."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def test_a_busy_machine_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (cores + 0.5, 0.0, 0.0))
    assert f"load average {cores + 0.5:.1f}, {cores} cores" in cli._busy()
    monkeypatch.setattr(os, "getloadavg", lambda: (cores, 0.0, 0.0))
    assert cli._busy() == ""


def test_the_slice_is_what_its_note_says() -> None:
    lines = slice_lines(2000)
    assert len(lines) == 1000
    assert lines[0]["timestamp"] == 0
    assert "Apache License" in resources.files("dynamo_go.demo").joinpath("data/LICENSE").read_text()


def test_ideal_and_totals_follow_from_the_trace(result: dict[str, Any]) -> None:
    lines = slice_lines(REQUESTS)
    total = sum(line["input_length"] for line in lines)
    assert result["setup"]["prompt_tokens"] == total
    cache: set[tuple[int, ...]] = set()
    found = 0
    for line in lines:
        ids, length = line["hash_ids"], line["input_length"]
        prefixes = [(*ids[: n + 1], min(length, 512 * (n + 1))) for n in range(len(ids))]
        held = [prefix[-1] for prefix in prefixes if prefix in cache]
        found += min(max(held, default=0), length - 1) // BLOCK * BLOCK
        cache.update(prefixes)
    assert found > 0
    assert result["ideal_hit_rate"] == pytest.approx(found / total)
    for run in result["runs"]:
        assert 0 < run["saved_tokens"] <= found


def test_figures_of_each_run_add_up(result: dict[str, Any]) -> None:
    assert [(run["pool"], run["policy"]) for run in result["runs"]] == [
        (pool, policy) for pool in ("everything", "25 %") for policy in POLICIES
    ]
    assert result["errors"] == []
    for run in result["runs"]:
        assert (run["requests"], run["lost"]) == (REQUESTS, 0)
        assert run["prompt_tokens"] == result["setup"]["prompt_tokens"]
        assert run["saved_tokens"] % BLOCK == 0
        assert sum(run["uncached_per_worker"]) == run["prompt_tokens"] - run["saved_tokens"]
        assert run["hit_rate"] == pytest.approx(run["saved_tokens"] / run["prompt_tokens"])
        assert run["share_of_ideal"] == pytest.approx(run["hit_rate"] / result["ideal_hit_rate"])
        assert run["spread"] == pytest.approx(4 * max(run["uncached_per_worker"]) / sum(run["uncached_per_worker"]))
        assert sum(run["requests_per_worker"]) == REQUESTS
        assert 0 < run["ttft_mean"] <= run["ttft_p99"]
        assert run["ttft_mean"] < run["ttft_here_mean"] <= run["ttft_here_p99"]
        assert 0 < run["decision_p50"] <= run["decision_p99"]
        if run["policy"] == "round robin":
            assert run["requests_per_worker"] == [REQUESTS // 4] * 4
        if run["policy"] == "KV routing":
            assert run["notes"] == {"ranks_exact": 4}
    small = result["runs"][3]["blocks"]
    assert small < result["runs"][0]["blocks"]
    assert small >= result["setup"]["distinct_blocks"] // 4
    for comparison, start in zip(result["comparisons"], (0, 3)):
        kv, other = result["runs"][start], result["runs"][start + 1]
        assert comparison["pool"] == kv["pool"] == other["pool"]
        assert comparison["hit_rate_ratio"] == pytest.approx(kv["hit_rate"] / other["hit_rate"])
        assert comparison["spread_ratio"] == pytest.approx(kv["spread"] / other["spread"])
        assert comparison["ttft_mean_ratio"] == pytest.approx(kv["ttft_mean"] / other["ttft_mean"])


def test_what_is_printed_and_plotted_is_what_was_measured(ran: tuple[Path, str], result: dict[str, Any]) -> None:
    out, text = ran
    rows = [line for line in text.splitlines() if line.startswith(tuple(POLICIES))]
    assert len(rows) == 6
    for row, run in zip(rows, result["runs"]):
        for part in (run["policy"], f"{run['hit_rate']:.3f}", f"{run['spread']:.3f}", f"{run['ttft_mean']:.3f} s"):
            assert part in row
    assert "Requests lost: 0." in text
    assert text.count("Together the pools can hold the whole working set") == 1
    drawing = ElementTree.parse(out / "demo.svg").getroot()
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    words = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    for run in result["runs"]:
        assert f"{run['hit_rate']:.3f}" in words


@pytest.mark.parametrize("rich", [True, False])
def test_progress_goes_to_standard_error_alone(rich: bool, tmp_path: Path) -> None:
    without = "" if rich else "sys.modules['rich'] = None; "
    program = f"import sys; {without}from dynamo_go.__main__ import main; sys.exit(main(sys.argv[1:]))"
    options = ["demo", "--requests", "8", "--speedup", "100", "--pools", "1", "--out", str(tmp_path)]
    screen, terminal = os.openpty()
    told = ""
    with subprocess.Popen(
        [sys.executable, "-c", program, *options],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(terminal)
        with open(screen, "rb", buffering=0) as drawn, contextlib.suppress(OSError):  # EIO: nobody writes any more
            shown = codecs.getincrementaldecoder("utf-8")()
            while data := drawn.read(4096):
                told += shown.decode(data)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, told
    assert ("\N{BOX DRAWINGS HEAVY HORIZONTAL}" in told) == rich, "rich's bar"
    assert "24/24" in told
    rows = [line for line in output.splitlines() if any(policy in line for policy in POLICIES)]
    assert [row.split("  ")[0] for row in rows[:3]] == POLICIES
    assert "24/24" not in output and "\r" not in output and "\x1b" not in output


def test_figures_of_known_outcomes() -> None:
    outcomes = [
        Outcome(0, 3e-6, 0.0, prompt_tokens=100, cached_tokens=40, ttft=1.0, ttft_here=2.0),
        Outcome(1, 1e-6, 0.2, prompt_tokens=300, cached_tokens=160, ttft=3.0, ttft_here=4.0),
        Outcome(1, 2e-6, 0.1, error="lost"),
    ]
    got = figures("any", "all", 10, 2, outcomes, 0.8, 1.0, {})
    assert (got.requests, got.lost, got.prompt_tokens, got.saved_tokens) == (3, 1, 400, 200)
    assert got.hit_rate == 0.5
    assert got.share_of_ideal == pytest.approx(0.625)
    assert got.uncached_per_worker == [60, 140]
    assert got.spread == pytest.approx(1.4)
    assert (got.ttft_mean, got.ttft_p99, got.ttft_here_mean) == (2.0, 3.0, 3.0)
    assert (got.decision_p50, got.decision_p99, got.late_p99) == (2e-6, 3e-6, 0.2)
    assert [percentile(range(1, 101), share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert math.isnan(percentile([], 0.5))


def test_tokens_depend_on_the_hash_ids_alone() -> None:
    requests = trace.load(20, "a model")
    for request, line in zip(requests, slice_lines(20)):
        assert len(request.tokens) == line["input_length"] == request.prompt_tokens
        body = json.loads(request.body)
        assert body["prompt"] == request.tokens.tolist()
        assert (body["model"], body["max_tokens"]) == ("a model", line["output_length"])
        for other in requests:
            shared = 0
            while request.hash_ids[shared : shared + 1] == other.hash_ids[shared : shared + 1] != ():
                shared += 1
            common = min(512 * shared, len(request.tokens), len(other.tokens))
            assert request.tokens[:common] == other.tokens[:common]
            assert request is other or request.tokens[:1024] != other.tokens[:1024]
    with pytest.raises(ValueError, match="must be in 1..1000"):
        trace.load(1001, "a model")


def test_lost_requests_fail_the_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.RATES, "max_num_seqs", 1)
    monkeypatch.setitem(cli.RATES, "max_waiting", 1)
    status = cli.main(["--requests", "40", "--speedup", "100", "--pools", "1", "--out", str(tmp_path)])
    assert status == 1
    shown = capsys.readouterr()
    assert "429" in shown.err
    result = json.loads((tmp_path / "demo.json").read_text())
    lost = sum(run["lost"] for run in result["runs"])
    assert lost == len(result["errors"]) > 0
    assert f"Requests lost: {lost}." in shown.out


def test_what_cannot_be_measured_is_null(tmp_path: Path) -> None:
    assert cli.main(["--requests", "1", "--speedup", "100", "--pools", "1", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "demo.json").read_text())
    assert result["ideal_hit_rate"] == 0
    assert result["runs"][0]["share_of_ideal"] is None
    assert result["comparisons"][0]["hit_rate_ratio"] is None
    ElementTree.parse(tmp_path / "demo.svg")


def test_an_engine_that_does_not_start_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.RATES, "inter_token_ms", -1)
    assert cli.main(["--requests", "1", "--out", str(tmp_path)]) == 1
    assert "inter_token_ms is -1" in capsys.readouterr().err


def test_an_interrupt_while_loading_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(limit: int, model: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace, "load", interrupted)
    assert cli.main(["--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "Loading the trace\ndemo: interrupted\n"


def test_a_folder_that_cannot_be_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert cli.main(["--out", str(out)]) == 1
        told = capsys.readouterr().err
        assert told.startswith("demo: failed: ") and str(tmp_path / "file") in told and told.count("\n") == 1


def test_the_summary_is_in_plain_words() -> None:
    run = {"ttft_here_mean": 1.0, "late_p99": 0.001, "lost": 0}
    setup = {"requests": 5, "prompt_tokens": 1e6, "trace_seconds": 9, "speedup": 25, "engines": 1}
    ratios = {"spread_ratio": 1.05, "hit_rate_ratio": 1.72, "ttft_mean_ratio": 0.92}
    result = {"setup": setup, "runs": [run], "ideal_hit_rate": 0.4, "seconds": 1.0}
    text = report.summary({**result, "comparisons": [{"pool": "25 %", **ratios}]}, 121_900)
    assert "Caches of 25 %: KV routing has 72 % more hits than round robin, its mean TTFT is 8 % lower." in text
    assert "hit rate 1.72, mean TTFT 0.92, balance 1.05" in text
    assert "to 1 engine." in text and "up to 122 k tokens" in text and "shared with the engines" in text
    ratios = {"spread_ratio": 1, "hit_rate_ratio": math.nan, "ttft_mean_ratio": 1.001}
    text = report.summary({**result, "comparisons": [{"pool": "everything", **ratios}]}, 1)
    assert "KV routing has hits that cannot be compared with round robin, its mean TTFT is the same." in text
    assert "Believe no TTFT" not in text
    text = report.summary({**result, "runs": [run, {**run, "late_p99": 4.01}], "comparisons": []}, 1)
    assert "requests were sent 4.0 s late (99th percentile). Believe no TTFT of this run" in text


@pytest.mark.parametrize(("engines", "whole"), [(4, True), (3, False)])
def test_pools_that_hold_everything_together_are_named(engines: int, whole: bool) -> None:
    options = argparse.Namespace(requests=200, engines=engines, pools=[0.25], block_size=BLOCK)
    title = cli.Demo(options).titles()["25 %"]
    assert ("Together the pools can hold the whole working set" in title) == whole


def test_an_engine_that_dies_is_noticed() -> None:
    async def main() -> None:
        async with Engines(2, {"blocks": 100}) as engines:
            engines.check()
            victim = engines._processes[1]
            victim.kill()
            await victim.wait()
            with pytest.raises(EngineFailed, match="engine 1 ended"):
                engines.check()

    asyncio.run(main())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--requests", "0"],
        ["--requests", "1001"],
        ["--pools", "0"],
        ["--pools", "x"],
        ["--pools", "1,2"],
        ["--speedup", "0"],
    ],
)
def test_options_out_of_range_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_mocker_command(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "dynamo_go", "mocker", "--blocks", "50", "--topic", "kv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        info = json.loads(process.stdout.readline())
        assert (info["blocks"], info["topic"], info["block_size"]) == (50, "kv", 16)
        assert info["http"].startswith("http://127.0.0.1:")
        assert info["kv_events"].startswith("tcp://127.0.0.1:")
        process.send_signal(number)
        assert process.wait(timeout=20) == 0


def test_mocker_command_refuses_a_bad_configuration() -> None:
    command = [sys.executable, "-m", "dynamo_go", "mocker", "--blocks", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "blocks is 0" in done.stderr
    assert done.stdout == ""
