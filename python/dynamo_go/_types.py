"""The shapes that :class:`dynamo_go.Router` takes and gives."""

from __future__ import annotations

from typing import Literal, TypedDict


class PotentialLoad(TypedDict):
    """What one rank would be busy with if it got the prompt."""

    worker_id: int
    dp_rank: int
    potential_prefill_tokens: int
    """Uncached prompt tokens of the rank's active requests and of this prompt."""
    potential_decode_blocks: int
    """Distinct blocks of the rank's active requests and of this prompt."""
    active_requests: int


class Decision(TypedDict):
    """A decision that chose a rank."""

    number: int
    """From 1 on, in the order of decisions."""
    at: float
    """Unix seconds."""
    request_id: str | None
    """None: nothing was booked."""
    worker_id: int
    dp_rank: int
    prompt_tokens: int
    predicted_cached_tokens: int
    """What the rank holds of the prompt in all tiers, as far as the router knows."""
    actual_cached_tokens: int | None
    """What the engine found; None: nobody reported it."""


class Finding(TypedDict):
    """A cause why prompts do not find what a rank holds."""

    cause: Literal[
        "block_size_differs", "events_unusable", "no_events", "cache_salt_differs", "lora_differs", "tokens_differ"
    ]
    evidence: str
    """What was observed, with numbers."""
    action: str
    """What to do about it."""


class RankHealth(TypedDict):
    """How complete the view of one rank's cache is."""

    worker_id: int
    dp_rank: int
    state: Literal["exact", "recovering", "partial", "disconnected", "presumed"]
    reason: str
    since: float
    """When the state began, in Unix seconds."""
    last_seq: int | None
    """Sequence number of the last batch applied; None before the first, or without an event endpoint."""
    counters: dict[str, int]
    findings: list[Finding]
    """Empty for a healthy rank."""


class WorkerInfo(TypedDict):
    """One registered worker."""

    worker_id: int
    dp_start: int
    dp_size: int
    kv_events: str | dict[int, str] | None
    replay: str | dict[int, str] | None
    query: str | dict[int, str] | None
    topic: str
    host: str
    block_size: int
    max_num_batched_tokens: int | None
    """None if unknown."""
    total_kv_blocks: int | None
    """None if unknown."""
    taints: list[str]
    adapters: list[str]
    """LoRA adapters that it named."""


class Stats(TypedDict):
    """How big a router is."""

    blocks: int
    """Distinct blocks."""
    pairs: int
    """(block, rank) pairs."""
    paths: int
    bytes: int
    """Memory of the index; `memory` says where it is."""
    memory: dict[str, int]
    """``blocks``, ``paths``, ``names``, ``heads``, ``sets``, ``rest``, ``presumed``, ``tiers``, in bytes; their sum is `bytes`."""
    max_bytes: int
    """The bound on `bytes`; 0: none."""
    evicted_blocks: int
    """Blocks that a byte bound took from the ranks, since each was last emptied."""
    workers: int
    ranks: int
    waiting_ranks: int
    """Ranks loaded from a snapshot whose workers were not added."""
    active_requests: int
    """Those that other routers placed are counted."""
    replicas: dict[str, int] | None
    """What is heard of and told to other routers (:meth:`Router.replicate`); None without."""
    ignored_events: int
    """Events that were taken and changed nothing: of foreign caches, or with ``use_kv_events=False``."""
    host_pinned_blocks: int
    """(block, rank) pairs in pinned host memory."""
    disk_blocks: int
    external_blocks: int
    presumed_blocks: int
    """(block, rank) pairs that are presumed from what was routed; with ``use_kv_events=False``, all of `pairs`."""
