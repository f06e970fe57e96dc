"""Dynamo's names: the table tells the truth about each, and one program gives the same with both."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from kit import PATH, run, wheel

from dynamo_go.compat import llm, runtime

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "testdata" / "peers" / "compat"
MODULES = ("dynamo.llm", "dynamo.llm.exceptions", "dynamo.runtime")

# [name, kind, default] of each parameter; None where nothing tells.
Parameters = list[list[str]]


@lru_cache
def theirs() -> dict[str, dict[str, Any]]:
    """Give what the wheel has: for each module its names, with parameters and members."""
    done = subprocess.run([wheel(), PEERS / "names.py", *MODULES], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@lru_cache
def table(module: str) -> dict[str, str]:
    """Give what the page says of the names of a module."""
    section = (
        (ROOT / "docs" / "compat.md").read_text().split(f"### `{module}`\n")[1].split("\n## ")[0].split("\n### ")[0]
    )
    rows = re.findall(r"^\| `([\w.]+)` \| ([\w ]+) \|", section, re.M)
    assert len(rows) == len(dict(rows)), f"{module}: a name is told twice"
    return dict(rows)


def ours(module: str) -> Any:
    return importlib.import_module(module.replace("dynamo.", "dynamo_go.compat.", 1))


def parameters(thing: Any) -> Parameters:
    rows = []
    for parameter in inspect.signature(thing).parameters.values():
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        rows.append([parameter.name, parameter.kind.name, default])
    return rows[1:] if rows and rows[0][0] == "self" else rows


def agree(their: Parameters, our: Parameters, *, exactly: bool) -> bool:
    """Whether what is written for theirs means the same to ours."""
    if exactly and len(their) != len(our):
        return False
    by_name = {name: (kind, default) for name, kind, default in our}
    positional = [name for name, kind, _ in our if kind != "KEYWORD_ONLY"]
    if [name for name, kind, _ in their if kind != "KEYWORD_ONLY"] != positional[: len(positional)]:
        return False
    for name, kind, default in their:
        if name not in by_name or by_name[name][0] != kind:
            return False
        given = by_name[name][1]
        # "..." is a default that the wheel does not tell; what is required there may be optional here.
        if given != (default or "") and not (default == "..." and given) and (exactly or default is not None):
            return False
    known = {name for name, _, _ in their}
    return all(default for name, _, default in our if name not in known)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_told(module: str) -> None:
    said, wheel_has = table(module), theirs()[module]
    members = {f"{name}.{member}" for name, thing in wheel_has.items() for member in thing["members"]}
    for name in wheel_has:
        # HttpError and RouterQueueLimitExceeded are told once, where they are used from.
        assert name in said or name in table("dynamo.llm"), f"docs/compat.md does not tell of {module}.{name}"
    for name in said:
        assert name in wheel_has or name in members, f"docs/compat.md tells of {module}.{name}, which the wheel lacks"
    assert set(said.values()) <= {"same", "better", "accepted", "not there"}


@pytest.mark.parametrize("module", MODULES)
def test_what_is_told_is_true(module: str) -> None:
    said, wheel_has = {**table("dynamo.llm"), **table(module)}, theirs()[module]
    for name, thing in wheel_has.items():
        if said[name] == "not there":
            assert not hasattr(ours(module), name), f"{module}.{name} is there, docs/compat.md says it is not"
            continue
        here = getattr(ours(module), name)
        exactly = said[name] == "same"
        if thing["parameters"] is not None and not (inspect.isclass(here) and issubclass(here, (BaseException, int))):
            given = parameters(here)
            assert agree(thing["parameters"], given, exactly=exactly), f"{name}{thing['parameters']}, here {given}"
        for member, expected in thing["members"].items():
            status = said.get(f"{name}.{member}", said[name])
            if status == "not there":
                assert not hasattr(here, member), f"{name}.{member} is there, docs/compat.md says it is not"
                continue
            assert hasattr(here, member), f"{name}.{member} is not there, docs/compat.md says {status}"
            if expected is not None and not inspect.isdatadescriptor(inspect.getattr_static(here, member)):
                given = parameters(getattr(here, member))
                assert agree(expected, given, exactly=status == "same"), f"{name}.{member}{expected}, here {given}"


def test_all_that_is_exported_is_told() -> None:
    for module in MODULES:
        for name in ours(module).__all__:
            assert name in table(module) or name in table("dynamo.llm"), f"{module}: {name}"


@pytest.mark.parametrize(
    ("their", "our", "exactly", "expected"),
    [
        ([["a", "P", None]], [["a", "P", ""]], True, True),
        ([["a", "P", None]], [["b", "P", ""]], False, False),
        ([["a", "P", None]], [["a", "P", "1"]], True, False),
        ([["a", "P", None]], [["a", "P", "1"]], False, True),
        ([["a", "P", "1"]], [["a", "P", "2"]], False, False),
        ([["a", "P", "..."]], [["a", "P", "2"]], True, True),
        ([["a", "P", "1"]], [["a", "KEYWORD_ONLY", "1"]], False, False),
        ([["a", "P", None], ["b", "P", None]], [["b", "P", ""], ["a", "P", ""]], False, False),
        ([["a", "P", None]], [["a", "P", ""], ["b", "KEYWORD_ONLY", "1"]], False, True),
        ([["a", "P", None]], [["a", "P", ""], ["b", "KEYWORD_ONLY", "1"]], True, False),
        ([["a", "P", None]], [["a", "P", ""], ["b", "KEYWORD_ONLY", ""]], False, False),
    ],
)
def test_agree(their: Parameters, our: Parameters, exactly: bool, expected: bool) -> None:
    assert agree(their, our, exactly=exactly) is expected


def life(python: str, prefix: str) -> list[list[Any]]:
    """Run the program, and give what it told."""
    read, write = os.pipe()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
    done = subprocess.Popen(
        [python, str(PEERS / "life.py"), prefix, str(write)],
        pass_fds=[write],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, "DYN_LOG": "error"},
        text=True,
    )
    os.close(write)
    with os.fdopen(read) as told:
        lines = [json.loads(line) for line in told]
    output, _ = done.communicate(timeout=60)
    assert done.returncode == 0, output
    return lines


def same(their: Any, our: Any) -> bool:
    """Whether two values are equal; an error may be of a class that theirs is a base of."""
    if isinstance(their, list):
        return isinstance(our, list) and len(their) == len(our) and all(map(same, their, our))
    if their == "error Exception":
        return isinstance(our, str) and our.startswith("error ")
    return bool(their == our)


def test_one_program_gives_the_same_with_both() -> None:
    their, our = life(wheel(), "dynamo"), life(sys.executable, "dynamo_go.compat")
    assert len(their) > 55 and [step for step, _ in their] == [step for step, _ in our]
    for (step, expected), (_, given) in zip(their, our, strict=True):
        assert same(expected, given), f"{step}: {given}, Dynamo gives {expected}"


# -- what is better, and what the wheel cannot be compared in


def test_dp_rank_without_worker_id_is_honoured() -> None:
    async def main() -> None:
        made = runtime.DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
        endpoint = made.endpoint(PATH)
        config = llm.ModelRuntimeConfig()
        config.data_parallel_size = 4

        async def handler(request: Any) -> Any:
            yield {"token_ids": [request["routing"]["dp_rank"]], "finish_reason": "stop"}

        endpoint.serve_endpoint(handler)
        await llm.register_model(llm.ModelInput.Tokens, llm.ModelType.Chat, endpoint, "m", runtime_config=config)
        router = llm.KvRouter(endpoint, 16, llm.KvRouterConfig())
        for rank in (3, 1):
            (item,) = [item async for item in await router.generate([1], "m", dp_rank=rank)]
            assert item["token_ids"] == [rank]
        with pytest.raises(ValueError, match="nonsense"):
            router.best_worker([1], {"nonsense": 1})

    run(main())


def test_cancelling_what_waits_gives_it_up() -> None:
    async def main() -> None:
        made = runtime.DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
        endpoint = made.endpoint(PATH)

        async def handler(request: Any) -> Any:
            yield {"token_ids": [1], "finish_reason": "stop"}

        endpoint.serve_endpoint(handler)
        router = llm.KvRouter(endpoint, 16, llm.KvRouterConfig(router_queue_threshold=0.0))
        await router.best_worker([1] * 64, request_id="first")
        waiting = router.generate([1] * 64, "m")
        await asyncio.sleep(0)
        assert not waiting.done() and waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await router.free("first") == ()
        while [load["active_requests"] for load in await router.get_potential_loads([])] != [0]:
            await asyncio.sleep(0.001)

    run(main())


def test_a_stream_that_fails_is_a_value_error_and_typed() -> None:
    async def main() -> None:
        made = runtime.DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
        endpoint = made.endpoint(PATH)

        async def handler(request: Any) -> Any:
            yield {"token_ids": [1]}
            await asyncio.get_running_loop().create_future()

        serving = endpoint.serve_endpoint(handler)
        stream = await llm.KvRouter(endpoint, 16, llm.KvRouterConfig()).generate([1], "m")
        assert (await stream.__anext__())["token_ids"] == [1]
        serving.cancel()
        with pytest.raises(ValueError, match="stopped before the generation completed") as lost:
            await stream.__anext__()
        assert isinstance(lost.value, llm.exceptions.StreamIncomplete)

    run(main())


def test_models_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    Request = pydantic.create_model("Request", n=(int, ...))

    @runtime.dynamo_endpoint(Request, Request)
    async def handler(request: Any) -> Any:
        yield request.n

    async def ask(request: Any) -> list[Any]:
        return [item async for item in handler(request)]

    assert asyncio.run(ask({"n": 1})) == asyncio.run(ask('{"n": "1"}')) == [1]
    for wrong in ({"n": "x"}, "no JSON", 5, Request(n=1)):
        with pytest.raises(ValueError, match="^Invalid request"):
            asyncio.run(ask(wrong))


def test_values_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="at least one"):
        llm.WorkerMetricsPublisher().publish(0)
    with pytest.raises(ValueError, match="-1"):
        llm.WorkerMetricsPublisher().publish(0, -1)
    with pytest.raises(ValueError, match="no JSON"):
        llm.ModelRuntimeConfig().set_engine_specific("k", "no JSON")
    with pytest.raises(TypeError, match="int"):
        llm.ModelRuntimeConfig().set_engine_specific("k", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'kv'"):
        llm.RouterConfig("kv")  # type: ignore[arg-type]
    assert len(llm.HttpError(500, "x" * 10_000).message) == 8192


def test_logging_goes_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import logging; from dynamo_go.compat.runtime.logging import configure_dynamo_logging as configure\n"
        "configure('service', 7); logging.info('quiet'); logging.warning('loud')"
    )
    monkeypatch.setenv("DYN_LOG", "warn,dynamo=trace")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "" and "service.7 root: loud" in done.stderr and "quiet" not in done.stderr
