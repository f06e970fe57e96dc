"""Kinds of configuration value, and the attribute that holds one.

A :class:`Kind` knows three things about a value: its Python type (:meth:`Kind.convert`), its range (:meth:`Kind.fault`)
and how it is written in an environment variable (:meth:`Kind.parse`). A :class:`Keyword` is an attribute of one kind.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, overload

T = TypeVar("T")


class Unreadable(RuntimeWarning):
    """A variable of the environment is ignored, because its value cannot be read: `fault` says what it is and what was expected."""

    def __init__(self, fault: str, instead: str) -> None:
        super().__init__(f"{fault}, is ignored: {instead}")
        self.fault = fault


class Unset:
    """Stands for a keyword that was not passed. It shows as the default in signatures."""

    __slots__ = ("default",)

    def __init__(self, default: object) -> None:
        self.default = default

    def __repr__(self) -> str:
        return repr(self.default)


class Kind(Generic[T]):
    """What values a keyword takes."""

    #: Whether an environment value that cannot be parsed is an error; otherwise it is ignored, with a warning.
    strict: bool = False
    #: What an environment value has to be, in words.
    expected: str = "text"

    def convert(self, name: str, value: Any) -> T:
        """Bring a value to its type. Raises TypeError for a value of another type."""
        raise NotImplementedError

    def fault(self, name: str, value: T) -> str | None:
        """Say what is wrong with a value of the right type, in a sentence; None if nothing is."""
        return None

    def parse(self, text: str) -> T:
        """Read an environment value. Raises ValueError."""
        raise NotImplementedError


class Number(Kind[float]):
    """A float in a range, stated in words."""

    expected = "a number"

    def __init__(self, must: str, within: Callable[[float], bool]) -> None:
        self._must = must
        self._within = within

    def convert(self, name: str, value: Any) -> float:
        if not (hasattr(value, "__float__") or hasattr(value, "__index__")):  # float() takes strings too
            raise TypeError(f"argument '{name}': must be real number, not {type(value).__name__} ({value!r})")
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf

    def fault(self, name: str, value: float) -> str | None:
        return None if self._within(value) else f"{name} {self._must}, got {value!r}"

    def parse(self, text: str) -> float:
        if "_" in text:
            raise ValueError(text)
        return float(text)


class Flag(Kind[bool]):
    """A bool; nothing else counts as one."""

    expected = "1, true, on, yes, or 0, false, off, no"

    _WORDS = {
        "1": True, "true": True, "on": True, "yes": True,
        "0": False, "false": False, "off": False, "no": False,
    }  # fmt: skip

    def convert(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError(f"argument '{name}': must be bool, not {type(value).__name__} ({value!r})")
        return value

    def parse(self, text: str) -> bool:
        try:
            return self._WORDS[text.lower()]
        except KeyError:
            raise ValueError(text) from None


class Count(Kind[int]):
    """An integer of at least `low`, below 2**32."""

    expected = "an integer"

    def __init__(self, low: int) -> None:
        self._low = low

    def convert(self, name: str, value: Any) -> int:
        try:
            return operator.index(value)
        except TypeError:
            raise TypeError(f"argument '{name}': must be int, not {type(value).__name__} ({value!r})") from None

    def fault(self, name: str, value: int) -> str | None:
        if value < self._low:
            return f"{name} must be at least {self._low}, got {value}"
        return f"{name} must be below 2**32, got {value}" if value >= 1 << 32 else None

    def parse(self, text: str) -> int:
        if "_" in text:
            raise ValueError(text)
        return int(text)


class Text(Kind[str]):
    """Any string."""

    def convert(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"argument '{name}': must be str, not {type(value).__name__} ({value!r})")
        return value

    def parse(self, text: str) -> str:
        return text


class Choice(Text):
    """One of a few words; some may have an older spelling. `noun` says what the words are, for messages."""

    def __init__(self, noun: str, *words: str, aliases: dict[str, str] | None = None, strict: bool = True) -> None:
        self._noun = noun
        self._words = words
        self._aliases = aliases or {}
        self.strict = strict
        self.expected = f"one of {', '.join(words)}"

    def convert(self, name: str, value: Any) -> str:
        word = super().convert(name, value)
        return self._aliases.get(word, word)

    def fault(self, name: str, value: str) -> str | None:
        if value in self._words:
            return None
        *most, last = map(repr, self._words)
        comma = "," if len(most) > 1 else ""
        return f'{name}: unknown {self._noun}: "{value}", expected {", ".join(most)}{comma} or {last}'

    def parse(self, text: str) -> str:
        word = self._aliases.get(text.lower(), text.lower())
        if word not in self._words:
            raise ValueError(text)
        return word


# Lengths at which a callable load model is asked: 0, and powers of two with their halves between, to 2**20.
_SAMPLES = [0, *sorted(n for power in range(5, 21) for n in (1 << power, 3 << power - 1) if n <= 1 << 20)]


class PrefillLoadModel(Choice):
    """A word, a table of durations, or a callable that becomes one."""

    def convert(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            return super().convert(name, value)
        if isinstance(value, Mapping):
            return {str(key): copy.deepcopy(part) for key, part in value.items()}
        if not callable(value):
            raise TypeError(
                f"argument '{name}': must be str, a mapping or a callable, not {type(value).__name__} ({value!r})"
            )
        seconds = [[float(value(new, cached)) for new in _SAMPLES] for cached in _SAMPLES]
        return {"new_tokens": list(_SAMPLES), "cached_tokens": list(_SAMPLES), "seconds": seconds}

    def fault(self, name: str, value: Any) -> str | None:
        if isinstance(value, str):
            return super().fault(name, value)
        if set(value) != {"new_tokens", "cached_tokens", "seconds"}:
            return f"{name} must be a table with new_tokens, cached_tokens and seconds, got {sorted(value)}"
        new, cached, rows = value["new_tokens"], value["cached_tokens"], value["seconds"]
        for lengths in (new, cached):
            if not lengths or any(type(n) is not int for n in lengths):
                return f"{name}: lengths must be ints, got {lengths!r}"
            if lengths[0] < 0 or any(a >= b for a, b in zip(lengths, lengths[1:], strict=False)):
                return f"{name}: lengths must ascend, got {lengths!r}"
        if len(rows) != len(cached) or any(len(row) != len(new) for row in rows):
            return f"{name}: expected {len(cached)} rows of {len(new)} seconds"
        for row in rows:
            for s in row:
                if not isinstance(s, (int, float)) or not (0 <= s < 1 << 31):
                    return f"{name}: a prefill takes 0 .. 2**31 seconds, got {s!r}"
        return None


class Maybe(Kind["T | None"], Generic[T]):
    """None, or a value of another kind."""

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self.strict = kind.strict
        self.expected = kind.expected

    def convert(self, name: str, value: Any) -> T | None:
        return None if value is None else self._kind.convert(name, value)

    def fault(self, name: str, value: T | None) -> str | None:
        return None if value is None else self._kind.fault(name, value)

    def parse(self, text: str) -> T | None:
        return self._kind.parse(text)


class _Holder(Protocol):
    _values: dict[str, Any]

    def _change(self, changes: dict[str, Any]) -> None: ...


class Keyword(Generic[T]):
    """An attribute of one kind: its default, the environment variables that set it, and whether its feature exists."""

    def __init__(self, kind: Kind[T], default: T, *env: str, exists: bool = False, name: str = "") -> None:
        self.kind = kind
        self.default = default
        self.env = env
        self.exists = exists
        self.name = name
        self.unset: Any = Unset(default)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @overload
    def __get__(self, holder: None, owner: type) -> Keyword[T]: ...
    @overload
    def __get__(self, holder: _Holder, owner: type) -> T: ...
    def __get__(self, holder: _Holder | None, owner: type) -> Keyword[T] | T:
        if holder is None:
            return self
        value: T = holder._values[self.name]
        return value

    def __set__(self, holder: _Holder, value: T) -> None:
        holder._change({self.name: value})
