"""Whether a run is slower than earlier runs of the same job: a run that is slow from its first step has no other peer.

Runs of a job on equally many ranks differ by a per cent or two: other nodes, other neighbors, other data. So the median
of the earlier runs is compared, and the limit rests on how much they differ. Few runs hardly show that: a prior counts
as much as four of them. A slow run joins the earlier ones, and alone it moves their median and the limit little. The
comparison names no node: all that differs between the runs may be the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.finding import Evidence, join_names

_LEAST = 0.05
"""Least excess, log: what smaller ones cost is not worth a search."""
_SURE = 2.0
"""Deviations between runs. A run is tested once, and one of 50 is beyond this by chance."""
_PRIOR, _PRIOR_RUNS = 0.02, 4
"""Deviation between runs before any is known, and how many runs it counts for."""
_WORK = np.log(1.1)
"""Runs whose work differs by more are not alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPace:
    """How long a step took after the start of a run, in the median of some samples."""

    seconds: float
    work: tuple[float, ...]
    """Of the slowest replica, by ``expected_pace.SIGNALS``; NaN where it is not reported."""
    nodes: frozenset[str] = frozenset()
    software: str = ""
    """Drivers and firmware of its GPUs; empty where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """Earlier runs of the same job with the same shape on the same hardware."""

    paces: tuple[RunPace, ...] = ()
    software: str = ""
    """Of this run."""

    def compare(self, now: RunPace) -> Evidence | None:
        """What shows that a run with this pace is slower; None where it is not, or no earlier run is alike."""
        growth = np.array([_growth(np.array(now.work), np.array(pace.work)) for pace in self.paces])
        alike = [pace for pace, more in zip(self.paces, growth, strict=True) if more <= _WORK]
        if not alike:
            return None
        known = np.log([pace.seconds for pace in alike]) + growth[growth <= _WORK]
        usual = np.sort(known)[(len(known) - 1) // 2]  # of two, the faster: it was possible
        ratio = now.seconds / float(np.exp(usual))
        if np.log(ratio) < _limit(known - usual):
            return None
        others = "earlier run" if len(alike) == 1 else f"{len(alike)} earlier runs"
        summary = (
            f"The run is slower than its {others}: a step takes {now.seconds:.3g} s, {ratio - 1:.0%} longer than the"
            f" {now.seconds / ratio:.3g} s of theirs for the same work.{self._differences(alike, now.nodes)}"
        )
        numbers = {"ratio": ratio, "usual_seconds": now.seconds / ratio, "earlier_runs": float(len(alike))}
        return Evidence(summary=summary, numbers=numbers)

    def _differences(self, alike: Sequence[RunPace], nodes: frozenset[str]) -> str:
        new = sorted(nodes.difference(*(pace.nodes for pace in alike)))
        before = sorted({pace.software for pace in alike} - {""})
        told = f" {len(new)} of {len(nodes)} nodes were in none of them ({join_names(new)})." if new else ""
        if self.software and before and self.software not in before:
            told += f" It runs under {self.software} instead of {join_names(before)}."
        return told or " It has the same nodes and software."


def _limit(differences: Floats) -> float:
    """Excess, log, beyond which it is no chance."""
    runs = len(differences)
    squares = _PRIOR_RUNS * _PRIOR**2 + float((np.clip(differences, -3 * _PRIOR, 3 * _PRIOR) ** 2).sum())
    deviation = float(np.sqrt(squares / (_PRIOR_RUNS + runs - 1)))
    return max(_LEAST, _SURE * deviation * float(np.sqrt(1.0 + np.pi / 2 / runs)))


def _growth(work: Floats, before: Floats) -> float:
    """Most by which the work can explain more time, log; infinite where the runs are not alike."""
    more = np.log(work / before)
    if (np.isfinite(work) != np.isfinite(before)).any() or (np.abs(more) > _WORK).any():
        return float("inf")
    return max(0.0, float(np.nanmax(more, initial=0.0)))
