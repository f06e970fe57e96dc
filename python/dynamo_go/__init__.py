"""A KV-cache-aware request router: which inference worker should serve this prompt?

Two ways in: :class:`Router` decides, synchronously, without a runtime; :class:`KvRouter` has the interface of NVIDIA
Dynamo's and carries requests as well. Importing the package starts nothing; the Go library is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._config import KvRouterConfig
    from ._errors import (
        Cancelled,
        CannotConnect,
        Closed,
        Disconnected,
        DuplicateRequest,
        DuplicateWorker,
        DynamoError,
        EventRefused,
        ForkError,
        InvalidArgument,
        NoWorkers,
        Overloaded,
        QueueLimitExceeded,
        RequestNotFound,
        Timeout,
        WorkerError,
        WorkerNotFound,
    )
    from ._router import Router, compute_block_hash_for_seq

__all__ = [
    "Cancelled",
    "CannotConnect",
    "Closed",
    "Disconnected",
    "DuplicateRequest",
    "DuplicateWorker",
    "DynamoError",
    "EventRefused",
    "ForkError",
    "InvalidArgument",
    "KvRouterConfig",
    "NoWorkers",
    "Overloaded",
    "QueueLimitExceeded",
    "RequestNotFound",
    "Router",
    "Timeout",
    "WorkerError",
    "WorkerNotFound",
    "compute_block_hash_for_seq",
]

# The module of each name above; a name without an entry is an error class. Imported when the name is first used.
_MODULES = {
    "KvRouterConfig": "_config",
    "Router": "_router",
    "compute_block_hash_for_seq": "_router",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("dynamo-go")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULES.get(name, '_errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
