"""Recorded traces of other projects, beside those that ``mainstay.recovery.simulate.traces`` reads.

- Bamboo polls spot instances: ``date, time, count`` or ``time,count``; nodes get names, the newest goes first.
- Parcae: a JSON list a line, ``[milliseconds, event, {"nodes": [...], ...}]``, with the (dp, pp) that it chose.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import dropwhile
from pathlib import Path
from typing import Any

from mainstay.recovery.simulate.traces import TraceChange, TraceError, Where, lines_of, number_of

CHOICES = ("throughput_opt_strategy", "liveput_truth_strategy", "liveput_predict_strategy")
"""Parcae's own choices of (dp, pp), as its files name them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A minute of Parcae's slices."""

    at_s: float
    nodes: int
    """Alive after the changes of this interval."""
    added: int
    removed: int
    chosen: tuple[tuple[int, int], ...]
    """(dp, pp) of each of ``CHOICES``."""


_MOST_NODES = 1_000_000


def counts(changes: Iterable[TraceChange], every_s: float) -> tuple[int, ...]:
    """Nodes alive every so many seconds, after the changes of that very time, from when there are any."""
    alive, found = 0, list[int]()
    for change in changes:
        found.extend([alive] * (math.ceil(change.at_s / every_s) - len(found)))
        alive += 1 if change.kind == "add" else -1
    return tuple(dropwhile(lambda count: not count, [*found, alive]))


def read_polls(path: Path, unit_s: float = 1.0) -> tuple[TraceChange, ...]:
    """Read polls of how many instances are alive as changes.

    Args:
        path: of the file.
        unit_s: seconds of the unit of ``time,count`` lines: 1, or 3600 for files in hours. Dated lines need none.

    Raises:
        TraceError: as ``read_changes``. Times may repeat or go back where recordings were strung together: such a
            line counts at the latest time seen.
    """
    changes: list[TraceChange] = []
    now, alive, start = 0.0, 0, None
    for where, text in lines_of(path):
        at, start, count = _poll(where, text, unit_s, start)
        now = max(now, at)
        changes.extend(TraceChange(now, "add", f"node{i}") for i in range(alive, count))
        changes.extend(TraceChange(now, "remove", f"node{i}") for i in range(alive - 1, count - 1, -1))
        alive = count
    if not changes:
        raise TraceError(f"{path}: no events")
    return tuple(changes)


def _poll(where: Where, text: str, unit_s: float, start: datetime | None) -> tuple[float, datetime | None, int]:
    fields = [part.strip() for part in text.split(",")]
    if len(fields) not in {2, 3}:
        raise where.wrong("fields", f"expected date, time, count or time,count, not {len(fields)} fields")
    count = number_of(where, "count", fields[-1])
    if count != int(count) or count > _MOST_NODES:
        raise where.wrong("count", f"expected a whole number of at most {_MOST_NODES:,}, not {fields[-1]!r}")
    if len(fields) == 2:
        return number_of(where, "time", fields[0]) * unit_s, start, int(count)
    try:
        at = datetime.fromisoformat(f"{fields[0]}T{fields[1]}")
    except ValueError as error:
        raise where.wrong("date", f"expected YYYY-MM-DD, HH:MM:SS, not {fields[0]!r}, {fields[1]!r}") from error
    start = start or at
    return (at - start).total_seconds(), start, int(count)


def read_intervals(path: Path) -> tuple[Interval, ...]:
    """Read one of Parcae's slices.

    Raises:
        TraceError: as ``read_changes``.
    """
    intervals: list[Interval] = []
    alive: set[str] = set()
    for where, text in lines_of(path):
        at_s, names, chosen, event = _slice(where, text)
        if intervals and at_s <= intervals[-1].at_s:
            raise where.wrong("time", f"{at_s * 1000:.0f} is not after the line above")
        unseen = names - alive if event == "remove" else names & alive
        if unseen:
            raise where.wrong("nodes", f"{min(unseen)!r} is {'not' if event == 'remove' else 'already'} there")
        alive = alive - names if event == "remove" else alive | names
        added, removed = (0, len(names)) if event == "remove" else (len(names), 0)
        intervals.append(Interval(at_s, len(alive), added, removed, chosen))
    if not intervals:
        raise TraceError(f"{path}: no events")
    return tuple(intervals)


def _slice(where: Where, text: str) -> tuple[float, set[str], tuple[tuple[int, int], ...], str]:
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, or a number of thousands of digits
        raise where.wrong("line", "is not JSON") from error
    if not isinstance(raw, list) or len(raw) != 3 or not isinstance(raw[2], dict):
        raise where.wrong("line", "expected [milliseconds, event, {...}]")
    at, event, more = raw
    names = more.get("nodes")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise where.wrong("nodes", "expected a list of names")
    if not isinstance(event, str) or (names and event not in {"add", "remove"}):
        raise where.wrong("event", f"expected add or remove with nodes, not {event!r}")
    return number_of(where, "time", at) / 1000.0, set(names), tuple(_pair(where, more, name) for name in CHOICES), event


def _pair(where: Where, more: dict[str, Any], name: str) -> tuple[int, int]:
    value = more.get(name)
    if not isinstance(value, list) or len(value) != 2 or not all(type(v) is int and v > 0 for v in value):
        raise where.wrong(name, f"expected [dp, pp], not {value!r}")
    return value[0], value[1]
