"""What a worker says of its model and engine when it registers: names as in ``dynamo.llm``."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ._checks import expect, integer
from ._errors import InvalidArgument
from ._instance import Adapter, Card, slug
from ._runtime import Endpoint

# Ranks that one worker may have: the limit of the C interface.
_RANKS_MAX = 4096
_BLOCK_SIZE_MAX = 1 << 20


class Named(enum.IntEnum):
    """An enumeration whose members equal numbers, as Dynamo's do, and show their names."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __str__ = __repr__


class ModelInput(Named):
    """What a worker takes. Only tokens can be routed."""

    Text = 1
    Tokens = 2
    Tensor = 3


class ModelType(enum.Flag):
    """What a worker answers; of no consequence to routing."""

    Empty = 0
    Chat = enum.auto()
    Completions = enum.auto()
    Embedding = enum.auto()
    TensorBased = enum.auto()
    Prefill = enum.auto()
    Images = enum.auto()
    Audios = enum.auto()
    Videos = enum.auto()
    Realtime = enum.auto()
    Classify = enum.auto()
    Pooling = enum.auto()
    Rerank = enum.auto()

    def supports_chat(self) -> bool:
        """Whether it answers chats."""
        return ModelType.Chat in self

    def supports_classify(self) -> bool:
        """Whether it classifies."""
        return ModelType.Classify in self

    def supports_embedding(self) -> bool:
        """Whether it embeds."""
        return ModelType.Embedding in self

    def supports_pooling(self) -> bool:
        """Whether it pools."""
        return ModelType.Pooling in self

    def supports_rerank(self) -> bool:
        """Whether it ranks."""
        return ModelType.Rerank in self


class WorkerType(Named):
    """The part a worker has in serving a request. Only the aggregated exists yet."""

    Prefill = 1
    Decode = 2
    Encode = 3
    Aggregated = 4


class ModelRuntimeConfig:
    """What an engine is like. All attributes can be set; :func:`register_model` checks them.

    ``total_kv_blocks``: blocks of the engine's cache, None if unknown.
    ``max_num_seqs``: requests it runs at once, None if unknown.
    ``max_num_batched_tokens``: prompt tokens it takes in one step, None if unknown.
    ``data_parallel_start_rank`` (0) and ``data_parallel_size`` (1): its ranks, counted over all workers.
    ``taints`` (empty set): labels that ``RoutingConstraints`` can ask for.
    ``enable_local_indexer`` (True): routers may ask the worker for events they missed. Of no consequence in memory.

    The others take their defaults only: ``enable_eagle`` (False), ``stable_routing_id``, ``kv_state_endpoint``,
    ``topology_domains``, ``kv_transfer_domain`` and ``kv_transfer_enforcement`` (None).
    """

    __slots__ = (
        "data_parallel_size",
        "data_parallel_start_rank",
        "enable_eagle",
        "enable_local_indexer",
        "kv_state_endpoint",
        "kv_transfer_domain",
        "kv_transfer_enforcement",
        "max_num_batched_tokens",
        "max_num_seqs",
        "stable_routing_id",
        "taints",
        "topology_domains",
        "total_kv_blocks",
    )

    def __init__(self) -> None:
        self.total_kv_blocks: int | None = None
        self.max_num_seqs: int | None = None
        self.max_num_batched_tokens: int | None = None
        self.data_parallel_start_rank: int = 0
        self.data_parallel_size: int = 1
        self.taints: set[str] = set()
        self.enable_local_indexer: bool = True
        self.enable_eagle: bool = False
        self.stable_routing_id: str | None = None
        self.kv_state_endpoint: str | None = None
        self.topology_domains: dict[str, str] | None = None
        self.kv_transfer_domain: str | None = None
        self.kv_transfer_enforcement: str | None = None


