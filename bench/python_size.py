"""How big a wheel is, and what it installs. Asked by ./build.sh bench; the arguments are the distribution and the wheels' folder."""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

from python_serve import answer, questions


def installed(name: str) -> int:
    """Bytes of the distribution's own files, but for those that Python compiles later."""
    files = distribution(name).files or []
    return sum(Path(str(file.locate())).stat().st_size for file in files if file.suffix != ".pyc")


def main() -> None:
    """Answer."""
    name, folder = sys.argv[1:]
    (wheel,) = Path(folder).glob(f"{name.replace('-', '_')}-*.whl")
    sizes = {"wheel": wheel.stat().st_size, "installed": installed(name)}
    for measurement in questions():
        answer(measurement, [sizes[measurement]])


if __name__ == "__main__":
    main()
