"""A rank's own compute seconds in a step, from what it reports: the better source, measurements only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Floats, Samples
from mainstay.detectors.entity_state import EntityState, median
from mainstay.detectors.finding import Entity
from mainstay.probes.core_types import StepPhase

_QUANTISED = 0.2
"""Share of ranks whose value repeats exactly, above which the clock is coarse; below, who repeats is stuck."""


class AssignedWork:
    """What ranks were given to do, against what the job gave them when it was first heard.

    After a loss some ranks compute the micro-batches of others as well; that makes no rank slow. Measured on a whole
    step, whose update does not grow with its micro-batches, a rank that got more looks a little faster instead.
    """

    signal: ClassVar[str] = "micro_batches"

    def __init__(self) -> None:
        self._usual = float("nan")

    def scale(self, samples: Samples, k: int) -> Floats:
        """What makes seconds [rank] of this step comparable with all others; one where no rank tells."""
        count = samples.signal(k, self.signal)
        count[~(count > 0.0)] = np.nan
        if not np.isfinite(self._usual):
            self._usual = float(median(count))
        return np.where(np.isfinite(count), self._usual / count, 1.0)


class ComputeTime:
    """Seconds [rank] of a training step, as if it had its usual assignment.

    NaN where the rank did not train, did not report, or its sensor is stuck.
    """

    signals: ClassVar[tuple[str, ...]] = (
        "compute_time_seconds",
        "forward_seconds",
        "backward_seconds",
        "run_delay_seconds",
        "tokens",
        "sequence_squares",
        "step_phase",
        AssignedWork.signal,
    )

    def __init__(self) -> None:
        self._assigned = AssignedWork()
        self.scale = np.ones(0)
        """[R] of the last step: what makes its seconds and its work comparable with all others."""

    @staticmethod
    def fields(rows: EntityState) -> None:
        rows.field("last_seconds", np.nan).field("sections", fill=False, dtype=np.bool_)

    def seconds(self, rows: EntityState, samples: Samples, k: int) -> Floats:
        whole, forward, backward, delay = (samples.signal(k, name) for name in self.signals[:4])
        parts = forward + backward
        rows["sections"] = rows["sections"] | np.isfinite(parts)
        # Sections that outlast the thread's own clock are wall time: what others took is no compute.
        walled = np.isfinite(delay) & (parts > whole)
        parts = np.where(walled, np.maximum(parts - delay, np.minimum(parts, whole) / 2), parts)
        seconds = np.where(rows["sections"], parts, whole)  # one source a rank: they differ by the optimizer's share
        seconds[~(seconds > 0.0)] = np.nan
        phase = samples.signal(k, "step_phase")
        seconds[np.isfinite(phase) & (phase != StepPhase.TRAIN)] = np.nan
        self.scale = self._assigned.scale(samples, k)
        return self._moving(rows, seconds) * self.scale

    @staticmethod
    def _moving(rows: EntityState, seconds: Floats) -> Floats:
        """A clock never reads the same twice: a value that repeats exactly, while others' do not, is a stuck sensor."""
        known = np.isfinite(seconds)
        repeats = known & (seconds == rows["last_seconds"])
        rows["last_seconds"] = np.where(known, seconds, rows["last_seconds"])
        stuck = np.count_nonzero(repeats)
        if stuck > 1 and stuck > _QUANTISED * np.count_nonzero(known):
            return seconds
        return np.where(repeats, np.nan, seconds)


def nodes_of(entities: Sequence[Entity]) -> npt.NDArray[np.intp]:
    """Number [rank] of the node that it runs on; who tells none shares one with those who tell none."""
    return np.unique([entity.node or "" for entity in entities], return_inverse=True)[1]


def has_noisier_neighbor(x: Floats, core_wait: Floats, row: int, slowdown: float, share: float) -> bool:
    """Whether a rank lost less than ``share`` of what another one of its node lost to another process on its core.

    Such a process takes caches and clock from all cores, and who then waits for its peers finds its own cold.
    ``x`` and ``core_wait`` are [T, rank of the node]: log seconds of compute, and the wait's part of wait and compute.
    """
    waits = median((np.exp(x) * core_wait / (1.0 - core_wait)).T)
    lost = float(np.exp(median(x[:, row]))) * (1.0 - 1.0 / slowdown)
    return lost < share * float(np.max(np.nan_to_num(waits - waits[row])))
