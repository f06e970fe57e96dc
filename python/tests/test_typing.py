"""The types that users' checkers see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_types_are_what_the_examples_say() -> None:
    example = Path(__file__).parent / "typing" / "examples.py"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", example],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
