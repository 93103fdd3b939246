"""What ranks say of each step, gathered into frames on the step axis: [rank, signal, step] and [pair, signal, step].

At 16,384 ranks a step is 16,384 records of some thirty numbers: each is written once into arrays as it comes, and a
frame is cut by transposing them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mainstay.probes.frame import MAX_ENTITIES, MAX_FRAME_BYTES, Axis
from mainstay.probes.signals import SIGNALS, WIDE_MISSING, Catalog, SignalSource, catalog
from mainstay.recovery.protocol.worker_messages import StepRecord, Transfers

FRAME_SECONDS: Final = 1.0
"""Charts refresh about this often."""
MAX_STEPS: Final = 256

_RANK: Final = catalog(SignalSource.RANK)
_PAIR: Final = catalog(SignalSource.PAIR)
_PAIR_WIDE: Final = "step_end_nanoseconds"
"""Puts a pair's step into its place in time; declared with the ranks' signals."""
_LARGEST: Final = 3.4e38
"""Of float32."""
_LIMITS: Final = tuple(
    (name, max(SIGNALS[name].low, -_LARGEST), min(SIGNALS[name].high, _LARGEST)) for name in _RANK.narrow
)
"""The service refuses a frame with a single value beyond them: a rank that measures nonsense must not silence all."""
_INT64: Final = 2**63

T = TypeVar("T")
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


class FramesOfJob:
    """What makes frames of one axis; ``dt`` lies between two samples."""

    axis = Axis.STEP

    def __init__(self, job: str, dt: float = 1.0) -> None:
        self._job, self._dt = job, dt

    def _frame(
        self, first: float, catalog: Catalog, entities: tuple[str, ...], narrow: Floats, wide: Integers
    ) -> dict[str, Any]:
        """Arguments of ``FrameSender.put``; ``narrow`` and ``wide`` are [entity, ..., sample]."""
        return {
            "subject": self._job,
            "axis": self.axis,
            "t0": float(first),
            "dt": self._dt,
            "catalog": catalog,
            "entities": entities,
            "samples": narrow.shape[-1],
            "values": narrow.astype("<f4", copy=False).tobytes(),
            "wide": wide.astype("<i8", copy=False).tobytes(),
        }


class _BySteps(FramesOfJob, Generic[T]):
    """What came since the last frame, by step."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self._steps: dict[int, T] = {}
        self._since: float | None = None

    def due_in(self) -> float:
        """Seconds until ``cut`` has something to give."""
        if self._since is None:
            return FRAME_SECONDS
        if len(self._steps) >= MAX_STEPS:
            return 0.0
        return max(0.0, self._since + FRAME_SECONDS - time.monotonic())

    def _began(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    def _take(self, most: int) -> tuple[int, list[T | None]]:
        """The first step, and what is known of it and those behind it, at most ``most``; empty when nothing is."""
        if not self._steps:
            self._since = None
            return 0, []
        first = min(self._steps)
        last = min(max(self._steps), first + most - 1)
        found = [self._steps.pop(step, None) for step in range(first, last + 1)]
        self._since = time.monotonic() if self._steps else None
        return first, found


class _Step:
    """One step of all ranks."""

    def __init__(self, world_size: int) -> None:
        self.narrow: Floats = np.full((world_size, len(_RANK.narrow)), np.nan, np.float32)
        self.end: Integers = np.full(world_size, WIDE_MISSING, np.int64)


class StepFrames(_BySteps[_Step]):
    """Collects records; ``cut`` gives a frame of consecutive steps when it is due."""

    def __init__(self, job: str, world_size: int) -> None:
        super().__init__(job)
        self._entities = tuple(str(rank) for rank in range(world_size))
        self._most = _steps_that_fit(world_size * (4 * len(_RANK.narrow) + 8 * len(_RANK.wide)))

    def add_record(self, rank: int, record: StepRecord) -> None:
        """A step that is repeated after a rollback replaces what was known of it."""
        step = self._steps.get(record.epoch)
        if step is None:
            step = self._steps[record.epoch] = _Step(len(self._entities))
        step.narrow[rank] = _values(record)
        step.end[rank] = record.end_ns if abs(record.end_ns) < _INT64 else WIDE_MISSING
        self._began()

    def cut(self) -> dict[str, Any] | None:
        """Arguments of ``FrameSender.put`` for all that is here, or None. A step that a rank missed is NaN there."""
        first, steps = self._take(self._most)
        if not steps:
            return None
        empty = _Step(len(self._entities))
        narrow = np.stack([(step or empty).narrow for step in steps], axis=2)
        wide = np.stack([(step or empty).end for step in steps], axis=1)
        return self._frame(first, _RANK, self._entities, narrow, wide)


def _values(record: StepRecord) -> list[float]:
    """Narrow signals in the catalog's order; what float32 cannot hold, or no such signal can be, is missing."""
    told = {
        **record.signals,
        "step_time_seconds": record.step_time,
        "compute_time_seconds": record.compute_time,
        "snapshot_blocked_seconds": record.snapshot_blocked,
    }
    if record.loss is not None:
        told["loss"] = record.loss
    if record.micro_batches:
        told["micro_batches"] = record.micro_batches
    return [value if low <= (value := told.get(name, math.nan)) <= high else math.nan for name, low, high in _LIMITS]


class PairFrames(_BySteps[dict[int, Transfers]]):
    """Collects what ranks received from their peers; an entity is a pair, ``"3>4"``: rank 3 sends to rank 4."""

    catalog: Final = Catalog(narrow=_PAIR.narrow, wide=(*_PAIR.wide, _PAIR_WIDE))
    _cell_bytes: Final = 4 * len(catalog.narrow) + 8 * len(catalog.wide)

    def __init__(self, job: str, world_size: int) -> None:
        super().__init__(job)
        self._world_size = world_size
        self._names: dict[int, str] = {}

    def add_transfers(self, rank: int, transfers: Transfers) -> None:
        """``rank`` is the receiver. A step that is repeated after a rollback replaces what was known of it."""
        self._steps.setdefault(transfers.epoch, {})[rank] = transfers
        self._began()

    def cut(self) -> list[dict[str, Any]]:
        """Arguments of ``FrameSender.put`` for all that is here: as many frames as its pairs need."""
        pairs = sum(len(t.seconds) for told in self._steps.values() for t in told.values())
        pairs = min(MAX_ENTITIES, -(-pairs // max(1, len(self._steps))))  # about: of one step
        first, steps = self._take(_steps_that_fit(pairs * self._cell_bytes))
        columns = [self._columns(told or {}) for told in steps]
        codes = np.unique(np.concatenate([codes for codes, _, _ in columns])) if columns else np.empty(0, np.int64)
        if not len(codes):
            return []
        narrow = np.full((len(codes), 2, len(steps)), np.nan, np.float32)
        wide = np.full((len(codes), len(steps)), WIDE_MISSING, np.int64)
        for k, (code, values, ends) in enumerate(columns):
            row = np.searchsorted(codes, code)
            narrow[row, :, k] = values
            wide[row, k] = ends
        most = min(MAX_ENTITIES, max(1, MAX_FRAME_BYTES // (self._cell_bytes * len(steps))))
        parts = [slice(start, start + most) for start in range(0, len(codes), most)]
        return [self._frame(first, self.catalog, self._pairs(codes[p]), narrow[p], wide[p]) for p in parts]

    def _columns(self, told: dict[int, Transfers]) -> tuple[Integers, Floats, Integers]:
        """Codes of the pairs of one step, [pair, 2] their values, [pair] when the step ended at the receiver."""
        sizes = [len(t.seconds) for t in told.values()]
        source = _integers(chain.from_iterable(t.seconds for t in told.values()))
        target = np.repeat(_integers(told), sizes)
        seconds = chain.from_iterable(t.seconds.values() for t in told.values())
        nbytes = (t.nbytes.get(peer, math.nan) for t in told.values() for peer in t.seconds)
        ends = np.repeat(_integers(t.end_ns if abs(t.end_ns) < _INT64 else WIDE_MISSING for t in told.values()), sizes)
        values = np.stack([_floats(seconds), _floats(nbytes)], axis=1)
        known = (source >= 0) & (source < self._world_size) & (source != target)
        return (source * self._world_size + target)[known], values[known], ends[known]

    def _pairs(self, codes: Integers) -> tuple[str, ...]:
        return tuple(self._name(code) for code in codes.tolist())

    def _name(self, code: int) -> str:
        name = self._names.get(code)
        if name is None:
            source, target = divmod(code, self._world_size)
            name = self._names[code] = f"{source}>{target}"
        return name


def _steps_that_fit(step_bytes: int) -> int:
    return max(1, min(MAX_STEPS, MAX_FRAME_BYTES // max(1, step_bytes)))


def _integers(values: Iterable[int]) -> Integers:
    """What int64 cannot hold is no rank: it becomes -1."""
    return np.fromiter((value if -_INT64 <= value < _INT64 else -1 for value in values), np.int64)


def _floats(values: Iterable[float]) -> Floats:
    """Durations and sizes: what is negative, or what float32 cannot hold, is missing."""
    found = np.fromiter(values, np.float64)
    return np.where((found >= 0.0) & (found <= _LARGEST), found, np.nan).astype(np.float32)
