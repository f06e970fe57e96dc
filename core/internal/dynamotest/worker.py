"""A worker of NVIDIA Dynamo without an engine: what it does depends on the model that a request names.

Arguments: the endpoint's path; how many ranks it has (1); the endpoint in whose scope its events are (its own). Prints one line of JSON for everything that happens. A model or a request's ``cmd``:

    err0      an error before the first item
    errmid    an error after the first item
    slow      200 items, 50 ms apart
    tokens-N  N items at once
    other     3 items; the prompt's full blocks are stored, as an engine would report it
    cmd       a method of the event publisher, with ``args``; or ``metrics``, ``die``
"""

import asyncio
import json
import os
import signal
import sys
import tempfile

import uvloop
from dynamo._core import (
    DistributedRuntime,
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerMetricsPublisher,
    WorkerType,
    register_model,
)

BLOCK = int(os.environ.get("BLOCK", "16"))


def say(**what):
    print(json.dumps(what), flush=True)


def model_directory():
    """The least that releases before 1.6 want to see of a model."""
    path = tempfile.mkdtemp()
    files = {
        "config.json": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 2048, "eos_token_id": 2},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "</s>": 2}, "unk_token": "a"},
        },
    }
    for name, content in files.items():
        with open(os.path.join(path, name), "w") as f:
            json.dump(content, f)
    return path


class Cache:
    """The blocks of prompts, under hashes that name a block within all that is before it."""

    def __init__(self, publisher):
        self.publisher = publisher
        self.held = set()

    def store(self, tokens):
        parent, name, new, at = None, 0, [], 0
        for start in range(0, len(tokens) - len(tokens) % BLOCK, BLOCK):
            name = hash((name, *tokens[start : start + BLOCK])) % (1 << 62)
            if name in self.held:
                parent, at = name, start + BLOCK
            else:
                self.held.add(name)
                new.append(name)
        if new:
            ids = tokens[at : at + BLOCK * len(new)]
            self.publisher.publish_stored(ids, [BLOCK] * len(new), new, parent)


async def main():
    loop = asyncio.get_running_loop()
    discovery, requests, events = os.environ["PLANES"].split()
    runtime = DistributedRuntime(loop, discovery, requests, event_plane=events)
    endpoint = runtime.endpoint(sys.argv[1])
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    state = {"kv_state_endpoint": sys.argv[3]} if len(sys.argv) > 3 else {}
    publishers = [
        KvEventPublisher(endpoint, kv_block_size=BLOCK, dp_rank=rank, enable_local_indexer=True, **state)
        for rank in range(ranks)
    ]
    publisher = publishers[0]
    caches = [Cache(one) for one in publishers]
    metrics = WorkerMetricsPublisher()
    await metrics.create_endpoint(endpoint)
    me = endpoint.connection_id()

    async def handler(request, context):
        say(request=context.id(), body=request)
        cmd = request.get("cmd") if isinstance(request, dict) else None
        if cmd == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif cmd == "metrics":
            metrics.publish(0, active_decode_blocks=7, kv_used_blocks=9)
        elif cmd:
            getattr(publisher, cmd)(**request.get("args", {}))
        if cmd:
            yield {"token_ids": [], "worker": me}
            return
        model = request.get("model", "")
        if model == "err0":
            raise ValueError("boom before first item")
        if model == "slow":
            for i in range(200):
                if context.is_stopped():
                    say(stopped=i, killed=context.is_killed())
                    return
                yield {"token_ids": [1000 + i]}
                await asyncio.sleep(0.05)
            return
        count = int(model[7:]) if model.startswith("tokens-") else 3
        for i in range(count):
            item = {"token_ids": [1000 + i], "worker": me}
            if i == count - 1:
                rank = (request.get("routing") or {}).get("dp_rank") or 0
                caches[rank].store(request["token_ids"])
                item["finish_reason"] = "length"
            yield item
            if model == "errmid" and i == 0:
                raise RuntimeError("boom after first item")

    config = ModelRuntimeConfig()
    config.total_kv_blocks = 1000
    config.max_num_seqs = 64
    config.max_num_batched_tokens = 8192
    config.enable_local_indexer = True
    config.data_parallel_size = ranks
    if state:
        config.kv_state_endpoint = state["kv_state_endpoint"]
    card = {"worker_type": WorkerType.Aggregated, "kv_cache_block_size": BLOCK, "runtime_config": config}
    kind = (ModelInput.Tokens, ModelType.Completions, endpoint)
    try:
        await register_model(*kind, "fake-model", "fake-model", skip_model_assets=True, **card)
    except TypeError:
        await register_model(*kind, model_directory(), "fake-model", **card)
    serving = asyncio.ensure_future(endpoint.serve_endpoint(handler, graceful_shutdown=True))
    say(ready=True, worker=me)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await asyncio.wait([serving, asyncio.ensure_future(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    runtime.shutdown()
    await asyncio.sleep(0.5)
    say(stopped=True)


uvloop.run(main())
