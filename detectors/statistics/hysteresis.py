"""When a condition begins to hold and when it ceases, for many rows at once: N of M to begin, calm to end.

A sample that says neither yes nor no (missing, idle, just booted) moves nothing: it raises nothing and clears nothing.
State lives in the detector's ``EntityState`` under the latch's name, so it comes and goes with the entities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools
from mainstay.detectors.entity_state import EntityState

_NOBODY = np.zeros(0, np.intp)
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class HysteresisConfig:
    """How often a condition must be seen, and how long it must stay away."""

    needed: int
    """N: samples that say yes..."""
    of_last: int
    """... of the last M that said anything; at most 32."""
    calm: int
    """Samples in a row that say no, after which it is over."""


class Hysteresis:
    """One yes-or-no condition of every row.

    Args:
        name: prefix of its arrays in ``rows``.
        hold: how sure it has to be.
    """

    def __init__(self, name: str, hold: HysteresisConfig) -> None:
        self._name, self._hold = name, hold
        self._mask = np.uint32(2**hold.of_last - 1)

    def declare(self, rows: EntityState) -> EntityState:
        rows.field(f"{self._name}.seen", 0, np.uint32).field(f"{self._name}.calm", 0, np.int32)
        return rows.field(f"{self._name}.on", fill=False, dtype=np.bool_)

    def on(self, rows: EntityState) -> Bools:
        """[E] where it holds now."""
        return rows[f"{self._name}.on"]

    def step(self, rows: EntityState, yes: Bools, no: Bools) -> Places:
        """Take one sample, [E] each; returns the rows that changed."""
        seen, on = rows[f"{self._name}.seen"], rows[f"{self._name}.on"]
        if not (yes.any() or seen.any() or on.any()):
            return _NOBODY  # the usual case costs next to nothing
        calm = rows[f"{self._name}.calm"]
        said = yes | no
        seen[said] = ((seen[said] << np.uint32(1)) | yes[said]) & self._mask
        calm[no] += 1
        calm[yes] = 0
        begins = ~on & yes & (np.bitwise_count(seen) >= self._hold.needed)
        ends = on & no & (calm >= self._hold.calm)
        seen[ends] = 0
        on[begins], on[ends] = True, False
        return np.flatnonzero(begins | ends)

    def drop(self, rows: EntityState, where: Bools) -> None:
        """Let it be over for these, for a reason of the detector's own."""
        rows[f"{self._name}.seen"][where] = 0
        rows[f"{self._name}.on"][where] = False
