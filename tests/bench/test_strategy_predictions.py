"""The bench of executed ways: what its rows say of made-up stories, and that a story that fails is a row too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import strategy_predictions as bench
from bench.lib_job import JobError
from bench.lib_journal import Account
from bench.lib_strategy_predictions import ANY, TRAIN, Place, Sample, ScenarioOutcome, parameters

WELL = Account(samples=80, lost=0, doubled=0, repeated=3)


def outcome_of(
    pairs: list[tuple[float, float | None]], journal: Account = WELL, *, equal: bool = True
) -> ScenarioOutcome:
    return ScenarioOutcome(tuple(Sample("peer_copy", took, said) for took, said in pairs), journal, equal, "made up")


@pytest.mark.parametrize(
    ("pairs", "figure", "holds"),
    [
        ([(1.0, 1.0), (1.2, 1.0), (3.0, 1.0)], 1.2, True),
        ([(1.3, 1.0), (1.3, 1.0), (1.0, 1.0)], 1.3, False),
        ([(0.7, 1.0)], 0.7, False),
        ([(1.0, None)], None, None),
    ],
)
def test_the_median_ratio_is_held_to_a_quarter(
    pairs: list[tuple[float, float | None]], figure: float | None, holds: bool | None
) -> None:
    ratio, samples, bits = bench.rows("swap", outcome_of(pairs))
    assert (ratio.figure, ratio.holds) == (figure, holds)
    assert (samples.figure, samples.holds, samples.baseline) == (0, True, "80 samples")
    assert bits.holds is True


def test_what_was_off_is_told_by_phase() -> None:
    off = [{"fence": 0.1, "regroup": -0.2}, {"fence": 0.3, "regroup": -0.4}]
    made = ScenarioOutcome(
        tuple(Sample("peer_copy", 1.0, 1.0, phases) for phases in off), WELL, equal=True, basis="made up"
    )
    assert "medians: fence +0.200, regroup -0.300 s" in bench.rows("swap", made)[0].note


def test_a_lost_sample_and_other_bits_do_not_hold() -> None:
    _, samples, bits = bench.rows("swap", outcome_of([(1.0, 1.0)], Account(80, 1, 2, 0), equal=False))
    assert (samples.figure, samples.holds) == (3, False)
    assert (bits.figure, bits.holds) == ("differ", False)


def test_a_scenario_that_cannot_run_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(place: Place) -> ScenarioOutcome:
        raise JobError(f"no room\n{place.seed}")

    monkeypatch.setattr(bench, "STORIES", {"one": fails, "other": lambda _: outcome_of([(1.0, 1.0)])})
    rows = bench.run_scenarios(Place(tmp_path, 1, 3), ["one", "other"])
    assert [row.holds for row in rows] == [None, True, True, True]
    assert rows[0].note == "could not run: no room"
    assert rows[0].n == 0


def test_only_names_scenarios() -> None:
    assert bench.chosen("disk,drop and") == ["restart from disk", "drop and heal"]
    assert len(bench.chosen("")) == len(bench.STORIES)
    with pytest.raises(ValueError, match="the stories are restart from disk, "):
        bench.chosen("nothing")


def test_parameters_are_compared_by_rank_or_by_the_models_names(tmp_path: Path) -> None:
    for rank, value in ((0, 1.0), (1, 2.0)):
        np.savez(tmp_path / f"rank-{rank}.npz", w=np.array([value]))
    assert sorted(parameters(tmp_path, TRAIN)) == ["rank-0.npz/w", "rank-1.npz/w"]
    with pytest.raises(JobError, match=r"rank-1\.npz: w is not what a replica holds"):
        parameters(tmp_path, ANY)
