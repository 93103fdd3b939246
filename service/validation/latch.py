"""What a node's verdict becomes when a check ends.

Invariant: a verdict latches until a check of equal or greater power passes. A weaker pass clears nothing, a better but
not passing result clears nothing, and an unknown is never taken for healthy: it replaces a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mainstay.detectors.validation.criteria import BADNESS
from mainstay.probes.core_types import Verdict

POWER: Final = {"quick": 1, "standard": 2, "deep": 3}
"""How much each suite can prove. A suite that is not listed proves the least."""


@dataclass(frozen=True, slots=True)
class Latch:
    """A node's current verdict and the power that a passing check needs to clear it."""

    verdict: Verdict
    power: int


def power_of(suite: str, *, whole: bool = True) -> int:
    """What a check proves. A part of a suite proves least: it says nothing of what it left out."""
    return POWER.get(suite, 0) if whole else 0


def latched(current_verdict: Latch | None, verdict: Verdict, suite: str, *, whole: bool = True) -> Latch:
    """The current verdict after a check of ``suite``, or of a part of it, ended with ``verdict``."""
    power = power_of(suite, whole=whole)
    if current_verdict is None:
        return Latch(verdict, power)
    if verdict is Verdict.PASS:
        return Latch(verdict, power) if power >= current_verdict.power else current_verdict
    if BADNESS[verdict] > BADNESS[current_verdict.verdict]:
        bad_before = current_verdict.verdict is not Verdict.PASS
        return Latch(verdict, max(power, current_verdict.power) if bad_before else power)
    return (
        Latch(current_verdict.verdict, max(power, current_verdict.power))
        if verdict is current_verdict.verdict
        else current_verdict
    )
