"""A warm restart: a router saves what it knows, and the next one goes on from there.

The engine here is a mocker, which needs no GPU, and its replay buffer holds only its last events: a router that joined
late without the file would know next to nothing of its cache.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from dynamo_go import Router

BLOCK_SIZE = 16
ENGINE = [sys.executable, "-m", "dynamo_go", "mocker", "--block-size", str(BLOCK_SIZE), "--buffer-steps", "4"]


def complete(url: str, prompt: list[int]) -> None:
    """Let the engine serve a prompt; its blocks are in its cache then."""
    body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()


def wait_for(router: Router, prompt: list[int]) -> None:
    """Wait until the router knows a prompt's blocks, and the whole cache of the engine."""
    deadline = time.monotonic() + 20
    while router.best_worker(prompt)[2] < len(prompt) // BLOCK_SIZE or router.health()[0]["state"] != "exact":
        assert time.monotonic() < deadline, router.health()
        time.sleep(0.01)


def main() -> None:
    """Run a router, stop it, and start another one."""
    engine = subprocess.Popen(ENGINE, stdout=subprocess.PIPE)
    try:
        assert engine.stdout is not None
        addresses = json.loads(engine.stdout.readline())  # one line, when it is ready
        prompts = [list(range(i, i + 64)) for i in range(1000, 21_000, 1000)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "router.snapshot"
            with Router(block_size=BLOCK_SIZE) as router:
                router.add_worker(7, kv_events=addresses["kv_events"], replay=addresses["replay"])
                for prompt in prompts:
                    complete(addresses["http"], prompt)
                    wait_for(router, prompt)
                router.save(path)  # now and then, and when the router stops
            print(f"saved {path.stat().st_size} bytes")

            late = list(range(90_000, 90_064))
            complete(addresses["http"], late)  # while no router listens

            with Router(block_size=BLOCK_SIZE) as router:
                restored = router.load(path)  # before the workers are added
                router.add_worker(7, kv_events=addresses["kv_events"], replay=addresses["replay"])
                worker_id, _, overlap = router.best_worker(prompts[0])
                print(f"{restored} rank restored: worker {worker_id} has {overlap} blocks, at once")
                assert (worker_id, overlap) == (7, 4), "the worker that holds the prefix"

                wait_for(router, late)  # the engine's replay proves the rest, and gives what was missed
                assert router.best_worker(prompts[0])[2] == 4
                print("exact:", router.health()[0]["counters"])
    finally:
        engine.terminate()
        engine.communicate()


if __name__ == "__main__":
    main()
