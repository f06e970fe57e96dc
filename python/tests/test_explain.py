"""``python -m dynamo_go explain``: the table of what a router gave, and a decision that is made again from its parts."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dynamo_go import Router, compute_block_hash_for_seq
from dynamo_go._explain import main, table

PROMPT = list(range(100, 164))


def busy_router() -> Router:
    router = Router(16)
    router.add_worker(1, taints=["slow"])
    router.add_worker(2, dp_size=2, adapters=["a"])
    hashes = compute_block_hash_for_seq(PROMPT, 16)
    blocks = [{"block_hash": n, "tokens_hash": h} for n, h in enumerate(hashes)]
    router.apply_event(
        2, {"event_id": 0, "dp_rank": 1, "data": {"stored": {"parent_hash": None, "blocks": blocks[:3]}}}
    )
    router.best_worker(range(1000, 1040), request_id="prefills", worker_id=2, dp_rank=1)
    router.best_worker(range(2000, 2100), request_id="decodes", worker_id=1)
    router.mark_prefill_complete("decodes")
    return router


@pytest.fixture
def files(tmp_path: Path) -> Path:
    with busy_router() as router:
        (tmp_path / "events").write_text(router.dump_events())
        (tmp_path / "loads").write_text(json.dumps(router.get_potential_loads([])))
        (tmp_path / "workers").write_text(json.dumps(router.workers()))
        (tmp_path / "explanation").write_text(json.dumps(router.explain(PROMPT)))
    (tmp_path / "tokens").write_text(" ".join(map(str, PROMPT)))
    return tmp_path


def test_a_decision_is_made_again(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--{name}={files / name}" for name in ("tokens", "events", "loads", "workers")]
    assert main([*arguments, "--json"]) == 0
    again: Any = json.loads(capsys.readouterr().out)
    assert again == json.loads((files / "explanation").read_text())
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.strip() == table(again)
    assert main([f"--explanation={files / 'explanation'}"]) == 0
    assert capsys.readouterr().out == text
    (files / "events").write_text(json.dumps((files / "events").read_text()))  # by json.dump, as the others
    assert main(arguments) == 0
    assert capsys.readouterr().out == text


def test_loads_of_any_traffic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hits, common beginnings, prefills that are complete or not, output: each cost is that of the router."""
    rng = random.Random(7)
    for _ in range(60):
        with Router(16) as router:
            for worker in range(3):
                router.add_worker(worker)
                hashes = compute_block_hash_for_seq(list(range(16 * rng.randrange(1, 12))), 16)
                held = [{"block_hash": n, "tokens_hash": h} for n, h in enumerate(hashes)]
                stored = {"stored": {"parent_hash": None, "blocks": held}}
                router.apply_event(worker, {"event_id": 0, "dp_rank": 0, "data": stored})
            for n in range(rng.randrange(1, 30)):
                begins = rng.randrange(200)
                prompt = [*range(begins), *range(100_000 * (n + 1), 100_000 * (n + 1) + rng.randrange(120))]
                router.best_worker(prompt, request_id=str(n))
                if rng.random() < 0.4:
                    router.mark_prefill_complete(str(n))
                if rng.random() < 0.2:
                    router.add_output_block(str(n), rng.randrange(1, 5))
                if rng.random() < 0.3:
                    router.free(str(n))
            prompt = [*range(500_000_000, 500_000_000 + rng.randrange(300))]  # what no request shares
            expected = router.explain(prompt)
            (tmp_path / "loads").write_text(json.dumps(router.get_potential_loads([])))
            (tmp_path / "events").write_text(router.dump_events())
            (tmp_path / "tokens").write_text(json.dumps(prompt))
        arguments = [f"--{name}={tmp_path / name}" for name in ("tokens", "events", "loads")]
        assert main([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == expected


def test_loads_of_a_router_where_requests_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").write_text(json.dumps({"router_queue_threshold": 0.5}))
    (tmp_path / "workers").write_text(json.dumps([{"worker_id": 1, "max_num_batched_tokens": 100}]))
    (tmp_path / "tokens").write_text("[1, 2, 3]")
    arguments = [f"--{name}={tmp_path / name}" for name in ("tokens", "loads", "workers", "config")]
    row = {
        "worker_id": 1,
        "dp_rank": 0,
        "potential_prefill_tokens": 200,
        "potential_decode_blocks": 17,
        "active_requests": 3,
    }
    (tmp_path / "loads").write_text(json.dumps([row]))
    assert main(arguments) == 0
    assert "it has to wait" in capsys.readouterr().out
    (tmp_path / "loads").write_text(json.dumps([row | {"potential_decode_blocks": 4}]))  # three with a common beginning
    assert main(arguments) == 1
    assert "--explanation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("potential_prefill_tokens", 10**12),
        ("potential_decode_blocks", -1),
        ("active_requests", 10**12),
        ("active_requests", 0),
    ],
)
def test_loads_that_cannot_be(key: str, wrong: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "worker_id": 1,
        "dp_rank": 0,
        "potential_prefill_tokens": 20,
        "potential_decode_blocks": 2,
        "active_requests": 1,
    }
    (tmp_path / "tokens").write_text("[1]")
    (tmp_path / "loads").write_text(json.dumps([row | {key: wrong}]))
    assert main([f"--tokens={tmp_path / 'tokens'}", f"--loads={tmp_path / 'loads'}", "--block-size=1"]) == 1
    assert "loads of rank 1/0" in capsys.readouterr().err


