"""Values for the C interface, which takes configuration and events as JSON."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Set
from typing import Any

from ._errors import InvalidArgument


def _plain(value: object) -> object:
    """Give what the json module does not know: sets, and anything that is an int by ``__index__``."""
    if isinstance(value, Set):
        return sorted(value)
    return operator.index(value)  # type: ignore[arg-type]  # anything else is the TypeError that json expects


# Not ASCII: an escaped lone surrogate is valid JSON, but no text, and would pass for U+FFFD.
_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain, ensure_ascii=False)


def encode(value: object, name: str) -> str:
    """Give `value` as JSON; what JSON cannot hold is an error that names the argument."""
    try:
        return _ENCODER.encode(value)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name}={_shown(value)}: {error}") from None


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"<{type(value).__name__}>"
    return text if len(text) <= 200 else text[:197] + "..."


def mapping(value: object, name: str) -> str | None:
    """Give a mapping, or an object with ``to_json()``, as JSON; None stays None."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return encode(dict(value), name)
    to_json = getattr(value, "to_json", None)
    if to_json is None:
        raise TypeError(f"{name}: expected a mapping, got {type(value).__name__}")
    return str(to_json())


def merged(text: str | None, fields: Mapping[str, Any]) -> str:
    """Give a JSON object with further fields. Text that is no object stays as it is, for the library to refuse."""
    if text is None:
        return encode(dict(fields), "config")
    try:
        known = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return encode({**known, **fields}, "config") if isinstance(known, dict) else text


def document(value: object, name: str) -> bytes:
    """Give JSON text as it is, and a mapping or list as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (Mapping, list, tuple)):
        return encode(value, name).encode("utf-8", "surrogatepass")
    raise TypeError(f"{name}: expected JSON or what it stands for, got {type(value).__name__}")


def decode(text: str) -> Any:
    """Read JSON that the library wrote."""
    return json.loads(text)
