"""The name of ``dynamo.runtime.logging`` that programs use."""

from __future__ import annotations

import logging
import os
import sys

_LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40, "critical": 50, "off": 100}


def configure_dynamo_logging(service_name: str | None = None, worker_id: int | None = None) -> None:
    """Have Python's log records written to standard error from the level of ``DYN_LOG`` on ("info" if not set).

    Of a list of directives the one without a target counts. Engines' own loggers are left as they are. What the library
    itself logs is a matter of its own, see ``docs/troubleshooting.md``.

    Args:
        service_name: named in each line.
        worker_id: likewise.
    """
    level = "info"
    for directive in (os.environ.get("DYN_LOG") or "info").split(","):
        if "=" not in directive:
            level = directive.strip().lower()
    who = ".".join(str(part) for part in (service_name, worker_id) if part is not None)
    logging.basicConfig(
        stream=sys.stderr,
        level=_LEVELS.get(level, logging.INFO),
        format=f"%(asctime)s %(levelname)s {who + ' ' if who else ''}%(name)s: %(message)s",
        force=True,
    )
