"""Plans of replays for machines that can replay alone: what the plan for a whole job is held against.

- *Dual phase* (ByteRobust, SOSP'25): suspects on a grid of R x C. First each row replays on its own, then each column;
  the culprits lie where failing rows and columns meet. R + C replays, in two rounds that run at the same time.
- *Halving*: one fault is assumed; the suspects are split in two until one is left, about log2 N replays one after
  another, on half of the machines each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mainstay.detectors.job.replay_bisection import Groups, _checked, repeats_for

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
