"""Engines over HTTP: the router follows their KV events and chooses; you send the requests.

The engines here are mockers, which need no GPU. vLLM and SGLang take the same: give `add_worker` their event and replay
sockets, and send the same request to their /v1/completions.
"""

import json
import subprocess
import sys
import time
import urllib.request
from typing import Any

from dynamo_go import Router

BLOCK_SIZE = 16
ENGINE = [sys.executable, "-m", "dynamo_go", "mocker", "--block-size", str(BLOCK_SIZE)]


def wait_until_exact(router: Router, seconds: float = 20) -> None:
    """Wait until the router knows the whole cache of every engine."""
    deadline = time.monotonic() + seconds
    while any(rank["state"] != "exact" for rank in router.health()):
        assert time.monotonic() < deadline, router.health()
        time.sleep(0.01)


def complete(router: Router, urls: dict[int, str], request_id: str, prompt: list[int]) -> tuple[int, int]:
    """Route and send one request; give the engine that answered, and how many tokens it had cached."""
    worker_id, _, overlap_blocks = router.best_worker(prompt, request_id=request_id)  # chosen and booked
    try:
        body = {"prompt": prompt, "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(
            urls[worker_id] + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        usage: dict[str, Any] = {}
        first = True
        with urllib.request.urlopen(request, timeout=30) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue  # an empty line, or [DONE]
                if first:
                    first = False
                    router.mark_prefill_complete(request_id)  # its prompt is no load any more
                usage = json.loads(line[6:]).get("usage") or usage
    finally:
        router.free(request_id)  # whatever happened
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    print(f"{request_id}: worker {worker_id}, {overlap_blocks} blocks known, {cached} of {len(prompt)} tokens cached")
    return worker_id, cached


def main() -> None:
    """Send a prompt, another one, and the first one again."""
    engines = {number: subprocess.Popen(ENGINE, stdout=subprocess.PIPE) for number in (1, 2)}
    try:
        with Router(block_size=BLOCK_SIZE) as router:
            urls = {}
            for number, engine in engines.items():
                assert engine.stdout is not None
                addresses = json.loads(engine.stdout.readline())  # one line, when it is ready
                urls[number] = addresses["http"]
                router.add_worker(number, kv_events=addresses["kv_events"], replay=addresses["replay"])
            wait_until_exact(router)

            prompt = list(range(1000, 1200))  # token ids
            holder, cached = complete(router, urls, "request-1", prompt)
            assert cached == 0

            deadline = time.monotonic() + 20  # its blocks are known as soon as their events are here
            while router.best_worker(prompt)[2] < len(prompt) // BLOCK_SIZE:  # without an id, it only asks
                assert time.monotonic() < deadline, router.health()
                time.sleep(0.01)
            complete(router, urls, "request-2", list(range(5000, 5200)))
            again, cached = complete(router, urls, "request-3", prompt)

            assert again == holder, "the worker that holds the prefix"
            assert cached == len(prompt) // BLOCK_SIZE * BLOCK_SIZE, "the engine had all its whole blocks"
    finally:
        for engine in engines.values():
            engine.terminate()
        for engine in engines.values():
            engine.communicate()


if __name__ == "__main__":
    main()
