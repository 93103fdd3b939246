"""Which machine computes wrongly: plans of replays that find it in few of them.

The same steps are replayed on groups of suspects; a group *reproduces* the fault if one of its members has it, with
some probability if the fault is fickle. Two plans:

- *Dual phase* (ByteRobust, SOSP'25): suspects on a grid of R x C. First each row replays on its own, then each column;
  the culprits lie where failing rows and columns meet. R + C replays, in two rounds that run at the same time.
- *Halving*: one fault is assumed; the suspects are split in two until one is left, about log2 N replays one after
  another, on half of the machines each.

A rank of a job with pipelines or tensor shards cannot replay alone. Then the rows are the job's replicas, and further
cuts run across them so that each group still has one rank of every place (``mesh_plan``).

Everything here is arithmetic. Who replays what is carried out by ``recovery.launcher.replay``; what came out is judged
in ``detectors.replayed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Groups = tuple[tuple[str, ...], ...]
Oracle = Callable[[Sequence[str]], bool]
"""Replays on these machines; whether the fault showed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """A proposal that a planner may take up; plain data, to be kept as JSON."""

    method: Literal["dual_phase", "halving"]
    rows: Groups
    """Groups of the first phase; of halving: the two halves of the first split."""
    columns: Groups
    """Groups of the second phase; empty for halving."""
    repeats: int
    """How often each group replays, so that a fickle fault shows with the wanted certainty."""
    replays: int
    """Replays in all (of halving: expected)."""
    rounds: int
    """How many of them one after another."""


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


def dual_phase(
    suspects: Sequence[str], *, columns: int | None = None, shows: float = 1.0, sure: float = 0.99
) -> ReplayPlan:
    """Rows, then columns, of a grid as near to a square as goes.

    Args:
        suspects: machines, each once.
        columns: machines in a row; by default the square root, which needs the fewest replays.
        shows: probability that a replay on a culprit shows the fault.
        sure: probability that both phases together catch it.

    Raises:
        ValueError: no suspect, one twice, or ``columns`` below 1.
    """
    names = _checked(suspects)
    width = math.ceil(math.sqrt(len(names))) if columns is None else columns
    if width < 1:
        raise ValueError(f"a row holds one machine at least, not {width}")
    rows = tuple(names[at : at + width] for at in range(0, len(names), width))
    across = tuple(tuple(row[place] for row in rows if place < len(row)) for place in range(min(width, len(names))))
    each = repeats_for(shows, math.sqrt(sure))  # both phases have to show it
    replays = each * (len(rows) + len(across))
    return ReplayPlan(method="dual_phase", rows=rows, columns=across, repeats=each, replays=replays, rounds=2 * each)


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


def halving(suspects: Sequence[str], *, shows: float = 1.0, sure: float = 0.99) -> ReplayPlan:
    """One fault assumed: split in two, again and again.

    Raises:
        ValueError: no suspect, or one twice.
    """
    names = _checked(suspects)
    depth = max(1, math.ceil(math.log2(len(names)))) if len(names) > 1 else 0
    each = repeats_for(shows, sure ** (1 / max(depth, 1)))
    return ReplayPlan(
        method="halving", rows=_halves(names), columns=(), repeats=each, replays=each * depth, rounds=each * depth
    )


def suspects_after(plan: ReplayPlan, failed: Mapping[tuple[str, ...], bool]) -> tuple[str, ...]:
    """Who is left once the groups of both phases have replayed: where failing rows and columns meet.

    With one culprit that is the culprit. With several in different rows and columns the healthy ones at the crossings
    are left too: replay on what is left. A phase in which nothing failed says nothing, and the other decides.

    Args:
        plan: of two phases.
        failed: group to whether the fault showed; a group that is not there did not replay, so that its members stay.
    """
    in_row = [name for group in plan.rows if failed.get(group, True) for name in group]
    in_column = {name for group in plan.columns if failed.get(group, True) for name in group}
    if not in_row or not in_column:
        return tuple(in_row) if in_row else tuple(name for g in plan.rows for name in g if name in in_column)
    return tuple(name for name in in_row if name in in_column)


def find_dual(plan: ReplayPlan, replay: Oracle) -> tuple[tuple[str, ...], int]:
    """Carry the plan out against an oracle: who is left, and how many replays it took."""
    failed, replays = {}, 0
    for group in (*plan.rows, *plan.columns):
        failed[group] = False
        for _ in range(plan.repeats):
            replays += 1
            if replay(group):
                failed[group] = True
                break
    if not any(failed.values()):
        return (), replays
    return suspects_after(plan, failed), replays


def find_halving(suspects: Sequence[str], replay: Oracle, *, repeats: int = 1) -> tuple[tuple[str, ...], int]:
    """Halve against an oracle until one is left. A half in which nothing shows leaves the other."""
    left, replays = _checked(suspects), 0
    while len(left) > 1:
        first, second = _halves(left)
        shown = False
        for _ in range(repeats):
            replays += 1
            if replay(first):
                shown = True
                break
        left = first if shown else second
    return left, replays


def _halves(names: tuple[str, ...]) -> Groups:
    middle = len(names) // 2
    return (names[:middle], names[middle:]) if middle else (names,)


def _checked(suspects: Sequence[str]) -> tuple[str, ...]:
    names = tuple(suspects)
    if not names:
        raise ValueError("nobody is suspected: there is nothing to replay")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} is suspected twice")
    return names
