"""The names of ``dynamo.llm``. See :mod:`dynamo_go.compat`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeVar

from ... import _kv_router, _model, _publisher
from ..._call import AsyncResponseStream
from ..._checks import expect
from ..._config import KvRouterConfig, not_a_config
from ..._constraints import LoadThresholdConfig, RoutingConstraints
from ..._errors import InvalidArgument
from ..._errors import QueueLimitExceeded as RouterQueueLimitExceeded
from ..._instance import Adapter
from ..._model import ModelInput, ModelType, WorkerType
from ..._publisher import KvEventPublisher
from ..._radix import OverlapScores, RadixTree
from ..._router import compute_block_hash_for_seq
from .._futures import Stream, mapped, unit
from . import exceptions
from .exceptions import HttpError

if TYPE_CHECKING:
    from ..._native import Tokens
    from ..._runtime import Endpoint

T = TypeVar("T")

__all__ = [
    "HttpError",
    "KvEventPublisher",
    "KvRouter",
    "KvRouterConfig",
    "LoadThresholdConfig",
    "ModelInput",
    "ModelRuntimeConfig",
    "ModelType",
    "OverlapScores",
    "RadixTree",
    "RouterConfig",
    "RouterMode",
    "RouterQueueLimitExceeded",
    "RoutingConstraints",
    "WorkerMetricsPublisher",
    "WorkerType",
    "compute_block_hash_for_seq",
    "exceptions",
    "register_llm",
    "register_model",
    "unregister_llm",
    "unregister_model",
    "update_model_taints",
]


class RouterMode(_model.Named):
    """How requests find a worker."""

    RoundRobin = 0
    Random = 1
    PowerOfTwoChoices = 2
    KV = 3
    Direct = 4
    LeastLoaded = 5
    DeviceAwareWeighted = 6


class RouterConfig:
    """How a model's requests are routed, for those who hand it on: a ``KvRouter`` takes ``kv_router_config`` of it.

    Args:
        mode: a :class:`RouterMode`.
        config: None means ``KvRouterConfig()``.
        active_decode_blocks_threshold: as in :class:`LoadThresholdConfig`, like the next two.
        active_prefill_tokens_threshold: prompt tokens.
        active_prefill_tokens_threshold_frac: a multiple of what a rank batches.
        enforce_disagg: accepted, without effect, as in Dynamo.
        session_affinity_ttl_secs: as in :class:`KvRouter`.
        session_affinity_mode: "hard" or "soft".
    """

    __slots__ = (
        "kv_router_config",
        "load_threshold_config",
        "router_mode",
        "session_affinity_mode",
        "session_affinity_ttl_secs",
    )

    def __init__(
        self,
        mode: RouterMode,
        config: KvRouterConfig | None = None,
        active_decode_blocks_threshold: float | None = None,
        active_prefill_tokens_threshold: int | None = None,
        active_prefill_tokens_threshold_frac: float | None = None,
        enforce_disagg: bool = False,
        session_affinity_ttl_secs: int | None = None,
        session_affinity_mode: str = "hard",
    ) -> None:
        if not isinstance(mode, RouterMode):
            raise TypeError(f"mode: expected RouterMode, got {type(mode).__name__} ({mode!r})")
        if config is not None and not isinstance(config, KvRouterConfig):
            raise TypeError(not_a_config("config", config))
        _kv_router._check_affinity(session_affinity_ttl_secs, session_affinity_mode)
        self.router_mode = mode
        self.kv_router_config = KvRouterConfig() if config is None else config
        self.load_threshold_config = LoadThresholdConfig(
            active_decode_blocks_threshold=active_decode_blocks_threshold,
            active_prefill_tokens_threshold=active_prefill_tokens_threshold,
            active_prefill_tokens_threshold_frac=active_prefill_tokens_threshold_frac,
        )
        self.session_affinity_ttl_secs = session_affinity_ttl_secs
        self.session_affinity_mode = session_affinity_mode


class KvRouter(_kv_router.KvRouter):
    """:class:`dynamo_go.KvRouter`; what has nothing to give gives the empty tuple, and a stream fails with ``ValueError``."""

    def generate(
        self,
        token_ids: Tokens,
        model: str,
        stop_conditions: Mapping[str, Any] | None = None,
        sampling_options: Mapping[str, Any] | None = None,
        output_options: Mapping[str, Any] | None = None,
        router_config_override: Mapping[str, Any] | None = None,
        worker_id: int | None = None,
        dp_rank: int | None = None,
        extra_args: Any = None,
        block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        multi_modal_data: Any = None,
        mm_routing_info: Mapping[str, Any] | None = None,
        routing_constraints: RoutingConstraints | None = None,
        response_buffer_size: int = 100,
        *,
        lora_name: str | None = None,
        session_id: str | None = None,
        policy_class: str | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[AsyncResponseStream]:
        """Choose a worker, book it, send the request, and stream the answer; see :meth:`dynamo_go.KvRouter.generate`."""
        return mapped(
            super().generate(
                token_ids,
                model,
                stop_conditions,
                sampling_options,
                output_options,
                router_config_override,
                worker_id,
                dp_rank,
                extra_args,
                block_mm_infos,
                multi_modal_data,
                mm_routing_info,
                routing_constraints,
                response_buffer_size,
                lora_name=lora_name,
                session_id=session_id,
                policy_class=policy_class,
                timeout=timeout,
            ),
            Stream,
        )

    def generate_from_request(
        self, request: Mapping[str, Any], response_buffer_size: int = 100
    ) -> asyncio.Future[AsyncResponseStream]:
        """Do as :meth:`generate`, for a request that is put together already."""
        return mapped(super().generate_from_request(request, response_buffer_size), Stream)

    def mark_prefill_complete(self, request_id: str) -> asyncio.Future[tuple[()]]:  # type: ignore[override]
        """Say that a booked request's first token came."""
        return mapped(super().mark_prefill_complete(request_id), unit)

    def free(self, request_id: str) -> asyncio.Future[tuple[()]]:  # type: ignore[override]
        """Say that a booked request ended."""
        return mapped(super().free(request_id), unit)


