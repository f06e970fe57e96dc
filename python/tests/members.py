"""Cases of calls of the extension's Runtime, and of the router that it makes: each method, and how it refuses."""

from __future__ import annotations

import json
import select
from collections.abc import Callable

from dynamo_go import _native

Case = Callable[[], object]

HOSTS = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST")
CONFIG = json.dumps({"discovery": "mem", "environment": dict.fromkeys(HOSTS, "127.0.0.1")})
CARD = '{"display_name":"m","kv_cache_block_size":4,"runtime_config":{"total_kv_blocks":100}}'
REQUEST, ITEM, ENDED, CLOSED = 1, 5, 6, 8  # kinds of notices
ASKED = (None, None, False, None, None, None, None, None, None, None, 0, None, None, None, 0.0, None)
ROUND = 100  # what is done with one call, service or engine


class Member:
    """A runtime that serves an endpoint, and calls it."""

    def __init__(self) -> None:
        self.runtime = _native.Runtime(CONFIG)
        self.id = json.loads(self.runtime.info())["id"]
        self.runtime.model("a.b.c", self.id, CARD)
        self.runtime.serve("a.b.c", None)
        self.client = self.runtime.client("a.b.c")
        self.router = _native.Router(4, None, None, self.runtime, "a.b.c")
        self.heard: list[tuple[int, int, int]] = []
        while self.runtime.instances(self.client) == "[]" or self.answered(self.generate) != 0:
            pass  # it finds itself in the background

    def hear(self, kind: int, number: int | None = None) -> tuple[int, int]:
        """Wait for a notice: what it is of, and its flags."""
        while True:
            for n in self.heard:
                if n[0] == kind and number in (None, n[1]):
                    self.heard.clear()
                    return n[1:]
            assert select.select([self.runtime.fd()], [], [], 30)[0], "no notice"
            self.heard += [(n[0], n[1], n[2]) for n in self.runtime.take() or []]

    def answered(self, begin: Callable[[], int]) -> int:
        """Call, answer at once, and tell how the call ended."""
        call = begin()
        while True:
            assert select.select([self.runtime.fd()], [], [], 30)[0], "no notice"
            for kind, number, flags, *_ in self.runtime.take() or []:
                if kind == REQUEST:
                    self.runtime.finish(number, None)
                elif (kind, number) == (ENDED, call):
                    return flags

    def generate(self) -> int:
        """Send a prompt to the best worker, which is this one."""
        return self.router.generate({"model": "m"}, None, [1] * 8, *ASKED)

    def exchange(self, begin: Callable[[], int]) -> None:
        """Call, and get many items."""
        call = begin()
        asked, _ = self.hear(REQUEST)
        for token in range(ROUND):
            self.runtime.answer(asked, {"token_ids": [token]})
        come = 0
        while come < ROUND:
            assert select.select([self.runtime.fd()], [], [], 30)[0], "no notice"
            for kind, number, *_ in self.runtime.take() or []:
                if (kind, number) == (ITEM, call):
                    come += 1
                    self.runtime.more(call, 1)
        self.runtime.finish(asked, None)
        self.hear(ENDED, call)

    def failure(self) -> None:
        """Call, and get an error."""
        call = self.runtime.call(self.client, [1], '{"credit":1}')
        self.runtime.finish(self.hear(REQUEST)[0], "boom")
        self.hear(ENDED, call)

    def cancellation(self) -> None:
        """Call, and want nothing any more."""
        call = self.runtime.call(self.client, [1], None)
        asked, _ = self.hear(REQUEST)
        for _ in range(ROUND):
            self.runtime.cancel(call, False)
        self.runtime.cancel(call, True)
        self.hear(ENDED, call)
        self.runtime.finish(asked, None)

    def service(self) -> None:
        """Serve another endpoint for a while."""
        service = self.runtime.serve("a.b.other", '{"listed":false}')
        for n in range(ROUND):
            self.runtime.listed(service, n % 2 == 0)
        self.runtime.end(service, True)
        self.hear(CLOSED, service)

    def engine(self) -> None:
        """An HTTP engine that nobody reaches comes and goes."""
        self.runtime.add_engine("a.b.e", '{"url":"http://127.0.0.1:1","worker_id":7}')
        for n in range(ROUND):
            self.runtime.drain_engine("a.b.e", 7, n % 2 == 0)
        self.runtime.remove_engine("a.b.e", 7, True)

    def mock_worker(self) -> None:
        """A worker without a GPU comes and goes."""
        engine = _native.Mocker('{"block_size":4}', self.runtime, "a.b.mock", 7)
        for _ in range(ROUND):
            engine.leave()
        engine.close()


