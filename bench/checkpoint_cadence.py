"""Intervals of all checkpoint levels, as ``mainstay.recovery.save_intervals`` chooses them, against simulated failures.

Random jobs (seeds fixed): four levels with failures, costs, and restores of their own. Each is simulated with the
chosen intervals, with those that each level chooses alone, and with a grid of nested intervals around Young's, refined
around its best; all meet the same failures. Nothing here depends on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from bench.lib_save_levels import Ints, LevelFailures, draw_failures, simulate
from bench.report import Row, publish, target_file
from mainstay.recovery.cost_model.ettr import best_interval
from mainstay.recovery.save_intervals import (
    LONGEST_S,
    FailureRate,
    ProtectionTier,
    SaveCosts,
    choose_intervals,
    levels,
)

JOBS = 24
RUNS, FAILURES = 64, 400
COARSE = [2.0**power for power in range(-3, 4)]
FINE = [1.3**power for power in range(-2, 3)]
POINTS, SHARE = 2.0, 0.05
"""What the chosen intervals may lose beside the best of the grid: percentage points of the time, and of the loss."""


@dataclass(frozen=True, slots=True)
class Job:
    """One set of parameters."""

    step_s: float
    tiers: tuple[ProtectionTier, ...]


def random_job(rng: np.random.Generator) -> Job:
    """A failure each 0.5 to 50 hours; saves of seconds (parity) to an hour (upload) that cost 0.5 to 50 % of that."""

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    mtbf_s, step_s = 3600.0 * between(0.5, 50.0), between(1.0, 20.0)
    memory, directory = rng.uniform(0.02, 0.2), rng.uniform(0.005, 0.03)
    process = rng.uniform(0.2, 0.6)
    shares = (process, 1.0 - process - memory - directory, memory, directory)
    takes = (0.0, between(0.2, 20.0), between(5.0, 300.0), between(30.0, 3600.0))
    tiers = []
    for name, share, takes_s, restore_s in zip(
        ("local slot", "parity", "disk", "upload"), shares, takes, (5.0, 20.0, 120.0, 900.0), strict=True
    ):
        lag_s = takes_s + (takes[2] if name == "upload" else 0.0)
        tiers.append(
            ProtectionTier(
                name=name, brings_back="", cost_s=takes_s * between(0.005, 0.5), takes_s=takes_s, lag_s=lag_s,
                mtbf_s=mtbf_s / share, restore_s=restore_s * between(0.5, 2.0), every=int(name == "local slot"),
            )
        )  # fmt: skip
    return Job(step_s, tuple(tiers))


def as_before(job: Job) -> list[int]:
    """Daly's interval for the whole duration of a save, level by level, and the upload of each step on disk."""
    every = [1]
    for tier in job.tiers[1:]:
        best = 0.0 if tier.name == "upload" else best_interval(tier.takes_s, tier.mtbf_s) / job.step_s
        every.append(_multiple(best, every[-1], tier, job.step_s))
    return every


def one_by_one(job: Job) -> list[int]:
    """Daly's interval for what a save costs, level by level; the multiple of the level before that is nearest."""
    every = [1]
    for tier in job.tiers[1:]:
        best = best_interval(tier.cost_s, tier.mtbf_s) / job.step_s
        every.append(_multiple(best, every[-1], tier, job.step_s))
    return every


def grid(job: Job, center: list[float], factors: list[float]) -> Ints:
    """Nested intervals in steps around ``center``, none shorter than its save takes."""
    found = set()
    for each in product(factors, repeat=len(center)):
        every = [1]
        for tier, middle, factor in zip(job.tiers[1:], center, each, strict=True):
            every.append(_multiple(middle * factor, every[-1], tier, job.step_s))
        found.add(tuple(every))
    return np.array(sorted(found))


