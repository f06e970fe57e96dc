"""The package as a guest: it starts late, survives forks, signals and other libraries, and goes without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def run(program: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def quiet(program: str, *flags: str, **environment: str) -> str:
    """Run a program that must end well, with nothing on stderr; its output."""
    done = run(program, *flags, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_importing_starts_nothing() -> None:
    quiet(
        """
import os, signal
before = {n: signal.getsignal(n) for n in signal.valid_signals()}
import dynamo_go, dynamo_go._native, dynamo_go.mocker
for name in dynamo_go.__all__:
    getattr(dynamo_go, name)
assert os.listdir("/proc/self/task") == [str(os.getpid())]
with open("/proc/self/maps") as maps:
    assert "libdynamo_go" not in maps.read()
assert before == {n: signal.getsignal(n) for n in signal.valid_signals()}
"""
    )


# One of everything; `calls` has a call of every method of every object, and of every function.
EVERYTHING = """
import asyncio, json, os, sys
import dynamo_go
from dynamo_go import *
from dynamo_go import _native
from dynamo_go.mocker import Mocker

router, tree, engine = Router(16), RadixTree(), Mocker(inter_token_ms=50)
router.add_worker(1)
publisher = _native.Publisher(json.dumps({"worker_id": 1, "block_size": 16, "kv_events": "tcp://127.0.0.1:0"}))
reader = _native.EventReader("tcp://127.0.0.1:1", None, None)
stream = engine._native.generate([1, 2], "{}")
served = '{"listen":"127.0.0.1:0","engines":["http://127.0.0.1:1,none"],"tokenizer":"host"}'
server = _native.Server(served)
member = _native.Runtime('{"discovery":"mem"}')
routed = _native.Router(16, None, None, member, "a.b.c")
rest = [None, None, False, None, None, None, None, None, None, None, 0, None, None, None, 0.0, None]
given = {
    ("Router", "add_worker"): [1, 0, 1, None, None, None, None, None, None, None, (), (), None],
    ("Router", "remove_worker"): [1], ("Router", "apply_event"): [1, b'{"data":"cleared"}', False],
    ("Router", "best_worker"): [[1], *rest], ("Router", "submit"): [[1], *rest],
    ("Router", "generate"): [b"\\x80", None, [1], *rest],
    ("Router", "submit_many"): [([1],), None, (None,), *rest[2:]], ("Router", "answer"): [None, [1], *rest],
    ("Router", "wait"): [1], ("Router", "take"): [1], ("Router", "cancel"): [1], ("Router", "explain"): [[1], *rest],
    ("Router", "overlap_scores"): [[1], None, None, None, None], ("Router", "potential_loads"): [[1], None, None, None],
    ("Router", "mark_prefill_complete"): ["a"], ("Router", "free"): ["a"], ("Router", "add_output_block"): ["a", 1, None],
    ("Router", "report_cached_tokens"): ["a", 1], ("Router", "decisions"): [0],
    ("Router", "load_events"): [b"[]"], ("Router", "replicate"): ["{}"], ("Router", "save"): ["/nowhere/x"],
    ("Router", "load"): ["/nowhere/x"], ("RadixTree", "apply_event"): [1, b'{"data":"cleared"}'],
    ("RadixTree", "find_matches"): [[1]], ("RadixTree", "remove_worker"): [1],
    ("Publisher", "stored"): [0, [1] * 16, [1], 16, None, False, None, None, None], ("Publisher", "removed"): [0, [1]],
    ("Publisher", "cleared"): [0], ("Mocker", "generate"): [[1], "{}"], ("Stream", "take"): [0], ("Stream", "cancel"): [True],
    ("EventReader", "next"): [0], ("Server", "tokens"): [1, [1]], ("Server", "stop"): [0], ("Runtime", "serve"): ["a.b.c", None], ("Runtime", "listed"): [1, True],
    ("Runtime", "model"): ["a.b.c", 1, "{}"], ("Runtime", "answer"): [1, None], ("Runtime", "finish"): [1, None],
    ("Runtime", "client"): ["a.b.c"], ("Runtime", "instances"): [1], ("Runtime", "call"): [1, None, None],
    ("Runtime", "more"): [1, 1], ("Runtime", "cancel"): [1, True], ("Runtime", "end"): [1, True],
    ("Runtime", "load"): ["a.b.c", "{}"], ("Runtime", "add_engine"): ["a.b.e", '{"url":"http://127.0.0.1:1","worker_id":1}'],
    ("Runtime", "watch_engines"): ["a.b.e", "/nowhere/x"], ("Runtime", "engines"): ["a.b.e"],
    ("Runtime", "drain_engine"): ["a.b.e", 1, True], ("Runtime", "remove_engine"): ["a.b.e", 1, True],
}
objects = [router._native, tree._native, engine._native, publisher, reader, stream, routed, member, server]
skipped = {("EventReader", "state")}  # says what it has seen
calls = {}
for o in objects:
    kind = type(o).__name__
    for name in dir(o):
        if not name.startswith("_") and (kind, name) not in skipped and callable(getattr(o, name)):
            calls[kind, name] = (getattr(o, name), given.get((kind, name), []))
