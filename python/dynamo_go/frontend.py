"""``python -m dynamo_go.frontend``: :mod:`dynamo_go.serve` under the name of Dynamo's frontend."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; gives the exit status."""
    return serve.main(arguments, "python -m dynamo_go.frontend")


if __name__ == "__main__":
    sys.exit(main())