def _multiple(wanted: float, inner: int, tier: ProtectionTier, step_s: float) -> int:
    least = math.ceil(tier.takes_s / (inner * step_s))
    return inner * max(1, least, min(round(wanted / inner), math.floor(LONGEST_S / (inner * step_s))))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Shares of the time that one job loses."""

    job: Job
    predicted: float
    chosen: float
    best: float
    """Of the grid."""
    as_before: float
    one_by_one: float
    every: tuple[int, ...]
    tried: int

    @property
    def points(self) -> float:
        return 100.0 * (self.chosen - self.best)

    @property
    def share(self) -> float:
        return self.chosen / self.best - 1.0


def compare(job: Job, seed: int, runs: int = RUNS) -> Comparison:
    """Simulate one job; a coarse grid on a quarter of the runs first, then a fine one around its best on all."""
    rng = np.random.default_rng(seed)
    failures = draw_failures(job.tiers, runs, FAILURES, rng)
    few = LevelFailures(failures.gaps_s[: runs // 4], failures.levels[: runs // 4])
    made = choose_intervals(job.tiers, job.step_s)
    every = [tier.every for tier in made]
    young = [math.sqrt(2.0 * tier.cost_s * tier.mtbf_s) / job.step_s for tier in job.tiers[1:]]
    coarse = grid(job, young, COARSE)
    middle = coarse[simulate(job.tiers, coarse, job.step_s, few).argmax(), 1:]
    fine = grid(job, [float(steps) for steps in middle], FINE)
    schedules = np.vstack([[every, as_before(job), one_by_one(job)], fine])
    kept = simulate(job.tiers, schedules, job.step_s, failures)
    predicted = 1.0 - math.prod(1.0 - tier.lost_share for tier in made)
    return Comparison(
        job, predicted, 1.0 - float(kept[0]), 1.0 - float(kept.max()), 1.0 - float(kept[1]), 1.0 - float(kept[2]),
        tuple(every), len(coarse) + len(fine),
    )  # fmt: skip


def rows(found: list[Comparison]) -> Iterator[Row]:
    worst = max(found, key=lambda each: each.points)
    share = max(found, key=lambda each: each.share)
    tried = sum(each.tried for each in found)
    fields = ("chosen", "best", "as_before", "one_by_one")
    mean, best, before, single = (100.0 * float(np.mean([getattr(e, name) for e in found])) for name in fields)
    runs = f"{RUNS} runs of {FAILURES} failures a job; seeds 0 to {len(found) - 1}"
    yield Row(
        claim="intervals of all levels together: loss beyond the best of a grid, worst job", figure=worst.points,
        unit="percentage points", target=f"<= {POINTS:g}", holds=worst.points <= POINTS, kind="simulated", n=len(found),
        baseline=f"grid of {tried} schedules: {100.0 * worst.best:.2f} % of the time lost there",
        note=f"{runs}; intervals {worst.every[1:]} steps of {worst.job.step_s:.1f} s",
    )  # fmt: skip
    yield Row(
        claim="the same as a share of the loss, worst job", figure=100.0 * share.share, unit="%",
        target=f"<= {100.0 * SHARE:g}", holds=share.share <= SHARE, kind="simulated", n=len(found),
        baseline=f"best of the grid: {100.0 * share.best:.2f} % of the time lost", note=runs,
    )  # fmt: skip
    yield Row(
        claim="time lost with the chosen intervals, mean of all jobs", figure=mean, unit="% of the time", target="",
        holds=None, kind="simulated", n=len(found),
        baseline=f"as before (by the duration of a save, each step uploaded): {before:.2f} %",
        note=f"Daly's interval by what a save costs, level by level: {single:.2f} %; best of the grid: {best:.2f} %",
    )  # fmt: skip
    error = max(found, key=lambda each: abs(each.predicted / each.chosen - 1.0))
    yield Row(
        claim="predicted loss against the simulated one, worst job", unit="%", target="", holds=None, kind="simulated",
        figure=100.0 * (error.predicted / error.chosen - 1.0), n=len(found),
        note=f"predicted {100.0 * error.predicted:.2f} %, simulated {100.0 * error.chosen:.2f} % of the time",
    )  # fmt: skip
    yield upload_row()


def upload_row() -> Row:
    """Uploads of a job of 512 nodes: of each step on disk, and at the chosen interval."""
    costs = SaveCosts(
        state_bytes=10_000_000_000, ranks_per_node=8, step_s=10.0, copy_Bps=5e9, parity_Bps=2e9, disk_Bps=2e9,
        upload_s=300.0,
    )  # fmt: skip
    lost = {}
    for slowdown in (0.0, 0.001, 0.01, 0.05):
        *_, disk, upload = levels(replace(costs, slowdown={"upload": slowdown}), FailureRate(nodes=512))
        each = upload.saved_every(disk.every, costs.step_s)
        lost[slowdown] = (100.0 * each.lost_share, 100.0 * upload.lost_share, upload.every * costs.step_s / 60.0)
    parts = [
        f"by {100.0 * slowdown:g} %: {each:.3f} %, chosen {chosen:.3f} % at {minutes:.0f} min"
        for slowdown, (each, chosen, minutes) in lost.items()
    ]
    return Row(
        claim="time lost to uploads of 300 s that make steps 5 % longer, 512 nodes", figure=lost[0.05][1],
        unit="% of the time", target="", holds=None, kind="simulated",
        baseline=f"each step on disk is uploaded: {lost[0.05][0]:.3f} %",
        note=f"by the model; uploads make steps longer {'; '.join(parts)}",
    )  # fmt: skip


def main() -> None:
    file = target_file("checkpoint_cadence")
    found = [compare(random_job(np.random.default_rng(seed)), seed) for seed in range(JOBS)]
    publish("checkpoint_cadence", list(rows(found)), file)


if __name__ == "__main__":
    main()
