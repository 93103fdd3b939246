"""Step records of all ranks, gathered into frames on the step axis: [rank, signal, step]."""

from __future__ import annotations

import math
import struct
import time
from typing import Any, Final

from probes.frame import Axis
from probes.signals import WIDE_MISSING, SignalSource, catalogue
from recovery.launcher.messages import StepRecord

FRAME_SECONDS: Final = 1.0
"""Charts refresh about this often."""
MAX_STEPS: Final = 256

_CATALOGUE: Final = catalogue(SignalSource.RANK)
_LARGEST: Final = 3.4e38
"""Of float32."""


class StepFrames:
    """Collects records; ``cut`` gives a frame of consecutive steps when it is due."""

    def __init__(self, job: str, world_size: int) -> None:
        self._job = job
        self._entities = tuple(str(rank) for rank in range(world_size))
        self._steps: dict[int, dict[int, StepRecord]] = {}
        self._since: float | None = None

    def add(self, rank: int, record: StepRecord) -> None:
        """A step that is repeated after a rollback replaces what was known of it."""
        self._steps.setdefault(record.epoch, {})[rank] = record
        if self._since is None:
            self._since = time.monotonic()

    def due_in(self) -> float:
        """Seconds until ``cut`` has something to give."""
        if self._since is None:
            return FRAME_SECONDS
        if len(self._steps) >= MAX_STEPS:
            return 0.0
        return max(0.0, self._since + FRAME_SECONDS - time.monotonic())

    def cut(self) -> dict[str, Any] | None:
        """Arguments of ``FrameSender.put`` for all that is here, or None. A step that a rank missed is NaN there."""
        if not self._steps:
            self._since = None
            return None
        first = min(self._steps)
        last = min(max(self._steps), first + MAX_STEPS - 1)
        steps = [self._steps.pop(step, {}) for step in range(first, last + 1)]
        self._since = time.monotonic() if self._steps else None
        return {
            "subject": self._job,
            "axis": Axis.STEP,
            "t0": float(first),
            "dt": 1.0,
            "catalogue": _CATALOGUE,
            "entities": self._entities,
            "samples": len(steps),
            "values": b"".join(_narrow(rank, steps) for rank in range(len(self._entities))),
            "wide": b"".join(_wide(rank, steps) for rank in range(len(self._entities))),
        }


def _narrow(rank: int, steps: list[dict[int, StepRecord]]) -> bytes:
    """float32 [signal, step] of one rank."""
    rows = [_values(step.get(rank)) for step in steps]
    flat = [row.get(name, math.nan) for name in _CATALOGUE.narrow for row in rows]
    return struct.pack(f"<{len(flat)}f", *flat)


def _values(record: StepRecord | None) -> dict[str, float]:
    """Signals by name; what float32 cannot hold is missing."""
    if record is None:
        return {}
    told = {
        **record.signals,
        "step_time_seconds": record.step_time,
        "compute_time_seconds": record.compute_time,
        "snapshot_blocked_seconds": record.snapshot_blocked,
    }
    if record.loss is not None:
        told["loss"] = record.loss
    return {name: value for name, value in told.items() if abs(value) <= _LARGEST}


def _wide(rank: int, steps: list[dict[int, StepRecord]]) -> bytes:
    ends = [step[rank].end_ns if rank in step else WIDE_MISSING for step in steps]
    return struct.pack(f"<{len(ends)}q", *ends)