def member_cases(fails: Callable[[Case], Case]) -> dict[str, Case]:
    """Cases by name; fails makes one of a call that is refused."""
    member = Member()
    runtime, router, client, nobody = member.runtime, member.router, member.client, 2**63
    alone = _native.Router(4, None, None)
    body = {"a": [1, 2.5, "x", b"y", None, True]}
    return {
        "call": lambda: member.exchange(lambda: runtime.call(client, body, None)),
        "generate": lambda: member.exchange(member.generate),
        "call that fails": member.failure,
        "call that is cancelled": member.cancellation,
        "service": member.service,
        "mock worker": member.mock_worker,
        "client": lambda: runtime.end(runtime.client("a.b.c"), True),
        "model": lambda: runtime.model("a.b.c", member.id, CARD),
        "instances": lambda: (runtime.instances(client), runtime.info()),
        "engine": member.engine,
        "engines": lambda: runtime.engines("a.b.e"),
        "nothing new": lambda: (runtime.take(), runtime.fd()),
        "load report": lambda: runtime.load("a.b.c", '{"active_decode_blocks":1}'),
        "new member": lambda: _native.Runtime(CONFIG).close(),
        "new member's router": lambda: _native.Router(4, None, None, runtime, "a.b.d").close(),
        "serve fails": fails(lambda: runtime.serve("a.b", None)),
        "serve of an option fails": fails(lambda: runtime.serve("a.b.c", '{"nonsense":1}')),
        "listed fails": fails(lambda: runtime.listed(nobody, True)),
        "model fails": fails(lambda: runtime.model("a.b.c", 1, "[")),
        "answer fails": fails(lambda: runtime.answer(nobody, None)),
        "answer of what cannot be packed fails": fails(lambda: runtime.answer(1, {"a": [1, object()]})),
        "finish fails": fails(lambda: runtime.finish(nobody, "boom")),
        "client fails": fails(lambda: runtime.client("\ud800")),
        "instances fails": fails(lambda: runtime.instances(nobody)),
        "call fails": fails(lambda: runtime.call(nobody, None, None)),
        "call of what cannot be packed fails": fails(lambda: runtime.call(client, [[object()]], None)),
        "more fails": fails(lambda: runtime.more(nobody, -1)),
        "cancel fails": fails(lambda: runtime.cancel(-1, False)),
        "more of what has ended": lambda: runtime.more(nobody, 1),
        "cancel what has ended": lambda: runtime.cancel(nobody, True),
        "end what has ended": lambda: runtime.end(nobody, True),
        "end fails": fails(lambda: runtime.end(-1, False)),
        "engine fails": fails(lambda: runtime.add_engine("a.b.e", "{}")),
        "file of engines fails": fails(lambda: runtime.watch_engines("a.b.e", "/nowhere/x")),
        "engines fail": fails(lambda: runtime.engines("a.b")),
        "drain fails": fails(lambda: runtime.drain_engine("a.b.e", 8, True)),
        "removal of an engine fails": fails(lambda: runtime.remove_engine("a.b.e", 8, True)),
        "load report fails": fails(lambda: runtime.load("a.b.c", '{"nonsense":1}')),
        "generate without a runtime fails": fails(lambda: alone.generate({}, None, [1], *ASKED)),
        "generate of no token fails": fails(lambda: router.generate({}, None, [-1], *ASKED)),
        "generate of no map fails": fails(lambda: router.generate({"a": object()}, None, [1], *ASKED)),
        "new member fails": fails(lambda: _native.Runtime('{"discovery":"smoke signals"}')),
        "new member's router fails": fails(lambda: _native.Router(0, None, None, runtime, "a.b.c")),
    }
