"""The library's log as records of ``logging``."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dynamo_go import Router, configure_logging


class Kept(logging.Handler):
    """Keeps records, and lets a test wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.came = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.came.release()

    def next(self) -> logging.LogRecord:
        assert self.came.acquire(timeout=30), "no record"
        return self.records[-1]


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    configure_logging("off")


def join(worker_id: int) -> None:
    with Router(16) as router:
        router.add_worker(worker_id)


def test_lines_become_records_in_a_thread_of_python() -> None:
    kept = Kept()
    configure_logging(logging.INFO, kept)
    join(2**64 - 1)
    record: Any = kept.next()
    assert (record.name, record.levelname, record.fields["worker_id"]) == ("dynamo_go", "INFO", 2**64 - 1)
    assert record.getMessage().startswith("worker joined worker_id=18446744073709551615 ")
    assert abs(record.created - logging.LogRecord("", 0, "", 0, "", None, None).created) < 3600
    assert "dynamo_go log" in [thread.name for thread in threading.enumerate()]


def test_what_was_logged_comes_before_the_log_goes_elsewhere() -> None:
    first, second = Kept(), Kept()
    configure_logging("info", first)
    for worker in range(100):
        join(worker)
    configure_logging("error", second)
    assert [record.fields["worker_id"] for record in first.records if "joined" in record.msg] == list(range(100))  # type: ignore[attr-defined]
    join(5)
    configure_logging("off")
    assert second.records == []
    assert "dynamo_go log" not in [thread.name for thread in threading.enumerate()]


def test_the_logger_gets_records_without_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    configure_logging("info")
    join(7)
    configure_logging("off")
    assert [r.fields["worker_id"] for r in caplog.records if r.name == "dynamo_go" and "joined" in r.msg] == [7]  # type: ignore[attr-defined]


def test_a_handler_that_fails_gets_the_next_record(capsys: pytest.CaptureFixture[str]) -> None:
    class Fails(Kept):
        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)
            raise RuntimeError("no disk")

    fails = Fails()
    configure_logging("info", fails)
    join(1)
    join(2)
    fails.next(), fails.next()
    configure_logging("off")
    assert "no disk" in capsys.readouterr().err


PROGRAM = """
import logging, sys
from dynamo_go import Router, configure_logging
if "configure" in sys.argv:
    logging.basicConfig(level=1, format="%(levelname)s:%(message)s", stream=sys.stdout)
    configure_logging()
router = Router(16)
router.add_worker(3)
"""


@pytest.mark.parametrize(
    ("level", "configured", "records", "printed"),
    [
        (None, False, False, False),
        (None, True, True, False),
        ("off", True, False, False),
        ("error", True, False, False),
        ("info,dynamo=off", False, False, True),
        ("debug,dynamo::module=error", True, True, False),
    ],
)
def test_the_environment_has_a_say(level: str | None, configured: bool, records: bool, printed: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DYN_LOG"}
    if level is not None:
        environment["DYN_LOG"] = level
    command = [sys.executable, "-c", PROGRAM, *(["configure"] if configured else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert ("INFO:worker joined worker_id=3" in done.stdout) == records
    assert ("worker joined" in done.stderr) == printed


def test_a_forked_child_ends_quietly() -> None:
    program = """
import os, sys
from dynamo_go import ForkError, Router, configure_logging
configure_logging("info")
router = Router(16)
if os.fork() == 0:
    try:
        configure_logging("info")
    except ForkError:
        sys.exit(0)
    sys.exit(1)
assert os.wait()[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
