# The extension module. Arguments are positional only; dynamo_go.Router gives them names, defaults and meaning.
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Iterable
from contextvars import Context
from typing import Any, Generic, Protocol, SupportsIndex, TypeAlias, TypeVar, final

from typing_extensions import Buffer

class TokenSequence(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> SupportsIndex: ...

Tokens: TypeAlias = TokenSequence | Buffer

T = TypeVar("T")

@final
class Answer(Generic[T]):
    def __new__(cls, loop: AbstractEventLoop, value: T, /) -> Answer[T]: ...
    def __await__(self) -> Generator[Any, None, T]: ...
    __iter__ = __await__
    def result(self) -> T: ...
    def exception(self) -> None: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self, msg: Any = None) -> bool: ...
    def get_loop(self) -> AbstractEventLoop: ...
    def add_done_callback(self, function: Callable[[Any], object], *, context: Context | None = None) -> None: ...
    def remove_done_callback(self, function: Callable[[Any], object], /) -> int: ...

@final
class Router:
    def __new__(cls, block_size: int, config: str | None, seed: int | None, /) -> Router: ...
    def close(self) -> None: ...
    def add_worker(
        self,
        worker_id: int,
        dp_start: int,
        dp_size: int,
        kv_events: str | None,
        replay: str | None,
        topic: str | None,
        host: str | None,
        block_size: int | None,
        max_num_batched_tokens: int | None,
        total_kv_blocks: int | None,
        taints: tuple[str, ...],
        adapters: tuple[str, ...],
        query: str | None,
        /,
    ) -> None: ...
    def remove_worker(self, worker_id: int, /) -> None: ...
    def workers(self) -> str: ...
    def apply_event(self, worker_id: int, event: bytes, set: bool, /) -> None: ...
    def best_worker(
        self,
        token_ids: Tokens,
        router_config_override: str | None,
        request_id: str | None,
        update_indexer: bool,
        lora_name: str | None,
        cache_namespace: str | None,
        block_mm_infos: str | None,
        worker_id: int | None,
        dp_rank: int | None,
        allowed_worker_ids: Iterable[int] | None,
        routing_constraints: str | None,
        strict_priority: int,
        policy_class: str | None,
        session_id: str | None,
        timeout: float | None,
        priority_jump: float,
        shared_ranges: bytes | None,
        /,
    ) -> tuple[int, int, int]: ...
    def submit_many(
        self,
        prompts: tuple[Tokens, ...],
        router_config_override: str | None,
        request_ids: tuple[str | None, ...],
        update_indexer: bool,
        lora_name: str | None,
        cache_namespace: str | None,
        block_mm_infos: str | None,
        worker_id: int | None,
        dp_rank: int | None,
        allowed_worker_ids: Iterable[int] | None,
        routing_constraints: str | None,
        strict_priority: int,
        policy_class: str | None,
        session_id: str | None,
        timeout: float | None,
        priority_jump: float,
        shared_ranges: bytes | None,
        /,
    ) -> list[tuple[int, int, int] | int | Exception]: ...
    def wait(self, ticket: int, /) -> tuple[int, int, int]: ...
    def submit(
        self,
        token_ids: Tokens,
        router_config_override: str | None,
        request_id: str | None,
        update_indexer: bool,
        lora_name: str | None,
        cache_namespace: str | None,
        block_mm_infos: str | None,
        worker_id: int | None,
        dp_rank: int | None,
        allowed_worker_ids: Iterable[int] | None,
        routing_constraints: str | None,
        strict_priority: int,
        policy_class: str | None,
        session_id: str | None,
        timeout: float | None,
        priority_jump: float,
        shared_ranges: bytes | None,
        /,
    ) -> tuple[int, int, int] | int: ...
    def answer(
        self,
        loop: AbstractEventLoop,
        token_ids: Tokens,
        router_config_override: str | None,
        request_id: str | None,
        update_indexer: bool,
        lora_name: str | None,
        cache_namespace: str | None,
        block_mm_infos: str | None,
        worker_id: int | None,
        dp_rank: int | None,
        allowed_worker_ids: Iterable[int] | None,
        routing_constraints: str | None,
        strict_priority: int,
        policy_class: str | None,
        session_id: str | None,
        timeout: float | None,
        priority_jump: float,
        shared_ranges: bytes | None,
        /,
    ) -> Answer[tuple[int, int, int]] | int: ...
    def take(self, ticket: int, /) -> tuple[int, int, int] | None: ...
    def cancel(self, ticket: int, /) -> None: ...
    def ready_fd(self) -> int: ...
    def ready(self) -> list[int]: ...
    def explain(
        self,
        token_ids: Tokens,
        router_config_override: str | None,
        request_id: str | None,
        update_indexer: bool,
        lora_name: str | None,
        cache_namespace: str | None,
        block_mm_infos: str | None,
        worker_id: int | None,
        dp_rank: int | None,
        allowed_worker_ids: Iterable[int] | None,
        routing_constraints: str | None,
        strict_priority: int,
        policy_class: str | None,
        session_id: str | None,
        timeout: float | None,
        priority_jump: float,
        shared_ranges: bytes | None,
        /,
    ) -> str: ...
    def overlap_scores(
        self,
        token_ids: Tokens,
        lora_name: str | None,
        cache_namespace: str | None,
        block_mm_infos: str | None,
        shared_ranges: bytes | None,
        /,
    ) -> str: ...
    def potential_loads(
        self,
        token_ids: Tokens,
        lora_name: str | None,
        cache_namespace: str | None,
        block_mm_infos: str | None,
        /,
    ) -> list[dict[str, int]]: ...
    def mark_prefill_complete(self, request_id: str, /) -> None: ...
    def free(self, request_id: str, /) -> None: ...
    def add_output_block(self, request_id: str, n: int, decay_fraction: float | None, /) -> None: ...
    def dump_events(self) -> str: ...
    def load_events(self, events: bytes, /) -> None: ...
    def replicate(self, replicas: str, /) -> str: ...
    def save(self, path: str, /) -> None: ...
    def load(self, path: str, /) -> int: ...
    def health(self) -> str: ...
    def stats(self) -> str: ...
    def metrics(self) -> str: ...

