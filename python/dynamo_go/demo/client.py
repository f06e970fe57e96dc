"""A small HTTP client for streamed completions, on asyncio streams with kept connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from .engines import Address

_LIMIT = 1 << 20  # longest line of an answer


class RequestFailed(Exception):
    """An engine refused a request or broke off; the message says how."""


class Client:
    """Sends requests to one engine."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def stream(self, body: bytes) -> AsyncIterator[dict[str, Any]]:
        """POST a completion request; give each event of its answer as it comes."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._address.host, self._address.port, limit=_LIMIT)
        kept = False
        try:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: {self._address.host}:{self._address.port}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode())
            writer.write(body)
            await writer.drain()
            if (await _accepted(reader)).get("transfer-encoding") != "chunked":
                raise RequestFailed("the answer is not chunked")
            done = False
            async for line in _lines(reader):
                if line == b"data: [DONE]":
                    done = True
                elif line.startswith(b"data: "):
                    yield json.loads(line[6:])
            if not done:
                raise RequestFailed("the answer ended without [DONE]")
            kept = True
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
            raise RequestFailed(f"the connection failed: {error!r}") from error
        finally:
            if kept:
                self._idle.append((reader, writer))
            else:
                writer.close()

    async def get(self, path: str) -> Any:
        """GET a JSON document."""
        reader, writer = await asyncio.open_connection(self._address.host, self._address.port, limit=_LIMIT)
        try:
            host = f"{self._address.host}:{self._address.port}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            headers = await _accepted(reader)
            return json.loads(await reader.readexactly(int(headers["content-length"])))
        finally:
            writer.close()

    def close(self) -> None:
        """Drop the kept connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle = []


async def _accepted(reader: asyncio.StreamReader) -> dict[str, str]:
    """Read the head of an answer, which must be a success; give its fields."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status, *fields = head.rstrip().split("\r\n")
    headers = {
        name.strip().lower(): value.strip().lower() for name, _, value in (field.partition(":") for field in fields)
    }
    if status.split(" ")[1:2] != ["200"]:
        text = await reader.readexactly(int(headers.get("content-length", "0")))
        raise RequestFailed(f"{status}: {text.decode(errors='replace').strip()}")
    return headers


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a chunked body, without their ends; empty ones are left out."""
    rest = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            return
        *lines, rest = (rest + data[:-2]).split(b"\n")
        for line in lines:
            if line:
                yield line
