"""Device frames of one catalog side by side in one tensor: checked, stored in memory, and read together.

Handling 128 frames as arrays costs a tenth of handling them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.frame import Frame
from mainstay.probes.signals import SignalSource
from mainstay.service.telemetry.catalogs import Compiled, source_of
from mainstay.service.telemetry.check import check_devices, check_lengths
from mainstay.service.telemetry.ring_seconds import Run

FRAMES: Final = 128
"""Frames of one batch: more fall out of the processor's cache."""


@dataclass(frozen=True, slots=True)
class Members:
    """The entities of one source in a batch."""

    places: NDArray[np.intp]
    """Their positions among the entities of the batch."""
    frames: NDArray[np.intp]
    """[member] which frame each belongs to."""
    devices: tuple[tuple[str, tuple[str, ...]], ...]
    """(node, its devices) of each frame that has any, in order."""


@dataclass(frozen=True, slots=True)
class RingColumns:
    """Which columns of a ring the entities of a batch have."""

    version: int
    """Of the ring: when it assigns columns again, this no longer holds."""
    places: Run
    """Positions of the entities among those of the batch."""
    frames: NDArray[np.intp]
    """[entity] which frame each belongs to."""
    columns: Run


@dataclass(frozen=True, eq=False)
class BatchLayout:
    """Which devices the columns of a batch are."""

    subjects: tuple[str, ...]
    entities: tuple[tuple[str, ...], ...]
    """[frame] devices of each frame."""
    columns: dict[SignalSource, RingColumns] = field(default_factory=dict)
    """Kept by each ring where a layout is used again."""
    _members: dict[SignalSource, Members | None] = field(default_factory=dict)

    @property
    def sizes(self) -> NDArray[np.intp]:
        """[frame] number of devices."""
        return np.array([len(devices) for devices in self.entities], np.intp)

    def members(self, source: SignalSource) -> Members | None:
        """The entities of a source; None where the batch has none."""
        if source not in self._members:
            self._members[source] = self._find_members(source)
        return self._members[source]

    def _find_members(self, source: SignalSource) -> Members | None:
        parts = [_positions(devices).get(source) for devices in self.entities]
        offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        mine = [i for i, part in enumerate(parts) if part is not None]
        if not mine:
            return None
        found = [part for part in parts if part is not None]
        return Members(
            places=np.concatenate([offsets[i] + part[0] for i, part in zip(mine, found, strict=True)]),
            frames=np.repeat(mine, [len(part[0]) for part in found]),
            devices=tuple((self.subjects[i], part[1]) for i, part in zip(mine, found, strict=True)),
        )


@lru_cache(maxsize=50_000)
def _positions(devices: tuple[str, ...]) -> dict[SignalSource, tuple[NDArray[np.intp], tuple[str, ...]]]:
    """For each source, the positions and names of its devices among those of one frame."""
    by_source: dict[SignalSource, list[int]] = {}
    for position, device in enumerate(devices):
        by_source.setdefault(source_of(device), []).append(position)
    return {
        source: (np.array(positions, np.intp), tuple(devices[i] for i in positions))
        for source, positions in by_source.items()
    }


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Checked frames of one catalog, period, and number of samples."""

    compiled: Compiled
    layout: BatchLayout
    starts: NDArray[np.float64]
    """[frame] Unix seconds of the first sample."""
    dt: float
    narrow: NDArray[np.float32]
    """[time, signal, entity]"""
    wide: NDArray[np.int64]
    """[time, signal, entity]"""

    @property
    def samples(self) -> int:
        return len(self.narrow)


def join(frames: Sequence[Frame], compiled: Compiled) -> FrameBatch:
    """Decoded frames of devices as one batch; all have the same catalog, period, and number of samples.

    Raises:
        BadFrameError, ValueOutOfRangeError: at least one frame is not acceptable. ``check`` tells which, and why.
    """
    first, made = frames[0], compiled.catalog
    for frame in frames:
        check_lengths(frame, compiled)
    entities = sum(len(frame.entities) for frame in frames)
    values, wide = b"".join([frame.values for frame in frames]), b"".join([frame.wide for frame in frames])
    batch = FrameBatch(
        compiled=compiled,
        layout=BatchLayout(tuple(frame.subject for frame in frames), tuple(frame.entities for frame in frames)),
        starts=np.array([frame.t0 for frame in frames]),
        dt=first.dt,
        narrow=np.frombuffer(values, "<f4").reshape(entities, len(made.narrow), first.samples).transpose(2, 1, 0),
        wide=np.frombuffer(wide, "<i8").reshape(entities, len(made.wide), first.samples).transpose(2, 1, 0),
    )
    check_devices(compiled, batch.narrow, batch.wide)
    return batch
