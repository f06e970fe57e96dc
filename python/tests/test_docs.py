"""Everything in the documents runs: Python blocks as they are, commands against the programs they name."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from dynamo_go._types import Finding
from dynamo_go.demo.cli import POLICIES
from dynamo_go.demo.report import _COLUMNS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        for i, m in enumerate(re.finditer(rf"^```{language}\n(.*?)^```$", document.read_text(), re.M | re.S)):
            found.append((f"{document.name}-{i}", m.group(1)))
    assert found, f"no {language} block in any document"
    return found


@pytest.mark.parametrize(("name", "code"), blocks("python"))
def test_python_block_runs(name: str, code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{name}: {done.stderr}"


@pytest.mark.parametrize(("name", "text"), blocks("sh"))
def test_commands_exist(name: str, text: str) -> None:
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["./build.sh"]:
            usage = subprocess.run([ROOT / "build.sh", "help"], capture_output=True, text=True, check=True).stdout
            assert re.search(rf"^  {words[1]}\b", usage, re.M), f"{name}: build.sh has no command {words[1]}"
        elif words[:3] == ["python", "-m", "dynamo_go"]:
            shown = subprocess.run([sys.executable, *words[1:4], "--help"], capture_output=True, text=True, timeout=60)
            assert shown.returncode == 0, f"{name}: {line}: {shown.stderr}"
            for flag in (w for w in words if w.startswith("--")):
                assert flag in shown.stdout, f"{name}: {line}: no flag {flag}"
        elif words:
            assert words == ["pip", "install", "."], f"{name}: nothing checks the command {line!r}"


def test_documents_name_what_exists() -> None:
    """Paths in backticks exist."""
    for document in DOCUMENTS:
        for path in re.findall(
            r"`((?:core|capi|include|python|examples|docs|testdata|bench)/[\w./]*)`", document.read_text()
        ):
            assert (ROOT / path).exists(), f"{document.name} names {path}, which does not exist"


def test_counters_and_reasons_exist() -> None:
    """What the troubleshooting page tells of is what the feed counts and says."""
    tables = (ROOT / "docs" / "troubleshooting.md").read_text().split("## States")[1].split("## Nothing is found")[0]
    said = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", tables)) - {
        "remove_worker",
        "allowed_worker_ids",
        "replay_endpoint",
        "use_kv_events",
    }
    source = "".join((ROOT / path).read_text() for path in SOURCES)
    assert len(said) > 15
    for name in said:
        assert f'"{name}"' in source, f"docs/troubleshooting.md names {name}, which nothing counts or says"


SOURCES = (
    "core/feed/counters.go",
    "core/feed/machine.go",
    "core/wire/normalize.go",
    "core/router/config.go",
    "core/router/router.go",
)


def test_the_page_explains_every_finding() -> None:
    section = (ROOT / "docs" / "troubleshooting.md").read_text().split("## Findings")[1].split("\n## ")[0]
    source = (ROOT / "core" / "diagnose" / "doc.go").read_text()
    causes = re.findall(r'Cause = "(\w+)"', source)
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == causes == list(get_args(get_type_hints(Finding)["cause"]))


def test_an_example_prints_what_its_page_shows() -> None:
    """Python blocks that are followed by what they print."""
    pairs = [
        pair
        for document in DOCUMENTS
        for pair in re.findall(
            r"^```python\n([^`]*?)^```\n\nprints\n\n```text\n(.*?)^```$", document.read_text(), re.M | re.S
        )
    ]
    assert pairs
    for code, shown in pairs:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == shown


def test_readme_shows_what_the_demo_prints() -> None:
    """The figures on the first screen are there, under the demo's own column names."""
    shown = (ROOT / "README.md").read_text().split("<!-- demo -->")[1].split("<!-- /demo -->")[0]
    for column in _COLUMNS:
        assert column in shown, column
    for policy in POLICIES:
        assert len(re.findall(rf"^{policy} +0\.\d", shown, re.M)) == 2, policy
