"""Replays of synthetic jobs: culprits are found as often as promised, and nobody healthy is ever blamed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count

import numpy as np
import pytest

from detectors.bisect import ReplayPlan, mesh_plan, repeats_for
from detectors.replayed import Outcome, Result, Trace, judge

STEPS = 4
_fresh = count(1)


def plan_of(dp: int, places: int, shows: float = 0.5) -> ReplayPlan:
    return mesh_plan([[str(d * places + s) for s in range(places)] for d in range(dp)], shows=shows)


def play(plan: ReplayPlan, sick: Mapping[int, float], seed: int = 0, *, same_bits: bool = False) -> list[Trace]:
    """What ranks would tell. ``sick``: rank -> chance a step that it computes other bits, which its group then has."""
    chance = np.random.default_rng(seed)
    traces = []
    for cut, groups in (("row", plan.rows), ("column", plan.columns)):
        for number, group in enumerate(groups):
            for repeat in range(plan.repeats):
                role = repeat % 2 if len(group) == 1 else 0
                begun = STEPS
                for rank in map(int, group):
                    odd = np.flatnonzero(chance.random(STEPS) < sick.get(rank, 0.0))
                    begun = min([begun, *odd.tolist()])
                wrong = -1 if same_bits else next(_fresh)
                traces += [
                    Trace(
                        rank=int(name),
                        place=place,
                        group=f"{cut}-{number}",
                        role=role,
                        repeat=repeat,
                        digests=tuple(hash((role, place, i // 2, 0 if i // 2 < begun else wrong)) for i in range(8)),
                        first_step=50,
                        per_step=2,
                    )
                    for place, name in enumerate(group)
                ]
    return traces


def named(result: Result) -> set[int]:
    return {odd.rank for odd in result.culprits}


def test_rows_are_replicas_and_columns_cut_across_them() -> None:
    plan = plan_of(3, 2, shows=1.0)
    assert plan.rows == (("0", "1"), ("2", "3"), ("4", "5"))
    assert plan.columns == (("0", "5"), ("2", "1"), ("4", "3"))
    assert (plan.repeats, plan.replays, plan.rounds) == (1, 6, 2)
    alone = plan_of(4, 1)
    assert (alone.columns, alone.repeats) == ((), repeats_for(0.5, 0.99))


@pytest.mark.parametrize("rows", [[["a"], ["b", "c"]], [["a"], ["a"]], [[], []], []])
def test_replicas_that_are_none(rows: list[list[str]]) -> None:
    with pytest.raises(ValueError, match=r"same number|twice|nobody"):
        mesh_plan(rows)


@pytest.mark.parametrize("dp", [2, 3, 4, 8])
@pytest.mark.parametrize("places", [1, 2, 4])
def test_nobody_is_blamed_where_nobody_is_sick(dp: int, places: int) -> None:
    result = judge(plan_of(dp, places), play(plan_of(dp, places), {}))
    assert result.outcome is Outcome.CLEAN
    assert result.culprits == ()


@pytest.mark.parametrize("chance", [1.0, 0.5, 0.16])
@pytest.mark.parametrize("dp", [2, 3, 4, 8])
@pytest.mark.parametrize("places", [1, 2, 4])
def test_one_fickle_device(dp: int, places: int, chance: float) -> None:
    """Found at the promised rate, alone where groups can tell ranks apart, and never somebody else instead."""
    plan, trials = plan_of(dp, places), 120
    shows = 1.0 - (1.0 - chance) ** STEPS
    promised = (1.0 - (1.0 - shows) ** plan.repeats) ** (2 if plan.columns else 1)
    hits = exact = 0
    for seed in range(trials):
        culprit = seed % (dp * places)
        result = judge(plan, play(plan, {culprit: chance}, seed))
        if result.outcome is Outcome.FOUND:
            assert culprit in named(result)
            (mine,) = [odd for odd in result.culprits if odd.rank == culprit]
            assert 1 <= mine.shown <= mine.replays
            assert set(mine.steps) <= {50, 51, 52, 53}
        hits += culprit in named(result)
        exact += named(result) == {culprit}
    slack = 3 * math.sqrt(promised * (1 - promised) / trials)
    assert hits / trials >= promised - slack
    if places <= dp:
        assert exact / trials >= promised - slack - 1e-9


def test_more_places_than_replicas_leave_several() -> None:
    plan = plan_of(3, 6)
    result = judge(plan, play(plan, {8: 1.0}))
    assert named(result) == {8, 11}
    assert "One of them" in result.sentence


def test_two_sick_devices() -> None:
    plan = plan_of(5, 1)
    assert named(judge(plan, play(plan, {1: 1.0, 4: 0.5}))) == {1, 4}


@pytest.mark.parametrize("same_bits", [True, False])
def test_of_two_replicas_one_that_does_not_repeat_itself_is_wrong(same_bits: bool) -> None:
    """A defect that gives the same wrong bits every time leaves nothing to tell the two apart by."""
    plan = plan_of(2, 1)
    result = judge(plan, play(plan, {1: 1.0}, same_bits=same_bits))
    if same_bits:
        assert (result.outcome, result.undecided) == (Outcome.NO_MAJORITY, (0, 1))
    else:
        assert named(result) == {1}


def test_a_script_that_never_computes_the_same_twice_blames_nobody() -> None:
    plan = plan_of(4, 1)
    result = judge(plan, play(plan, dict.fromkeys(range(4), 1.0)))
    assert (result.outcome, result.culprits) == (Outcome.NO_MAJORITY, ())
    assert "mesh.dp_rank" in result.sentence


def test_the_same_defect_in_most_is_right_by_majority_but_too_many_are_no_culprits() -> None:
    plan = plan_of(4, 1)
    traces = play(plan, {1: 1.0, 2: 1.0, 3: 1.0})
    assert judge(plan, traces).outcome is Outcome.NO_MAJORITY


def test_nothing_told_and_traces_that_do_not_fit() -> None:
    plan = plan_of(2, 1)
    assert judge(plan, []).outcome is Outcome.FAILED
    one, *rest = play(plan, {})
    short = Trace(rank=1, place=0, group="row-1", role=one.role, repeat=9, digests=one.digests[:3])
    with pytest.raises(ValueError, match="lengths"):
        judge(plan, [one, *rest, short])
