"""The library's log, for Python's ``logging``.

The library puts lines into a bounded stream; a thread of Python's waits for them on the stream's descriptor and makes records.
So nothing calls Python from a thread of the library, and a slow handler costs lines, which are counted, and never a decision.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import select
import sys
import threading
from datetime import datetime
from typing import Any

from . import _native
from ._errors import DynamoError, InvalidArgument

# The library's level, by the least number of Python's that asks for it.
_LEVELS = ((40, "error"), (30, "warn"), (20, "info"), (10, "debug"), (1, "trace"))
_NUMBERS = {"error": 40, "warn": 30, "info": 20, "debug": 10, "trace": 5}
# How long handlers may take for what is left when the log goes elsewhere, or the process ends.
_GRACE_SECONDS = 1.0

_lock = threading.Lock()
_reader: threading.Thread | None = None


def configure_logging(level: str | int | None = None, handler: logging.Handler | None = None) -> None:
    """Have the library's log go to Python's ``logging``; until then it goes nowhere, or where ``DYN_LOG`` says.

    Told are workers that join and leave, every change of how complete the view of a rank is, with the reason, events that are
    left out (at most once a minute for a rank), and faults of the library. Records have the logger's name ``dynamo_go``, and
    what a line tells besides its message both in the text, as ``key=value``, and as a dict in ``record.fields``. Handlers are
    called from a thread of their own; 1,024 lines wait for them, more are dropped, and a record says how many.

    Called again, the new level and handler take the place of the old ones; lines from before are handled first.

    Args:
        level: "error", "warn", "info", "debug", "trace", a number as in ``logging``, or "off". None: what ``DYN_LOG`` says
            for everything (``info``, or of ``info,module=debug`` the part without a module), "info" if it says nothing.
        handler: gets the records; None: the logger ``dynamo_go`` does, whose level is set to `level`.

    Raises:
        InvalidArgument: no such level.
        TypeError: a value of the wrong type.
        ForkError: in a forked child.
    """
    global _reader
    name = _level_of(level)
    if handler is not None and not isinstance(handler, logging.Handler):
        raise TypeError(f"handler: expected logging.Handler or None, got {type(handler).__name__}")
    with _lock:
        lines = _native.log(name)
        before, _reader = _reader, None
        if before is None:
            atexit.register(_finish)
        elif before is not threading.current_thread():
            before.join(_GRACE_SECONDS)
        if lines is None:
            return
        if handler is None:
            logging.getLogger("dynamo_go").setLevel(_NUMBERS[name])
        _reader = threading.Thread(target=_read, args=(lines, handler), name="dynamo_go log", daemon=True)
        _reader.start()


def _finish() -> None:
    """Handle what is left, as the process ends."""
    if _reader is not None and _reader.is_alive():  # in a forked child it is not
        try:
            _native.log("off")
        except DynamoError:
            return
        _reader.join(_GRACE_SECONDS)


def _level_of(level: str | int | None) -> str:
    if level is None:
        return _level_of_environment(os.environ.get("DYN_LOG", ""))
    if isinstance(level, str):
        if level != "off" and level not in _NUMBERS:
            raise InvalidArgument(f"level={level[:80]!r}, expected off, error, warn, info, debug, trace, or an int")
        return level
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"level: expected str, int or None, got {type(level).__name__}")
    for least, name in _LEVELS:
        if least <= level <= 50:
            return name
    raise InvalidArgument(f"level={str(level)[:80] if -(2**99) < level < 2**99 else '<int>'}, expected 1 .. 50")


def _level_of_environment(text: str) -> str:
    """Give what directives such as "info,module=debug" say of everything."""
    return level_of_directives(text) or "info"


def level_of_directives(text: str) -> str | None:
    """Give what directives such as "info,module=debug" say of everything; None: nothing."""
    known = [word for part in text.split(",") if (word := part.strip().lower()) in ("off", *_NUMBERS)]
    return known[-1] if known else None


def level_of_command(command: str) -> str | None:
    """Give the level that ``DYN_LOG`` asks for. A person is told if it is set and asks for none."""
    said = os.environ.get("DYN_LOG", "")
    level = level_of_directives(said)
    if said.strip() and level is None:
        print(f"{command}: DYN_LOG={said[:80]!r} has no level for everything and is ignored, expected off, error, warn, info, debug or trace",
              file=sys.stderr, flush=True)  # fmt: skip
    return level


def _read(lines: _native.Stream, handler: logging.Handler | None) -> None:
    """Make records of lines, until there are no more."""
    ready = select.poll()
    ready.register(lines.fd(), select.POLLIN)
    try:
        while (taken := lines.take(0)) is not None:
            if not taken:
                ready.poll()
            for line in taken:
                _handle(_record(json.loads(line)), handler)
    finally:
        lines.close()


def _handle(record: logging.LogRecord, handler: logging.Handler | None) -> None:
    try:
        if handler is not None:
            if record.levelno >= handler.level:
                handler.handle(record)
        elif (logger := logging.getLogger("dynamo_go")).isEnabledFor(record.levelno):
            logger.handle(record)
    except Exception:  # of a handler; the next record may fare better
        (handler or logging.Handler()).handleError(record)


def _record(line: dict[str, Any]) -> logging.LogRecord:
    level, message, time = line.pop("level"), line.pop("msg"), line.pop("time", None)
    text = " ".join([message, *(f"{key}={value}" for key, value in line.items())])
    number = _NUMBERS[level.lower()]
    record = logging.LogRecord("dynamo_go", number, "dynamo_go", 0, text, None, None)
    if number == 5:
        record.levelname = "TRACE"
    if time is not None:  # nine digits of a second, and Z, are more than Python 3.10 reads
        digits = re.sub(r"\.(\d{0,6})\d*", lambda found: "." + found[1].ljust(6, "0"), time.replace("Z", "+00:00"))
        record.created = datetime.fromisoformat(digits).timestamp()
        record.msecs = record.created % 1 * 1000
    record.fields = line
    return record
