"""Recorded traces of nodes that come and go: ``milliseconds,add|remove,node``, as Oobleck and Bamboo write them.

A bad line is named: file, line, field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class TraceError(ValueError):
    """The file is no such trace; the message is one line and names file, line and field."""


@dataclass(frozen=True, slots=True)
class TraceChange:
    """A node comes or goes."""

    at_s: float
    kind: Literal["add", "remove"]
    node: str


_TOLD = 200
"""Characters of what is wrong: a line that an operator reads."""
_MOST_TIME = 1e15
"""Milliseconds: some thirty thousand years."""


@dataclass(frozen=True, slots=True)
class Where:
    path: Path
    line: int

    def wrong(self, field: str, what: str) -> TraceError:
        told = what if len(what) <= _TOLD else f"{what[:_TOLD]}..."
        return TraceError(f"{self.path}: line {self.line}: {field}: {told}")


def read_changes(path: Path) -> tuple[TraceChange, ...]:
    """Read ``milliseconds,add|remove,node`` lines in order of time.

    Raises:
        TraceError: unreadable, a line with other fields, a time that goes back, a node added twice or removed unseen.
    """
    changes: list[TraceChange] = []
    alive: set[str] = set()
    for where, text in lines_of(path):
        change = _change(where, text)
        if changes and change.at_s < changes[-1].at_s:
            raise where.wrong("milliseconds", f"{change.at_s * 1000:.0f} is before the line above")
        if (change.kind == "add") == (change.node in alive):
            raise where.wrong("node", f"{change.node!r} is {'already' if change.kind == 'add' else 'not'} there")
        (alive.add if change.kind == "add" else alive.discard)(change.node)
        changes.append(change)
    if not changes:
        raise TraceError(f"{path}: no events")
    return tuple(changes)


def _change(where: Where, text: str) -> TraceChange:
    fields = [part.strip() for part in text.split(",")]
    if len(fields) != 3:
        raise where.wrong("fields", f"expected milliseconds,add|remove,node, not {len(fields)} fields")
    at, kind, node = fields
    if kind not in {"add", "remove"}:
        raise where.wrong("event", f"expected add or remove, not {kind!r}")
    if not node:
        raise where.wrong("node", "is empty")
    return TraceChange(number_of(where, "milliseconds", at) / 1000.0, "add" if kind == "add" else "remove", node)


def number_of(where: Where, field: str, value: object) -> float:
    """A number from 0 to what no recording reaches."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number <= _MOST_TIME:
        raise where.wrong(field, f"expected a number from 0 to {_MOST_TIME:g}, not {value!r}")
    return number


def lines_of(path: Path) -> Iterator[tuple[Where, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text (byte {error.start})") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield Where(path, number), line