async def register_model(
    model_input: ModelInput,
    model_type: ModelType,
    endpoint: Endpoint,
    model_path: str,
    model_name: str | None = None,
    kv_cache_block_size: int | None = None,
    router_config: Any = None,
    runtime_config: ModelRuntimeConfig | None = None,
    user_data: Any = None,
    custom_template_path: str | None = None,
    media_decoder: Any = None,
    media_fetcher: Any = None,
    lora_name: str | None = None,
    base_model_path: str | None = None,
    worker_type: WorkerType | None = None,
    needs: Any = None,
    self_host_metadata: Any = None,
    *,
    tensor_model_config: Any = None,
    ignore_weights: bool = False,
    max_gpu_lora_count: int | None = None,
    model_aliases: Iterable[str] | None = None,
    skip_model_assets: bool = False,
) -> None:
    """Say what the worker of an endpoint is like, before or after it serves. Again, it replaces what was said.

    Nothing is read from `model_path` or the network, with or without `skip_model_assets`.

    Args:
        model_input: ``ModelInput.Tokens``.
        model_type: what it answers, for Dynamo's frontends.
        endpoint: the worker's endpoint.
        model_path: the model; a name is enough.
        model_name: the name it is served under.
        kv_cache_block_size: tokens per KV block, 1 .. 1,048,576; None if not known. A router of another size refuses it.
        runtime_config: what the engine is like. When its ranks change while it serves, its bookings are released.
        worker_type: None or ``WorkerType.Aggregated``.
        ignore_weights: of no consequence.
        skip_model_assets: of no consequence.
        router_config: must be None.
        user_data: must be None.
        custom_template_path: must be None.
        media_decoder: must be None.
        media_fetcher: must be None.
        lora_name: register a LoRA adapter that the worker has loaded, besides the worker itself: requests for it
            (`lora_name`) go to the workers that have it. Its configuration is the worker's; `model_name` is of no
            consequence then.
        base_model_path: the model that the adapter adapts; with `lora_name`, and only then.
        needs: must be None.
        self_host_metadata: must be None.
        tensor_model_config: must be None.
        max_gpu_lora_count: passed on with an adapter: how many the worker holds at a time.
        model_aliases: must be None.

    Raises:
        InvalidArgument: a value out of range, or a block size that is not that of a router of this endpoint.
        NotImplementedError: a feature that this version does not have.
        Closed: the runtime is shut down.
    """
    for name, value in (
        ("router_config", router_config),
        ("user_data", user_data),
        ("custom_template_path", custom_template_path),
        ("media_decoder", media_decoder),
        ("media_fetcher", media_fetcher),
        ("needs", needs),
        ("self_host_metadata", self_host_metadata),
        ("tensor_model_config", tensor_model_config),
        ("model_aliases", model_aliases),
    ):
        if value is not None:
            raise NotImplementedError(f"{name}={value!r} is not implemented: only None exists")
    expect(model_input, ModelInput, "model_input")
    expect(model_type, ModelType, "model_type")
    expect(endpoint, Endpoint, "endpoint")
    expect(model_path, str, "model_path")
    if model_name is not None:
        expect(model_name, str, "model_name")
    if model_input is not ModelInput.Tokens:
        raise NotImplementedError(f"model_input={model_input!r} is not implemented: only ModelInput.Tokens exists")
    if worker_type not in (None, WorkerType.Aggregated):
        expect(worker_type, WorkerType, "worker_type")
        raise NotImplementedError(f"worker_type={worker_type!r} is not implemented: only WorkerType.Aggregated exists")
    config = ModelRuntimeConfig() if runtime_config is None else runtime_config
    expect(config, ModelRuntimeConfig, "runtime_config")
    if max_gpu_lora_count is not None:
        _count(max_gpu_lora_count, "max_gpu_lora_count", 1, (1 << 32) - 1)
    kinds = " | ".join(kind.name for kind in ModelType if kind in model_type and kind.name)
    kinds = kinds or "Completions"
    card = replace(_card(config, kv_cache_block_size), name=model_name or model_path, model_type=kinds)
    adapter = _adapter(lora_name, base_model_path, kinds, max_gpu_lora_count)
    endpoint._hub.check()
    profile = endpoint._profile()
    if adapter is not None:
        endpoint._hub.adapt(profile, adapter, True)
    else:
        endpoint._hub.describe(profile, replace(card, adapters=profile.card.adapters))


def _adapter(name: str | None, base: str | None, kinds: str, most: int | None) -> Adapter | None:
    for argument, value in (("lora_name", name), ("base_model_path", base)):
        if value is not None:
            expect(value, str, argument)
    if name is None and base is None:
        return None
    if name is None or base is None:
        raise InvalidArgument("lora_name and base_model_path must both be provided together, or neither")
    if not slug(name):
        raise InvalidArgument(f"lora_name={name!r}: expected a letter or digit of ASCII in it")
    return Adapter(name, base, kinds, most)


def _card(config: ModelRuntimeConfig, block_size: int | None) -> Card:
    for name, default in (
        ("enable_eagle", False),
        ("stable_routing_id", None),
        ("kv_state_endpoint", None),
        ("topology_domains", None),
        ("kv_transfer_domain", None),
        ("kv_transfer_enforcement", None),
    ):
        value = getattr(config, name)
        if value != default:
            raise NotImplementedError(f"runtime_config.{name}={value!r} is not implemented: only {default!r} exists")
    if isinstance(config.taints, str):
        raise TypeError("runtime_config.taints: expected a set of str, got str")
    for taint in config.taints:
        expect(taint, str, "runtime_config.taints")
    start = _count(config.data_parallel_start_rank, "data_parallel_start_rank", 0, (1 << 32) - 1)
    size = _count(config.data_parallel_size, "data_parallel_size", 1, _RANKS_MAX)
    _count(start + size, "data_parallel_start_rank + data_parallel_size", 0, (1 << 32) - 1)
    return Card(
        block_size=_maybe(block_size, "kv_cache_block_size", 1, _BLOCK_SIZE_MAX),
        dp_start=start,
        dp_size=size,
        max_num_batched_tokens=_maybe(config.max_num_batched_tokens, "max_num_batched_tokens", 0, (1 << 64) - 1),
        max_num_seqs=_maybe(config.max_num_seqs, "max_num_seqs", 0, (1 << 64) - 1),
        local_indexer=config.enable_local_indexer,
        total_kv_blocks=_maybe(config.total_kv_blocks, "total_kv_blocks", 0, (1 << 64) - 1),
        taints=frozenset(config.taints),
    )


def _maybe(value: int | None, name: str, low: int, high: int) -> int | None:
    return None if value is None else _count(value, name, low, high)


def _count(value: int, name: str, low: int, high: int) -> int:
    return integer(expect(value, int, name), name, low, high)
