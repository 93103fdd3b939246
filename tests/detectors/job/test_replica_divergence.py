"""Digests by majority, and gradient norms step by step against their replicas'."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.job.replica_divergence import DigestTracker, declare, watch_norms

NAN = math.nan


@pytest.mark.parametrize(
    ("digest", "trusted", "expected", "agreed"),
    [
        ([1, 1, 1], False, ("", "012", ""), 1),
        ([1, 1, 2], False, ("2", "01", ""), 1),
        ([2, 1, 1, 1, 2], False, ("04", "123", ""), 1),
        ([1, 1], False, ("", "01", ""), 1),
        ([1, 2], False, ("", "", ""), 0),
        ([1, 2], True, ("01", "", "01"), 0),
        ([1, 1, 2, 2], True, ("0123", "", "0123"), 0),
        ([1, NAN, 2], True, ("02", "", "02"), 0),
        ([1, NAN, 1], False, ("", "02", ""), 1),
        ([1, NAN, NAN], True, ("", "", ""), None),
    ],
)
def test_a_majority_says_who_is_odd(
    digest: list[float], trusted: bool, expected: tuple[str, str, str], agreed: int | None
) -> None:
    tracker, trust = DigestTracker(), np.full(len(digest) + 1, trusted)
    found = tracker.judge(np.array([*digest, 9.0]), [np.arange(len(digest))], trust)
    odd_even_split = tuple("".join(map(str, np.flatnonzero(each))) for each in (found.odd, found.even, found.split))
    assert odd_even_split == expected
    assert (tracker.compared, tracker.agreed) == ((0, 0) if agreed is None else (1, agreed))
    assert trust.tolist() == [trusted or bool(agreed)] * len(digest) + [trusted], "also of who did not tell"


class Ranks:
    """Replicas whose norms are 1 unless said; all in one group."""

    def __init__(self, replicas: int = 3, steps: int = 0) -> None:
        self.rows = declare(EntityState())
        self.rows.align(tuple(Entity(job="j", rank=r) for r in range(replicas)))
        self.step(steps)

    def step(self, steps: int = 1, first: float = 1.0) -> list[tuple[int, list[int]]]:
        """Steps in which something changed, from 1, and for whom."""
        norms = np.ones(len(self.rows.entities))
        norms[0] = first
        changed = [watch_norms(self.rows, norms, [np.arange(len(norms))]).tolist() for _ in range(steps)]
        return [(number, who) for number, who in enumerate(changed, 1) if who]


def test_the_usual_departure_is_learned_from_the_sixth_to_the_twenty_fifth_step() -> None:
    ranks = Ranks(steps=5)
    ranks.step(10, first=1.1)
    ranks.step(9, first=1.3)
    assert np.isnan(ranks.rows["departure"]).all()
    ranks.step(1, first=1.3)
    np.testing.assert_allclose(ranks.rows["departure"], [math.log(1.1 * 1.3) / 2, 0.0, 0.0])


@pytest.mark.parametrize(
    ("factor", "replicas", "changed"),
    [
        (2.6, 3, [(4, [0])]),  # each step adds 4 - 1 to a score that has to reach 12
        (1 / 2.6, 3, [(4, [0])]),
        (2.01, 3, [(4, [0])]),
        (1.99, 3, []),  # less than twice is not said
        (5.0, 2, []),  # of two it is not known which is off
        (0.0, 3, []),
        (NAN, 3, []),
    ],
)
def test_a_norm_twice_or_half_of_the_replicas_stands_out_in_the_fourth_step(
    factor: float, replicas: int, changed: list[tuple[int, list[int]]]
) -> None:
    ranks = Ranks(replicas, steps=35)
    assert ranks.step(30, first=factor) == changed
    assert ranks.rows["off"].tolist() == [bool(changed)] + [False] * (replicas - 1)


def test_it_is_over_when_the_score_has_fallen_to_three() -> None:
    ranks = Ranks(steps=35)
    ranks.step(30, first=2.6)
    assert ranks.rows["off_score"][0] == 15.0, "the cap"
    assert ranks.step(20) == [(12, [0])]
    assert not ranks.rows["off"].any()
    ranks.step(3)
    assert ranks.rows["off_score"][0] == 0.0


def test_who_is_off_to_one_side_and_the_other_in_turn_is_noisy_and_not_off() -> None:
    ranks = Ranks(steps=35)
    for factor in (2.6, 1 / 2.6) * 20:
        assert ranks.step(1, first=factor) == []
