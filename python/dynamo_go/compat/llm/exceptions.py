"""The names of ``dynamo.llm.exceptions``: each is what this package raises where Dynamo would raise that."""

from __future__ import annotations

from ..._errors import Cancelled, CannotConnect, Disconnected, DynamoError, InvalidArgument, NoWorkers, Timeout
from ..._errors import QueueLimitExceeded as RouterQueueLimitExceeded

DynamoException = DynamoError
Unknown = DynamoError
ConnectionTimeout = Timeout
EngineShutdown = StreamIncomplete = Disconnected
WorkerUnavailable = NoWorkers

__all__ = [
    "Cancelled",
    "CannotConnect",
    "ConnectionTimeout",
    "Disconnected",
    "DynamoException",
    "EngineShutdown",
    "HttpError",
    "InvalidArgument",
    "RouterQueueLimitExceeded",
    "StreamIncomplete",
    "Unknown",
    "WorkerUnavailable",
]

_MESSAGE_MAX = 8192


class HttpError(Exception):
    """What a handler raises to say with which HTTP status a request failed.

    Args:
        code: 0 .. 599.
        message: cut at 8,192 characters.

    Raises:
        ValueError: another code, or a value of the wrong type.
    """

    def __init__(self, code: int, message: str) -> None:
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code < 600:
            raise ValueError(f"HttpError: code={code!r}, expected an int in 0 .. 599")
        if not isinstance(message, str):
            raise ValueError(f"HttpError: message={message!r}, expected str")
        self.code = code
        self.message = message if len(message) <= _MESSAGE_MAX else message[: _MESSAGE_MAX - 3] + "..."
        super().__init__(f"HTTP {code}: {self.message}")
