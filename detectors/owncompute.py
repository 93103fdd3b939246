"""A rank's own compute seconds in a step, from what it reports: the better source, measurements only."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from detectors.base import Floats, Samples
from detectors.rows import Rows
from probes.words import StepPhase

_QUANTISED = 0.2
"""Share of ranks whose value repeats exactly, above which the clock is coarse; below, who repeats is stuck."""


class OwnCompute:
    """Seconds [rank] of a training step; NaN where the rank did not train, did not report, or its sensor is stuck."""

    signals: ClassVar[tuple[str, ...]] = (
        "compute_time_seconds",
        "forward_seconds",
        "backward_seconds",
        "run_delay_seconds",
        "tokens",
        "sequence_squares",
        "step_phase",
    )

    @staticmethod
    def fields(rows: Rows) -> None:
        rows.field("last_seconds", np.nan).field("sections", fill=False, dtype=np.bool_)

    def seconds(self, rows: Rows, samples: Samples, k: int) -> Floats:
        whole, forward, backward, delay = (_column(samples, k, name) for name in self.signals[:4])
        parts = forward + backward
        rows["sections"] = rows["sections"] | np.isfinite(parts)
        # Sections that outlast the thread's own clock are wall time: what others took is no compute.
        walled = np.isfinite(delay) & (parts > whole)
        parts = np.where(walled, np.maximum(parts - delay, np.minimum(parts, whole) / 2), parts)
        seconds = np.where(rows["sections"], parts, whole)  # one source a rank: they differ by the optimizer's share
        seconds[~(seconds > 0.0)] = np.nan
        phase = _column(samples, k, "step_phase")
        seconds[np.isfinite(phase) & (phase != StepPhase.TRAIN)] = np.nan
        return self._moving(rows, seconds)

    @staticmethod
    def _moving(rows: Rows, seconds: Floats) -> Floats:
        """A clock never reads the same twice: a value that repeats exactly, while others' do not, is a stuck sensor."""
        known = np.isfinite(seconds)
        repeats = known & (seconds == rows["last_seconds"])
        rows["last_seconds"] = np.where(known, seconds, rows["last_seconds"])
        stuck = np.count_nonzero(repeats)
        if stuck > 1 and stuck > _QUANTISED * np.count_nonzero(known):
            return seconds
        return np.where(repeats, np.nan, seconds)


def _column(samples: Samples, k: int, name: str) -> Floats:
    if name not in samples.signals:
        return np.full(len(samples.entities), np.nan)
    column: Floats = samples.x[k, samples.signals.index(name)].astype(np.float64)
    return column
