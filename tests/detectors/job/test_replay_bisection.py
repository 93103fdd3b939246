"""Replays find the machine that computes wrongly, in as few as promised, even when it does so only now and then."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from bench.lib_replay_bisection import ReplayPlan, dual_phase, find_dual, find_halving, halving, suspects_after
from mainstay.detectors.job.replay_bisection import mesh_plan, repeats_for

NODES = tuple(f"node-{i}" for i in range(24))


def oracle(culprits: set[str], shows: float = 1.0, seed: int = 0):
    chance = np.random.default_rng(seed)

    def replay(group: Sequence[str]) -> bool:
        return any(name in culprits and chance.random() < shows for name in group)

    return replay


def test_a_grid_of_rows_and_columns() -> None:
    plan = dual_phase(NODES, columns=6)
    assert [len(row) for row in plan.rows] == [6] * 4
    assert [len(column) for column in plan.columns] == [4] * 6
    assert plan.replays == 10
    assert plan.rounds == 2
    assert sorted(name for row in plan.rows for name in row) == sorted(NODES)
    assert sorted(name for column in plan.columns for name in column) == sorted(NODES)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 24, 100])
def test_every_single_culprit_is_found_exactly(size: int) -> None:
    names = [f"n{i}" for i in range(size)]
    plan = dual_phase(names)
    assert plan.replays <= 2 * math.ceil(math.sqrt(size))
    for name in names:
        assert find_dual(plan, oracle({name}))[0] == (name,)
        left, replays = find_halving(names, oracle({name}))
        assert left == (name,)
        assert replays <= halving(names).replays


def test_two_culprits_leave_at_most_their_crossings() -> None:
    plan = dual_phase(NODES, columns=6)
    left, _ = find_dual(plan, oracle({"node-1", "node-9"}))
    assert set(left) == {"node-1", "node-9", "node-3", "node-7"}
    assert set(find_dual(plan, oracle({"node-1", "node-2"}))[0]) == {"node-1", "node-2"}


@pytest.mark.parametrize("shows", [0.3, 0.7])
def test_a_fickle_fault_is_found_as_surely_as_asked(shows: float) -> None:
    trials, sure = 400, 0.95
    plan = dual_phase(NODES, shows=shows, sure=sure)
    hits = sum(find_dual(plan, oracle({NODES[i % 24]}, shows, i))[0] == (NODES[i % 24],) for i in range(trials))
    assert hits / trials >= sure - 3 * math.sqrt(sure * (1 - sure) / trials)
    each = halving(NODES, shows=shows, sure=sure)
    repeats = each.replays // math.ceil(math.log2(24))
    found = [find_halving(NODES, oracle({NODES[i % 24]}, shows, i), repeats=repeats)[0] for i in range(trials)]
    assert sum(f == (NODES[i % 24],) for i, f in enumerate(found)) / trials >= sure - 0.033


def test_repeats() -> None:
    assert repeats_for(1.0, 1.0) == 1
    assert repeats_for(0.5, 0.99) == 7
    with pytest.raises(ValueError, match="never certain"):
        repeats_for(0.5, 1.0)
    with pytest.raises(ValueError, match="above 0"):
        repeats_for(0.0, 0.9)


def test_where_nothing_shows_nobody_is_left() -> None:
    assert find_dual(dual_phase(NODES), oracle(set()))[0] == ()


def test_a_group_that_did_not_replay_keeps_its_members() -> None:
    plan = dual_phase(NODES, columns=6)
    failed = dict.fromkeys((*plan.rows, *plan.columns), False)
    failed[plan.columns[2]] = True
    del failed[plan.rows[1]]
    assert suspects_after(plan, failed) == ("node-8",)
    failed[plan.rows[1]] = False  # no row showed it: the columns decide
    assert suspects_after(plan, failed) == plan.columns[2]


def test_a_plan_is_plain_data() -> None:
    for plan in (dual_phase(NODES), halving(NODES)):
        assert msgspec.json.decode(msgspec.json.encode(plan), type=ReplayPlan) == plan


def test_nonsense_is_refused() -> None:
    for plan in (dual_phase, halving):
        with pytest.raises(ValueError, match="no rank is suspected"):
            plan([])
        with pytest.raises(ValueError, match="node-1 is suspected twice"):
            plan(["node-1", "node-1"])
    with pytest.raises(ValueError, match="one machine"):
        dual_phase(NODES, columns=0)


def test_one_replay_is_the_least() -> None:
    assert repeats_for(0.9, 1e-20) == 1
    assert repeats_for(0.5, 0.99) == 7  # 1 - 0.5 ** 7 is the first above 0.99


@pytest.mark.parametrize(
    ("shows", "sure", "repeats"), [(0.5, 0.5, 1), (0.5, 0.51, 2), (0.9, 0.99, 2), (0.1, 0.99, 44), (1.0, 0.01, 1)]
)
def test_repeats_by_the_formula(shows: float, sure: float, repeats: int) -> None:
    """The least n with 1 - (1 - shows)^n >= sure; 1 - 0.9^44 is 0.9903, and 0.9893 with one less."""
    assert repeats_for(shows, sure) == repeats
    for wrong in ((1.1, 0.5), (0.5, 0.0), (0.5, 1.1), (-0.1, 0.5)):
        with pytest.raises(ValueError, match=f"shows {wrong[0]}, sure {wrong[1]}"):
            repeats_for(*wrong)


def test_cuts_of_a_mesh_by_hand() -> None:
    """Two replicas of four places: the rows, then by the lower and by the higher binary digit of the place."""
    plan = mesh_plan([["a0", "a1", "a2", "a3"], ["b0", "b1", "b2", "b3"]], shows=0.5, sure=0.99)
    assert plan.cuts == (
        (("a0", "a1", "a2", "a3"), ("b0", "b1", "b2", "b3")),
        (("a0", "b1", "a2", "b3"), ("b0", "a1", "b2", "a3")),
        (("a0", "a1", "b2", "b3"), ("b0", "b1", "a2", "a3")),
    )
    assert (plan.repeats, plan.replays) == (9, 54), "three cuts of 0.99 together: 1 - 0.5^9 is above 0.99^(1/3)"
    assert mesh_plan([["a"], ["b"], ["c"]]).cuts == ((("a",), ("b",), ("c",)),)
    assert mesh_plan([["a", "b", "c"]]).cuts == ((("a", "b", "c"),),)
    with pytest.raises(ValueError, match=r"the same number of ranks, not \[1, 2\]"):
        mesh_plan([["a"], ["b", "c"]])
