"""Calls that may take long, and a signal that comes meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def interruptible(call: Callable[..., T], *arguments: object) -> T:
    """Call the library so that a signal handler that raises, KeyboardInterrupt first of all, ends the wait at once.

    Signal handlers run in the main thread, between calls: so the call is another thread's, and the main thread waits where
    Python notices signals. After an interrupt the call goes on by itself, and its result is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        return call(*arguments)
    done = threading.Event()
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call(*arguments))
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="dynamo_go call", daemon=True).start()
    done.wait()
    if failure:
        raise failure.pop()
    return result[0]
