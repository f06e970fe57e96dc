"""The exceptions of dynamo_go.

Every message names the offending value and what was expected. A wrong *type* is a plain ``TypeError``; a value that asks
for a feature this version does not have is a plain ``NotImplementedError``.
"""

from __future__ import annotations


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
    """A limit is reached; try again later."""


class QueueLimitExceeded(DynamoError):
    """The queue of the request's policy class is full."""


class Timeout(DynamoError):
    """Nothing came in the time given."""


class Closed(DynamoError):
    """The object was closed."""


class ForkError(DynamoError, RuntimeError):
    """The process was forked after the library was loaded: use the spawn or forkserver start method."""


class EventRefused(DynamoError):
    """The event contradicts what the rank holds (unknown parent, broken chain). Nothing changed."""


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
