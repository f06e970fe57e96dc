"""Answers that are there at once: futures in all that asyncio does with one."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from typing import Any

import pytest
from kit import busy, make_router, make_runtime, run, serve, silent

from dynamo_go import _native

TOKENS = list(range(64))


def test_awaiting_gives_the_value_and_does_not_suspend() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ticked: list[int] = []
        loop.call_soon(ticked.append, 1)
        for value in (None, (1, 2, 3), StopIteration(4), ValueError("not raised")):
            assert await _native.Answer(loop, value) is value
        assert not ticked

    run(main())


def test_old_style_iteration_gives_the_value() -> None:
    loop = asyncio.new_event_loop()
    try:
        for value in (None, (1, 2), StopIteration(3)):
            with pytest.raises(StopIteration) as raised:
                next(_native.Answer(loop, value).__await__())
            assert raised.value.value is value
    finally:
        loop.close()


def test_state_is_that_of_a_finished_future() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        answer = _native.Answer(loop, 7)
        assert asyncio.isfuture(answer)
        assert (answer.done(), answer.cancelled(), answer.exception(), answer.result()) == (True, False, None, 7)
        assert answer.get_loop() is loop
        assert not answer.cancel()
        assert not answer.cancel(msg="why")
        assert answer.remove_done_callback(print) == 0
        assert repr(answer) == "<Answer finished result=7>"
        assert asyncio.ensure_future(answer) is answer
        with pytest.raises(TypeError):
            _native.Answer(loop)
        with pytest.raises(TypeError):
            _native.Answer(loop, value=1)

    run(main())


def test_asyncio_takes_answers_for_futures() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        answers: list[Any] = [_native.Answer(loop, n) for n in range(3)]
        assert await asyncio.gather(*answers) == [0, 1, 2]
        done, pending = await asyncio.wait(answers)
        assert (done, pending) == (set(answers), set())
        assert await asyncio.wait_for(answers[1], 1) == 1
        assert await asyncio.shield(answers[2]) == 2
        assert sorted([await each for each in asyncio.as_completed(answers)]) == [0, 1, 2]
        pending_one: asyncio.Future[int] = loop.create_future()
        done, pending = await asyncio.wait([answers[0], pending_one], return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({answers[0]}, {pending_one})

    run(main())
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(_native.Answer(loop, 8)) == 8
    loop.close()


def test_callbacks_come_by_the_loop_in_their_context() -> None:
    async def main() -> None:
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")
        answer = _native.Answer(asyncio.get_running_loop(), 1)
        seen: list[Any] = []

        def callback(future: Any) -> None:
            seen.append((future is answer, variable.get()))

        context = contextvars.copy_context()
        context.run(variable.set, "inside")
        answer.add_done_callback(callback)
        answer.add_done_callback(callback, context=context)
        assert seen == []
        await asyncio.sleep(0)
        assert seen == [(True, "outside"), (True, "inside")]
        with pytest.raises(TypeError):
            answer.add_done_callback()  # type: ignore[call-arg]

    run(main())


def test_answer_and_what_it_holds_are_collected() -> None:
    class Value:
        answer: Any

    loop = asyncio.new_event_loop()
    value = Value()
    value.answer = _native.Answer(loop, value)
    gone = weakref.ref(value)
    del value
    gc.collect()
    assert gone() is None
    loop.close()


@pytest.mark.parametrize("read", ["await", "result", "gather", "iterate"])
def test_booking_that_was_read_of_stays_when_cancelled(read: str) -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        router = make_router(runtime)
        answer = router.best_worker(TOKENS, request_id="r")
        if read == "await":
            await answer
        elif read == "result":
            answer.result()
        elif read == "gather":
            await asyncio.gather(answer)
        else:
            with pytest.raises(StopIteration):
                next(iter(answer))
        assert not answer.cancel()
        assert len(await busy(router)) == 1
        await router.free("r")
        router.close()

    run(main())


def test_booking_nobody_has_read_of_is_freed_when_cancelled() -> None:
    async def main() -> None:
        runtime = make_runtime()
        serve(runtime, silent)
        router = make_router(runtime)
        answer = router.best_worker(TOKENS, request_id="r")
        assert len(await busy(router)) == 1
        assert not answer.cancel()
        assert await busy(router) == []
        await router.best_worker(TOKENS, request_id="r")
        assert not answer.cancel()  # the id is somebody else's by now
        assert len(await busy(router)) == 1
        kept = router.best_worker(TOKENS, request_id="s")
        router.close()
        assert not kept.cancel()  # there is nothing to free

    run(main())