functions = {
    "block_hashes": [[1], 1, None, None, None, False], "sequence_hashes": [[1]], "decode_batch": [b"", None],
    "config_check": ["{}"], "Router": [16, None, None], "RadixTree": [], "Mocker": [None],
    "EventReader": ["tcp://127.0.0.1:1", None, None],
    "Publisher": [json.dumps({"worker_id": 1, "block_size": 16, "kv_events": "tcp://127.0.0.1:0"})],
    "Runtime": ['{"discovery":"mem"}'], "Server": [served],
}
for name, arguments in functions.items():
    calls["", name] = (getattr(_native, name), arguments)

def outcomes(kind):
    wrong = []
    for name, (call, arguments) in calls.items():
        try:
            call(*arguments)
        except kind:
            continue
        except BaseException as error:
            wrong.append((name, repr(error)))
        else:
            wrong.append((name, "no error"))
    return wrong
"""


def test_every_call_in_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    out = quiet(
        EVERYTHING
        + """
child = os.fork()
if child == 0:
    for name in ("cancel", "end"):  # what cleans up does so in silence
        call, arguments = calls.pop(("Runtime", name))
        assert call(*arguments) is None
    wrong = outcomes(ForkError)
    sys.stdout.write(f"{wrong}")
    sys.stdout.flush()
    del router, tree, engine, publisher, reader, stream, routed, member
    os._exit(len(wrong))
assert os.waitpid(child, 0)[1] == 0
assert len(calls) > 50
assert router.best_worker([1] * 16)[0] == 1
assert tree.find_matches([1]).scores == {}
engine.close()
"""
    )
    assert out == "[]"


def test_every_call_after_close_is_refused_and_closing_again_is_fine() -> None:
    out = quiet(
        EVERYTHING
        + """
for o in objects:
    o.close()
    o.close()
told = {("Runtime", name) for name in ("fd", "take")}  # by which the end of a runtime is told
over = {("Runtime", name) for name in ("more", "cancel", "end")}  # of what has ended: nothing
calls = {n: c for n, c in calls.items() if n[0] and n[1] != "close" and n not in told | over}
assert member.take() is None
print([row for row in outcomes(Closed)])
"""
    )
    assert out == "[]\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import multiprocessing
from dynamo_go import ForkError, Router

def work(_):
    try:
        with Router(16) as router:
            router.add_worker(7)
            return router.best_worker([1] * 64)
    except ForkError as error:
        return type(error).__name__

if __name__ == "__main__":
    with Router(16) as router:
        router.add_worker(5)
        with multiprocessing.get_context({method!r}).Pool(2) as pool:
            print(pool.map(work, range(2)))
        print(router.best_worker([1] * 64))
"""
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    want = "['ForkError', 'ForkError']" if method == "fork" else "[(7, 0, 0), (7, 0, 0)]"
    assert done.stdout == f"{want}\n(5, 0, 0)\n"


