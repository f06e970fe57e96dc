"""The examples run as they are; each asserts that the worker that holds the prefix was chosen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "workers.py")


def test_examples_are_there() -> None:
    assert EXAMPLES == [
        "automatic.py",
        "bare_engines.py",
        "dynamo_names.py",
        "http_engines.py",
        "manual_lifecycle.py",
        "minimise_ttft.py",
        "own_choice.py",
        "probe_routers.py",
        "warm_restart.py",
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", FOLDER / name], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "worker" in done.stdout and done.stderr == ""
    assert "the worker that holds the prefix" in (FOLDER / name).read_text()
