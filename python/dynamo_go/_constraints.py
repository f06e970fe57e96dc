"""Arguments of a ``KvRouter`` that are objects: constraints of a request, thresholds of load."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Set

from ._checks import expect, integer, shown
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
        self._required = frozenset(expect(taint, str, "required_taints") for taint in required_taints or ())
        self._preferred = dict(preferred_taints or {})
        for taint, weight in self._preferred.items():
            expect(taint, str, "preferred_taints")
            if isinstance(weight, bool) or not isinstance(weight, (int, float)):
                raise TypeError(f"preferred_taints[{shown(taint)}]: expected a number, got {shown(weight)}")
            if not math.isfinite(weight):
                raise InvalidArgument(f"preferred_taints[{shown(taint)}]={weight}, expected a finite number")

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
    """Above which load a rank takes no more requests. None is no limit; what is not known of a rank does not limit it.

    Each rank counts by itself. (In Dynamo a worker is out when all of its ranks are.)

    Args:
        active_decode_blocks_threshold: blocks of active requests, as a share of the rank's `total_kv_blocks`, 0 .. 1.
        active_prefill_tokens_threshold: prompt tokens still to compute, at least 0.
        active_prefill_tokens_threshold_frac: the same, as a multiple of the rank's `max_num_batched_tokens`, at least 0.

    Raises:
        InvalidArgument: out of range.
    """

    __slots__ = ("_fields",)

    def __init__(
        self,
        *,
        active_decode_blocks_threshold: float | None = None,
        active_prefill_tokens_threshold: int | None = None,
        active_prefill_tokens_threshold_frac: float | None = None,
    ) -> None:
        blocks, tokens, share = (
            active_decode_blocks_threshold,
            active_prefill_tokens_threshold,
            active_prefill_tokens_threshold_frac,
        )
        for name, value in (
            ("active_decode_blocks_threshold", blocks),
            ("active_prefill_tokens_threshold_frac", share),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise TypeError(f"{name}: expected a number, got {type(value).__name__} ({shown(value)})")
        if tokens is not None and integer(tokens, "active_prefill_tokens_threshold") < 0:
            raise InvalidArgument(f"active_prefill_tokens_threshold must be at least 0, got {tokens!r}")
        if blocks is not None and not 0 <= blocks <= 1:
            raise InvalidArgument(f"active_decode_blocks_threshold must be between 0 and 1, got {blocks!r}")
        if share is not None and not (share >= 0 and math.isfinite(share)):
            raise InvalidArgument(
                f"active_prefill_tokens_threshold_frac must be finite and non-negative, got {share!r}"
            )
        self._fields = {
            "active_decode_blocks_threshold": None if blocks is None else float(blocks),
            "active_prefill_tokens_threshold": None if tokens is None else operator.index(tokens),
            "active_prefill_tokens_threshold_frac": None if share is None else float(share),
        }

    @property
    def active_decode_blocks_threshold(self) -> float | None:
        """Share of a rank's blocks."""
        return self._fields["active_decode_blocks_threshold"]

    @property
    def active_prefill_tokens_threshold(self) -> int | None:
        """Prompt tokens."""
        tokens = self._fields["active_prefill_tokens_threshold"]
        return None if tokens is None else int(tokens)

    @property
    def active_prefill_tokens_threshold_frac(self) -> float | None:
        """Prompt tokens as a multiple of what a rank batches."""
        return self._fields["active_prefill_tokens_threshold_frac"]

    def fields(self) -> dict[str, float | None]:
        """Give the thresholds that are set, under their configuration names."""
        return {name: value for name, value in self._fields.items() if value is not None}

    def __repr__(self) -> str:
        return f"LoadThresholdConfig({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"