IN_FLIGHT = {
    "nothing closed": EVERYTHING,
    "a wait in another thread": """
import threading
from dynamo_go import KvRouterConfig, Router
router = Router(16, KvRouterConfig(router_queue_threshold=0.0))
router.add_worker(1)
router.best_worker([1] * 64, request_id="first")
threading.Thread(target=lambda: router.best_worker([1] * 64), daemon=True).start()
threading.Thread(target=lambda: router.best_workers([[1] * 64] * 3), daemon=True).start()
""",
    "a reader in another thread": """
import threading
from dynamo_go import _native
from dynamo_go.mocker import Mocker
engine = Mocker(inter_token_ms=50)
stream = engine._native.generate([1, 2], '{"max_tokens": 1000}')
def read():
    while True:
        stream.take(100)
threading.Thread(target=read, daemon=True).start()
""",
    "a loop that ends early": """
import asyncio
from dynamo_go import DistributedRuntime, KvRouter, KvRouterConfig
from dynamo_go.mocker import Mocker
async def handler(request, context):
    yield {"token_ids": [1]}
    await asyncio.sleep(1000)
async def main():
    asyncio.get_running_loop().slow_callback_duration = 3600  # a loaded machine is no fault
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    runtime.endpoint("a.b.c").serve_endpoint(handler)
    router = KvRouter(runtime.endpoint("a.b.c"), 16, KvRouterConfig(router_queue_threshold=0.0))
    stream = await router.generate([1] * 64, "m")
    await anext(stream)
    waiting = router.best_worker([1] * 64)
    engine = Mocker(inter_token_ms=50)
    items = engine.generate([1, 2], 1000)
    await anext(items)
asyncio.run(main())
""",
    "a failure": "import sys\nfrom dynamo_go import Router\nrouter = Router(16)\nrouter.add_worker(1)\nsys.exit(0)",
}


@pytest.mark.parametrize("what", IN_FLIGHT)
@pytest.mark.parametrize("flags", [(), ("-X", "dev")], ids=["plain", "dev"])
def test_exit_with_work_in_flight_is_quiet(what: str, flags: tuple[str, ...]) -> None:
    assert quiet(IN_FLIGHT[what], *flags) == ""


def test_signals_of_the_host_stay_the_hosts() -> None:
    quiet(
        """
import os, signal
seen = []
handled = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCHLD]
for number in handled:
    signal.signal(number, lambda n, frame: seen.append(n))
before = {n: signal.getsignal(n) for n in signal.valid_signals()}
from dynamo_go import Router
router = Router(16)
router.add_worker(1)
router.best_worker([1] * 64)
assert before == {n: signal.getsignal(n) for n in signal.valid_signals()}
for number in handled:
    os.kill(os.getpid(), number)
    router.best_worker([1] * 64)
assert seen == handled, seen
reader, writer = os.pipe()
os.close(reader)
try:
    os.write(writer, b"x")
except BrokenPipeError:
    pass
else:
    raise AssertionError("no BrokenPipeError")
"""
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGALRM])
def test_default_actions_of_signals_stay(number: signal.Signals) -> None:
    done = run(
        f"""
import os, signal
signal.signal({int(number)}, signal.SIG_DFL)
from dynamo_go import Router
Router(16).close()
os.kill(os.getpid(), {int(number)})
signal.pause()
"""
    )
    assert (done.returncode, done.stderr) == (-number, "")


def test_faulthandler_still_reports() -> None:
    done = run(
        """
import ctypes, faulthandler
faulthandler.enable()
from dynamo_go import Router
Router(16).close()
ctypes.string_at(0)
"""
    )
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert 'File "<string>", line 6 in <module>' in done.stderr


STORM = """
import signal, time
from dynamo_go import KvRouterConfig, RadixTree, Router, Timeout
from dynamo_go.mocker import Mocker
ticks = 0
def tick(number, frame):
    global ticks
    ticks += 1
signal.signal(signal.SIGNAL, tick)
signal.setitimer(signal.TIMER, 0.001, 0.001)
router = Router(16, KvRouterConfig(router_queue_threshold=0.0))
for worker in range(8):
    router.add_worker(worker, kv_events="tcp://127.0.0.1:1", replay="tcp://127.0.0.1:2")
tree = RadixTree()
with Mocker(inter_token_ms=0, speedup=1000) as engine:
    n = 0
    while ticks < 300:
        n += 1
        router.best_worker(range(64), request_id=str(n))
        router.get_potential_loads(range(20000))
        router.health()
        tree.apply_event(1, {"data": {"stored": {"blocks": [{"block_hash": n, "tokens_hash": n}]}}})
        assert tree.find_matches([n]).scores == {(1, 0): 1}
        stream = engine._native.generate([n, 2], '{"max_tokens": 5}')
        items = []
        while (more := stream.take(100)) is not None:
            items += more
        assert len(items) == 5
        router.free(str(n))
for worker in range(8):
    router.best_worker(range(64), request_id=f"busy {worker}")
try:
    router.best_worker(range(64), timeout=0.05)
except Timeout:
    pass
else:
    raise AssertionError("no wait")
signal.setitimer(signal.TIMER, 0)
router.close()
"""


