"""Which machine computes wrongly: plans of replays that find it in few of them.

The same steps are replayed on groups of suspects; a group *reproduces* the fault if one of its members has it, with
some probability if the fault is fickle. A rank of a job with pipelines or tensor shards cannot replay alone. So the
first groups are the job's replicas, and further cuts run across them so that each group still has one rank of every
place (``mesh_plan``). ``bench.lib_replay_bisection`` has the plans for machines that can replay alone, as baselines.

Everything here is arithmetic. ``recovery.controller.workflows.step_replay`` carries replays out, and
``detectors.job.replay_analysis`` judges what came out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Groups = tuple[tuple[str, ...], ...]


def repeats_for(shows: float, sure: float) -> int:
    """Replays of one group until a fault that shows with probability ``shows`` has shown with probability ``sure``.

    Raises:
        ValueError: a probability is not within (0, 1], or certainty is asked of a fickle fault.
    """
    if not 0.0 < shows <= 1.0 or not 0.0 < sure <= 1.0:
        raise ValueError(f"probabilities lie above 0 and up to 1: shows {shows}, sure {sure}")
    if shows == 1.0:
        return 1
    if sure == 1.0:
        raise ValueError(f"a fault that shows with probability {shows} is never certain to show")
    return max(1, math.ceil(math.log(1.0 - sure) / math.log(1.0 - shows)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """Replays of a job whose ranks cannot all work alone."""

    cuts: tuple[Groups, ...]
    """Each holds every rank once, in groups that can do the work of a replica: one rank of each place, in order."""
    repeats: int
    """How often each group replays."""

    @property
    def replays(self) -> int:
        """Of groups, in all; groups of one cut replay at the same time."""
        return self.repeats * sum(len(groups) for groups in self.cuts)


def mesh_plan(rows: Sequence[Sequence[str]], *, shows: float = 1.0, sure: float = 0.99) -> MeshPlan:
    """Cuts of a job into groups, so that which group of each cut is odd says which rank it was.

    The first cut is the job's R replicas. Each further one runs across them: its group j has, of place s, the rank of
    row (j - digit) mod R, where digit is one of the base-R digits of s. The odd row is the culprit's, and each odd
    group across then tells one digit of its place; P places have ceil(log_R P) of them.

    Args:
        rows: replicas, of equal length: one rank of each place, in order. A single one is not cut any further.
        shows: probability that a replay of a group with a culprit shows the fault.
        sure: probability that all cuts together catch it.

    Raises:
        ValueError: rows of different lengths, an empty one, or a rank that stands twice.
    """
    grid = tuple(tuple(row) for row in rows)
    _checked([name for row in grid for name in row])
    width, size = len(grid[0]), len(grid)
    if any(len(row) != width for row in grid):
        raise ValueError(f"replicas must have the same number of ranks, not {sorted({len(row) for row in grid})}")
    cuts, step = [grid], 1
    while step < width and size > 1:
        cuts.append(tuple(tuple(grid[(j - s // step) % size][s] for s in range(width)) for j in range(size)))
        step *= size
    return MeshPlan(cuts=tuple(cuts), repeats=repeats_for(shows, sure ** (1 / len(cuts))))


def _checked(suspects: Sequence[str]) -> tuple[str, ...]:
    names = tuple(suspects)
    if not names:
        raise ValueError("no rank is suspected: there is nothing to replay")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} is suspected twice")
    return names
