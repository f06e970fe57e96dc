"""The trace: its requests, the tokens that stand for them, and the best hit rate there is."""

from __future__ import annotations

import array
import gzip
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

TRACE_BLOCK = 512  # tokens for each of the trace's hash ids
_LETTERS = [str(token) for token in range(1 << 16)]


@dataclass(frozen=True)
class Request:
    """One request of the trace, ready to be sent."""

    number: int
    arrival: float  # seconds since the first request, in the trace's time
    hash_ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    tokens: array.array[int]  # the prompt, as uint32
    body: bytes  # of POST /v1/completions


def load(limit: int, model: str) -> list[Request]:
    """Read the first `limit` requests of the packaged slice."""
    packed = resources.files(__package__).joinpath("data/conversation_1000.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines()
    if not 1 <= limit <= len(lines):
        raise ValueError(f"requests is {limit}, must be in 1..{len(lines)}: the slice has no more")
    blocks = _Blocks()
    rows = [json.loads(line) for line in lines[:limit]]
    start = rows[0]["timestamp"]
    return [_request(number, row, start, model, blocks) for number, row in enumerate(rows)]


class _Blocks:
    """The tokens of each hash id: random ones that depend on the id alone."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[array.array[int], str]] = {}

    def tokens(self, hash_id: int) -> array.array[int]:
        return array.array("H", random.Random(hash_id).randbytes(2 * TRACE_BLOCK))

    def whole(self, hash_id: int) -> tuple[array.array[int], str]:
        known = self._known.get(hash_id)
        if known is None:
            tokens = self.tokens(hash_id)
            known = self._known[hash_id] = (array.array("I", tokens), _text(tokens))
        return known


def _text(tokens: Iterable[int]) -> str:
    return ",".join([_LETTERS[token] for token in tokens])


def _request(number: int, row: dict[str, object], start: float, model: str, blocks: _Blocks) -> Request:
    length, output, ids = row["input_length"], row["output_length"], row["hash_ids"]
    timestamp = row["timestamp"]
    assert isinstance(length, int) and isinstance(output, int) and isinstance(ids, list)
    assert isinstance(timestamp, int | float)
    tokens, texts = array.array("I"), []
    for hash_id in ids:
        left = length - len(tokens)
        if left >= TRACE_BLOCK:
            part, text = blocks.whole(hash_id)
        else:  # the last one
            cut = blocks.tokens(hash_id)[:left]
            part, text = array.array("I", cut), _text(cut)
        tokens.extend(part)
        texts.append(text)
    options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    head = json.dumps({"model": model, "max_tokens": output, **options})
    body = f'{head[:-1]}, "prompt": [{",".join(texts)}]}}'.encode()
    return Request(number, (timestamp - start) / 1000, tuple(ids), length, output, tokens, body)


def ideal_cached_tokens(requests: Sequence[Request], block_size: int) -> int:
    """Prompt tokens that one unlimited cache would find, if each request were computed before the next one came."""
    seen: set[tuple[int, int]] = set()
    found = 0
    for request in requests:
        hits = 0
        for index, hash_id in enumerate(request.hash_ids):
            # The last id of a prompt may stand for fewer tokens; it equals only another one of the same length.
            size = min(TRACE_BLOCK, request.prompt_tokens - index * TRACE_BLOCK)
            if (hash_id, size) not in seen:
                break
            hits += size
        seen.update(
            (hash_id, min(TRACE_BLOCK, request.prompt_tokens - index * TRACE_BLOCK))
            for index, hash_id in enumerate(request.hash_ids)
        )
        # Caches find whole blocks, and one token is always computed.
        found += min(hits, request.prompt_tokens - 1) // block_size * block_size
    return found


def distinct_blocks(requests: Sequence[Request], block_size: int) -> int:
    """The blocks of a cache that keeps all prompts, each distinct block once."""
    lengths: dict[int, int] = {}
    for request in requests:
        for index, hash_id in enumerate(request.hash_ids):
            size = min(TRACE_BLOCK, request.prompt_tokens - index * TRACE_BLOCK)
            lengths[hash_id] = max(lengths.get(hash_id, 0), size)
    return sum(-(-size // block_size) for size in lengths.values())
