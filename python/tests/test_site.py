"""The documentation site: its references are complete, and its check finds what it is there to find."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dynamo_go

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "site"


def tool(name: str) -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


def test_python_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert set(re.findall(r"^::: dynamo_go\.([A-Za-z]\w*)$", page, re.M)) == set(dynamo_go.__all__)


def test_c_reference_has_every_function_and_its_comment() -> None:
    header = (ROOT / "include" / "dynamo_go.h").read_text()
    page = tool("header").markdown(header)
    names = tool("header").functions(header)
    assert len(names) > 35
    for name in names:
        section = page.split(f"### {name} ")[1].split("\n### ")[0]
        assert "```c" in section, f"{name} is not declared"
        assert len(section.split("```")[2]) > 20, f"{name} is not explained"
    for macro in re.findall(r"^#define (DGO_\w+) ", header, re.M):
        assert f"#define {macro} " in page, macro


def test_c_reference_refuses_to_lose_a_function() -> None:
    header = (ROOT / "include" / "dynamo_go.h").read_text()
    end = header.rindex("#ifdef __cplusplus")
    hidden = header[:end] + "/* Two in one. */\ndgo_status dgo_a(void);\ndgo_status dgo_b(void);\n" + header[end:]
    with pytest.raises(ValueError, match="dgo_b"):
        tool("header").markdown(hidden)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="other.html">', None),
        ('<a href="other.html#there">', None),
        ('<a href="other.html#gone">', "no such place"),
        ('<a href="gone.html">', "does not exist"),
        ('<img src="gone.svg">', "does not exist"),
        ('<img src="https://example.org/a.png">', "fetches"),
        ('<script src="//example.org/a.js"></script>', "fetches"),
        ('<link rel="stylesheet" href="https://example.org/a.css">', "fetches"),
        ('<a href="https://example.org/">', None),
    ],
)
def test_check_of_the_site(tmp_path: Path, body: str, fault: str | None) -> None:
    (tmp_path / "page.html").write_text(body)
    (tmp_path / "other.html").write_text('<h1 id="there">')
    faults = tool("build").check(tmp_path)
    assert len(faults) == (fault is not None)
    assert fault is None or fault in faults[0]
