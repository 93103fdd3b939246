"""Who is at work, who is whose peer, and what is drawn: by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.detectors.gpu.context import Cohorts, Siblings, busy, idle, nan_to_zero, place, settled

NAN = math.nan


def among(*members: tuple[str, str]) -> Samples:
    """(node, cohort) of each."""
    entities = tuple(Entity(node=node, device=f"g{i}") for i, (node, _) in enumerate(members))
    groups = tuple(group for _, group in members)
    return Samples(entities=entities, groups=groups, signals=(), t=np.zeros(0), x=np.zeros((0, 0, len(members))))


def test_who_is_surely_at_work_or_surely_at_rest() -> None:
    utilization, power = np.array([0.5, 0.49, NAN, NAN, NAN, NAN]), np.array([0.0, 900.0, 200.0, 199.9, NAN, 600.0])
    assert busy(utilization, power).tolist() == [True, False, True, False, False, True]
    utilization, power = np.array([0.05, 0.06, NAN, NAN, NAN, 0.0]), np.array([900.0, 0.0, 99.9, 100.0, NAN, 0.0])
    assert idle(utilization, power).tolist() == [True, False, True, False, False, True]
    assert settled(np.array([299.9, 300.0, NAN]), 300.0).tolist() == [False, True, True]


def test_cohorts_are_counted() -> None:
    cohorts = Cohorts().follow(among(("a", "x"), ("a", "y"), ("b", "x"), ("c", "x")))
    assert cohorts.total(np.array([1.0, 2.0, 4.0, 8.0])).tolist() == [13.0, 2.0, 13.0, 13.0]
    yes, judged = np.array([True, True, True, False]), np.array([True, True, True, True])
    for share, least, most in ((2 / 3, 3, True), (0.67, 3, False), (0.5, 4, False), (0.5, 2, True)):
        assert cohorts.most(yes, judged, share=share, least=least)[0] == most
    assert cohorts.most(yes, np.array([True, True, False, False]), share=1.0, least=1).tolist() == [True] * 4
    assert cohorts.follow(among(("a", "z"))).total(np.ones(1)).tolist() == [1.0], "other labels, other cohorts"


def test_siblings_sit_in_one_node_and_cohort() -> None:
    siblings = Siblings()
    three = among(("a", "x"), ("b", "x"), ("a", "x"), ("a", "y"), ("a", "x"))
    expected = [[2, 4], [-1, -1], [0, 4], [-1, -1], [0, 2]]
    for rows in (range(5), range(5), [3, 0], []):
        told = siblings.find_siblings(three, np.array(rows, np.intp))
        assert told.tolist() == [expected[row] for row in rows]
        assert told.shape[1] == 2
    alike = replace(three, groups=("x",) * 5)
    assert siblings.find_siblings(alike, np.arange(2)).tolist() == [[2, 3, 4], [-1, -1, -1]]
    assert siblings.find_siblings(among(("a", "x"), ("a", "x")), np.arange(2)).tolist() == [[1], [0]]
    assert siblings.find_siblings(among(("a", "x")), np.arange(1)).tolist() == [[]]
    assert siblings.find_siblings(among(), np.arange(0)).shape == (0, 0)


@pytest.mark.parametrize(
    ("entity", "said"), [(Entity(node="n", device="g"), "n g"), (Entity(node="n"), "n"), (Entity(device="g"), "g")]
)
def test_how_a_sentence_names_it(entity: Entity, said: str) -> None:
    assert place(entity) == said
    assert [nan_to_zero(value) for value in (1.5, NAN, math.inf)] == [1.5, 0.0, 0.0]
