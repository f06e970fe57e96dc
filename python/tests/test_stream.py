"""Streams: items in order, all of them, for one reader; nobody is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

import pytest
from kit import collect, run, until

from dynamo_go import Cancelled, Closed, Disconnected, InvalidArgument, ItemStream
from dynamo_go.mocker import Mocker

PROMPT = list(range(32))


def fast(**config: Any) -> Mocker:
    return Mocker(inter_token_ms=0, speedup=1000, **config)


def slow() -> Mocker:
    """Give an engine whose tokens come two seconds after each other; it hears then that it is to stop."""
    return Mocker(inter_token_ms=2000)


@pytest.mark.parametrize("buffered", [0, 1, 100, 1 << 20])
def test_all_items_come_in_order(buffered: int) -> None:
    async def main() -> None:
        with fast() as engine:
            items = await collect(engine.generate(PROMPT, 3000, buffered))
            assert [len(item["token_ids"]) for item in items] == [1] * 3000
            assert [item.get("finish_reason") for item in items[-2:]] == [None, "length"]
            again = await collect(engine.generate(PROMPT, 3000))
            assert again == items, "the engine's answer follows from the prompt"

    run(main())


def test_end_is_told_again() -> None:
    async def main() -> None:
        with fast() as engine:
            stream = engine.generate(PROMPT, 1)
            assert aiter(stream) is stream
            await collect(stream)
            for _ in range(2):
                with pytest.raises(StopAsyncIteration):
                    await anext(stream)

    run(main())


def test_reader_waits_without_holding_the_loop() -> None:
    async def main() -> None:
        with slow() as engine:
            stream = engine.generate(PROMPT, 5)
            await anext(stream)
            reading = asyncio.ensure_future(anext(stream))
            await until(lambda: stream._waiter is not None)
            with pytest.raises(RuntimeError, match="another task waits"):
                await anext(stream)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert stream._waiter is None
            stream.stop()
            assert [item["finish_reason"] for item in await collect(stream)] == ["cancelled"]

    run(main())


def test_closing_wakes_the_reader_and_is_final() -> None:
    async def main() -> None:
        with slow() as engine:
            stream = engine.generate(PROMPT, 5)
            await anext(stream)
            reading = asyncio.ensure_future(anext(stream))
            await until(lambda: stream._waiter is not None)
            await stream.aclose()
            with pytest.raises(Closed):
                await reading
            await stream.aclose()
            with pytest.raises(Closed):
                await anext(stream)
            with pytest.raises(Closed):
                stream.stop()
            killed = engine.generate(PROMPT, 5)
            killed._native.cancel(True)
            with pytest.raises(Cancelled):
                await anext(killed)

    run(main())


def test_engine_that_goes_is_told() -> None:
    async def main() -> None:
        engine = slow()
        stream = engine.generate(PROMPT, 5)
        await anext(stream)
        engine.close()
        with pytest.raises(Disconnected):
            await collect(stream)
        with pytest.raises(Disconnected):
            await anext(stream)

    run(main())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_dropped_streams_leave_nothing() -> None:
    async def main() -> None:
        with slow() as engine:
            kept = engine.generate(PROMPT, 2)
            await anext(kept)
            gc.collect()
            before = descriptors()
            for _ in range(50):
                stream = engine.generate(PROMPT, 2)
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(collect(stream), 0.01)
                del stream
            gc.collect()
            assert descriptors() <= before

    run(main())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), InvalidArgument, "at least"),
        ((PROMPT, 0), InvalidArgument, "max_tokens"),
        ((PROMPT, -5), InvalidArgument, "max_tokens"),
        ((PROMPT, 10, -1), InvalidArgument, "response_buffer_size"),
        ((PROMPT, 10, 1 << 40), InvalidArgument, "response_buffer_size"),
        ((PROMPT, "3"), TypeError, "str"),
        (("abc",), TypeError, "got str"),
        (([1, -1],), InvalidArgument, r"token_ids\[1\]=-1"),
    ],
)
def test_wrong_values_are_named(arguments: Any, error: type[Exception], message: str) -> None:
    with fast() as engine, pytest.raises(error, match=message):
        engine.generate(*arguments)


def test_streams_come_from_methods_only() -> None:
    with fast() as engine:
        stream = engine.generate(PROMPT)
        assert isinstance(stream, ItemStream)
        with pytest.raises(TypeError, match="cannot create"):
            type(stream._native)()
