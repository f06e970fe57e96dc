"""Stand-ins for inference engines, so that the examples run as they are.

Each keeps every prompt it has seen in its "KV cache", tells the routers so, and answers with made-up tokens. With a real
engine, `handler` calls the engine, and the engine's own events are published.
"""

from collections.abc import AsyncIterator
from typing import Any

from dynamo_go import Context, DistributedRuntime, KvEventPublisher

BLOCK_SIZE = 16  # tokens in a KV block


class Worker:
    """One worker of an endpoint, served in this process."""

    def __init__(self, runtime: DistributedRuntime, path: str = "example.backend.generate") -> None:
        """Serve the endpoint, and be a candidate of its routers at once."""
        self._endpoint = runtime.endpoint(path)
        self._publisher = KvEventPublisher(self._endpoint, kv_block_size=BLOCK_SIZE)
        self._cached: set[int] = set()
        self.id = self._endpoint.connection_id()
        self._endpoint.serve_endpoint(self.handler)

    async def handler(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """Answer one request, and publish the blocks that it brought into the cache."""
        self._store(request["token_ids"])
        count = request["stop_conditions"]["max_tokens"] or 3
        for n in range(count):
            if context.is_stopped():  # nobody reads any more
                return
            yield {"token_ids": [n], "finish_reason": "length" if n == count - 1 else None}

    def _store(self, tokens: list[int]) -> None:
        parent = None
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            name = hash(tuple(tokens[:end]))  # an engine names its blocks as it likes
            if name not in self._cached:
                self._cached.add(name)
                block = tokens[end - BLOCK_SIZE : end]
                self._publisher.publish_stored(block, [BLOCK_SIZE], [name], parent)
            parent = name


def worker_of(item: dict[str, Any]) -> int:
    """Tell which worker answered, from the first item of a stream."""
    worker_id: int = item["routing_data"]["worker_id"]["decode_worker_id"]
    return worker_id
