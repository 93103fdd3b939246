"""Messages about a slow rank and the state of the test itself: sentences, numbers, lines to draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState
from mainstay.detectors.finding import Entity
from mainstay.detectors.straggler.messages import StragglerCase, evidence_of, status_of

NAN = float("nan")
CASE = StragglerCase(
    entity=Entity(job="j", rank=3, node="n1"),
    way=0,
    slowdown=1.104,
    onset=40.0,
    sigma=0.0123,
    score=12.5,
    next_score=2.0,
    limit=12.0,
    core_wait=0.25,
    contended=False,
    steps=np.array([41.0, 42.0, 43.0, 44.0]),
    x=np.log([2.0, 2.2, NAN, 2.4]),
    expected=np.log([2.0, 2.0, 2.0, NAN]),
    scores=np.array([NAN, 9.0, 10.0, 12.5]),
)


@pytest.mark.parametrize(
    ("case", "who", "against", "more"),
    [
        (CASE, "Rank 3 on n1", "ranks of the same role", ""),
        (replace(CASE, way=1, entity=Entity(rank=0)), "Rank 0", "the rest of the replica tells", ""),
        (
            replace(CASE, way=2, contended=True),
            "Rank 3 on n1",
            "the tokens and sequence lengths tell",
            " It also waits for a core in 25% of its time: see the contention, not the device.",
        ),
    ],
)
def test_what_is_said_of_a_slow_rank(case: StragglerCase, who: str, against: str, more: str) -> None:
    evidence = evidence_of(case)
    told = f"{who} computes 10.4% longer than {against} since step 40; the usual spread is 1.2%.{more}"
    assert evidence.summary == told
    assert evidence.numbers == {
        "ratio": 1.104, "score": 12.5, "next_score": 2.0, "sigma": 0.0123, "since_step": 40.0,
        "normalizer": float(case.way), "core_wait": 0.25,
    }  # fmt: skip


def test_what_is_drawn_of_it() -> None:
    seconds, score = evidence_of(CASE).series
    assert (seconds.name, seconds.unit, seconds.x_is, seconds.x) == ("compute_time_seconds", "s", "step", (41.0, 42.0))
    assert (*seconds.y, *seconds.peers) == pytest.approx((2.0, 2.2, 2.0, 2.0))
    assert (score.name, score.unit, score.x, score.y, score.threshold) == (
        "slow_score", "sigma", (41.0, 42.0), (0.0, 9.0), 12.0,
    )  # fmt: skip


NOISES = {"role": 0.02, "cross": 0.01}


def test_how_the_test_stands() -> None:
    alone = status_of(NOISES, alone=True, unknown=2)
    assert (alone.state, alone.reason) == (DetectorState.ABSTAINING, "No rank has a peer of the same role.")
    assert alone.numbers == {"role_noise": 0.02, "cross_noise": 0.01, "unknown_ranks": 2.0}
    learning = status_of({})
    assert (learning.state, learning.reason) == (DetectorState.LEARNING, "Still learning this job's noise.")
    assert learning.numbers == {"unknown_ranks": 0.0}
    judging = status_of(NOISES, judge=1, smallest=0.0201, alone=True)
    assert judging.state is DetectorState.ACTIVE
    assert judging.reason == "Judges by cross, noise 1.0%: finds 2.0% and more within a dozen steps."
    assert judging.numbers == {
        "role_noise": 0.02, "cross_noise": 0.01, "unknown_ranks": 0.0, "normalizer": 1.0, "noise": 0.01,
        "smallest_slowdown": 0.0201,
    }  # fmt: skip
    quiet = status_of(NOISES, judge=0, why="times differ by 7%")
    assert (quiet.state, quiet.reason) == (DetectorState.ABSTAINING, "Times differ by 7%.")
    assert quiet.numbers["noise"] == 0.02
