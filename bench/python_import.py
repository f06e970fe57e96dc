"""What it takes to import a package in a new process: CPU time, which the interpreter's own start is not part of.

Ours goes on to a first decision. Asked by ./build.sh bench; the argument says which package.
"""

from __future__ import annotations

import subprocess
import sys

from python_serve import answer, questions

SAMPLES = 10

PROGRAMS = {
    "ours": """
from dynamo_go import Router
router = Router(16)
router.add_worker(1)
assert router.best_worker(range(64)) == (1, 0, 0)
""",
    "wheel": "import dynamo.llm",
}


def sample(program: str) -> float:
    """Nanoseconds, in a new process."""
    timed = f"import time\nstart = time.process_time_ns()\n{program}\nprint(time.process_time_ns() - start)"
    return float(subprocess.run([sys.executable, "-c", timed], capture_output=True, check=True).stdout)


def main() -> None:
    """Answer."""
    program = PROGRAMS[sys.argv[1]]
    sample(program)  # files are in memory, and compiled
    for measurement in questions():
        answer(measurement, [sample(program) for _ in range(SAMPLES)])


if __name__ == "__main__":
    main()
