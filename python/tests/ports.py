"""Ports of loopback for the servers and engines of tests."""

from __future__ import annotations

import contextlib
import random
import socket

# Below those that systems give to connections: none of them takes a port before its server has it, or while that is away.
_FIRST, _LAST = 16384, 32000
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Give ports in a row that nobody listens on now, each but once."""
    for _ in range(1000):
        first = random.randint(_FIRST, _LAST)
        ports = list(range(first, first + count))
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            if _given.isdisjoint(ports):
                _given.update(ports)
                return ports
    raise AssertionError(f"no {count} ports in a row are free")


def free_port() -> int:
    return free_ports(1)[0]
