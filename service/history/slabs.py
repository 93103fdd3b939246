"""The samples of device frames as columns [signal, row], from stored blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING, SignalSource, names
from mainstay.service.history.tiers import node_hash
from mainstay.service.telemetry.catalogs import Compiled
from mainstay.service.telemetry.frame_batch import FrameBatch, Members

_log: Final = logging.getLogger(__name__)
Codes = NDArray[np.int32]
Micros = NDArray[np.int64]
"""Times in microseconds since 1970: a float of Unix seconds is no finer."""


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """Rows of one source, in any order."""

    codes: Codes
    """[row] number of the device, by ``DeviceCodes``."""
    times: Micros
    """[row]"""
    narrow: NDArray[np.float32]
    """[narrow signal of the source, row]; NaN where unknown."""
    wide: NDArray[np.int64]
    """[wide signal of the source, row]; ``WIDE_MISSING`` where unknown."""


@dataclass
class DeviceCodes:
    """A number for each (node, device) of one source."""

    keys: list[tuple[str, str]] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    """Of the nodes."""
    _codes: dict[tuple[str, str], int] = field(default_factory=dict)

    def code(self, node: str, device: str) -> int:
        key = (node, device)
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.keys)
            self.keys.append(key)
            self.hashes.append(node_hash(node))
        return code

    def ranks(self) -> NDArray[np.int64]:
        """[code] the place of each device when all are sorted by hash of the node, node, and device."""
        order = sorted(range(len(self.keys)), key=lambda code: (self.hashes[code], self.keys[code]))
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return ranks


def slabs_of(
    batches: Sequence[FrameBatch], source: SignalSource, codes: DeviceCodes, slot_of: Callable[[str], int]
) -> Iterator[tuple[int, Slab]]:
    """(slot, rows) of one source; ``slot_of`` gives the slot of a node."""
    for (layout, compiled, _), same in groupby(batches, key=lambda b: (b.layout, b.compiled, b.dt)):
        members = layout.members(source)
        if members is None:
            continue
        group = list(same)
        coded = np.array([codes.code(n, d) for n, devices in members.devices for d in devices], np.int32)
        slots = np.array([slot_of(node) for node, devices in members.devices for _ in devices], np.int64)
        for slot in np.unique(slots).tolist():
            chosen = np.flatnonzero(slots == slot)
            yield slot, _slab(group, compiled, source, _choose(members, chosen), coded[chosen])


def _choose(members: Members, chosen: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return members.places[chosen], members.frames[chosen]


def _slab(
    group: Sequence[FrameBatch],
    compiled: Compiled,
    source: SignalSource,
    where: tuple[NDArray[np.intp], NDArray[np.intp]],
    codes: Codes,
) -> Slab:
    places, frames = where
    placed = compiled.placements[source]
    times = np.concatenate([b.starts[frames][:, None] + b.dt * np.arange(b.samples) for b in group], axis=1)
    rows = times.size
    narrow = np.full((len(names(source, wide=False)), rows), np.nan, np.float32)
    wide = np.full((len(names(source, wide=True)), rows), WIDE_MISSING, np.int64)
    # [time, signal, entity] → [signal, entity, time]
    part = np.concatenate([b.narrow[:, :, places][:, placed.narrow] for b in group])
    narrow[placed.narrow_rows] = part.transpose(1, 2, 0).reshape(len(placed.narrow), rows)
    whole = np.concatenate([b.wide[:, :, places][:, placed.wide] for b in group])
    wide[placed.wide_counters] = whole.transpose(1, 2, 0).reshape(len(placed.wide), rows)
    micros = np.round(times * 1e6).astype(np.int64).reshape(-1)
    return Slab(np.repeat(codes, times.shape[1]), micros, narrow, wide)
