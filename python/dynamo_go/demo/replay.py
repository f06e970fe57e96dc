"""One run: the trace's requests, sent at their arrival times whatever happens to the ones before."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .client import Client, RequestFailed
from .engines import EngineFailed, Engines
from .policies import Policy
from .trace import Request

LATE_SECONDS = 60.0  # of this machine, after the last arrival, for all requests to end


@dataclass
class Outcome:
    """What became of one request. Times are in seconds."""

    worker: int
    decision: float  # this machine's, that the policy took
    late: float  # this machine's, from when the request was due to when it was sent
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft: float = 0.0  # the engine's, from the request's arrival there to its first token
    ttft_here: float = 0.0  # this machine's times the speedup, from when it was due to the first token's arrival here
    error: str | None = None


async def replay(
    requests: Sequence[Request], engines: Engines, policy: Policy, speedup: float, progress: Callable[[], None]
) -> list[Outcome]:
    """Send all requests, and wait for all to end; those that fail have an `error`."""
    clients = [Client(address) for address in engines.addresses]
    outcomes: list[Outcome] = []
    tasks: list[asyncio.Task[None]] = []
    gc.collect()
    gc.disable()  # a collection would show as latency of the requests under way
    try:
        await policy.ready()
        start = time.perf_counter()
        for request in requests:
            due = start + request.arrival / speedup
            if (delay := due - time.perf_counter()) > 0:
                await asyncio.sleep(delay)
            before = time.perf_counter()
            worker = policy.pick(request)
            outcome = Outcome(worker, time.perf_counter() - before, before - due)
            outcomes.append(outcome)
            tasks.append(asyncio.create_task(_serve(request, clients[worker], policy, outcome, due, speedup, progress)))
            await asyncio.sleep(0)  # it is on its way before the next one is picked
        _, late = await asyncio.wait(tasks, timeout=LATE_SECONDS)
        for task in late:
            task.cancel()
        for task, outcome in zip(tasks, outcomes):
            if task in late:
                outcome.error = f"not done {LATE_SECONDS:.0f} s after the last arrival"
            elif (error := task.exception()) is not None:
                raise error
        engines.check()
        await _compare(clients, outcomes)
        return outcomes
    finally:
        gc.enable()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            client.close()


async def _serve(
    request: Request,
    client: Client,
    policy: Policy,
    outcome: Outcome,
    due: float,
    speedup: float,
    progress: Callable[[], None],
) -> None:
    last: dict[str, Any] = {}
    try:
        async for event in client.stream(request.body):
            if event.get("choices") and outcome.output_tokens == 0:
                outcome.ttft_here = (time.perf_counter() - due) * speedup
                policy.first_token(request)
            for choice in event.get("choices", ()):
                outcome.output_tokens += len(choice["token_ids"])
            last = event
        usage = last.get("usage")
        if usage is None:
            raise RequestFailed("the answer has no usage")
        if outcome.output_tokens != request.output_tokens or usage["completion_tokens"] != request.output_tokens:
            raise RequestFailed(f"{outcome.output_tokens} tokens came, {request.output_tokens} were asked for")
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        outcome.ttft = last["metrics"]["ttft_ms"] / 1000
        if outcome.prompt_tokens != request.prompt_tokens:
            raise RequestFailed(f"the engine counts {outcome.prompt_tokens} prompt tokens, not {request.prompt_tokens}")
    except RequestFailed as error:
        outcome.error = f"request {request.number} on engine {outcome.worker}: {error}"
    finally:
        policy.end(request)
        progress()


async def _compare(clients: Sequence[Client], outcomes: Sequence[Outcome]) -> None:
    """The engines' own counts must agree with what was received."""
    for number, client in enumerate(clients):
        stats = await client.get("/stats")
        mine = [outcome for outcome in outcomes if outcome.worker == number]
        if any(outcome.error for outcome in mine):
            continue
        expected = {
            "finished": len(mine),
            "prompt_tokens": sum(outcome.prompt_tokens for outcome in mine),
            "cached_tokens": sum(outcome.cached_tokens for outcome in mine),
            "output_tokens": sum(outcome.output_tokens for outcome in mine),
            "failed_batches": 0,
        }
        counted = {name: stats[name] for name in expected}
        if counted != expected:
            raise EngineFailed(f"engine {number} counted {counted}, the answers say {expected}")
