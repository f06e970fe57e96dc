"""Builds the wheel: libdynamo_go.so with Go, the extension with a C compiler. pyproject.toml tells the rest."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CCompilerError, SetupError

HEADER = Path("include/dynamo_go.h")
GO_MINOR = 26


def go_command() -> str:
    """Find a Go that is new enough, or say what is missing."""
    go = shutil.which("go")
    if go is None:
        raise SetupError(
            f"dynamo-go is built from source and needs Go 1.{GO_MINOR} or newer: no 'go' on PATH. "
            "Install Go, or install a wheel made by './build.sh wheel', which needs neither Go nor a C compiler."
        )
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True)
    found = re.match(r"go1\.(\d+)", version.stdout)
    if found is None or int(found[1]) < GO_MINOR:
        told = version.stdout.strip() or version.stderr.strip()
        raise SetupError(f"dynamo-go needs Go 1.{GO_MINOR} or newer: '{go}' says {told!r}")
    compiler = subprocess.run([go, "env", "CC"], capture_output=True, text=True).stdout.split()
    if not compiler or shutil.which(compiler[0]) is None:
        name = compiler[0] if compiler else "cc"
        raise SetupError(
            f"dynamo-go needs a C compiler: no {name!r} on PATH. Install gcc (Debian: gcc libc6-dev), or set CC."
        )
    return go


def has_glibc() -> bool:
    """Tell glibc from musl, which has no such name."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):
        return False


class BuildNative(build_ext):
    """Builds the extension, and beside it the library that it loads."""

    def run(self) -> None:
        """Build the library first: without Go there is no point in compiling."""
        if not sys.platform.startswith("linux"):
            raise SetupError(f"dynamo-go runs on Linux; this is {sys.platform}")
        if not has_glibc():
            raise SetupError(
                "dynamo-go needs glibc: a Go library cannot be loaded where the C library is musl (Alpine). "
                "Use an image with glibc, such as Debian, Ubuntu or RHEL."
            )
        package = Path(self.get_ext_fullpath("dynamo_go._native")).parent
        self.build_library(package / "libdynamo_go.so")
        (package / "include").mkdir(exist_ok=True)
        shutil.copy(HEADER, package / "include")
        try:
            super().run()
        except CCompilerError as error:
            raise SetupError(
                f"dynamo-go needs a C compiler and Python's headers (Debian: gcc libc6-dev python3-dev): {error}"
            ) from error

    def build_library(self, target: Path) -> None:
        """Build libdynamo_go.so: stripped, and the same from any directory."""
        go = go_command()
        scratch = Path(self.build_temp) / "go"
        scratch.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        library = scratch / target.name
        # grpcnotrace: gRPC's trace pages bring templates, and with them every method there is: 4 MB.
        command = [go, "build", "-buildmode=c-shared", "-tags=grpcnotrace", "-trimpath", "-buildvcs=false"]
        command += ["-ldflags=-s -w -buildid="]
        environment = {**os.environ, "CGO_ENABLED": "1"}
        try:
            subprocess.run([*command, "-o", str(library), "./capi"], check=True, env=environment)
        except subprocess.CalledProcessError as error:
            raise SetupError(f"building libdynamo_go.so failed (see above): {error}") from error
        shutil.copy(library, target)


class Source(sdist):
    """The sdist, byte for byte the same from the same sources: times are SOURCE_DATE_EPOCH, nobody owns anything."""

    def make_archive(self, base_name: str, format: str, *rest: Any, base_dir: str = "", **owner: Any) -> str:
        """Pack a folder."""
        made = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = made
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            return info

        archive = f"{base_name}.tar.gz"
        with (
            open(archive, "wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=made) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,  # type: ignore[arg-type]
        ):
            tar.add(base_dir, filter=plain)  # in the order of names
        return archive


def version() -> str:
    """Read the version from its one source."""
    found = re.search(r'#define DGO_VERSION "([^"]+)"', HEADER.read_text())
    if found is None:
        raise SetupError(f"{HEADER} has no DGO_VERSION")
    return found[1]


setup(
    version=version(),
    ext_modules=[
        Extension(
            "dynamo_go._native",
            sources=sorted(str(path) for path in Path("python/src").glob("*.c")),
            depends=[str(HEADER), "python/src/native.h"],
            include_dirs=["include"],
            extra_compile_args=["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-g0", "-fvisibility=hidden"],
            libraries=["dl"],
        )
    ],
    cmdclass={"build_ext": BuildNative, "sdist": Source},
)
