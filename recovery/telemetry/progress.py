"""What ranks are doing, twice a second: gathered by each launcher, laid on a grid of time by the coordinator.

At 16,384 ranks this is 32,768 words a second. So a launcher sends all its ranks' in one message of packed rows, and the
coordinator writes them into arrays without looking at single values.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mainstay.probes.core_types import GROUP_KINDS, StepPhase
from mainstay.probes.frame import MAX_FRAME_BYTES, Axis
from mainstay.probes.signals import WIDE_MISSING, SignalSource, catalog
from mainstay.recovery.protocol.worker_messages import MAX_MESSAGE_BYTES, ProgressReport
from mainstay.recovery.telemetry.step_frames import Floats, FramesOfJob, Integers

CATALOG: Final = catalog(SignalSource.PROGRESS)
assert CATALOG.narrow == ("progress_phase", "in_collective_seconds")
assert CATALOG.wide == (
    "progress_step",
    *(f"{kind}_enqueued" for kind in GROUP_KINDS),
    *(f"{kind}_completed" for kind in GROUP_KINDS),
)

BEAT_SECONDS: Final = 0.5
"""How often a rank speaks, and a launcher for all of its own."""
_AHEAD_SECONDS: Final = 0.1
"""For the way to the coordinator; clocks of nodes that differ by more only cost freshness."""
_LARGE_WORLD: Final = 4096
"""Above this the grid is a second: a second of two samples of 16,384 ranks would be 3.7 MB on its way to the service,
and what is gained is a quarter of a second of some five until a hang is certain."""
_HEARD_SECONDS: Final = 1.0
"""A sample holds the newest word of a rank that is not older: two beats, so that jitter makes no gap."""

_COUNTS: Final = len(CATALOG.wide)
_ROW: Final = struct.Struct(f"<IIIId{_COUNTS}q")
ROW: Final = np.dtype(
    [
        ("rank", "<u4"),
        ("pid", "<u4"),
        ("generation", "<u4"),
        ("phase", "<u4"),
        ("in_call", "<f8"),
        ("wide", "<i8", (_COUNTS,)),
    ]
)
"""One rank's newest word; ``wide`` in the catalog's order, WIDE_MISSING for a kind of group that it does not have."""
assert ROW.itemsize == _ROW.size


def grid_seconds(world_size: int) -> float:
    """Time between two samples."""
    return 1.0 if world_size > _LARGE_WORLD else 0.5


class ProgressCollector:
    """The launcher's side: the newest word of each of its ranks since the last time."""

    @staticmethod
    def wait() -> float:
        """Seconds until the next time: a little before a point of the coordinator's grid, so that words are fresh."""
        return BEAT_SECONDS - (time.time() + _AHEAD_SECONDS) % BEAT_SECONDS

    def __init__(self) -> None:
        self._rows: dict[int, bytes] = {}

    def add_report(self, rank: int, pid: int, word: ProgressReport) -> None:
        """A word with numbers that cannot be is not passed on."""
        counts = [
            counted.get(kind, WIDE_MISSING) for counted in (word.enqueued, word.completed) for kind in GROUP_KINDS
        ]
        try:
            self._rows[rank] = _ROW.pack(rank, pid, word.generation, word.phase, word.in_call, word.step, *counts)
        except struct.error:
            self._rows.pop(rank, None)

    def forget(self, rank: int) -> None:
        """Its process has ended."""
        self._rows.pop(rank, None)

    def cut(self) -> list[bytes]:
        """Packed rows, in pieces that a message can carry."""
        rows, self._rows = list(self._rows.values()), {}
        most = MAX_MESSAGE_BYTES // 2 // _ROW.size
        return [b"".join(rows[start : start + most]) for start in range(0, len(rows), most)]


@dataclass(frozen=True, slots=True, eq=False)
class ProgressSample:
    """All ranks at one point of the grid."""

    time: float
    """Unix seconds, a multiple of the grid's."""
    narrow: Floats
    """[signal, rank], NaN where nothing was heard."""
    wide: Integers
    """[signal, rank], WIDE_MISSING likewise."""

    @property
    def has_reported(self) -> npt.NDArray[np.bool_]:
        """[rank] whether anything was."""
        found: npt.NDArray[np.bool_] = ~np.isnan(self.narrow[0])
        return found

    def values(self) -> npt.NDArray[np.float64]:
        """[narrow and wide signals, rank] as detectors want it; counts below 2^53 are exact."""
        wide = np.where(self.wide == WIDE_MISSING, np.nan, self.wide.astype(np.float64))
        return np.concatenate([self.narrow.astype(np.float64), wide])


