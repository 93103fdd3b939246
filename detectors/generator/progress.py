"""What every rank would say of its collectives each second, also while the run hangs.

A step is the same list of operations for every rank: many in the tensor-parallel group, some along the pipeline, a few
in the data-parallel group, one of all ranks. An operation ends when every member of its group has begun it. A rank that
stops never begins its next one; everybody else continues until they wait for a rank that waits, which is followed
operation by operation until no rank can move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mainstay.detectors.job.mesh import WORLD, JobMesh
from mainstay.probes.core_types import GROUP_KINDS, StepPhase
from mainstay.probes.signals import SignalSource, names

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SIGNALS = names(SignalSource.PROGRESS, wide=False) + names(SignalSource.PROGRESS, wide=True)
_CALLS = {"tp": 12, "pp": 4, "dp": 2, "world": 1}
"""Operations of each kind in a step."""
_HALT = 0.4
"""Share of a step after which a run stops."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The run comes to a halt in the middle of ``step``."""

    step: int
    ranks: tuple[int, ...] = ()
    """Those that begin nothing any more; empty when an operation is at fault."""
    group: tuple[str, int] | None = None
    """Kind and label of the group whose next operation all begin and no rank ends."""
    silent: bool = False
    """The stopped ranks' processes say nothing any more either."""


class Run(Protocol):
    """What progress needs of a ``World``, whose fields are documented there."""

    mesh: JobMesh
    steps: int
    seed: int
    phase: Floats
    pauses: Floats
    stop: Stop | None
    missing: float
    skew: float
    clock: Floats
    absent: Ints
    since: int


def schedule(mesh: JobMesh) -> tuple[str, ...]:
    """Kinds of the operations of a step, in order."""
    kinds = {WORLD, *(axis for axis in mesh.axes if mesh.length(axis) > 1)}
    inner = [kind for kind in ("tp", "pp") for _ in range(_CALLS[kind]) if kind in kinds]
    return (*inner, *(kind for kind in ("dp", "world") for _ in range(_CALLS[kind]) if kind in kinds))


def settle(mesh: JobMesh, plan: tuple[str, ...], at: int, stop: Stop) -> tuple[Ints, Ints]:
    """[rank] operations ended and [rank] operations begun when no rank moves on, counted from the step's first."""
    label = {kind: mesh.labels(kind) for kind in set(plan)}
    ended = np.full(mesh.size, at, np.int64)
    halted = np.zeros(mesh.size, np.bool_)
    halted[mesh.rows(stop.ranks)] = True
    broken = _broken(mesh, plan, at, stop)
    while True:
        begun = ended + ~halted
        moves = np.zeros(mesh.size, np.bool_)
        for place in np.unique(ended):
            kind = plan[place % len(plan)]
            least = np.full(int(label[kind].max()) + 1, np.iinfo(np.int64).max)
            np.minimum.at(least, label[kind], begun)
            here = (ended == place) & (least[label[kind]] > place)
            if place == broken[0]:
                here &= ~broken[1]
            moves |= here
        if not moves.any():
            return ended, begun
        ended = ended + moves


def _broken(mesh: JobMesh, plan: tuple[str, ...], at: int, stop: Stop) -> tuple[int, npt.NDArray[np.bool_]]:
    """Number of the operation that never ends, and the ranks that are in it."""
    if stop.group is None:
        return -1, np.zeros(mesh.size, np.bool_)
    kind, number = stop.group
    place = next(n for n in range(at, at + 2 * len(plan)) if plan[n % len(plan)] == kind)
    return place, mesh.labels(kind) == number


def counts(plan: tuple[str, ...], done: Ints, kind: str) -> Ints:
    """How many of the first ``done`` operations are of this kind."""
    mine = np.cumsum([0, *(one == kind for one in plan)])
    return np.asarray((done // len(plan)) * mine[-1] + mine[done % len(plan)])


def progress_of(world: Run, ends: Floats, t: Floats) -> tuple[Floats, tuple[str, ...]]:
    """[second, signal, rank] and the names of the signals."""
    plan = schedule(world.mesh)
    chance = np.random.default_rng(world.seed + 4)
    late = world.skew * chance.uniform(-1.0, 1.0, world.mesh.size)
    x = np.full((len(t), len(SIGNALS), world.mesh.size), np.nan)
    begins = np.concatenate([[ends[0] - (ends[1] - ends[0] if len(ends) > 1 else 1.0)], ends])
    stop, halt = world.stop, halt_time(world, begins)
    first = 0 if stop is None else stop.step * len(plan) + int(_HALT * len(plan))
    final = None if stop is None else settle(world.mesh, plan, first, stop)
    since = begins[world.since]
    for k, second in enumerate(t):
        now = second + late + world.clock * (second >= since)
        if final is not None and second >= halt:
            _fill(x[k], plan, *final, now - halt)
        else:
            _moving(x[k], plan, begins, world.pauses, now, chance=chance)
        step = np.minimum(np.searchsorted(ends, now, side="right"), world.steps - 1 if stop is None else stop.step)
        x[k, SIGNALS.index("progress_phase")] = world.phase[step]
    if stop is not None and stop.silent:
        x[np.ix_(t >= halt, np.ones(len(SIGNALS), np.bool_), np.isin(world.mesh.ranks, stop.ranks))] = np.nan
    x[np.ix_(t >= since, np.arange(len(SIGNALS)), world.absent)] = np.nan
    lost = chance.random((len(t), world.mesh.size)) < world.missing
    return np.where(lost[:, None], np.nan, x), SIGNALS


def halt_time(world: Run, begins: Floats) -> float:
    """Unix time at which the run stops; never, for one that does not."""
    if world.stop is None:
        return float("inf")
    start, end = begins[world.stop.step : world.stop.step + 2]
    return float(start + _HALT * (end - start))


def _moving(
    x: Floats, plan: tuple[str, ...], begins: Floats, pauses: Floats, now: Floats, *, chance: np.random.Generator
) -> None:
    """Operations spread evenly over a step; a pause stands at its beginning."""
    step = np.clip(np.searchsorted(begins, now, side="right") - 1, 0, len(begins) - 2)
    start = begins[step] + pauses[step]
    share = np.clip((now - start) / (begins[step + 1] - start), 0.0, 1.0 - 1e-9)
    done = step * len(plan) + np.floor(share * len(plan)).astype(np.int64)
    inside = chance.random(len(now)) < 0.5
    _fill(x, plan, done, done + inside, np.where(inside, 0.1 * chance.random(len(now)), 0.0))


def _fill(x: Floats, plan: tuple[str, ...], ended: Ints, begun: Ints, seconds: Floats) -> None:
    x[SIGNALS.index("progress_phase")] = float(StepPhase.TRAIN)
    x[SIGNALS.index("in_collective_seconds")] = np.where(begun > ended, np.maximum(seconds, 0.0), 0.0)
    x[SIGNALS.index("progress_step")] = ended // len(plan)
    for kind in GROUP_KINDS:
        if kind in plan:
            x[SIGNALS.index(f"{kind}_completed")] = counts(plan, ended, kind)
            x[SIGNALS.index(f"{kind}_enqueued")] = counts(plan, begun, kind)