def test_the_table(files: Path) -> None:
    shown = json.loads((files / "explanation").read_text())
    lines = [line for line in table(shown).splitlines() if line.endswith("%")]
    cells = [line.replace("*", " ").split() for line in lines]
    assert (
        cells
        == [  # worker, rank, device, host, disk, shared, credit, prefill, decode, requests, taints, cost, chance
            ["1", "0", "0", "0", "0", "0", "0", "4", "10", "0", "1", "14", "0.0%"],
            ["2", "0", "0", "0", "0", "0", "0", "4", "4", "0", "1", "8", "100.0%"],
            ["2", "1", "3", "0", "0", "0", "3", "3.5", "6", "0", "1", "9.5", "0.0%"],
        ]
    )
    assert [line.lstrip().startswith("*") for line in lines] == [False, True, False]
    assert "64 tokens, 4 full blocks of 16" in table(shown)


def test_exclusions_and_errors_are_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = [f"--{name}={files / name}" for name in ("tokens", "events", "workers")]
    assert main([*base, "--worker-id=2", "--dp-rank=1"]) == 0
    text = capsys.readouterr().out
    assert "other_worker" in text and "other_rank" in text
    assert main([*base, "--constraints", '{"required_taints": ["x"]}']) == 0
    assert "no rank: no eligible worker" in capsys.readouterr().out
    assert main([*base, "--lora-name=a"]) == 0
    assert "no_adapter" in capsys.readouterr().out


def test_it_runs_from_a_pipe(files: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dynamo_go", "explain", "--tokens", "-", "--events", files / "events"],
        input=json.dumps(PROMPT), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "100.0%" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokens=nowhere"],
        ["--tokens=TMP/bad"],
        ["--explanation=TMP/bad"],
        ["--tokens=TMP/good", "--events=TMP/bad"],
        ["--tokens=TMP/good", "--loads=TMP/loads"],
        ["--tokens=TMP/good", "--block-size=0"],
        ["--tokens=TMP/good", "--override={"],
    ],
)
def test_bad_input_is_one_line(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_text("{nonsense")
    (tmp_path / "good").write_text("[1]")
    row = {
        "worker_id": 1,
        "dp_rank": 0,
        "potential_prefill_tokens": 160,
        "potential_decode_blocks": 1,
        "active_requests": 1,
    }
    (tmp_path / "loads").write_text(json.dumps([row]))
    assert main([argument.replace("TMP", str(tmp_path)) for argument in arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("explain: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "wrong", "what"),
    [
        (["--explanation"], {"a": 1}, "Router.explain"),
        (["--explanation"], [1], "Router.explain"),
        (["--tokens"], {"a": 1}, "a prompt"),
        (["--tokens"], "x", "a prompt"),
        (["--explanation"], "x", "Router.explain"),
        (["--tokens=GOOD", "--events"], 1, "Router.dump_events"),
        (["--tokens=GOOD", "--workers"], "x", "Router.workers"),
        (["--tokens=GOOD", "--workers"], [{}], "Router.workers"),
        (["--tokens=GOOD", "--events"], {"a": 1}, "Router.dump_events"),
        (["--tokens=GOOD", "--events"], [{"worker_id": 1, "event": None}], "Router.dump_events"),
        (["--tokens=GOOD", "--loads"], [1], "Router.get_potential_loads"),
        (["--tokens=GOOD", "--loads"], [{"worker_id": 1, "dp_rank": 0}], "Router.get_potential_loads"),
        (["--tokens=GOOD", "--workers"], [1], "Router.workers"),
        (["--tokens=GOOD", "--config"], [1], "KvRouterConfig"),
    ],
)
def test_wrong_file_is_named(
    arguments: list[str], wrong: Any, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good").write_text("[1]")
    (tmp_path / "wrong").write_text(json.dumps(wrong))
    arguments = [argument.replace("GOOD", str(tmp_path / "good")) for argument in arguments]
    assert main([*arguments[:-1], f"{arguments[-1]}={tmp_path / 'wrong'}"]) == 1
    assert f"{tmp_path / 'wrong'} is not " in (said := capsys.readouterr().err) and what in said
    assert not re.search("Error|NoneType|indices|attribute|literal|positional", said)


@pytest.mark.parametrize("option", ["--override", "--constraints"])
def test_wrong_option_is_named(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good").write_text("[1]")
    assert main([f"--tokens={tmp_path / 'good'}", f"{option}={{"]) == 1
    assert f"{option} is not JSON: " in capsys.readouterr().err


def test_it_needs_one_or_the_other() -> None:
    for arguments in ([], ["--tokens=a", "--explanation=b"]):
        with pytest.raises(SystemExit):
            main(arguments)
