"""Checks of single arguments: a wrong type is a ``TypeError``, a value out of range ``InvalidArgument``; both name both."""

from __future__ import annotations

import operator
import os
from typing import Any, TypeVar

from ._errors import InvalidArgument

T = TypeVar("T")

# Bytes of a name or endpoint: the limit of the C interface.
_TEXT_MAX = 1 << 16


def shown(value: object) -> str:
    """Give a short text of a value; Python prints neither every int nor every object."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= 80 else text[:77] + "..."


def expect(value: object, kind: type[T], name: str) -> T:
    """Give a value of a type; a bool is no int."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name}: expected {kind.__name__}, got {type(value).__name__} ({shown(value)})")
    return value


def integer(value: Any, name: str, low: int = -(1 << 63), high: int = (1 << 64) - 1) -> int:
    """Give an int, from anything that is one by ``__index__``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected int, got {type(value).__name__} ({shown(value)})") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{name}={shown(number)}, expected {low} .. {high}")
    return number


def text(value: object, name: str) -> str:
    """Give text that the C interface takes."""
    word = expect(value, str, name)
    try:
        size = len(word.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name}={shown(word)}, expected text that UTF-8 can encode") from None
    if size > _TEXT_MAX:
        raise InvalidArgument(f"{name}={shown(word)} has {size} bytes, expected at most {_TEXT_MAX}")
    return word


def number(value: object, name: str) -> float:
    """Give a number of 0 or more, also infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__} ({shown(value)})")
    if not value >= 0:
        raise InvalidArgument(f"{name}={shown(value)}, expected at least 0")
    return value


def path_text(value: Any) -> str:
    """Give the path of a file as text."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(f"path: expected str or os.PathLike, got {type(value).__name__} ({shown(value)})") from None


def texts(value: Any, name: str) -> list[str]:
    """Give the items of an iterable of text, which a text itself is not."""
    return [text(item, name) for item in several(value, name)]


def several(value: Any, name: str) -> list[Any]:
    """Give the items of an iterable; a text is a single value, and a mistake."""
    if (
        isinstance(value, (str, bytes))
        or not hasattr(type(value), "__iter__")
        and not hasattr(type(value), "__getitem__")
    ):
        raise TypeError(f"{name}: expected an iterable, got {type(value).__name__} ({shown(value)})")
    return list(value)
