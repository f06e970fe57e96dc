"""The request that a worker's handler receives: Dynamo's PreprocessedRequest, as a dict."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._errors import InvalidArgument


def _count(value: Any) -> int:
    return operator.index(value)


def _number(value: Any) -> float:
    if not (hasattr(value, "__float__") or hasattr(value, "__index__")):  # float() takes strings too
        raise TypeError(f"must be real number, not {type(value).__name__}")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"must be bool, not {type(value).__name__}")
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, str) or not all(isinstance(text, str) for text in value):
        raise TypeError("must be a list of str")
    return list(value)


def _counts(value: Any) -> list[int]:
    return [operator.index(item) for item in value]


def _any(value: Any) -> Any:
    return value


_Options = Mapping[str, Callable[[Any], Any]]

_STOP_CONDITIONS: _Options = {
    "max_tokens": _count,
    "stop": _texts,
    "stop_token_ids": _counts,
    "stop_token_ids_visible": _counts,
    "stop_token_ids_hidden": _counts,
    "min_tokens": _count,
    "ignore_eos": _flag,
    "max_thinking_tokens": _count,
}
_SAMPLING_OPTIONS: _Options = {
    "n": _count,
    "best_of": _count,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "repetition_penalty": _number,
    "temperature": _number,
    "top_p": _number,
    "top_k": _count,
    "min_p": _number,
    "use_beam_search": _flag,
    "length_penalty": _number,
    "seed": _count,
    "include_stop_str_in_output": _flag,
    "guided_decoding": _any,
}
_OUTPUT_OPTIONS: _Options = {
    "logprobs": _count,
    "prompt_logprobs": _count,
    "skip_special_tokens": _flag,
    "formatted_prompt": _flag,
    "return_tokens_as_token_ids": _flag,
}


def build(given: Mapping[str, Any]) -> dict[str, Any]:
    """Complete and check a request; `token_ids` is taken as it is, the router checks it.

    Option dicts get every option, None if not given; options that nobody knows are left out. Values are not checked for
    their range: that is the engine's.

    Raises:
        TypeError: an option of the wrong type.
        InvalidArgument: no `token_ids`.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"request: expected a mapping, got {type(given).__name__}")
    if "token_ids" not in given:
        raise InvalidArgument(f"missing field `token_ids` in the request, which has {sorted(map(str, given))}")
    request: dict[str, Any] = {
        "model": "",
        "eos_token_ids": [],
        "mdc_sum": None,
        "annotations": [],
        "routing": {},
        "router_config_override": None,
        **given,
    }
    if not isinstance(request["model"], str):
        raise TypeError(f"model: expected str, got {type(request['model']).__name__} ({request['model']!r})")
    request["stop_conditions"] = _options(given.get("stop_conditions"), "stop_conditions", _STOP_CONDITIONS)
    request["sampling_options"] = _options(given.get("sampling_options"), "sampling_options", _SAMPLING_OPTIONS)
    request["output_options"] = _options(given.get("output_options"), "output_options", _OUTPUT_OPTIONS)
    notes = request["annotations"]
    if isinstance(notes, str) or not isinstance(notes, Iterable):
        raise TypeError(f"annotations: expected a list of str, got {type(notes).__name__} ({notes!r})")
    for name in ("routing", "router_config_override", "mm_routing_info"):
        value = request.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"{name}: expected a mapping, got {type(value).__name__}")
        if name in request:
            request[name] = None if value is None else dict(value)
    request["routing"] = request["routing"] or {}
    return request


def _options(given: Any, name: str, known: _Options) -> dict[str, Any]:
    options: dict[str, Any] = dict.fromkeys(known)
    if given is None:
        return options
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}: expected a mapping, got {type(given).__name__}")
    for option, convert in known.items():
        if (value := given.get(option)) is not None:
            try:
                options[option] = convert(value)
            except TypeError as error:
                raise TypeError(f"{name}[{option!r}]={value!r}: {error}") from None
    return options


def listed(token_ids: Any) -> list[int]:
    """Give tokens of any accepted form as a list of int."""
    tolist = getattr(token_ids, "tolist", None)  # array, memoryview, numpy: plain ints, and fast
    return list(token_ids if tolist is None else tolist())