@final
class EventReader:
    def __new__(cls, endpoint: str, replay: str | None, topic: str | None, /) -> EventReader: ...
    def next(self, timeout_ms: int, /) -> str | None: ...
    def state(self) -> str: ...
    def close(self) -> None: ...

@final
class Mocker:
    def __new__(cls, config: str | None, /) -> Mocker: ...
    def info(self) -> str: ...
    def generate(self, token_ids: Tokens, options: str, /) -> Stream: ...
    def close(self) -> None: ...

@final
class Stream:
    def take(self, timeout_ms: int, /) -> list[bytes] | None: ...
    def fd(self) -> int: ...
    def cancel(self, kill: bool, /) -> None: ...
    def close(self) -> None: ...

@final
class Publisher:
    def __new__(cls, config: str, /) -> Publisher: ...
    def stored(
        self,
        dp_rank: int,
        token_ids: Tokens,
        block_hashes: Iterable[int],
        block_size: int,
        parent_hash: int | None,
        eagle: bool,
        lora_name: str | None,
        cache_salt: str | None,
        block_mm_infos: str | None,
        /,
    ) -> None: ...
    def removed(self, dp_rank: int, block_hashes: Iterable[int], /) -> None: ...
    def cleared(self, dp_rank: int, /) -> None: ...
    def info(self) -> str: ...
    def close(self) -> None: ...

@final
class RadixTree:
    def __new__(cls) -> RadixTree: ...
    def apply_event(self, worker_id: int, event: bytes, /) -> None: ...
    def find_matches(self, block_hashes: Iterable[int], /) -> dict[tuple[int, int], int]: ...
    def remove_worker(self, worker_id: int, /) -> None: ...
    def dump(self) -> str: ...
    def close(self) -> None: ...

def version() -> str: ...
def abi_version() -> int: ...
def statuses() -> dict[int, tuple[str, type[Exception]]]: ...
def block_hashes(
    token_ids: Tokens,
    block_size: int,
    lora_name: str | None,
    cache_namespace: str | None,
    block_mm_infos: str | None,
    eagle: bool,
    /,
) -> list[int]: ...
def sequence_hashes(block_hashes: Iterable[int], /) -> list[int]: ...
def decode_batch(payload: bytes, seq: int | None, /) -> str: ...
def config_check(config: str, /) -> str: ...
