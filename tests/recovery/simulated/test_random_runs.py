"""Random faults in simulated time: never two live generations, two processes of a rank, or ranks with different states,
and every job trains on or is over. ``bench.simulated_jobs`` is the long run."""

from __future__ import annotations

from collections import Counter

from tests.recovery.simulated.run import simulate

SEEDS = 40


def test_no_run_breaks_a_rule() -> None:
    results = [simulate(seed) for seed in range(SEEDS)]
    ends = Counter(result.end for result in results)
    assert set(ends) == {"trains", "finished", "failed"}, "runs of one kind prove little"
    assert sum(result.generations for result in results) > 2 * SEEDS
    assert sum(result.coordinators for result in results) > SEEDS


def test_one_seed_is_one_run() -> None:
    assert simulate(7) == simulate(7)
