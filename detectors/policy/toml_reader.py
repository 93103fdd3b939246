"""Strict reading of a table of plain values: every fault is named by where it stands and what would be right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

_MISSING: Final = object()
_Word = TypeVar("_Word", bound=StrEnum)


class PolicyError(ValueError):
    """A policy that cannot be used; the message is one line: file, table, key, fault."""


class TomlTable:
    """One table of a document; what is not taken by ``end`` is a fault.

    Args:
        where: file and path of the table, for messages.
        values: as the document gives them.
    """

    def __init__(self, where: str, values: Any) -> None:
        self.where = where
        if not isinstance(values, Mapping):
            self.fail(f"must be a table, not {_shown(values)}")
        self._values = dict(values)

    def fail(self, message: str, key: str | None = None) -> NoReturn:
        raise PolicyError(f"{self.where}{'' if key is None else f'.{key}'}: {message}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def _take(self, key: str, default: Any) -> Any:
        value = self._values.pop(key, default)
        if value is _MISSING:
            self.fail("is missing", key)
        return value

    def text(self, key: str, default: Any = _MISSING, *, limit: int) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            self.fail(f"must be text, not {_shown(value)}", key)
        if len(value) > limit:
            self.fail(f"has {len(value)} characters, {limit} are allowed", key)
        if not value.replace("\n", " ").isprintable():
            self.fail("holds characters that cannot be shown", key)
        return value

    def word(self, key: str, kind: type[_Word], default: Any = _MISSING) -> _Word:
        value = self._take(key, default)
        if isinstance(value, kind):
            return value
        return self._as_word(key, kind, value)

    def read_words(self, key: str, kind: type[_Word], default: frozenset[_Word]) -> frozenset[_Word]:
        values = self._take(key, default)
        if isinstance(values, frozenset):
            return values
        return frozenset(self._as_word(key, kind, value) for value in self._list(key, values))

    def _as_word(self, key: str, kind: type[_Word], value: Any) -> _Word:
        known = [str(word) for word in kind]
        if not isinstance(value, str) or value not in known:
            self.fail(f"{_shown(value)} is none of {', '.join(known)}", key)
        return kind(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            self.fail(f"must be true or false, not {_shown(value)}", key)
        return value

    def number(self, key: str, default: Any = _MISSING, *, low: float, high: float) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.fail(f"must be a number, not {_shown(value)}", key)
        if not low <= value <= high:
            self.fail(f"{value:g} is not between {low:g} and {high:g}", key)
        return float(value)

    def whole(self, key: str, default: Any = _MISSING, *, low: int, high: int) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"must be a whole number, not {_shown(value)}", key)
        if not low <= value <= high:
            self.fail(f"{value} is not between {low} and {high}", key)
        return value

    def wholes(self, key: str, *, low: int, high: int) -> frozenset[int]:
        values = self._list(key, self._take(key, _MISSING))
        return frozenset(TomlTable(self.where, {key: value}).whole(key, low=low, high=high) for value in values)

    def texts(self, key: str, *, limit: int) -> tuple[str, ...]:
        values = self._list(key, self._take(key, _MISSING))
        return tuple(TomlTable(self.where, {key: value}).text(key, limit=limit) for value in values)

    def _list(self, key: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value or len(value) > 200:
            self.fail(f"must be a list of 1 to 200 values, not {_shown(value)}", key)
        return value

    def tables(self, key: str) -> Iterator[tuple[str, TomlTable]]:
        """The tables inside ``key``, by name; none if it is not there."""
        inner = TomlTable(f"{self.where}.{key}", self._take(key, {}))
        if len(inner._values) > 50:
            inner.fail(f"has {len(inner._values)} rules, 50 are allowed")
        for name, values in inner._values.items():
            yield name, TomlTable(f"{inner.where}.{name}", values)

    def end(self) -> None:
        """Reject unknown keys."""
        for key in self._values:
            self.fail("is not a known key", key[:60])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