class ModelRuntimeConfig(_model.ModelRuntimeConfig):
    """:class:`dynamo_go.ModelRuntimeConfig` with the attributes that are of no consequence to routing."""

    __slots__ = (
        "_engine_specific",
        "bootstrap_host",
        "bootstrap_port",
        "context_length",
        "exclude_tools_when_tool_choice_none",
        "kv_event_publishing_enabled",
        "kv_event_source_mode",
        "kv_transfer_preferred_weight",
        "reasoning_parser",
        "structural_tag",
        "tokenizer_backend",
        "tool_call_parser",
    )

    def __init__(self) -> None:
        super().__init__()
        self.bootstrap_host: str | None = None
        self.bootstrap_port: int | None = None
        self.context_length: int | None = None
        self.exclude_tools_when_tool_choice_none = True
        self.kv_event_publishing_enabled: bool | None = None
        self.kv_event_source_mode: str | None = None
        self.kv_transfer_preferred_weight: float | None = None
        self.reasoning_parser: str | None = None
        self.structural_tag: Any = None
        self.tokenizer_backend: str | None = None
        self.tool_call_parser: str | None = None
        self._engine_specific: dict[str, Any] = {}

    @property
    def runtime_data(self) -> dict[str, Any]:
        """What :meth:`set_engine_specific` was given."""
        return dict(self._engine_specific)

    def set_engine_specific(self, key: str, value: str) -> None:
        """Keep a value, written as JSON, under a name.

        Raises:
            InvalidArgument: not JSON.
        """
        if not isinstance(value, str):
            raise TypeError(f"value: expected str, got {type(value).__name__} ({value!r})")
        try:
            json.loads(value)
        except ValueError as error:
            raise InvalidArgument(f"value={value!r}, expected JSON: {error}") from None
        self._engine_specific[key] = value

    def get_engine_specific(self, key: str) -> str | None:
        """Give a text that was kept under a name; None without.

        Raises:
            InvalidArgument: what was kept is no text.
        """
        if key not in self._engine_specific:
            return None
        value = json.loads(self._engine_specific[key])
        if not isinstance(value, str):
            raise InvalidArgument(f"{key}={value!r}, expected a text")
        return value

    def set_structural_tag(self, structural_tag: Any = None) -> None:
        """Set the attribute of that name."""
        self.structural_tag = structural_tag

    def set_disaggregated_endpoint(self, bootstrap_host: str | None = None, bootstrap_port: int | None = None) -> None:
        """Set the two attributes."""
        self.bootstrap_host, self.bootstrap_port = bootstrap_host, bootstrap_port


