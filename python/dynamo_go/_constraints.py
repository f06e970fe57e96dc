"""Arguments of a ``KvRouter`` that are objects: constraints of a request, thresholds of load."""

from __future__ import annotations

from collections.abc import Mapping, Set

from ._errors import InvalidArgument
from ._json import encode


class RoutingConstraints:
    """Which workers a request wants, by the taints that they registered.

    Args:
        required_taints: only workers that have all of these.
        preferred_taints: taint to weight: a worker that has it is preferred by a positive weight, avoided by a negative
            one. The cost is multiplied by exp(-tanh(sum of weights)).
    """

    __slots__ = ("_preferred", "_required")

    def __init__(
        self, required_taints: Set[str] | None = None, preferred_taints: Mapping[str, float] | None = None
    ) -> None:
        if required_taints is not None and not isinstance(required_taints, Set):
            raise TypeError(f"required_taints: expected a set of str, got {type(required_taints).__name__}")
        if preferred_taints is not None and not isinstance(preferred_taints, Mapping):
            raise TypeError(f"preferred_taints: expected a mapping, got {type(preferred_taints).__name__}")
        self._required = frozenset(required_taints or ())
        self._preferred = dict(preferred_taints or {})

    @property
    def required_taints(self) -> frozenset[str]:
        """Taints that a worker must have."""
        return self._required

    @property
    def preferred_taints(self) -> dict[str, float]:
        """Taints that are preferred (weight above 0) or avoided."""
        return dict(self._preferred)

    def to_json(self) -> str:
        """Give the constraints as JSON, as the C interface takes them."""
        return encode(
            {"required_taints": sorted(self._required), "preferred_taints": self._preferred}, "routing_constraints"
        )

    def __repr__(self) -> str:
        return f"RoutingConstraints(required_taints={set(self._required)!r}, preferred_taints={self._preferred!r})"


class LoadThresholdConfig:
    """Above which load a worker takes no more requests. Only None, no limit, exists yet.

    Args:
        active_decode_blocks_threshold: share of a worker's KV blocks in use, 0 .. 1.
        active_prefill_tokens_threshold: prompt tokens waiting.
        active_prefill_tokens_threshold_frac: prompt tokens waiting, as a multiple of max_num_batched_tokens.

    Raises:
        InvalidArgument: out of range.
        NotImplementedError: anything but None.
    """

    def __init__(
        self,
        *,
        active_decode_blocks_threshold: float | None = None,
        active_prefill_tokens_threshold: int | None = None,
        active_prefill_tokens_threshold_frac: float | None = None,
    ) -> None:
        if active_decode_blocks_threshold is not None and not 0 <= active_decode_blocks_threshold <= 1:
            raise InvalidArgument(
                f"active_decode_blocks_threshold must be between 0 and 1, got {active_decode_blocks_threshold!r}"
            )
        for name, value in (
            ("active_decode_blocks_threshold", active_decode_blocks_threshold),
            ("active_prefill_tokens_threshold", active_prefill_tokens_threshold),
            ("active_prefill_tokens_threshold_frac", active_prefill_tokens_threshold_frac),
        ):
            if value is not None:
                raise NotImplementedError(f"{name}={value!r} is not implemented: only None, no limit, exists")

    def __repr__(self) -> str:
        return "LoadThresholdConfig()"