class ProgressTable:
    """The coordinator's side: the newest word of every rank, and when it was heard."""

    def __init__(self, world_size: int) -> None:
        self.seconds = grid_seconds(world_size)
        self._heard = np.full(world_size, -math.inf)
        self._narrow: Floats = np.full((len(CATALOG.narrow), world_size), np.nan, np.float32)
        self._wide: Integers = np.full((_COUNTS, world_size), WIDE_MISSING, np.int64)
        self._last = -math.inf

    def ingest(self, body: bytes, generation: int, holds: Callable[[int, int], bool], *, forming: bool) -> None:
        """Rows of one launcher, heard now.

        A rank whose word is about an older generation, and every rank while the job is forming or recovering, is
        shown as warming up, in no call and without counts: what it waits for then is the coordinator.

        Args:
            body: packed rows.
            generation: the present one.
            holds: whether a rank is held by a process id; words of a process that was replaced are not heard.
            forming: no generation runs.

        Raises:
            ValueError: ``body`` is not made of rows.
        """
        rows = np.frombuffer(body, ROW)
        size = len(self._heard)
        pairs = zip(rows["rank"].tolist(), rows["pid"].tolist(), strict=True)
        rows = rows[np.array([rank < size and holds(rank, pid) for rank, pid in pairs], bool)]
        at = rows["rank"].astype(np.intp)
        away = (rows["generation"] != generation) | forming
        phase = np.where(away, int(StepPhase.WARM_UP), rows["phase"])
        in_call = np.where(np.isfinite(rows["in_call"]), np.clip(rows["in_call"], 0.0, 1e9), np.nan)
        self._heard[at] = time.monotonic()
        self._narrow[0, at] = phase
        self._narrow[1, at] = np.where(away, 0.0, in_call)
        self._wide[:, at] = rows["wide"].T
        self._wide[1:, at[away]] = WIDE_MISSING

    def forget(self, rank: int) -> None:
        """Its process is gone; nothing is heard from it until the next one speaks."""
        self._heard[rank] = -math.inf

    def sample(self) -> ProgressSample | None:
        """All ranks now; None when the grid has not moved on, or when no rank has reported."""
        at = math.floor(time.time() / self.seconds) * self.seconds
        fresh = self._heard > time.monotonic() - _HEARD_SECONDS
        if at <= self._last or not fresh.any():
            return None
        self._last = at
        return ProgressSample(
            at, np.where(fresh, self._narrow, np.float32(np.nan)), np.where(fresh, self._wide, WIDE_MISSING)
        )


class ProgressFrames(FramesOfJob):
    """Samples, cut into frames on the time axis about once a second."""

    axis = Axis.TIME

    def __init__(self, job: str, world_size: int) -> None:
        super().__init__(job, grid_seconds(world_size))
        self._entities = tuple(str(rank) for rank in range(world_size))
        self._samples: list[ProgressSample] = []
        row_bytes = 4 * len(CATALOG.narrow) + 8 * len(CATALOG.wide)
        self._most = max(1, min(round(1.0 / self._dt), MAX_FRAME_BYTES // (world_size * row_bytes)))

    def add_sample(self, sample: ProgressSample) -> None:
        self._samples.append(sample)

    @property
    def due(self) -> bool:
        """A full second has been reached, or a gap has ended one.

        The sample at the full second is the last of its frame, not the first: who judges by seconds has it at once.
        """
        full = bool(self._samples) and self._samples[-1].time % 1.0 == 0.0
        return full or len(self._samples) >= self._most or len(self._run()) < len(self._samples)

    def cut(self) -> dict[str, Any] | None:
        """Arguments of ``FrameSender.put`` for the first samples without a gap between them, or None."""
        run = self._run()
        if not run:
            return None
        del self._samples[: len(run)]
        narrow = np.stack([s.narrow.T for s in run], axis=2)
        wide = np.stack([s.wide.T for s in run], axis=2)
        return self._frame(run[0].time, CATALOG, self._entities, narrow, wide)

    def _run(self) -> list[ProgressSample]:
        """Samples from the first on that follow each other on the grid."""
        found = self._samples[:1]
        for sample in self._samples[1 : self._most]:
            if sample.time - found[-1].time > 1.5 * self._dt:
                break
            found.append(sample)
        return found