def register_model(
    model_input: ModelInput,
    model_type: ModelType,
    endpoint: Endpoint,
    model_path: str,
    model_name: str | None = None,
    kv_cache_block_size: int | None = None,
    router_config: Any = None,
    runtime_config: _model.ModelRuntimeConfig | None = None,
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
    model_aliases: Any = None,
    skip_model_assets: bool = False,
) -> asyncio.Future[tuple[()]]:
    """Say what the worker of an endpoint is like; see :func:`dynamo_go.register_model`.

    A `router_config` is accepted and not looked at: who makes a router configures it.
    """
    if router_config is not None and not isinstance(router_config, RouterConfig):
        raise TypeError(f"router_config: expected RouterConfig, got {type(router_config).__name__}")

    async def register() -> tuple[()]:
        await _model.register_model(
            model_input,
            model_type,
            endpoint,
            model_path,
            model_name,
            kv_cache_block_size,
            None,
            runtime_config,
            user_data,
            custom_template_path,
            media_decoder,
            media_fetcher,
            lora_name,
            base_model_path,
            worker_type,
            needs,
            self_host_metadata,
            tensor_model_config=tensor_model_config,
            ignore_weights=ignore_weights,
            max_gpu_lora_count=max_gpu_lora_count,
            model_aliases=model_aliases,
            skip_model_assets=skip_model_assets,
        )
        await endpoint.register_endpoint_instance()  # again, after unregister_model
        return ()

    return asyncio.ensure_future(register())


def unregister_model(endpoint: Endpoint, lora_name: str | None = None) -> asyncio.Future[tuple[()]]:
    """Take an endpoint's worker from the candidates, until it registers again; with `lora_name`, only that adapter of it."""
    adapter = None if lora_name is None else Adapter(expect(lora_name, str, "lora_name"))

    async def unregister() -> tuple[()]:
        if adapter is not None:
            endpoint._hub.check()
            endpoint._hub.adapt(endpoint._profile(), adapter, False)
            return ()
        await endpoint.unregister_endpoint_instance()
        return ()

    return asyncio.ensure_future(unregister())


register_llm = register_model
unregister_llm = unregister_model


def update_model_taints(endpoint: Endpoint, taints: Set[str]) -> asyncio.Future[tuple[()]]:
    """Replace the taints of an endpoint's worker."""
    if isinstance(taints, str) or not all(isinstance(taint, str) for taint in taints):
        raise TypeError(f"taints: expected a set of str, got {taints!r}")

    async def update() -> tuple[()]:
        endpoint._hub.check()
        profile = endpoint._profile()
        endpoint._hub.describe(profile, dataclasses.replace(profile.card, taints=frozenset(taints)))
        return ()

    return asyncio.ensure_future(update())


class WorkerMetricsPublisher(_publisher.WorkerMetricsPublisher):
    """:class:`dynamo_go.WorkerMetricsPublisher`."""

    def create_endpoint(self, endpoint: Endpoint) -> asyncio.Future[tuple[()]]:  # type: ignore[override]
        """Begin to publish; gives ``()``."""
        return mapped(super().create_endpoint(endpoint), unit)
