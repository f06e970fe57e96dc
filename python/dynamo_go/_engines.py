"""HTTP engines, vLLM and SGLang servers as they are, as workers of an endpoint."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ._checks import expect, integer, number, path_text, shown, text, texts
from ._errors import InvalidArgument, Timeout, WorkerNotFound

if TYPE_CHECKING:
    import os

    from . import _native
    from ._deployment import Deployment

# How often those that wait for an engine to be idle look.
_LOOK_SECONDS = 0.02


class EngineEndpoint:
    """What :class:`Endpoint` does with HTTP engines."""

    _hub: Deployment
    _path: str

    def add_engine(
        self,
        url: str,
        *,
        kv_events: str | Mapping[int, str] | None = None,
        replay: str | Mapping[int, str] | None = None,
        dp_size: int | None = None,
        dp_start: int | None = None,
        worker_id: int | None = None,
        block_size: int | None = None,
        kind: str | None = None,
        model: str | None = None,
        topic: str | None = None,
        max_num_batched_tokens: int | None = None,
        total_kv_blocks: int | None = None,
        taints: Iterable[str] | None = None,
        adapters: Iterable[str] | None = None,
        headers: Mapping[str, str] | None = None,
        health_path: str | None = None,
    ) -> int:
        """Make an OpenAI-compatible server a worker of this endpoint. Returns at once; routers see it once it is healthy.

        This process asks the server and passes its KV events on, so that any router of the deployment can use it::

            endpoint.add_engine("http://10.0.0.5:8000", kv_events="tcp://*:5557", replay="tcp://*:6557")

        What is not given is asked of the server, as far as it tells: SGLang tells everything, vLLM from 0.33 on.

        Args:
            url: "http://host:port", or https.
            kv_events: where it publishes: of rank 0, the others' ports follow, or by rank; "*" is the host of `url`.
                "none": it publishes nothing.
            replay: of its replay sockets, likewise.
            dp_size: its data-parallel ranks.
            dp_start: the first one's number; 0.
            worker_id: one that `url` and `dp_start` give, the same in every process.
            block_size: tokens of a KV block.
            kind: "vllm" or "sglang".
            model: what it is asked for; the first it serves.
            topic: prefix of the events' topics; all.
            max_num_batched_tokens, total_kv_blocks: as of ``Router.add_worker``.
            taints: likewise.
            adapters: likewise.
            headers: sent with every request, ``{"Authorization": "Bearer ..."}`` say.
            health_path: answered with 2xx while it can serve; "/health".

        Returns:
            The worker's id.

        Raises:
            InvalidArgument: a value that cannot be used.
            DuplicateWorker: an engine of this endpoint has the id.
        """
        given: dict[str, Any] = {
            "url": text(url, "url"),
            "kv_events": _places(kv_events, "kv_events"),
            "replay": _places(replay, "replay"),
            "kind": kind,
            "model": model,
            "topic": topic,
            "health_path": health_path,
        }
        for name in ("kind", "model", "topic", "health_path"):
            if given[name] is not None:
                text(given[name], name)
        if kind not in (None, "vllm", "sglang"):
            raise InvalidArgument(f"kind={shown(kind)}, expected one of vllm, sglang")
        for name, value in (
            ("dp_size", dp_size),
            ("dp_start", dp_start),
            ("worker_id", worker_id),
            ("block_size", block_size),
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("total_kv_blocks", total_kv_blocks),
        ):
            given[name] = None if value is None else integer(value, name, 0)
        given["taints"] = None if taints is None else texts(taints, "taints")
        given["adapters"] = None if adapters is None else texts(adapters, "adapters")
        if headers is not None:
            if not isinstance(headers, Mapping):
                raise TypeError(f"headers: expected a mapping, got {type(headers).__name__} ({shown(headers)})")
            given["headers"] = {text(k, "headers"): text(v, f"headers[{k}]") for k, v in headers.items()}
        config = json.dumps({name: value for name, value in given.items() if value is not None})
        return self._engines().add_engine(self._path, config)

    def add_engines(self, path: str | os.PathLike[str]) -> None:
        """Make the servers of a file workers of this endpoint, and follow the file: when it changes, so do they.

        It is YAML or JSON, ``{"engines": [{"url": ...}, ...]}``, each with the arguments of :meth:`add_engine`, and
        ``draining``. A change that cannot be read, or is not valid, changes nothing: :meth:`engines_file` tells.

        Raises:
            FileError: it cannot be read now.
            InvalidArgument: it is not valid now, or another file is followed.
        """
        self._engines().watch_engines(self._path, path_text(path))

    def engines(self) -> list[dict[str, Any]]:
        """How the servers of this endpoint are that this process serves, by worker id.

        Of each: worker_id, endpoint, url, listed (routers see it), error (why not, or what it lacks; ""), kind, version,
        model, block_size, dp_start, dp_size, state ("starting", "healthy", "ejected" or "draining"), reason, since (RFC
        3339), active (requests that run), requests, faults, checks, failed_checks, ejections, returns.
        """
        return list(self._state()["engines"])

    def engines_file(self) -> dict[str, Any] | None:
        """How the file of :meth:`add_engines` is: path, loaded (RFC 3339), error (why it is not in force; ""). None without one."""
        file = self._state()["file"]
        return None if file is None else dict(file)

    async def drain(self, worker_id: int, timeout: float | None = None) -> None:
        """Let routers see a server no more, and wait until no request runs on it. It may be shut down then.

        Args:
            worker_id: as :meth:`add_engine` gave it.
            timeout: seconds to wait at most.

        Raises:
            WorkerNotFound: it is none that this process serves.
            Timeout: requests still run; it goes on draining.
        """
        limit = None if timeout is None else time.monotonic() + number(timeout, "timeout")
        worker_id = integer(worker_id, "worker_id", 0)
        self._engines().drain_engine(self._path, worker_id, True)
        while self._one(worker_id)["active"] > 0:
            if limit is not None and time.monotonic() >= limit:
                active = self._one(worker_id)["active"]
                raise Timeout(f"worker_id={worker_id}: {active} requests still run after {timeout} s")
            await asyncio.sleep(_LOOK_SECONDS)

    def resume(self, worker_id: int) -> None:
        """End :meth:`drain`: routers see the server again, if it is healthy. Raises ``WorkerNotFound``."""
        self._engines().drain_engine(self._path, integer(worker_id, "worker_id", 0), False)

    def remove_engine(self, worker_id: int, kill: bool = False) -> None:
        """End a server's part in this endpoint, once the requests that run are done; with `kill` at once. Raises ``WorkerNotFound``."""
        self._engines().remove_engine(self._path, integer(worker_id, "worker_id", 0), expect(kill, bool, "kill"))

    def _engines(self) -> _native.Runtime:
        self._hub.check()
        return self._hub.native

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._engines().engines(self._path))
        return state

    def _one(self, worker_id: int) -> dict[str, Any]:
        for engine in self.engines():
            if engine["worker_id"] == worker_id:
                return engine
        raise WorkerNotFound(f"worker_id={worker_id} is no engine of {self._path!r} that this process serves")


def _places(value: str | Mapping[int, str] | None, name: str) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        if value == "":
            raise InvalidArgument(
                f"{name}={value!r}, expected an endpoint" + (' or "none"' if name == "kv_events" else "")
            )
        return text(value, name)
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected str or a mapping from rank to str, got {type(value).__name__}")
    return {str(integer(rank, name, 0)): text(place, f"{name}[{rank}]") for rank, place in value.items()}
