"""The samples of device frames by device and signal, from stored blocks. Signals that do not change take no space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING, SignalSource, names
from mainstay.service.history.tiers import node_hash
from mainstay.service.telemetry.frame_batch import FrameBatch

Codes = NDArray[np.int32]
Places = NDArray[np.intp]
Micros = NDArray[np.int64]
"""Times in microseconds since 1970: a float of Unix seconds is no finer."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Signals of one type, for some runs: a run is a device and the samples that follow each other at an interval."""

    first: NDArray[Any]
    """[signal, run] the first value; the only one of a signal that does not change."""
    changing: NDArray[np.intp]
    """Signals that change within at least one of the runs."""
    series: NDArray[Any]
    """[changing, run, sample]"""

    def each(self, signal: int, samples: int) -> NDArray[Any]:
        """[run, sample] values of a signal."""
        at = np.flatnonzero(self.changing == signal)
        if len(at):
            values: NDArray[Any] = self.series[at[0]]
            return values
        return np.broadcast_to(self.first[signal][:, None], (self.first.shape[1], samples))

    def select(self, runs: NDArray[np.intp]) -> Self:
        """The same for some of the runs."""
        series = self.series[:, runs]
        moved = (bits(series) != bits(series[:, :, :1])).any(axis=(1, 2))
        return type(self)(self.first[:, runs], self.changing[moved], series if moved.all() else series[moved])


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """Runs of one source, in any order; all have the same number of samples."""

    codes: Codes
    """[run] number of the device, by ``DeviceCodes``."""
    times: Micros
    """[run, sample]"""
    narrow: Columns
    """float32; NaN where unknown."""
    wide: Columns
    """int64; ``WIDE_MISSING`` where unknown."""

    def select(self, runs: NDArray[np.intp]) -> Self:
        """Some of the runs."""
        return type(self)(self.codes[runs], self.times[runs], self.narrow.select(runs), self.wide.select(runs))

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        parts = (self.narrow, self.wide)
        return (self.codes, self.times, *(array for c in parts for array in (c.first, c.changing, c.series)))

    def encode(self) -> bytes:
        """The slab as bytes, their number first."""
        parts = [(array.dtype.str, array.shape, np.ascontiguousarray(array).data) for array in self.arrays]
        body = msgspec.msgpack.encode(parts)
        return len(body).to_bytes(8, "little") + body

    @classmethod
    def decode_all(cls, data: memoryview) -> Iterator[Self]:
        """Slabs that ``encode`` wrote one after the other."""
        while data:
            stop = 8 + int.from_bytes(data[:8], "little")
            parts = msgspec.msgpack.decode(data[8:stop], type=list[tuple[str, tuple[int, ...], bytes]])
            arrays = [np.frombuffer(body, kind).reshape(shape) for kind, shape, body in parts]
            yield cls(arrays[0], arrays[1], Columns(*arrays[2:5]), Columns(*arrays[5:]))
            data = data[stop:]


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
    """(slot, runs) of one source; ``slot_of`` gives the slot of a node."""
    for (layout, compiled, dt), same in groupby(batches, key=lambda b: (b.layout, b.compiled, b.dt)):
        members = layout.members(source)
        if members is None:
            continue
        group, placed, places = list(same), compiled.placements[source], members.places
        coded = np.array([codes.code(n, d) for n, devices in members.devices for d in devices], np.int32)
        slots = np.repeat([slot_of(node) for node, _ in members.devices], [len(d) for _, d in members.devices])
        times = np.concatenate([b.starts[members.frames][:, None] + dt * np.arange(b.samples) for b in group], axis=1)
        narrow = _columns([b.narrow for b in group], placed.narrow, placed.narrow_rows, places, source)
        wide = _columns([b.wide for b in group], placed.wide, placed.wide_counters, places, source)
        whole = Slab(coded, np.round(times * 1e6).astype(np.int64), narrow, wide)
        for slot in np.unique(slots).tolist():
            yield slot, whole.select(np.flatnonzero(slots == slot))


def _columns(
    tensors: Sequence[NDArray[Any]], signals: Places, rows: Places, places: Places, source: SignalSource
) -> Columns:
    """Signals and entities of tensors [time, signal, entity] that follow each other, at ``rows`` of the source."""
    start, is_wide = tensors[0][0], tensors[0].dtype != np.float32
    moved = np.zeros(start.shape, bool)
    for tensor in tensors:
        moved |= (bits(tensor) != bits(start)).any(axis=0)
    first = np.full((len(names(source, wide=is_wide)), len(places)), WIDE_MISSING if is_wide else np.nan, start.dtype)
    first[rows] = start[signals][:, places]
    changing = moved[signals][:, places].any(axis=1)
    series, at = np.empty((changing.sum(), len(places), sum(map(len, tensors))), start.dtype), 0
    for tensor in tensors:  # one by one: the processor's cache holds it
        part = tensor[:, signals[changing]]
        part = part if len(places) == part.shape[2] else part[:, :, places]
        series[:, :, at : at + len(part)] = part.transpose(1, 2, 0)
        at += len(part)
    return Columns(first, rows[changing], series)


def bits(values: NDArray[Any]) -> NDArray[Any]:
    """To compare values of which some may be NaN."""
    return values.view(f"i{values.dtype.itemsize}")
