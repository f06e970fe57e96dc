"""A KV-cache-aware request router: which inference worker should serve this prompt?

Two ways in: :class:`Router` decides, synchronously, without a runtime; :class:`KvRouter` has the interface of NVIDIA
Dynamo's and carries requests as well. Importing the package starts nothing; the Go library is loaded on first use.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._call import AsyncResponseStream
    from ._config import KvRouterConfig
    from ._constraints import LoadThresholdConfig, RoutingConstraints
    from ._context import Context
    from ._errors import (
        Cancelled,
        CannotConnect,
        Closed,
        Disconnected,
        DuplicateRequest,
        DuplicateWorker,
        DynamoError,
        EventRefused,
        FileError,
        ForkError,
        InvalidArgument,
        NoWorkers,
        Overloaded,
        QueueLimitExceeded,
        RequestNotFound,
        SessionMoved,
        SnapshotRefused,
        Timeout,
        WorkerError,
        WorkerNotFound,
    )
    from ._kv_router import KvRouter
    from ._logging import configure_logging
    from ._model import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
    from ._publisher import KvEventPublisher, WorkerMetricsPublisher
    from ._radix import OverlapScores, RadixTree
    from ._router import Router, compute_block_hash_for_seq
    from ._runtime import Client, DistributedRuntime, Endpoint
    from ._stream import ItemStream
    from ._types import PotentialLoad

__all__ = [
    "AsyncResponseStream",
    "Cancelled",
    "CannotConnect",
    "Client",
    "Closed",
    "Context",
    "Disconnected",
    "DistributedRuntime",
    "DuplicateRequest",
    "DuplicateWorker",
    "DynamoError",
    "Endpoint",
    "EventRefused",
    "FileError",
    "ForkError",
    "InvalidArgument",
    "ItemStream",
    "KvEventPublisher",
    "KvRouter",
    "KvRouterConfig",
    "LoadThresholdConfig",
    "ModelInput",
    "ModelRuntimeConfig",
    "ModelType",
    "NoWorkers",
    "OverlapScores",
    "Overloaded",
    "PotentialLoad",
    "QueueLimitExceeded",
    "RadixTree",
    "RequestNotFound",
    "Router",
    "RoutingConstraints",
    "SessionMoved",
    "SnapshotRefused",
    "Timeout",
    "WorkerError",
    "WorkerMetricsPublisher",
    "WorkerNotFound",
    "WorkerType",
    "compute_block_hash_for_seq",
    "configure_logging",
    "register_model",
]

# The module of each name above; a name without an entry is an error class. Imported when the name is first used.
_MODULES = {
    "AsyncResponseStream": "_call",
    "Client": "_runtime",
    "Context": "_context",
    "DistributedRuntime": "_runtime",
    "Endpoint": "_runtime",
    "ItemStream": "_stream",
    "KvEventPublisher": "_publisher",
    "KvRouter": "_kv_router",
    "KvRouterConfig": "_config",
    "LoadThresholdConfig": "_constraints",
    "ModelInput": "_model",
    "ModelRuntimeConfig": "_model",
    "ModelType": "_model",
    "OverlapScores": "_radix",
    "PotentialLoad": "_types",
    "RadixTree": "_radix",
    "Router": "_router",
    "RoutingConstraints": "_constraints",
    "WorkerMetricsPublisher": "_publisher",
    "WorkerType": "_model",
    "compute_block_hash_for_seq": "_router",
    "configure_logging": "_logging",
    "register_model": "_model",
}


def _check_c_library() -> None:
    """Refuse to load where loading could only fail, with a message that nobody understands."""
    try:
        found = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):  # musl has no such name
        found = ""
    if sys.platform == "linux" and not found.startswith("glibc"):
        raise ImportError(
            "dynamo_go cannot work here: this Python runs on a C library other than glibc, probably musl (Alpine). "
            "The package has a library in Go, whose thread-local variables (initial-exec TLS) musl cannot place once a "
            "program runs. Use an image with glibc, such as Debian, Ubuntu or RHEL."
        )


_check_c_library()


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
