"""The extension: arguments, tokens, errors, memory, forks."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
from kit import BLOCK, collect, make_router, measures_memory, memory_directory, serve
from members import ROUND, member_cases

import dynamo_go
from dynamo_go import Closed, InvalidArgument, Router, _errors, _native, compute_block_hash_for_seq
from dynamo_go.mocker import Mocker

HASH_1_TO_4 = 14643705804678351452


def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=60)


class Number:
    """An int by __index__ only."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Items:
    """A sequence that is neither list nor tuple."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> int:
        return self.values[i]


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2, 3, 4],
        (1, 2, 3, 4),
        range(1, 5),
        bytes([1, 2, 3, 4]),
        bytearray([1, 2, 3, 4]),
        array("I", [1, 2, 3, 4]),
        array("b", [1, 2, 3, 4]),
        array("H", [1, 2, 3, 4]),
        array("q", [1, 2, 3, 4]),
        memoryview(array("I", [1, 2, 3, 4])),
        memoryview(array("I", [1, 9, 2, 9, 3, 9, 4, 9]))[::2],
        memoryview(b"x\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0")[1:].cast("I"),  # not aligned
        numpy.array([1, 2, 3, 4], dtype=numpy.uint32),
        numpy.array([1, 2, 3, 4], dtype=numpy.int64),
        numpy.array([1, 2, 3, 4], dtype=">u4"),
        numpy.array([1, 0, 2, 0, 3, 0, 4], dtype=numpy.uint32)[::2],
        [Number(1), numpy.int64(2), 3, numpy.uint8(4)],
        Items([1, 2, 3, 4]),
        [True, 2, 3, 4],
    ],
    ids=lambda tokens: type(tokens).__name__,
)
def test_tokens_of_every_kind_hash_alike(tokens: Any) -> None:
    assert compute_block_hash_for_seq(tokens, 4) == [HASH_1_TO_4]


def test_tokens_reach_the_ends_of_uint32() -> None:
    ends = [0, 2**30 - 1, 2**30, 2**31, 2**32 - 2, 2**32 - 1]
    want = compute_block_hash_for_seq(array("I", ends), 2)
    assert compute_block_hash_for_seq(ends, 2) == want
    assert compute_block_hash_for_seq(tuple(ends), 2) == want
    assert compute_block_hash_for_seq(numpy.array(ends, dtype=numpy.int64), 2) == want
    assert compute_block_hash_for_seq(numpy.array(ends, dtype=numpy.uint64), 2) == want
    assert compute_block_hash_for_seq(range(2**32 - 1, 2**32 - 5, -1), 4) == compute_block_hash_for_seq(
        [2**32 - 1, 2**32 - 2, 2**32 - 3, 2**32 - 4], 4
    )


@pytest.mark.parametrize("tokens", [[], (), range(0), b"", array("I"), numpy.array([], dtype=numpy.uint32), Items([])])
def test_no_tokens_are_no_blocks(tokens: Any) -> None:
    assert compute_block_hash_for_seq(tokens, 4) == []


@pytest.mark.parametrize(
    ("tokens", "position", "value"),
    [
        ([1, -1], 1, "-1"),
        ((1, 2**32), 1, "4294967296"),
        ([2**64], 0, "18446744073709551616"),
        ([0, 0, -(2**70)], 2, "-1180591620717411303424"),
        (range(-1, 3), 0, "-1"),
        (range(2**32 - 1, 2**32 + 1), 1, "4294967296"),
        (array("i", [1, -2]), 1, "-2"),
        (array("b", [-3]), 0, "-3"),
        (array("h", [-4]), 0, "-4"),
        (array("q", [2**32]), 0, "4294967296"),
        (numpy.array([2**63], dtype=numpy.uint64), 0, "9223372036854775808"),
        ([Number(-5)], 0, "-5"),
    ],
)
def test_tokens_out_of_uint32_are_named(tokens: Any, position: int, value: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(f"token_ids[{position}]={value}")):
        compute_block_hash_for_seq(tokens, 4)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1.5], r"token_ids\[0\]: expected int, got float"),
        ([1, "2"], r"token_ids\[1\]: expected int, got str"),
        ((None,), r"token_ids\[0\]: expected int, got NoneType"),
        (numpy.array([1.0]), r"token_ids\[0\]: expected int, got numpy.float64"),
        (array("d", [1.0]), r"token_ids\[0\]: expected int, got float"),
        (numpy.zeros((2, 2), dtype=numpy.uint32), "expected one dimension, got 2"),
        ("1234", "got str"),
        (None, "got NoneType"),
        (7, "got int"),
        ((n for n in range(4)), "got generator"),
        ({1, 2}, "got set"),
        ({1: 2}, "got dict"),
    ],
)
def test_tokens_of_a_wrong_type_are_named(tokens: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        compute_block_hash_for_seq(tokens, 4)


@pytest.mark.parametrize("tokens", [range(2**24 + 1), range(10**30), bytes(2**24 + 1)], ids=["range", "huge", "bytes"])
def test_too_many_tokens_are_refused_before_memory_is_taken(tokens: Any) -> None:
    with pytest.raises(InvalidArgument, match="more than 16777216"):
        compute_block_hash_for_seq(tokens, 4)


def test_what_does_not_end_is_refused() -> None:
    class Endless(Items):
        def __iter__(self) -> Iterator[int]:
            return itertools.repeat(1)

    with Router(4) as router:
        with pytest.raises(InvalidArgument, match="token_ids has more than 16777216"):
            router.best_worker(Endless([]))
        with pytest.raises(InvalidArgument, match="allowed_worker_ids has more than 1048576"):
            router.best_worker([], allowed_worker_ids=itertools.count())


def test_an_int_that_python_does_not_print_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="cannot be shown"):
        compute_block_hash_for_seq([10**5000], 4)


def test_a_list_that_shrinks_while_it_is_read_is_refused() -> None:
    tokens: list[Any] = []

    class Shrinks:
        def __index__(self) -> int:
            tokens.clear()
            return 1

    tokens += [Shrinks(), *range(1000)]
    with pytest.raises(RuntimeError, match="changed its size"):
        compute_block_hash_for_seq(tokens, 4)


def test_an_error_of_a_token_is_passed_on() -> None:
    class Fails:
        def __index__(self) -> int:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        compute_block_hash_for_seq([1, Fails()], 4)


@pytest.mark.parametrize("size", [0, -1, 2**20 + 1, 2**32, 2**63 - 1, -(2**63)])
def test_block_sizes_out_of_range_are_named(size: int) -> None:
    with pytest.raises(InvalidArgument, match=str(size)):
        compute_block_hash_for_seq([1, 2], size)
    with pytest.raises(InvalidArgument, match=str(size)):
        Router(size)


def golden() -> dict[str, list[dict[str, Any]]]:
    path = Path(__file__).parents[2] / "testdata" / "golden" / "hashes.json"
    return cast("dict[str, list[dict[str, Any]]]", json.loads(path.read_text()))


def test_golden_block_hashes() -> None:
    rows = golden()["local"]
    assert len(rows) >= 12
    for row in rows:
        infos = None
        if "mm_hashes" in row:
            infos = [{"mm_objects": [{"mm_hash": h, "offsets": [[0, 1]]} for h in block]} for block in row["mm_hashes"]]
        got = compute_block_hash_for_seq(
            row["tokens"], row["block_size"], infos, row.get("lora"), row.get("eagle"), row.get("salt")
        )
        assert [str(h) for h in got] == row["want"], row


def test_golden_sequence_hashes() -> None:
    rows = golden()["sequence"]
    assert len(rows) >= 3
    for row in rows:
        assert _native.sequence_hashes([int(h) for h in row["local"]]) == [int(h) for h in row["want"]]


def test_sequence_hashes() -> None:
    # Local hashes 11, 22, 33 chained, as ai-dynamo-runtime 1.6.1 does.
    assert _native.sequence_hashes([11, 22, 33]) == [11, 750553365844651409, 3257565445809651757]
    with pytest.raises(InvalidArgument, match="-1"):
        _native.sequence_hashes([-1])
    with pytest.raises(TypeError, match="expected int, got str"):
        _native.sequence_hashes(["1"])  # type: ignore[list-item]


def test_every_status_has_a_class_of_its_name() -> None:
    """Header, library and Python agree on the statuses."""
    header = (Path(dynamo_go.__file__).parent / "include" / "dynamo_go.h").read_text()
    declared = {int(v): n for n, v in re.findall(r"^  DGO_(\w+) = (\d+)", header, re.M) if n != "OK"}
    statuses = _native.statuses()
    assert {value: name for value, (name, _) in statuses.items()} == declared
    special: dict[str, type[_errors.DynamoError]] = {"FORKED": _errors.ForkError}
    special |= dict.fromkeys(["INTERNAL", "BAD_HANDLE", "ENDED"], _errors.DynamoError)
    for name, kind in statuses.values():
        if name == "NOT_IMPLEMENTED":
            assert kind is NotImplementedError
        else:
            assert kind is special.get(name) or kind.__name__ == name.title().replace("_", "")
    raised = {kind for _, kind in statuses.values()}
    for kind in vars(_errors).values():
        if isinstance(kind, type) and issubclass(kind, _errors.DynamoError):
            assert kind in raised, f"{kind.__name__} is never raised"


def test_versions_agree() -> None:
    header = (Path(dynamo_go.__file__).parent / "include" / "dynamo_go.h").read_text()
    found = re.search(r'DGO_VERSION "(.*)"', header)
    assert found is not None
    assert _native.version() == dynamo_go.__version__ == found[1]
    assert _native.abi_version() == 1


def test_public_names_are_there() -> None:
    for name in dynamo_go.__all__:
        assert getattr(dynamo_go, name) is not None
    assert set(dynamo_go.__all__) <= set(dir(dynamo_go))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dynamo_go.nothing


def test_importing_starts_nothing() -> None:
    program = (
        "import os, dynamo_go\n"
        "dynamo_go.Router, dynamo_go.NoWorkers\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "assert 'libdynamo_go' not in open('/proc/self/maps').read()\n"
        "dynamo_go.Router(16)\n"
        "assert 'libdynamo_go' in open('/proc/self/maps').read()\n"
        "print('ok')"
    )
    assert run(program).stdout == "ok\n"


def test_a_forked_child_gets_an_error_from_every_call() -> None:
    program = """
