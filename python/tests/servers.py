"""The servers that a deployment may have, on loopback. ``./build.sh servers`` builds them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ports import free_port

SERVERS = Path(__file__).resolve().parents[2] / "build" / "servers"


def program(name: str) -> str:
    path = SERVERS / name
    assert path.exists(), f"{path} is not there: use ./build.sh servers"
    return str(path)


def started(port: int, *command: str) -> subprocess.Popen[bytes]:
    """Start a server, and wait until it listens."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return process
        assert process.poll() is None and time.monotonic() < deadline, f"{command[0]} does not start"
        time.sleep(0.02)


class Etcd:
    """A server of one member, whose data outlives its process."""

    def __init__(self, data: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        peers = f"http://127.0.0.1:{free_port()}"
        self._command = [
            *(program("etcd"), "--data-dir", str(data), "--name=test", "--log-level=error", "--unsafe-no-fsync"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *(
                "--listen-peer-urls",
                peers,
                "--initial-advertise-peer-urls",
                peers,
                "--initial-cluster",
                f"test={peers}",
            ),
            *("--heartbeat-interval=20", "--election-timeout=200"),
        ]

    def start(self) -> None:
        self._process = started(self._port, *self._command)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def nats() -> Iterator[str]:
    """Run a NATS server until the block ends, and give its address."""
    port = free_port()
    process = started(port, program("nats-server"), "-a", "127.0.0.1", "-p", str(port))
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
