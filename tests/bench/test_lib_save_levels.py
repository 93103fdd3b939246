"""The simulation of levels: counted by hand, step by step in plain Python, and against Daly's exact formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bench.checkpoint_cadence import compare, random_job
from bench.lib_save_levels import LevelFailures, draw_failures, simulate
from mainstay.recovery.cost_model.ettr import SaveSchedule, exact_ettr
from mainstay.recovery.save_intervals import ProtectionTier

NEVER = 1e30


def tier(cost_s: float, lag_s: float, restore_s: float, mtbf_s: float = 1.0) -> ProtectionTier:
    return ProtectionTier(
        name="", brings_back="", cost_s=cost_s, takes_s=lag_s, mtbf_s=mtbf_s, restore_s=restore_s, lag_s=lag_s
    )


def test_a_run_counted_by_hand() -> None:
    # Memory each second, the disk each 10 steps: it costs 2 s, and its copy counts after 3.
    tiers = (tier(0.0, 0.0, 1.0), tier(2.0, 3.0, 5.0))
    gaps, levels = np.array([[20.0, 20.0, 4.0, 30.0]]), np.array([[1, 0, 1, 0]])
    # 18 s of work, back to 10; 15 s later 23, all kept; 3 s later 26, back to 20; 25 s later 41.
    kept = simulate(tiers, np.array([[1, 10]]), 1.0, LevelFailures(gaps, levels))
    assert kept.tolist() == [pytest.approx(41.0 / 74.0)]


def reference(tiers: Sequence[ProtectionTier], every: list[int], gaps: list[float], failed: list[int]) -> float:
    """Work that is left at the last failure, with steps of 1 s."""
    copies, begun, down, work = [0.0 for _ in tiers], 0.0, 0.0, 0.0
    for gap, level in zip(gaps, failed, strict=True):
        time, work, saves = 0.0, begun, list[tuple[float, int, float]]()
        while time < gap - down:
            trained = min(1.0, gap - down - time)
            time, work = time + trained, work + trained
            if trained == 1.0:
                due = [k for k, steps in enumerate(every) if round(work) % steps == 0]
                saves += [(time + tiers[k].lag_s, k, work) for k in due]
                time += sum(tiers[k].cost_s for k in due)
        for ready, k, position in saves:
            copies[k] = max(copies[k], position if ready <= gap - down else 0.0)
        begun = max(copies[level:])
        for _, k, position in saves:
            copies[k] = max(copies[k], position if k > level else 0.0)  # an outer level's save continues
        copies = [min(begun, position) for position in copies]
        down = tiers[level].restore_s
    return work


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_a_simulation_step_by_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiers = (
        tier(0.0, 0.0, 3.1, 60.0),
        tier(0.7, 2.3, 9.7, 90.0),
        tier(1.9, 11.3, 20.3, 300.0),
        tier(2.1, 40.9, 33.3, 900.0),
    )
    schedules = np.array([[1, 4, 12, 48], [1, 3, 30, 30], [1, 7, 7, 70]])
    failures = draw_failures(tiers, 2, 40, rng)
    kept = simulate(tiers, schedules, 1.0, failures)
    for found, every in zip(kept, schedules.tolist(), strict=True):
        runs = zip(failures.gaps_s.tolist(), failures.levels.tolist(), strict=True)
        work = sum(reference(tiers, every, gaps, levels) for gaps, levels in runs)
        assert found * failures.gaps_s.sum() == pytest.approx(work)


def test_one_level_loses_what_the_exact_formula_says() -> None:
    tiers = (tier(0.0, 0.0, 1.0, NEVER), tier(30.0, 30.0, 300.0, 3600.0))
    failures = draw_failures(tiers, 64, 300, np.random.default_rng(1))
    every = np.array([[1, 30], [1, 93], [1, 200]])
    for found, steps in zip(simulate(tiers, every, 5.0, failures), (30, 93, 200), strict=True):
        exact = exact_ettr(SaveSchedule(interval_s=5.0 * steps, save_s=30.0, restart_s=300.0), 3600.0)
        assert found == pytest.approx(exact, rel=0.01)


def test_intervals_that_are_not_nested_are_refused() -> None:
    failures = LevelFailures(np.array([[1.0]]), np.array([[0]]))
    with pytest.raises(ValueError, match="multiples"):
        simulate((tier(0.0, 0.0, 1.0), tier(0.0, 0.0, 1.0)), np.array([[2, 3]]), 1.0, failures)


def test_the_chosen_intervals_lose_little_beside_the_best_of_the_grid() -> None:
    found = compare(random_job(np.random.default_rng(7)), 7, runs=16)
    assert found.points <= 0.1
    assert found.share <= 0.05
    assert found.chosen <= found.as_before
    assert found.predicted == pytest.approx(found.chosen, rel=0.1)
