"""The risk that is left after a set of benchmarks: R(B) = 1 - prod_i (1 - p_i (1 - C_i(B))) over the nodes of a job.

A node's coverage is its coverage of each class, weighed by how likely its next defect is of that class. What a
benchmark finds is taken off the node before the job starts; what it misses strikes with p_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mainstay.detectors.selector.coverage import Coverage
from mainstay.detectors.selector.hazard import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionProblem:
    """What is to be decided: which benchmarks to run on the nodes of a coming job."""

    coverage: Coverage
    seconds: Floats
    """[benchmark] what each costs on one node; above zero. All nodes run it at the same time."""
    p: Floats
    """[node] P(incident within the job | survived so far)."""
    shares: Floats
    """[node, class] how likely a node's next defect is of each class; each row sums to 1."""
    checked: Bools | None = None
    """[node] where the chosen benchmarks run; the others keep their whole risk. None: everywhere."""

    def __post_init__(self) -> None:
        if self.seconds.shape != (len(self.coverage.benchmarks),):
            raise ValueError(f"{self.seconds.size} costs for {len(self.coverage.benchmarks)} benchmarks")
        if not (np.isfinite(self.seconds) & (self.seconds > 0)).all():
            raise ValueError("every benchmark must cost a finite time above 0 s")
        if self.p.ndim != 1 or not len(self.p) or not ((self.p >= 0) & (self.p <= 1)).all():
            raise ValueError("every node needs a probability between 0 and 1, and there must be a node")
        if self.shares.shape != (len(self.p), len(self.coverage.classes)):
            raise ValueError(f"shares have shape {self.shares.shape}, wanted [node, class]")

    def residual(self, chosen: Bools) -> float:
        """R of one set [benchmark]."""
        return -math.expm1(-self.hazard(chosen))

    def hazards(self, covered: Floats) -> Floats:
        """[set] -log(1 - R), about the number of incidents to expect: what is searched by.

        Of a large job R is 1 with any set of benchmarks; this still falls with every defect that is found.
        """
        taken = self.shares @ covered
        if self.checked is not None:
            taken = taken * self.checked[:, None]
        left = self.p[:, None] * (1.0 - taken)
        return np.asarray(-np.sum(np.log1p(-np.minimum(left, 1 - 1e-15)), axis=0), np.float64)

    def hazards_of(self, sets: Bools) -> Floats:
        """[set] the same of sets [benchmark, set]."""
        return self.hazards(self.coverage.of_many(sets))

    def hazard(self, chosen: Bools) -> float:
        """-log(1 - R) of one set [benchmark]."""
        return float(self.hazards(self.coverage.detection_probability(chosen)[:, None])[0])

    def cost(self, chosen: Bools) -> float:
        """Seconds that one node spends on a set."""
        return float(self.seconds[chosen].sum())

    def on(self, checked: Bools) -> SelectionProblem:
        """The same, with the chosen benchmarks run on some nodes [node] only."""
        return replace(self, checked=checked)

    def none(self) -> Bools:
        return np.zeros(len(self.seconds), bool)

    def all(self) -> Bools:
        return np.ones(len(self.seconds), bool)

    def bound(self, target: float | None, keep: float | None) -> float:
        """The -log(1 - R) to reach: that of a risk, or what keeps a share of all that the full set takes away.

        Of n defects that the full set found, a set may have missed so many that (missed + 1) / (n + 2) is still within
        the allowance: the cheapest of many sets is also the one whose misses happened not to show.

        Raises:
            ValueError: neither or both are given, or not as a share.
        """
        wanted = checked_share(target, keep)
        if target is not None:
            return hazard_of(target)
        before, after = self.hazard(self.none()), self.hazard(self.all())
        n = self.coverage.findable
        spared = max(0.0, (1 - wanted) * (n + 2) - 1) / max(n, 1)
        return before - (1 - spared) * (before - after)


def checked_share(target: float | None, keep: float | None) -> float:
    """The one of both that is given.

    Raises:
        ValueError: neither or both are given, or not as a share.
    """
    if (target is None) == (keep is None):
        raise ValueError("give either a target for the risk or the share of the full set's effect to keep")
    wanted = target if target is not None else keep
    if wanted is None or not 0 <= wanted <= 1:
        raise ValueError(f"{wanted} is no share between 0 and 1")
    return wanted


def hazard_of(risk: float) -> float:
    return math.inf if risk == 1 else -math.log1p(-risk)
