"""Group tests: the bad nodes are named in O(log n) rounds of disjoint groups, and only they."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from mainstay.detectors.localize import plan
from mainstay.detectors.localize.model import GroupResult, LocalizationVerdict, Round
from mainstay.detectors.localize.topology import flat


def play(names: list[str], bad: set[str], *, lost: float = 0.0, once: bool = False) -> tuple[LocalizationVerdict, int]:
    """``lost``: share of answers that never come; ``once``: the first group fails for nothing."""
    rng = np.random.default_rng(3)
    state = plan.start_localization(flat(names), method="groups")
    tests = 0
    while isinstance(step := plan.next_round(state), Round):
        members = [name for group in step.groups for name in group]
        assert len(set(members)) == len(members), "groups of a round are disjoint"
        assert all(len(group) >= 2 for group in step.groups), "a collective needs two"
        tests += len(step.groups)
        results = [
            GroupResult(members=group, passed=None if rng.random() < lost else not bad & set(group))
            for group in step.groups
        ]
        if once and step.number == 1:
            results[0] = GroupResult(members=step.groups[0], passed=False)
        state = plan.record(state, results)
    return step, tests


TOLD = [(count, bad) for count in (4, 8, 31, 64, 256) for bad in range(4) if (count, bad) != (4, 3)]
"""Of four with three bad none can be told from its partner."""


@pytest.mark.parametrize(("count", "bad"), TOLD)
def test_exactly_the_bad_nodes_are_named(count: int, bad: int) -> None:
    names = [f"n{k:03d}" for k in range(count)]
    guilty = set(np.random.default_rng([count, bad]).choice(names, bad, replace=False).tolist())
    verdict, tests = play(names, guilty)
    assert {c.name[0] for c in verdict.culprits} == guilty
    assert set(verdict.good) == set(names) - guilty
    assert verdict.rounds <= 2 + 2 * math.log2(count)
    assert tests <= 2 + 4 * max(1, bad) * math.log2(count)


def test_a_healthy_fleet_takes_one_test() -> None:
    verdict, tests = play([f"n{k}" for k in range(100)], set())
    assert (tests, verdict.rounds, verdict.settled) == (1, 1, True)


def test_two_nodes_cannot_tell_on_each_other() -> None:
    verdict, _ = play(["a", "b"], {"a"})
    assert verdict.culprits == ()
    assert set(verdict.unknown) == {"a", "b"}


def test_lost_answers_delay_and_blame_nobody() -> None:
    names = [f"n{k:02d}" for k in range(32)]
    verdict, _ = play(names, {"n07"}, lost=0.1)
    assert {c.name[0] for c in verdict.culprits} <= {"n07"}
    assert not set(verdict.good) & {"n07"}


def test_a_failure_for_nothing_is_tested_again() -> None:
    verdict, _ = play([f"n{k}" for k in range(8)], set(), once=True)
    assert verdict.culprits == ()
    assert len(verdict.good) == 8


def test_what_fails_only_together_is_nobody_alone() -> None:
    state = plan.start_localization(flat(["a", "b", "c", "d"]), method="groups")
    while isinstance(step := plan.next_round(state), Round):
        state = plan.record(state, [GroupResult(members=g, passed=len(g) < 3) for g in step.groups])
    assert step.culprits == ()
    assert set(step.unknown) == {"a", "b", "c", "d"}
    assert "no single node" in step.unknown["a"]


def test_a_node_is_named_after_two_failures_beside_one_good_one() -> None:
    state = plan.start_localization(flat(["a", "b", "c"]), method="groups")
    passed = GroupResult(members=("a", "b"), passed=True)
    for failed, named in ((["abc", "abc"], []), (["ac"], []), (["ac", "ac"], [("c",)]), (["ac", "bc"], [])):
        state = msgspec.structs.replace(
            state, groups=(passed, *(GroupResult(members=tuple(members), passed=False) for members in failed))
        )
        assert [culprit.name for culprit in plan.verdict(state).culprits] == named, failed
