"""What a node's verdict becomes when a check ends.

Invariant: a verdict latches until a check of equal or greater power passes. A weaker pass clears nothing, a better but
not passing result clears nothing, and an unknown is never taken for healthy: it replaces a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from detectors.criteria import BADNESS
from probes.words import Verdict

POWER: Final = {"quick": 1, "standard": 2, "deep": 3}
"""How much each suite can prove. A suite that is not listed proves the least."""


@dataclass(frozen=True, slots=True)
class Latch:
    """A node's standing verdict and the power that a passing check needs to clear it."""

    verdict: Verdict
    power: int


def power_of(suite: str, *, whole: bool = True) -> int:
    """What a check proves. A part of a suite proves least: it says nothing of what it left out."""
    return POWER.get(suite, 0) if whole else 0


def latched(standing: Latch | None, verdict: Verdict, suite: str, *, whole: bool = True) -> Latch:
    """The standing verdict after a check of ``suite``, or of a part of it, ended with ``verdict``."""
    power = power_of(suite, whole=whole)
    if standing is None:
        return Latch(verdict, power)
    if verdict is Verdict.PASS:
        return Latch(verdict, power) if power >= standing.power else standing
    if BADNESS[verdict] > BADNESS[standing.verdict]:
        bad_before = standing.verdict is not Verdict.PASS
        return Latch(verdict, max(power, standing.power) if bad_before else power)
    return Latch(standing.verdict, max(power, standing.power)) if verdict is standing.verdict else standing
