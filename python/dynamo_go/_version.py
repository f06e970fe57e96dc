"""``python -m dynamo_go version``."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from . import _native


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the versions; gives the exit status."""
    argparse.ArgumentParser(
        prog="python -m dynamo_go version",
        description="Prints the versions of the installed package, of libdynamo_go.so and of its C interface.",
    ).parse_args(arguments)
    try:
        package = version("dynamo-go")
    except PackageNotFoundError:
        package = "not installed"
    print(f"dynamo-go {package}, library {_native.version()}, ABI {_native.abi_version()}")
    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}")
    return 0
