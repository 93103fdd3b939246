"""Synthetic replays: the reports of a job's ranks of which some compute other bits now and then."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import numpy as np

from mainstay.detectors.job.replay_analysis import ReplayTrace
from mainstay.detectors.job.replay_bisection import MeshPlan, mesh_plan

STEPS = 4
"""Of one repeat, as the launcher makes them."""
START = 50
"""The step that is made first."""
_fresh = count(1)


def plan_of(dp: int, places: int, shows: float = 0.5) -> MeshPlan:
    """Replays of ``dp`` replicas of ``places`` ranks, numbered replica by replica."""
    return mesh_plan([[str(d * places + s) for s in range(places)] for d in range(dp)], shows=shows)


def play(plan: MeshPlan, sick: Mapping[int, float], seed: int = 0, *, same_bits: bool = False) -> list[ReplayTrace]:
    """What ranks would tell.

    Args:
        plan: of ``plan_of``.
        sick: rank -> chance a step that it computes other bits, which its whole group has from then on.
        seed: of the chance.
        same_bits: wrong bits are the same wrong bits every time.
    """
    chance = np.random.default_rng(seed)
    traces: list[ReplayTrace] = []
    for cut, groups in enumerate(plan.cuts):
        for number, group in enumerate(groups):
            for repeat in range(plan.repeats):
                odd = [np.flatnonzero(chance.random(STEPS) < sick.get(int(name), 0.0)) for name in group]
                begun = min((int(steps[0]) for steps in odd if len(steps)), default=STEPS)
                wrong = -1 if same_bits else next(_fresh)
                traces += _told(cut, number, group, repeat, (begun, wrong))
    return traces


def _told(cut: int, number: int, group: tuple[str, ...], repeat: int, odd: tuple[int, int]) -> list[ReplayTrace]:
    """One replay of a group that computes right until a step, and then what is wrong in this way."""
    begun, wrong = odd
    role = repeat % 2 if len(group) == 1 else 0
    return [
        ReplayTrace(
            rank=int(rank),
            place=place,
            cut=cut,
            group=f"{cut}-{number}",
            role=role,
            repeat=repeat,
            digests=tuple(hash((role, place, at, 0 if at // 2 < begun else wrong)) for at in range(2 * STEPS)),
            first_step=START,
            per_step=2,
        )
        for place, rank in enumerate(group)
    ]