import os, sys
from dynamo_go import ForkError, Router, _native
router = Router(16)
router.add_worker(1)
reader = _native.EventReader("tcp://127.0.0.1:1", None, None)
calls = [
    lambda: Router(16), lambda: router.best_worker([1]), lambda: router.free("x"), lambda: router.health(),
    lambda: router.get_potential_loads([]), lambda: router.close(), lambda: _native.config_check("{}"),
    lambda: _native.block_hashes([1], 1, None, None, None, False), lambda: reader.next(0), lambda: reader.close(),
    lambda: _native.Mocker(None), lambda: _native.decode_batch(b"", None), lambda: _native.sequence_hashes([1]),
]
child = os.fork()
if child == 0:
    for call in calls:
        try:
            call()
        except ForkError as error:
            assert isinstance(error, RuntimeError) and "spawn" in str(error)
        else:
            os._exit(1)
    del router, reader
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert router.best_worker([1])[0] == 1
print("ok")
"""
    result = run(program)
    assert result.stdout == "ok\n", result.stderr


def test_a_child_forked_before_first_use_works() -> None:
    program = """
import os
from dynamo_go import Router
child = os.fork()
router = Router(16)
router.add_worker(1)
assert router.best_worker([1])[0] == 1
if child == 0:
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert run(program).stdout == "0\n"


