"""Where the samples of one node's frames go in a ring: worked out once, used for every frame after.

The usual case, devices side by side and a whole catalog, is placed through slices, which is many times cheaper than
index arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.service.telemetry.catalogs import RingPlacement

PAGE_COLUMNS: Final = 256
"""Columns of a page: adding one touches 13 MB at 900 s, and never moves what is there."""
Index = tuple[slice, slice] | tuple[NDArray[np.intp], ...]


@dataclass(frozen=True, slots=True)
class PlacementPart:
    """The columns of a plan that lie in one page."""

    page: int
    members: slice | NDArray[np.intp]
    """Which of the plan's columns."""
    narrow: Index
    """[row, column] in the page, of narrow signals."""
    rates: Index
    """The same of counters."""


@dataclass(frozen=True, slots=True)
class FramePlacement:
    """Where the samples of a frame stand, and where they go."""

    columns: NDArray[np.intp]
    narrow: Index
    """[entity, signal] of a frame's narrow tensor."""
    wide: Index
    wide_counters: NDArray[np.intp]
    counters_in_order: bool
    parts: tuple[PlacementPart, ...]


def make_plan(
    entities: NDArray[np.intp], columns: NDArray[np.intp], placement: RingPlacement, narrow_rows: int, page_columns: int
) -> FramePlacement:
    """A plan for the given entities of a frame, which have the given columns."""
    counters = placement.wide_counters
    pages = columns // page_columns
    parts = []
    for page in np.unique(pages):
        members = np.flatnonzero(pages == page)
        places = columns[members] % page_columns
        narrow, rates = index(placement.narrow_rows, places), index(narrow_rows + counters, places)
        whole = len(members) == len(columns)
        parts.append(PlacementPart(int(page), slice(None) if whole else members, narrow, rates))
    return FramePlacement(
        columns=columns,
        narrow=index(entities, placement.narrow),
        wide=index(entities, placement.wide),
        wide_counters=counters,
        counters_in_order=bool((counters == np.arange(len(counters))).all()),
        parts=tuple(parts),
    )


def index(first: NDArray[np.intp], second: NDArray[np.intp]) -> Index:
    """Two slices where both runs are unbroken, else a mesh."""
    if _unbroken(first) and _unbroken(second):
        return slice(int(first[0]), int(first[-1]) + 1), slice(int(second[0]), int(second[-1]) + 1)
    return np.ix_(first, second)


def _unbroken(run: NDArray[np.intp]) -> bool:
    return bool(run.size and (np.diff(run) == 1).all())


def put(slot: NDArray[np.float32], place: Index, values: NDArray[np.float32]) -> None:
    """Write [row, column] values into a slot. Several samples may fall into one second: the last known one stays."""
    known = values == values  # noqa: PLR0124 - NaN is the one value that differs from itself
    if isinstance(place[0], slice):
        np.copyto(slot[place], values, where=known)
    else:
        slot[place] = np.where(known, values, slot[place])
