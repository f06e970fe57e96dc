"""The wheel and the sdist: tagged by what they need, the same from the same sources, enough without Go or a compiler."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EPOCH = os.environ.get("SOURCE_DATE_EPOCH", "1767225600")


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, **(env or {})}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)


def build(what: str, source: Path, target: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel or an sdist, as pip does."""
    program = f"from setuptools.build_meta import build_{what} as build; print(build({str(target)!r}))"
    return run(sys.executable, "-c", program, cwd=source, env=env)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist of this tree."""
    target = tmp_path_factory.mktemp("sdist")
    done = build("sdist", ROOT, target)
    assert done.returncode == 0, done.stderr
    (archive,) = target.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(target / "far" / "away", filter="data")
    (source,) = (target / "far" / "away").iterdir()
    return source


def test_sdist_is_the_same_from_the_same_sources(tmp_path: Path) -> None:
    sums = set()
    for name in ("first", "second"):
        assert build("sdist", ROOT, tmp_path / name).returncode == 0
        (archive,) = (tmp_path / name).glob("*.tar.gz")
        sums.add(hashlib.sha256(archive.read_bytes()).hexdigest())
    assert len(sums) == 1


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist."""
    target = tmp_path_factory.mktemp("wheel")
    done = build("wheel", sdist, target)
    assert done.returncode == 0, done.stderr
    return next(target.glob("*.whl"))


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def test_wheel_of_the_sdist_is_the_wheel_of_the_tree(wheel: Path, tmp_path: Path) -> None:
    known = os.environ.get("DGO_TEST_WHEEL")
    if known is None:
        assert build("wheel", ROOT, tmp_path).returncode == 0
        known = str(next(tmp_path.glob("*.whl")))
    assert contents(wheel) == contents(Path(known))
    assert wheel.read_bytes() == Path(known).read_bytes()


def test_wheel_is_tagged_by_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    audit = [sys.executable, "-m", "auditwheel"]
    done = run(*audit, "repair", "--only-plat", "-w", str(tmp_path), str(wheel), cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 0, done.stderr
    (tagged,) = tmp_path.glob("*.whl")
    assert "-manylinux_2_" in tagged.name
    assert "musllinux" not in tagged.name
    with zipfile.ZipFile(tagged) as archive:
        names = archive.namelist()
    assert not [name for name in names if ".libs/" in name], "it needs no library but the C library's"
    assert not [name for name in names if name.endswith((".c", ".go", ".a", ".o"))]


def test_library_is_stripped_and_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read("dynamo_go/libdynamo_go.so")
        installed = sum(entry.file_size for entry in archive.infolist())
    assert b".symtab" not in library
    assert b".debug_info" not in library
    assert b".zdebug_info" not in library
    assert str(ROOT).encode() not in library
    # Of the wheel of Dynamo's runtime, an eighth and a tenth of what it installs are 9.3 and 23.5 MB.
    assert installed < 22_300_000
    assert wheel.stat().st_size < 8_300_000


def test_wheel_alone_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    assert run(sys.executable, "-m", "venv", "--without-pip", str(environment), cwd=tmp_path).returncode == 0
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps"]
    done = run(*install, str(wheel), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    nothing = {"PATH": str(tmp_path / "nothing"), "PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    demo = [str(python), "-m", "dynamo_go", "demo", "--requests", "40", "--speedup", "200"]
    done = run(*demo, "--out", str(tmp_path), cwd=tmp_path, env=nothing)
    assert done.returncode == 0, done.stderr
    assert "KV routing" in done.stdout
    assert (tmp_path / "demo.svg").exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "needs Go 1.26 or newer: no 'go' on PATH"),
        ('echo "go1.20.4"', "says 'go1.20.4'"),
        ("echo broken >&2; exit 1", "says 'broken'"),
        ('test "$2" = CC && echo no-such-compiler || echo go1.99', "no 'no-such-compiler' on PATH"),
    ],
)
def test_building_without_the_tools_says_what_is_missing(
    sdist: Path, tmp_path: Path, script: str | None, message: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    if script is not None:
        (tools / "go").write_text(f"#!/bin/sh\n{script}\n")
        (tools / "go").chmod(0o755)
    done = build("wheel", sdist, tmp_path, PATH=str(tools))
    assert done.returncode != 0
    assert message in done.stderr


MUSL = """
import os
def confstr(name):
    raise ValueError("unrecognized configuration name")
os.confstr = confstr
"""


def test_musl_is_refused_with_the_cause(sdist: Path, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", MUSL + "import dynamo_go", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: dynamo_go cannot work here")
    assert "musl" in last
    assert "initial-exec TLS" in last
    (tmp_path / "sitecustomize.py").write_text(MUSL)
    done = build("wheel", sdist, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode != 0
    assert "needs glibc" in done.stderr


def libraries_with_thread_locals(folder: Path, count: int) -> list[str]:
    """Libraries that each have thread-local variables, as many applications load."""
    paths = []
    for n in range(count):
        source = folder / f"tls{n}.c"
        source.write_text(f"__thread long value{n}[64]; long *get{n}(void) {{ return value{n}; }}")
        target = folder / f"libtls{n}.so"
        compiler = os.environ.get("CC", "cc").split()
        done = run(*compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(source), cwd=folder)
        assert done.returncode == 0, done.stderr
        paths.append(str(target))
    return paths


# https://github.com/golang/go/issues/54805
def test_library_loads_late_after_many_with_thread_locals(tmp_path: Path) -> None:
    paths: list[Any] = libraries_with_thread_locals(tmp_path, 50)
    program = f"""
import ctypes
kept = [ctypes.CDLL(path) for path in {paths!r}]
for n, library in enumerate(kept):
    getattr(library, f"get{{n}}")()
from dynamo_go import Router
with Router(16) as router:
    router.add_worker(1)
    print(router.best_worker([1] * 64))
"""
    done = run(sys.executable, "-c", program, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("(1, 0, 0)\n", "")
