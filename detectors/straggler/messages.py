"""What the straggler test says of a rank: the sentence, the numbers, the lines to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import DetectorState, DetectorStatus, Floats
from mainstay.detectors.entity_state import median
from mainstay.detectors.finding import Entity, Evidence, Series, join_names
from mainstay.detectors.series import draw_series
from mainstay.detectors.straggler.normalize import NORMALISERS
from mainstay.probes.core_types import Severity

_AGAINST = ("ranks of the same role", "the rest of the replica tells", "the tokens and sequence lengths tell")
assert len(_AGAINST) == len(NORMALISERS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StragglerCase:
    """One accused rank."""

    entity: Entity
    way: int
    """The normalizer that judged."""
    slowdown: float
    """Own compute over what it should be."""
    onset: float
    sigma: float
    score: float
    next_score: float
    limit: float
    core_wait: float
    """Share of its time, beyond the others', in which the rank waited for a core."""
    contended: bool
    """That wait may be the reason: something else ran on its cores, and cold caches follow."""
    steps: Floats
    """[T] step numbers, oldest first; the three below are in line with them."""
    x: Floats
    """Log seconds."""
    expected: Floats
    scores: Floats


def evidence_of(case: StragglerCase) -> Evidence:
    where = f" on {case.entity.node}" if case.entity.node else ""
    summary = (
        f"Rank {case.entity.rank}{where} computes {case.slowdown - 1:.1%} longer than {_AGAINST[case.way]} "
        f"since step {case.onset:.0f}; the usual spread is {case.sigma:.1%}"
    )
    if case.contended:
        summary += f". It also waits for a core in {case.core_wait:.0%} of its time: see the contention, not the device"
    return Evidence(
        summary=summary + ".",
        numbers={
            "ratio": case.slowdown,
            "score": case.score,
            "next_score": case.next_score,
            "sigma": case.sigma,
            "since_step": case.onset,
            "normalizer": float(case.way),
            "core_wait": case.core_wait,
        },
        series=_series(case),
    )


def weight_of(cases: Sequence[StragglerCase], *, unsure: bool) -> tuple[Severity, float]:
    """Severity and confidence: less of a pair, whose direction rests on its history alone, and of one of two nodes.

    Where most cases may be contention, that test speaks louder: the device may be sound.
    """
    if 2 * sum(case.contended for case in cases) >= len(cases):
        return Severity.INFO, 0.3
    return Severity.WARNING, 0.8 if unsure else 0.95


def node_evidence(cases: Sequence[StragglerCase], size: int) -> Evidence:
    """Of a node with ``size`` ranks of which the cases are slow."""
    first, slowdown = cases[0], float(median(np.array([case.slowdown for case in cases])))
    since = min(case.onset for case in cases)
    ranks = sorted((case.entity.rank or 0, case.slowdown) for case in cases)
    return Evidence(
        summary=f"{len(cases)} of {size} ranks on {first.entity.node} ({join_names([rank for rank, _ in ranks], 8)}) "
        f"compute {slowdown - 1:.1%} longer than {_AGAINST[first.way]} since step {since:.0f}: look at what the node's "
        "ranks share, such as power or cooling.",
        numbers={"ratio": slowdown, "ranks": float(len(cases)), "since_step": since}
        | {f"ratio of rank {rank}": ratio for rank, ratio in ranks},
        series=_series(first),
    )


def _series(case: StragglerCase) -> tuple[Series, ...]:
    seconds, expected = np.exp(case.x), np.exp(case.expected)
    scores = np.where(np.isfinite(seconds + expected), np.nan_to_num(case.scores), np.nan)
    return draw_series("compute_time_seconds", "s", case.steps, seconds, x_is="step", peers=expected) + draw_series(
        "slow_score", "sigma", case.steps, scores, x_is="step", threshold=case.limit
    )


def status_of(
    noises: dict[str, float],
    *,
    judge: int | None = None,
    why: str | None = None,
    smallest: float = float("nan"),
    unknown: int = 0,
    alone: bool = False,
) -> DetectorStatus:
    """What the test does now; ``noises`` by name of normalizer, ``why`` it abstains although one could judge."""
    numbers = {f"{name}_noise": noise for name, noise in noises.items()} | {"unknown_ranks": float(unknown)}
    if judge is None and alone:
        return DetectorStatus(
            state=DetectorState.ABSTAINING, reason="No rank has a peer of the same role.", numbers=numbers
        )
    if judge is None:
        return DetectorStatus(state=DetectorState.LEARNING, reason="Still learning this job's noise.", numbers=numbers)
    name = NORMALISERS[judge]
    numbers |= {"normalizer": float(judge), "noise": noises[name], "smallest_slowdown": smallest}
    if why:
        return DetectorStatus(state=DetectorState.ABSTAINING, reason=why[0].upper() + why[1:] + ".", numbers=numbers)
    return DetectorStatus(
        state=DetectorState.ACTIVE,
        reason=f"Judges by {name}, noise {noises[name]:.1%}: finds {smallest:.1%} and more within a dozen steps.",
        numbers=numbers,
    )
