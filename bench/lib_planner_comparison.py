"""The planner against the best way alone, over every recorded trace of Oobleck and Bamboo, for a small and a large job.

All ways are paid by one cost table: a GPU cluster's budget over 10 Gb/s. Redundant computation alone is left out of the
planner's choice, because a job computes redundantly always or never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.lib_strategy_comparison import Kept, always, follow_policy, planned
from bench.lib_traces import read_polls
from bench.report import Row
from mainstay.recovery.cost_inputs import (
    CostInputs,
    FailureOdds,
    FaultKind,
    ProgramCapability,
    RollbackCosts,
    SpareCapacity,
)
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.simulate.traces import TraceChange, read_changes
from mainstay.recovery.strategies import WAYS

JOBS = {"small": (0.05, 2e9), "large": (0.3, 2e10)}
"""Seconds of a third of a slot, and bytes of a worker's state: steps of 4 and 26 s, 2 and 16 s over 10 Gb/s."""
HOURS = ("aws-spot-instances-p2-xlarge-2020-11-20-to-2020-11-23",)
"""Polls whose times are in hours; of the others the scaled copies are left out."""
OWN_PP, POLLED_PP = 6, 4
NOTICE_S = 30.0
"""The shortest that a large spot market gives before it takes a node."""
FILLED = 0.8
"""Of the most nodes that polls ever saw, the grid: the rest stand by."""


def _job(size: str, pp: int, dp: int) -> CostInputs:
    third_s, state = JOBS[size]
    return CostInputs(
        shape=IterationShape(dp=dp, pp=pp, micro_batches=4 * pp),
        slot_s=3.0 * third_s,
        layers=48, state_bytes=state, fault=FaultKind.NODE, lost=(1,) + (0,) * (pp - 1),
        odds=FailureOdds(worker_rate=0.0),
        held=RollbackCosts(local_s=10.0, peer_s=10.0, parity_s=30.0, disk_s=600.0), pool=SpareCapacity(least_stages=3),
        costs=MachineCosts(
            fence_s=2.0, spawn_warm_s=1.0, spawn_cold_s=60.0, regroup_s=10.5, copy_Bps=1e10, net_Bps=1.25e9,
            disk_Bps=0.5e9,
        ),
        detect_s=2.65, warm_up_s=10.0, restart_s=60.0,
        able=frozenset(ProgramCapability) - {ProgramCapability.REDUNDANT},
    )  # fmt: skip


def _traces(folder: Path) -> Iterator[tuple[str, tuple[TraceChange, ...], int, int]]:
    """Name, changes, and the grid that the nodes make."""
    for file in sorted((folder / "oobleck").glob("*.csv")):
        trace = read_changes(file)
        yield file.stem, trace, OWN_PP, max(2, _most(trace) // OWN_PP)
    polled = (file for pattern in ("aws*.csv", "*.txt") for file in (folder / "bamboo").glob(pattern))
    for file in sorted(file for file in polled if "_scaled" not in file.name):
        trace = read_polls(file, 3600.0 if file.stem in HOURS else 1.0)
        yield file.stem, trace, POLLED_PP, max(2, int(FILLED * _most(trace)) // POLLED_PP)


def _most(trace: tuple[TraceChange, ...]) -> int:
    alive = most = 0
    for change in trace:
        alive += 1 if change.kind == "add" else -1
        most = max(most, alive)
    return most


def rows(folder: Path) -> Iterator[Row]:
    found: dict[str, float] = {}
    told: dict[str, float] = {}
    bests, said = Counter[RecoveryStrategyName](), []
    for name, trace, pp, dp in _traces(folder):
        for size in JOBS:
            job = _job(size, pp, dp)
            ratio, best, alone, kept = _one(trace, job)
            found[f"{name} {size}"] = ratio
            told[f"{name} {size}"] = follow_policy(trace, job, planned(WAYS), NOTICE_S).share / kept.share
            bests[best] += 1
            said.append(f"{name} {size} {kept.share:.4f} against {best} {alone:.4f}")
    worst = min(found, key=lambda name: found[name])
    better = sum(ratio > 1.0 + 1e-6 for ratio in found.values())
    yield Row(
        claim="The planner over the best way alone, recorded traces of Oobleck and Bamboo, two jobs: the worst",
        figure=found[worst], unit="x", target=">= 0.99", holds=found[worst] >= 0.99, kind="replayed", n=len(found),
        baseline="the best of all ways alone, chosen for each trace with its end known",
        note=f"worst on {worst}; " + "; ".join(said),
    )  # fmt: skip
    yield Row(
        claim="The same: traces on which the planner is better than every way alone",
        figure=f"{better} of {len(found)}", unit="", target="at least half", holds=2 * better >= len(found),
        kind="replayed", n=len(found),
        baseline="best alone: " + ", ".join(f"{way} {count}" for way, count in bests.most_common()),
    )  # fmt: skip
    worst = min(told, key=lambda name: told[name])
    yield Row(
        claim=f"The planner told {NOTICE_S:g} s ahead which nodes go, over the planner that is not, same: the worst",
        figure=told[worst], unit="x", target=">= 1", holds=told[worst] >= 1.0, kind="replayed", n=len(told),
        baseline="the planner that is not told",
        note=f"worst on {worst}; mean {sum(told.values()) / len(told):.4f}, best {max(told.values()):.4f}; it may move "
             "state beside training and repeats nothing (Parcae's way), or lets the nodes go",
    )  # fmt: skip


def _one(trace: tuple[TraceChange, ...], job: CostInputs) -> tuple[float, RecoveryStrategyName, float, Kept]:
    alone = {way.way: follow_policy(trace, job, always(way)).share for way in WAYS}
    best = max(alone, key=lambda way: alone[way])
    kept = follow_policy(trace, job, planned(WAYS))
    return kept.share / alone[best], best, alone[best], kept
