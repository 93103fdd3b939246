"""Replays of synthetic jobs: culprits are found as often as promised, and no healthy rank is ever blamed."""

from __future__ import annotations

import math

import pytest

from bench.lib_replays import STEPS, plan_of, play
from mainstay.detectors.job.replay_analysis import ReplayOutcome, ReplayResult, ReplayTrace, analyze_replays
from mainstay.detectors.job.replay_bisection import mesh_plan, repeats_for


def named(result: ReplayResult) -> set[int]:
    return {odd.rank for odd in result.culprits}


def test_cuts_across_the_replicas() -> None:
    plan = plan_of(3, 2, shows=1.0)
    assert plan.cuts == ((("0", "1"), ("2", "3"), ("4", "5")), (("0", "5"), ("2", "1"), ("4", "3")))
    assert (plan.repeats, plan.replays) == (1, 6)
    assert len(plan_of(4, 1).cuts) == len(plan_of(1, 4).cuts) == 1
    assert plan_of(4, 1).repeats == repeats_for(0.5, 0.99)


@pytest.mark.parametrize("dp", [2, 3, 5, 16])
@pytest.mark.parametrize("places", [1, 2, 3, 8, 17])
def test_every_group_can_do_a_replicas_work_and_every_rank_is_told_apart(dp: int, places: int) -> None:
    plan = plan_of(dp, places)
    assert len(plan.cuts) == 1 + sum(dp**digit < places for digit in range(places) if dp**digit < places)
    for groups in plan.cuts:
        assert all([int(name) % places for name in group] == list(range(places)) for group in groups)
    where = [{name: i for i, group in enumerate(groups) for name in group} for groups in plan.cuts]
    assert len({tuple(cut[str(rank)] for cut in where) for rank in range(dp * places)}) == dp * places


@pytest.mark.parametrize("rows", [[["a"], ["b", "c"]], [["a"], ["a"]], [[], []], []])
def test_replicas_that_are_none(rows: list[list[str]]) -> None:
    with pytest.raises(ValueError, match=r"same number|twice|no rank"):
        mesh_plan(rows)


@pytest.mark.parametrize("dp", [2, 3, 4, 8])
@pytest.mark.parametrize("places", [1, 2, 4])
def test_nobody_is_blamed_where_nobody_is_sick(dp: int, places: int) -> None:
    result = analyze_replays(play(plan_of(dp, places), {}))
    assert result.outcome is ReplayOutcome.CLEAN
    assert result.culprits == ()


@pytest.mark.parametrize("chance", [1.0, 0.5, 0.16])
@pytest.mark.parametrize("dp", [2, 3, 4, 8])
@pytest.mark.parametrize("places", [1, 2, 4])
def test_one_fickle_device(dp: int, places: int, chance: float) -> None:
    """Found at the promised rate, alone, and never another rank instead."""
    plan, trials = plan_of(dp, places), 120
    shows = 1.0 - (1.0 - chance) ** STEPS
    promised = (1.0 - (1.0 - shows) ** plan.repeats) ** len(plan.cuts)
    hits = exact = 0
    for seed in range(trials):
        culprit = seed % (dp * places)
        result = analyze_replays(play(plan, {culprit: chance}, seed))
        if result.outcome is ReplayOutcome.FOUND:
            assert culprit in named(result)
            (mine,) = [odd for odd in result.culprits if odd.rank == culprit]
            assert 1 <= mine.shown <= mine.replays
            assert set(mine.steps) <= {50, 51, 52, 53}
        hits += culprit in named(result)
        exact += named(result) == {culprit}
    slack = 3 * math.sqrt(promised * (1 - promised) / trials)
    assert hits / trials >= promised - slack
    assert exact / trials >= promised - slack - 1e-9


def test_a_fault_that_one_cut_did_not_show_leaves_its_whole_group() -> None:
    plan = plan_of(3, 2)
    traces = [trace for trace in play(plan, {3: 1.0}) if trace.cut == 0]
    traces += [trace for trace in play(plan, {}) if trace.cut == 1]
    result = analyze_replays(traces)
    assert named(result) == {2, 3}
    assert "One of them" in result.sentence


def test_two_sick_devices() -> None:
    plan = plan_of(5, 1)
    assert named(analyze_replays(play(plan, {1: 1.0, 4: 0.5}))) == {1, 4}


@pytest.mark.parametrize("same_bits", [True, False])
def test_of_two_replicas_one_that_does_not_repeat_itself_is_wrong(same_bits: bool) -> None:
    """A defect that gives the same wrong bits every time leaves nothing to tell the two apart by."""
    plan = plan_of(2, 1)
    result = analyze_replays(play(plan, {1: 1.0}, same_bits=same_bits))
    if same_bits:
        assert (result.outcome, result.undecided) == (ReplayOutcome.NO_MAJORITY, (0, 1))
    else:
        assert named(result) == {1}


def test_a_script_that_never_computes_the_same_twice_blames_nobody() -> None:
    plan = plan_of(4, 1)
    result = analyze_replays(play(plan, dict.fromkeys(range(4), 1.0)))
    assert (result.outcome, result.culprits) == (ReplayOutcome.NO_MAJORITY, ())
    assert "mesh.dp_rank" in result.sentence


def test_the_same_defect_in_most_is_right_by_majority_but_too_many_are_no_culprits() -> None:
    plan = plan_of(4, 1)
    traces = play(plan, {1: 1.0, 2: 1.0, 3: 1.0})
    assert analyze_replays(traces).outcome is ReplayOutcome.NO_MAJORITY


def test_nothing_told_and_traces_that_do_not_fit() -> None:
    plan = plan_of(2, 1)
    assert analyze_replays([]).outcome is ReplayOutcome.FAILED
    one, *rest = play(plan, {})
    short = ReplayTrace(rank=1, place=0, cut=0, group="0-1", role=one.role, repeat=9, digests=one.digests[:3])
    with pytest.raises(ValueError, match="lengths"):
        analyze_replays([one, *rest, short])
