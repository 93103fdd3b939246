"""Series of an evidence: what was measured, as a chart draws it, and the memory of the last samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Floats
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Series


def draw_series(
    name: str,
    unit: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    x_is: str = "time",
    threshold: float | None = None,
    peers: npt.ArrayLike | None = None,
) -> tuple[Series, ...]:
    """One line of the points that are known, in the order given; none where nothing was measured.

    ``x``, ``y`` and ``peers`` are [T]; a point is known where all of them are finite.
    """
    lines = [np.asarray(line, np.float64) for line in (x, y, peers) if line is not None]
    known = np.isfinite(lines).all(axis=0)
    if not known.any():
        return ()
    xs, ys, *others = (tuple(line[known].tolist()) for line in lines)
    seen = others[0] if others else ()
    return (Series(name=name, unit=unit, x=xs, y=ys, x_is=x_is, threshold=threshold, peers=seen),)


class Drawn:
    """The last samples of one value, drawn when there is a finding.

    The values stand in the detector's ``EntityState`` and follow the entities; the times are everybody's.
    """

    def __init__(self, name: str, length: int = 30) -> None:
        self._name, self._length = name, length
        self.times = np.full(length, np.nan)
        self.at = 0

    def declare(self, rows: EntityState) -> EntityState:
        return rows.field(f"{self._name}.drawn", np.nan, np.float32, lead=(self._length,))

    def note(self, rows: EntityState, time: float, value: Floats) -> None:
        self.at = (self.at + 1) % self._length
        self.times[self.at] = time
        rows[f"{self._name}.drawn"][self.at] = value

    def series(self, rows: EntityState, row: int, *, unit: str, threshold: float | None = None) -> tuple[Series, ...]:
        """One line, oldest first; none where nothing was measured."""
        order = np.arange(self.at + 1, self.at + 1 + self._length) % self._length
        y = rows[f"{self._name}.drawn"][order, row]
        return draw_series(self._name, unit, self.times[order], y, threshold=threshold)
