"""The exceptions of dynamo_go.

Every message names the offending value and what was expected. A wrong *type* is a plain ``TypeError``; a value that asks
for a feature this version does not have is a plain ``NotImplementedError``.
"""

from __future__ import annotations

import re


class DynamoError(Exception):
    """Base of all errors of this package; raised itself only for a fault of the library."""


class InvalidArgument(DynamoError, ValueError):
    """A value is out of its range or malformed. Nothing changed."""


class RequestNotFound(DynamoError):
    """The request id was never booked, or was freed before."""


class DuplicateRequest(DynamoError):
    """The request id is booked already. Nothing changed."""


class WorkerNotFound(DynamoError):
    """No such worker, or the worker has no such rank."""


class DuplicateWorker(DynamoError):
    """The worker id is registered with other endpoints; remove it first."""


class NoWorkers(DynamoError):
    """No registered worker is eligible for the request. It may succeed once one joins."""


class Overloaded(DynamoError):
    """Every rank that fits the request, or the pinned one, is beyond a load threshold, or a limit of the library is
    reached; try again later. It is never :class:`NoWorkers`."""


class QueueLimitExceeded(DynamoError):
    """The request would have to wait, and as many of its policy class wait as may. Try again later, or elsewhere."""

    _FORM = re.compile(r'policy class "(.*)" queue (\w+) limit reached \(current=(\d+), limit=(\d+)\)', re.DOTALL)

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        found = self._FORM.search(message)
        self.policy_class: str = found[1] if found else ""
        """The class, or ""."""
        self.limit_kind: str = found[2] if found else ""
        """``requests``, ``raw_isl_tokens``, ``cached_tokens`` or ``total_requests``."""
        self.current: int = int(found[3]) if found else 0
        """What the class held before the request."""
        self.limit: int = int(found[4]) if found else 0
        """The configured limit times the number of workers."""


class SessionMoved(DynamoError):
    """With ``session_affinity_mode="hard"``, the rank that served the session cannot be chosen. Nothing was booked; asked
    again, the session is tied anew."""


class Timeout(DynamoError, TimeoutError):
    """Nothing came in the time given; a request waited longer than it may."""


class Closed(DynamoError):
    """The object was closed."""


class ForkError(DynamoError, RuntimeError):
    """The process was forked after the library was loaded: use the spawn or forkserver start method."""


class EventRefused(DynamoError, RuntimeError):
    """The event contradicts what the rank holds (unknown parent, broken chain). Nothing changed, but see
    :meth:`RadixTree.apply_event`."""


class CannotConnect(DynamoError):
    """An address cannot be bound or reached."""


class Disconnected(DynamoError):
    """The worker went away while it served the request."""


class Cancelled(DynamoError):
    """The request was cancelled."""


class WorkerError(DynamoError):
    """The worker answered with an error."""


class FileError(DynamoError, OSError):
    """A file cannot be read or written. It is as it was."""


class SnapshotRefused(DynamoError):
    """The file is no snapshot that this router can load: foreign, of another version or block size, torn or corrupt."""


for _class in [DynamoError, *DynamoError.__subclasses__()]:
    _class.__module__ = "dynamo_go"  # where users import them from, and where messages should send them
