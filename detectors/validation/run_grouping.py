"""Of which device and which session each run is: how well runs repeat, and which outliers are drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.statistics.similarity import Sample
from mainstay.detectors.validation.repeatability import Repeatability, repeatability
from mainstay.detectors.validation.sessions import Groups, Mask, drifted, numbered


@dataclass(frozen=True, slots=True)
class RunGrouping:
    """Of which device and which session each run is."""

    devices: Sequence[str] | None
    sessions: Sequence[str] | None
    groups: Groups | None
    """[runs] ``sessions``, numbered."""

    @classmethod
    def from_runs(cls, count: int, devices: Sequence[str] | None, sessions: Sequence[str] | None) -> RunGrouping:
        if any(len(names) != count for names in (devices, sessions) if names is not None):
            raise ValueError(f"{count} runs: name one device and one session a run, or none")
        return cls(devices, sessions, None if sessions is None else numbered(sessions))

    def repeats(self, runs: Sequence[Sample], keep: Mask) -> Repeatability:
        """How well runs repeat within a session where any device did so, else over sessions."""
        kept = [run for run, left in zip(runs, keep, strict=True) if left]
        names = None if self.devices is None else [name for name, left in zip(self.devices, keep, strict=True) if left]
        if names is not None and self.groups is not None:
            within = repeatability(kept, [f"{name}@{one}" for name, one in zip(names, self.groups[keep], strict=True)])
            if within.is_gate is not None and not within.from_halves:
                return within
        return repeatability(kept, names)

    def drifted(self, out: Mask) -> Mask:
        """Outliers that are a session's drift."""
        if self.groups is None:
            return np.zeros_like(out)
        return drifted(out, self.groups, numbered(self.devices or [""] * len(out)))
