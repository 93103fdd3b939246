"""Strict reading of a table of plain values: every fault is named by where it stands and what would be right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from msgspec import Meta

_PLAIN: Final[dict[type, tuple[Any, str]]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "text"),
}
_Word = TypeVar("_Word", bound=StrEnum)
_Record = TypeVar("_Record")


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

    def _as_word(self, key: str, kind: type[_Word], value: Any) -> _Word:
        known = [str(word) for word in kind]
        if not isinstance(value, str) or value not in known:
            self.fail(f"{_shown(value)} is none of {', '.join(known)}", key)
        return kind(value)

    def read(self, kind: type[_Record], **given: Any) -> _Record:
        """The same, of all that is left in this table.

        Raises:
            PolicyError: a value is missing or wrong, or a key is unknown.
        """
        made = self.take_values(kind, **given)
        for key in self._values:
            self.fail("is not a known key", key[:60])
        return made

    def take_values(self, kind: type[_Record], **given: Any) -> _Record:
        """A dataclass of this table's values, each as its annotation demands, in its order.

        Args:
            kind: the dataclass.
            given: its other fields, or functions that read them when it is their turn.

        Raises:
            PolicyError: a value is missing or wrong.
        """
        hints, dataclass = get_type_hints(kind, include_extras=True), cast("Any", kind)
        for one in fields(dataclass):
            if one.name in given:
                value = given[one.name]
                given[one.name] = value() if callable(value) else value
            elif one.name in self._values:
                given[one.name] = self._checked(one.name, hints[one.name], self._values.pop(one.name))
            elif one.default is MISSING:
                self.fail("is missing", one.name)
        return kind(**given)

    def _checked(self, key: str, hint: Any, value: Any) -> Any:
        """``value`` as the annotation demands: a plain type or an enum, with limits, alone or in a set or tuple."""
        inner = get_args(hint)
        if get_origin(hint) in (frozenset, tuple):
            return get_origin(hint)(self._checked(key, inner[0], one) for one in self._list(key, value))
        if type(None) in inner:  # what may be absent
            return self._checked(key, inner[0], value)
        plain, limits = inner or (hint, Meta())
        if issubclass(plain, StrEnum):
            return self._as_word(key, plain, value)
        kinds, told = _PLAIN[plain]
        endless = isinstance(value, float) and not math.isfinite(value)
        if not isinstance(value, kinds) or isinstance(value, bool) != (plain is bool) or endless:
            self.fail(f"must be {told}, not {_shown(value)}", key)
        self._check_limits(key, limits, value)
        return plain(value)

    def _check_limits(self, key: str, limits: Meta, value: Any) -> None:
        if isinstance(value, str):
            if limits.max_length is not None and len(value) > limits.max_length:
                self.fail(f"has {len(value)} characters, {limits.max_length} are allowed", key)
            if not value.replace("\n", " ").isprintable():
                self.fail("holds characters that cannot be shown", key)
        elif limits.ge is not None and limits.le is not None and not limits.ge <= value <= limits.le:
            shown = f"{value:g}" if isinstance(value, float) else _shown(value)
            self.fail(f"{shown} is not between {limits.ge:g} and {limits.le:g}", key)

    def _list(self, key: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value or len(value) > 200:
            self.fail(f"must be a list of 1 to 200 values, not {_shown(value)}", key)
        return value

    def tables(self, key: str) -> Iterator[tuple[str, TomlTable]]:
        """The tables inside ``key``, by name; none if it is not there."""
        inner = TomlTable(f"{self.where}.{key}", self._values.pop(key, {}))
        if len(inner._values) > 50:
            inner.fail(f"has {len(inner._values)} rules, 50 are allowed")
        for name, values in inner._values.items():
            yield name, TomlTable(f"{inner.where}.{name}", values)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