# https://github.com/golang/go/issues/18220
@pytest.mark.parametrize(("name", "timer"), [("SIGALRM", "ITIMER_REAL"), ("SIGPROF", "ITIMER_PROF")])
def test_storms_of_signals_disturb_nothing(name: str, timer: str) -> None:
    program = STORM.replace("SIGNAL", name).replace("TIMER", timer)
    quiet(program, PYTHONDEVMODE="1")


SECOND = """
package main

import "C"
import "runtime"

//export second
func second(n int64) int64 {
	garbage := make([][]byte, 100)
	for i := range garbage {
		garbage[i] = make([]byte, 1000)
	}
	runtime.GC()
	return n + int64(len(garbage))
}

func main() {}
"""


# https://github.com/golang/go/issues/65050 https://github.com/golang/go/issues/11100
def test_second_go_library_and_unloading(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module second\n\ngo 1.26\n")
    (tmp_path / "main.go").write_text(SECOND)
    command = ["go", "build", "-buildmode=c-shared", "-buildvcs=false", "-o", "second.so", "."]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "GOFLAGS": ""})
    assert built.returncode == 0, built.stderr
    quiet(
        f"""
import ctypes, _ctypes, importlib.util
from pathlib import Path
from dynamo_go import Router
router = Router(16)
router.add_worker(1)
second = ctypes.CDLL({str(tmp_path / "second.so")!r}).second
second.restype = second.argtypes = None
second.restype, second.argtypes = ctypes.c_int64, [ctypes.c_int64]
for n in range(200):
    assert router.best_worker(range(64), request_id=str(n))[0] == 1
    assert second(n) == n + 100
    router.free(str(n))
import dynamo_go
path = str(Path(dynamo_go.__file__).with_name("libdynamo_go.so"))
for _ in range(3):
    library = ctypes.CDLL(path)
    assert library.dgo_abi_version() == 1
    _ctypes.dlclose(library._handle)
assert router.best_worker(range(64))[0] == 1
"""
    )


# https://github.com/krypton-byte/neonize/pull/186 https://github.com/pykler/yajl-py/pull/1
def test_values_keep_64_bits_and_texts_their_nuls() -> None:
    quiet(
        r"""
from dynamo_go import InvalidArgument, RequestNotFound, Router, compute_block_hash_for_seq
wide = 0xF123456789ABCDEF
with Router(4) as router:
    router.add_worker(wide)
    assert router.best_worker([1] * 4) == (wide, 0, 0)
    assert router.get_potential_loads([])[0]["worker_id"] == wide
    assert router.workers()[0]["worker_id"] == wide
    block = {"block_hash": wide, "tokens_hash": compute_block_hash_for_seq([1, 2, 3, 4], 4)[0]}
    router.apply_event(wide, {"data": {"stored": {"blocks": [block]}}})
    assert router.best_worker([1, 2, 3, 4]) == (wide, 0, 1)
    assert f'"block_hash":{wide}' in router.dump_events()
    router.best_worker([1], request_id="a\0b")
    try:
        router.free("a")
    except RequestNotFound as error:
        assert "a" in str(error)
    else:
        raise AssertionError("cut at the NUL")
    router.free("a\0b")
    try:
        router.best_worker([1], request_id="\ud800")
    except InvalidArgument as error:
        assert "request_id" in str(error) and "not valid Unicode" in str(error)
    else:
        raise AssertionError("a lone surrogate is no text")
assert compute_block_hash_for_seq([1, 2, 3, 4], 4) == [14643705804678351452]
"""
    )