def test_interpreter_exit_is_quiet_with_everything_open() -> None:
    program = """
from dynamo_go import Router, _native
router = Router(16)
router.add_worker(1, kv_events="tcp://127.0.0.1:1")
reader = _native.EventReader("tcp://127.0.0.1:1", None, None)
router.best_worker(range(64), request_id="in flight")
"""
    result = run(program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


class Allocated(ctypes.Structure):
    """What mallinfo2 of glibc gives."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def allocated() -> int:
    """Bytes of C's heap in use: buffers of the library, which Python does not count, and little else."""
    tell = ctypes.CDLL(None).mallinfo2
    tell.restype = Allocated
    told: Allocated = tell()
    return int(told.uordblks) + int(told.hblkhd)


def resident() -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


Cases = dict[str, Callable[[], object]]
Fails = Callable[[Callable[[], object]], Callable[[], object]]


@functools.cache
def leak_cases() -> Cases:
    router, small = Router(4), Router(4)
    small.add_worker(1)
    for worker in range(70):  # more rows than fit the extension's own memory
        router.add_worker(worker)
    tokens, buffer = list(range(64)), array("I", range(64))
    event = {"event_id": 1, "data": {"stored": {"parent_hash": None, "blocks": [{"block_hash": 1, "tokens_hash": 2}]}}}

    def fails(call: Callable[[], object]) -> Callable[[], object]:
        def body() -> None:
            try:
                call()
            except (InvalidArgument, TypeError, dynamo_go.DynamoError):
                return
            raise AssertionError("did not fail")

        return body

    def cycle() -> None:
        router.best_worker(tokens, request_id="a")
        router.mark_prefill_complete("a")
        router.add_output_block("a", 1, 0.5)
        router.free("a")

    own: Cases = {
        "list": lambda: router.best_worker(tokens),
        "buffer": lambda: router.best_worker(buffer),
        "range": lambda: router.best_worker(range(64)),
        "items": lambda: router.best_worker(Items(tokens)),
        "everything": lambda: small.best_worker(
            tokens, {"router_temperature": 1}, None, True, "l", "n", [None], None, 0, {1, 2}, {"required_taints": []}
        ),
        "cycle": cycle,
        "loads": lambda: small.get_potential_loads(tokens),
        "loads of many": lambda: router.get_potential_loads(tokens),
        "scores": lambda: small.get_overlap_scores(tokens),
        "explain": lambda: small.explain(tokens),
        "texts of many": lambda: (router.get_overlap_scores(tokens), router.explain(tokens), router.metrics()),
        "report": lambda: router.report_cached_tokens("nobody", 1),
        "decisions": lambda: small.decisions(),
        "hashes": lambda: compute_block_hash_for_seq(tokens, 4),
        "sequences": lambda: _native.sequence_hashes([1, 2, 3]),
        "event": lambda: router.apply_event(1, event, duplicate_stores="set"),
        "add": lambda: router.add_worker(1, taints=["a", "b"]),
        "workers": lambda: (small.workers(), small.dump_events()),
        "health": lambda: small.health(),
        "stats": lambda: small.stats(),
        "metrics": lambda: small.metrics(),
        "state of many": lambda: (router.workers(), router.health(), router.stats(), router.dump_events()),
        "config": lambda: _native.config_check("{}"),
        "new": lambda: Router(16).close(),
        "token fails": fails(lambda: router.best_worker([1, 2, -3])),
        "item fails": fails(lambda: router.best_worker([1, 2, "3"])),  # type: ignore[list-item]
        "buffer fails": fails(lambda: router.best_worker(array("i", [-1]))),
        "type fails": fails(lambda: router.best_worker(None)),  # type: ignore[arg-type]
        "allowed fails": fails(lambda: router.best_worker(tokens, allowed_worker_ids=[1, -1])),
        "late fails": fails(lambda: router.best_worker(None, allowed_worker_ids=[1])),  # type: ignore[arg-type]
        "unknown id": fails(lambda: router.free("nobody")),
        "taints fail": fails(lambda: router.add_worker(1, taints=["a", 2])),  # type: ignore[list-item]
        "new fails": fails(lambda: Router(0)),
        "event fails": fails(lambda: router.apply_event(1, b"{")),
        "payload fails": fails(lambda: _native.decode_batch(b"\xc1", None)),
        "config fails": fails(lambda: _native.config_check("[]")),
        "hash fails": fails(lambda: compute_block_hash_for_seq(tokens, 0)),
    }
    groups = (
        batch_cases(router, tokens, fails),
        tree_cases(fails),
        stream_cases(fails),
        file_cases(router, fails),
        publisher_cases(fails),
        waiting_cases(router),
        runtime_cases(),
        member_cases(fails),
    )
    for group in groups:
        assert not (twice := own.keys() & group.keys()), f"two cases of one name: {twice}"
        own.update(group)
    return own


def batch_cases(router: Router, tokens: list[int], fails: Fails) -> Cases:
    prompts = [tokens, array("I", tokens), (1, 2, 3)]
    mixed: list[Any] = [tokens, [1, -1], None]
    loop = asyncio.new_event_loop()
    loop.close()
    rest = (None, None, False, None, None, None, None, None, None, None, 0, None, None, None, 0.0, None)
    return {
        "batch": lambda: router.best_workers(prompts),
        "batch of errors": lambda: router.best_workers(mixed, None, [None, None, "a"]),
        "batch fails": fails(lambda: router.best_workers(prompts, None, [])),
        "answer": lambda: router._native.answer(loop, tokens, *rest).result(),  # type: ignore[union-attr]
        "answer made": lambda: _native.Answer(loop, tokens).cancel(),
        "answer to a wrong token fails": fails(lambda: router._native.answer(loop, [-1], *rest)),
        "ticket fails": fails(lambda: router._native.wait(5)),
    }


def tree_cases(fails: Fails) -> Cases:
    tree = dynamo_go.RadixTree()
    for worker in range(70):
        tree.apply_event(worker, {"data": {"stored": {"blocks": [{"block_hash": 1, "tokens_hash": 2**63}]}}})
    event = b'{"data":{"stored":{"blocks":[{"block_hash":1,"tokens_hash":9223372036854775808}]}}}'
    bare = dynamo_go.RadixTree()
    bare.apply_event(1, event)

    def removal() -> None:
        tree.apply_event(99, event)
        tree.remove_worker(99)

    return {
        "matches": lambda: tree.find_matches([2**63, 5]).scores,
        "matches of items": lambda: tree.find_matches(iter([2**63])),
        "tree event": lambda: tree.apply_event(1, event),
        "tree removal": removal,
        "dump": lambda: bare.dump_tree_as_events(),
        "new tree": lambda: dynamo_go.RadixTree().close(),
        "matches fail": fails(lambda: tree.find_matches([1, -1])),
        "tree event fails": fails(lambda: tree.apply_event(1, b"{")),
        "tree event refused": fails(lambda: tree.apply_event(1, b'{"data":{"removed":{"block_hashes":[77]}}}')),
    }


def stream_cases(fails: Fails) -> Cases:
    engine = Mocker(inter_token_ms=0, speedup=1000)
    closed = engine.generate([1])._native
    closed.close()
    mute = _native.Mocker('{"inter_token_ms":60000}')
    silent, unwanted = mute.generate([1], "{}"), mute.generate([2], "{}")

    def read() -> None:
        stream = engine.generate([1, 2], 3)._native
        while stream.take(100) is not None:
            pass
        stream.fd()

    return {
        "stream": read,
        "stream dropped": lambda: engine.generate([1, 2], 3),
        "stream of nothing": lambda: (silent.take(0), silent.fd(), mute.info()),
        "stream that nobody wants": lambda: unwanted.cancel(False),
        "info": lambda: engine.stats(),
        "stream fails": fails(lambda: closed.take(0)),
        "generate fails": fails(lambda: engine.generate([])),
    }


def file_cases(router: Router, fails: Fails) -> Cases:
    held = Router(4)
    held.add_worker(1)
    blocks = [{"block_hash": n, "tokens_hash": n} for n in range(1, 100)]
    held.apply_event(1, {"data": {"stored": {"blocks": blocks}}})
    path = memory_directory() / "saved"
    held.save(path)
    dump = held.dump_events()

    def load() -> None:
        with Router(4) as other:
            other.load(path)

    # The router's own methods have a thread for each call of these, so that a signal ends the wait: that is most of the time.
    taken, native, saved, text = _native.Router(4, None, None), cast("Any", held._native), str(path), dump.encode()

    def load_again() -> None:
        taken.load(saved)
        taken.remove_worker(1)

    def in_a_thread() -> None:
        held.save(path)
        held.load_events(dump)

    def load_events() -> None:
        with Router(4) as other:
            other.add_worker(1)
            other.load_events(dump)

    def replicate() -> None:
        with Router(4) as other:
            other.replicate("tcp://127.0.0.1:0", ["tcp://127.0.0.1:1"])

    def log() -> None:
        dynamo_go.configure_logging("error")
        dynamo_go.configure_logging("off")

    def follow() -> None:
        router.add_worker(1000, kv_events="tcp://127.0.0.1:1", replay="tcp://127.0.0.1:2")
        router.remove_worker(1000)

    return {
        "save": lambda: native.save(saved),
        "load": load,
        "load again": load_again,
        "load events": load_events,
        "load events again": lambda: native.load_events(text),
        "replicate": replicate,
        "followed worker": follow,
        "save fails": fails(lambda: native.save("/nowhere/x")),
        "load fails": fails(lambda: native.load("/nowhere/x")),
        "load of what is foreign fails": fails(lambda: native.load(__file__)),
        "load events fails": fails(lambda: native.load_events(b"{")),
        "calls in a thread": in_a_thread,
        "replicate fails": fails(lambda: held.replicate("nonsense")),
        "removal fails": fails(lambda: held.remove_worker(9)),
        "log": log,
        "log fails": fails(lambda: _native.log("x")),
        "library": lambda: (_native.version(), _native.abi_version(), _native.statuses()),
        "payload": lambda: _native.decode_batch(
            bytes.fromhex("93cb41d954fc401000009191b0416c6c426c6f636b73436c656172656400"), 1
        ),
    }


def publisher_cases(fails: Fails) -> Cases:
    publisher = dynamo_go.KvEventPublisher("tcp://127.0.0.1:0", 1, 4, buffer_steps=10)
    tokens = list(range(16))

    def publish() -> None:
        publisher.publish_stored(tokens, [4] * 4, [1, 2, 3, 4], lora_name="l", cache_salt="c")
        publisher.publish_removed([4, 3, 2, 1])
        publisher.publish_cleared()

    config = '{"listen":"127.0.0.1:0","engines":["http://127.0.0.1:1,none"],"tokenizer":"host"}'
    server, stopped = _native.Server(config), _native.Server(config)

    def asked() -> None:
        server.info()
        server.tokens(1, [1])  # which nobody waits for
        stopped.stop(0)

    def serve() -> None:
        other = _native.Server(config)
        texts = other.texts()
        other.stop(0)
        texts.cancel(True)
        other.close()

    return {
        "publish": publish,
        "publisher": lambda: publisher.info(),
        "publish fails": fails(lambda: publisher.publish_stored(tokens, [4] * 4, [1, 2, 3, 4], parent_hash=77)),
        "publish of tokens fails": fails(lambda: publisher.publish_stored([-1] * 4, [4], [1])),
        "removal of no hash fails": fails(lambda: publisher.publish_removed(["a"])),  # type: ignore[list-item]
        "new publisher": lambda: dynamo_go.KvEventPublisher("tcp://127.0.0.1:0", 1, 4).shutdown(),
        "new publisher fails": fails(lambda: dynamo_go.KvEventPublisher("nonsense", 1, 4)),
        "new mocker": lambda: Mocker().close(),
        "new mocker fails": fails(lambda: Mocker(block_size=0)),
        "clear of no rank fails": fails(lambda: publisher._outlet._native.cleared(9)),
        "server": asked,
        "texts of a server": lambda: server.texts(),
        "new server": serve,
        "new server fails": fails(lambda: _native.Server('{"engines":[]}')),
    }


def waiting_cases(router: Router) -> Cases:
    full = Router(4, dynamo_go.KvRouterConfig(router_queue_threshold=0.0))
    full.add_worker(1)
    reader = _native.EventReader("tcp://127.0.0.1:1", None, None)
    engine = Mocker(inter_token_ms=0, speedup=1000)

    def busy() -> None:
        """Book the worker anew: a booking without progress expires."""
        with contextlib.suppress(dynamo_go.RequestNotFound):
            full.free("first")
        full.best_worker([1] * 64, request_id="first")

    def times_out() -> None:
        busy()
        with pytest.raises(dynamo_go.Timeout):
            full.best_worker([1] * 64, timeout=0.001)

    def time_out() -> None:
        """Time out many that wait at once."""
        busy()
        tickets = []
        for _ in range(ROUND):
            with contextlib.suppress(dynamo_go.Timeout):  # on a busy machine, at once
                tickets.append(full._submit(token_ids=[1] * 64, timeout=0.001))
        for ticket in tickets:
            assert isinstance(ticket, int)
            with contextlib.suppress(dynamo_go.Timeout):
                full._native.wait(ticket)

    def tickets() -> None:
        busy()
        ticket = full._submit(token_ids=[1] * 64)
        assert isinstance(ticket, int) and full._native.take(ticket) is None
        full._native.cancel(ticket)
        full._native.ready_fd()
        full._native.ready()

    def read() -> None:
        other = _native.EventReader("tcp://127.0.0.1:1", None, None)
        other.next(0)
        other.state()
        other.close()

    def stopped() -> None:
        stream = engine.generate([1, 2], 3)._native
        stream.cancel(True)
        stream.close()

    return {
        "timeout": times_out,
        "timeouts": time_out,
        "tickets": tickets,
        "read": lambda: (reader.next(0), reader.state()),
        "new reader": read,
        "stopped stream": stopped,
    }


def runtime_cases() -> Cases:
    loop = asyncio.new_event_loop()

    async def cycle() -> None:
        runtime: Any = dynamo_go.DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
        endpoint = serve(runtime)
        publisher = dynamo_go.KvEventPublisher(endpoint, None, BLOCK)
        publisher.publish_stored([1] * BLOCK, [BLOCK], [1])
        async with make_router(runtime) as router:
            await collect(await router.generate([1] * BLOCK, "m"))
            await router.best_worker([1], request_id="a")
            await router.mark_prefill_complete("a")
            await router.free("a")
            await router.best_workers([[1]])
            await router.get_potential_loads([1])
            await router.get_overlap_scores([1])
            await router.explain([1])
            await router.metrics()
        await collect(await (await endpoint.client()).round_robin(1))
        publisher.shutdown()
        runtime.shutdown()
        while runtime._hub._services or runtime._hub._ending:
            await asyncio.sleep(0.001)

    directory = tempfile.mkdtemp()

    async def deployment() -> None:
        os.environ["DYN_FILE_KV"] = directory
        runtime: Any = dynamo_go.DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
        endpoint = serve(runtime)
        client = await endpoint.client()
        await client.wait_for_instances()
        await collect(await client.round_robin({"token_ids": [1]}))
        runtime.shutdown()
        while runtime._hub._services or runtime._hub._ending:
            await asyncio.sleep(0.001)

    return {
        "runtime": lambda: loop.run_until_complete(cycle()),
        "deployment": lambda: loop.run_until_complete(deployment()),
    }


# Cases that make objects and end them, wait, write or read files, or tell of many workers: fewer calls. Of those in ROUNDS, each makes ROUND.
ROUNDS = {"call", "generate", "call that is cancelled", "service", "engine", "mock worker", "timeouts"}
SLOW = ROUNDS | {
    "loads of many",
    "texts of many",
    "state of many",
    "new",
    "new tree",
    "stream",
    "stream dropped",
    "load",
    "load events",
    "calls in a thread",
    "replicate",
    "followed worker",
    "log",
    "new publisher",
    "new publisher fails",
    "new mocker",
    "new mocker fails",
    "new server",
    "new server fails",
    "texts of a server",
    "timeout",
    "new reader",
    "stopped stream",
    "runtime",
    "deployment",
    "call that fails",
    "client",
    "new member",
    "new member's router",
}
# What a closed server's HTTP library keeps goes within a second: 200 servers in that time are not told from a leak, 10,000 are.
LINGERS = {"new server": 60}
CALLS = int(os.environ.get("DGO_LEAK_CALLS", "2000"))


@measures_memory
@pytest.mark.parametrize("name", list(leak_cases()))
def test_calls_leak_nothing(name: str) -> None:
    call = leak_cases()[name]
    calls = max(LINGERS.get(name, 200), CALLS // 100) if name in SLOW else CALLS
    warm = max(50, calls // 2) if name in SLOW else max(300, calls // 20)  # until the heap has its working size
    for _ in range(warm):
        call()
    gc.collect()
    held, start = resident(), time.perf_counter()
    traced = min(calls, 200) if name in SLOW else 2000
    tracemalloc.start()
    try:
        before, heap = tracemalloc.get_traced_memory()[0], allocated() - tracemalloc.get_tracemalloc_memory()
        for _ in range(traced):
            call()
        gc.collect()
        after, grown = tracemalloc.get_traced_memory()[0], allocated() - tracemalloc.get_tracemalloc_memory()
    finally:
        tracemalloc.stop()
    for _ in range(calls - traced):
        call()
    growth, took = resident() - held, time.perf_counter() - start
    if growth >= 10 << 20:  # on a busy machine the heap finds its working size late; what leaks goes on to
        held = resident()
        for _ in range(calls):
            call()
        growth = resident() - held
    print(f"{name}: {calls} calls, {took / calls * 1e6:.1f} us each: {growth / 1024:+.0f} KiB")
    assert after - before < 20_000, "Python objects"
    threads = name in ("runtime", "deployment")  # whose heaps come and go
    assert grown - heap < (100_000 if threads else 20_000), "buffers of the library, which Python does not count"
    assert growth < 10 << 20, "memory of the process"


# What makes an object, or ends one: ten thousand calls, of all others a million.
FEWER = {f"{kind}.close" for kind in "EventReader Publisher RadixTree Router Runtime Server Stream".split()} | {
    "Server.texts",
}


def test_every_function_of_the_extension_has_a_leak_case() -> None:
    called: set[str] = set()
    often: set[str] = set()

    def note(frame: object, event: str, function: Any) -> None:
        if event == "c_call":
            (often if full(name) else called).add(function.__qualname__)

    cases = leak_cases()
    for name in cases:
        sys.setprofile(note)
        threading.setprofile(note)  # some calls are another thread's
        try:
            cases[name]()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    functions = {
        f"{name}.{method}" if inspect.isclass(value) else name
        for name, value in vars(_native).items()
        if callable(value) and not name.startswith("_") and name != "Answer"
        for method in (vars(value) if inspect.isclass(value) else [name])
        if not method.startswith("_")
    }
    assert functions - called - often == set()
    assert functions - often == FEWER


def full(name: str) -> bool:
    """Tell whether a case's calls are as many as DGO_LEAK_CALLS says."""
    return name not in SLOW or name in ROUNDS


def test_arguments_keep_their_reference_counts() -> None:
    router = Router(4)
    router.add_worker(1)
    token, bad = 2**31, object()
    tokens: list[Any] = [token] * 8
    name, buffer = "a-request-" + str(id(tokens)), array("I", range(8))
    held = [token, bad, tokens, name, buffer]
    before = [sys.getrefcount(x) for x in held]
    for _ in range(50):
        router.best_worker(tokens, request_id=name, lora_name=name, policy_class=name)
        router.free(name)
        router.best_worker(buffer)
        with pytest.raises(TypeError):
            router.best_worker([*tokens, bad])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            router.best_worker(tokens, request_id=bad)  # type: ignore[arg-type]
    assert [sys.getrefcount(x) for x in held] == before


@pytest.mark.parametrize("flag", ["x", "", 1, 0.0, []])
def test_a_flag_is_a_bool(flag: Any) -> None:
    with Router(4) as router:
        router.add_worker(1)
        with pytest.raises(TypeError, match="update_indexer: expected bool"):
            router.best_worker(range(8), request_id="r", update_indexer=flag)
        router.best_worker(range(8), request_id="r", update_indexer=False)
    with pytest.raises(TypeError, match="is_eagle: expected bool"):
        compute_block_hash_for_seq(range(9), 4, is_eagle=flag)


def test_a_buffer_is_released() -> None:
    buffer = bytearray(range(16))
    compute_block_hash_for_seq(buffer, 4)
    words = array("I", range(16))
    compute_block_hash_for_seq(words, 4)
    with pytest.raises(InvalidArgument):
        compute_block_hash_for_seq(words, 0)
    buffer.append(1)  # BufferError while a view is held
    words.append(1)


def test_threads_call_and_close_together() -> None:
    routers = [Router(4, seed=1) for _ in range(4)]
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(n: int) -> None:
        router = routers[n % 4]
        start.wait()
        try:
            for i in range(300):
                name = f"{n}-{i}"
                router.add_worker(n * 1000 + i % 7)
                router.best_worker(range(4 * (i % 50)), request_id=name)
                router.get_potential_loads(bytes(40_000))  # releases the GIL
                router.free(name)
            if n >= 4:
                router.close()
        except Closed:
            pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for router in routers:
        with pytest.raises(Closed):
            router.best_worker([])


def test_decode_batch() -> None:
    # [1.5, [["AllBlocksCleared"]], 3] as MessagePack.
    payload = b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x91\xb0AllBlocksCleared\x03"
    line = _native.decode_batch(payload, 2**64 - 2)
    assert line.count("\n") == 1
    assert '"seq":18446744073709551614' in line and '"type":"cleared"' in line and '"dp_rank":3' in line
    assert '"seq":null' in _native.decode_batch(payload, None)
    with pytest.raises(InvalidArgument):
        _native.decode_batch(payload[:-1], None)
    with pytest.raises(TypeError):
        _native.decode_batch("text", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "endpoint",
    ["", "nonsense", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:65536", "udp://a:1", "tcp://*:5557"],
)
def test_event_reader_refuses_malformed_endpoints(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match="endpoint"):
        _native.EventReader(endpoint, None, None)


def test_event_reader_follows_a_mocker() -> None:
    mocker = _native.Mocker('{"block_size": 4}')
    info = json.loads(mocker.info())
    reader = _native.EventReader(info["kv_events"], info["replay"], None)

    def complete(first: int) -> None:
        body = json.dumps({"model": info["model"], "prompt": list(range(first, first + 8)), "max_tokens": 1}).encode()
        request = urllib.request.Request(info["http"] + "/v1/completions", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request).read()

    def stored() -> list[dict[str, Any]]:
        for _ in range(100):
            lines = reader.next(100)
            if lines is not None:
                return [json.loads(line) for line in lines.splitlines()]
        raise AssertionError("no event came")

    complete(0)  # before the reader is connected, perhaps: the replay gives it
    assert stored()[0]["token_ids"][:4] == [0, 1, 2, 3]
    complete(100)
    event = stored()[0]
    assert event["type"] == "stored" and event["token_ids"][0] == 100 and event["block_size"] == 4
    assert reader.next(0) is None
    with pytest.raises(InvalidArgument, match="timeout_ms=101"):
        reader.next(101)
    reader.close()
    reader.close()
    with pytest.raises(Closed):
        reader.next(0)
    mocker.close()
    with pytest.raises(Closed):
        mocker.info()


@pytest.mark.parametrize("config", ["", "[]", '{"unknown": 1}', '{"blocks": -1}', '{"blocks": 1e999}'])
def test_mocker_refuses_bad_configurations(config: str) -> None:
    with pytest.raises(InvalidArgument):
        _native.Mocker(config)


def test_mocker_names_an_address_it_cannot_bind() -> None:
    with pytest.raises(dynamo_go.CannotConnect, match="203.0.113.1"):
        _native.Mocker('{"http": "203.0.113.1:1"}')


def test_subinterpreters_are_refused() -> None:
    program = """
import sys
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters
interpreter = interpreters.create()
code = '''
try:
    import dynamo_go._native
except ImportError as error:
    assert "subinterpreters" in str(error), error
else:
    raise AssertionError("imported")
'''
result = interpreters.exec(interpreter, code) if hasattr(interpreters, "exec") else interpreters.run_string(interpreter, code)
assert result is None, result
"""
    result = run(program)
    assert (result.returncode, result.stderr) == (0, "")
