"""The Poisson CUSUM of one minute after the other, against its formulas worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.gpu.context import Cohorts
from mainstay.detectors.statistics.poisson_cusum import Counter, PoissonCusum, RateTrend

THRESHOLD = 21.0
COUNTERS = (Counter(name="a", words="as", rise=3.6, burst=1.0), Counter(name="b", words="bs", rise=3.6, burst=1.0))
DAY = 86_400.0


def make_cusum(rows: int = 1) -> tuple[PoissonCusum, EntityState, Cohorts]:
    """Rows of one cohort."""
    entities = tuple(Entity(node=f"n{i}") for i in range(rows))
    cohorts = Cohorts().follow(
        Samples(entities=entities, groups=("g",) * rows, signals=(), t=np.zeros(0), x=np.zeros((0, 0, rows)))
    )
    cusum = PoissonCusum(COUNTERS, THRESHOLD)
    state = cusum.declare(EntityState())
    state.align(entities)
    return cusum, state, cohorts


def minute(pair: tuple[PoissonCusum, EntityState, Cohorts], end: float, events: float = 0.0, seconds: float = 60.0):
    """A minute of the first counter that ends at ``end``; the score after it."""
    cusum, state, cohorts = pair
    state["bin_events"][0], state["bin_seconds"][0] = events, seconds
    cusum.close(state, 0, cohorts, end)
    return float(state["score"][0, 0])


def learned(events: float = 16.0 - 3.6e-4, watched: float = 3600.0) -> tuple[PoissonCusum, EntityState, Cohorts]:
    """A lone row. With the prior of 3600 s at 1e-7 a second alpha is 16: (16 + 2 x 4) / 7200 s, one in five minutes."""
    pair = make_cusum()
    pair[1]["events"][0], pair[1]["watched"][0] = events, watched
    return pair


def test_without_peers_the_usual_rate_is_two_deviations_above_the_own_one() -> None:
    cusum, state, cohorts = learned()
    assert cusum.usual(state, 0, cohorts)[0] == pytest.approx(1 / 300)


@pytest.mark.parametrize(
    ("events", "watched", "usual"),
    [
        # six peers are no cohort: an hour of the others' rate, 0.01 x 3600 = 36
        ([28] + [36] * 6, 3600.0, (64 + 16) / 7200),
        # seven alike: a week of it, 6048 = 0.01 x 604,800
        ([36] + [36] * 7, 3600.0, (6084 + 156) / 608_400),
        # seven unlike: mean 1.2e-4, variance 2.4e-9 of which 1.2e-9 is Poisson's own, 1.2e-4 / 1.2e-9 = 1e5 s
        ([4] + [10] * 6 + [24], 1e5, (16 + 8) / 2e5),
        # seven very unlike: mean 1/360, so that an hour counts
        ([26] + [0] * 6 + [70], 3600.0, (36 + 12) / 7200),
    ],
)
def test_peers_weigh_the_more_the_more_alike_they_are(events: list[float], watched: float, usual: float) -> None:
    cusum, state, cohorts = make_cusum(len(events))
    state["events"][0], state["watched"][0] = events, watched
    assert cusum.usual(state, 0, cohorts)[0] == pytest.approx(usual, rel=1e-9)


def test_a_peer_that_was_never_watched_is_none() -> None:
    cusum, state, cohorts = make_cusum(8)
    state["events"][0], state["watched"][0] = [28] + [36] * 6 + [0], [3600.0] * 7 + [0.0]
    assert cusum.usual(state, 0, cohorts)[0] == pytest.approx((64 + 16) / 7200)
    state["events"][0], state["watched"][0] = [0] + [36] * 7, [0.0] + [3600.0] * 7
    assert cusum.usual(state, 0, cohorts)[0] == pytest.approx((6048 + 2 * 6048**0.5) / 604_800), "seven others"


def test_a_minute_adds_its_likelihood_ratio_and_counts_one_event_too_many_at_most() -> None:
    raised = 2 / 300 + 3.6 / 3600
    lost, gain = 60 * (raised - 1 / 300), math.log(raised * 300)
    pair = learned()
    assert minute(pair, 60.0, events=1.0) == pytest.approx(gain - lost)
    assert minute(learned(), 60.0, events=500.0) == pytest.approx((1 + 3 * 0.2) * gain - lost)
    assert minute(learned(), 60.0) == 0.0, "never below zero"


def test_an_hour_is_learned_before_a_score_counts() -> None:
    assert minute(learned(watched=3599.0), 60.0, events=9.0) == 0.0
    assert minute(learned(watched=3600.0), 60.0, events=9.0) > 0.0


def test_the_score_stops_at_one_and_a_half_thresholds_and_the_alarm_lasts_until_zero() -> None:
    pair = learned()
    drifts, scores = pair[1]["drifts"][0], []
    for k in range(1, 60):
        scores.append(minute(pair, 60.0 * k, events=9.0))
        assert drifts[0] == (scores[-1] >= THRESHOLD)
    assert scores[-1] == 1.5 * THRESHOLD
    while minute(pair, 60.0 * (k := k + 1)) > 0.0:
        assert drifts[0]
    assert not drifts[0]


def test_what_was_learned_halves_in_two_weeks_and_a_high_score_teaches_nothing() -> None:
    cusum, state, _ = learned(events=8.0, watched=7200.0)
    cusum._learn(state, 0, np.array([1.0]), np.array([14 * DAY]))
    assert state["events"][0, 0] == pytest.approx(4.0 + 1.0)
    assert state["watched"][0, 0] == pytest.approx(3600.0 + 14 * DAY)
    state["score"][0] = THRESHOLD / 2
    cusum._learn(state, 0, np.array([1.0]), np.array([60.0]))
    assert state["events"][0, 0] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("time", "told", "counted", "seconds"),
    [
        (1010.0, 0.5, True, 10.0),
        (1000.5, 0.5, True, 0.5),
        (1060.0, 0.5, True, 60.0),
        (1100.0, 0.5, True, 60.0),  # of a longer silence the last minute
        (1000.0, 0.5, True, 0.0),
        (990.0, 0.5, True, 0.0),
        (1010.0, 0.5, False, 0.0),
        (1010.0, math.nan, True, 0.0),
    ],
)
def test_a_reading_stands_for_the_time_since_the_last(time: float, told: float, counted: bool, seconds: float) -> None:
    cusum, state, _ = make_cusum(2)
    cusum.step(state, 0, np.array([0.5, 0.5]), np.array([True, True]), 1000.0)
    assert state["bin_seconds"][0, 0] == 0.0, "since when the first one stands is unknown"
    cusum.step(state, 0, np.array([told, 0.5]), np.array([counted, True]), time)
    assert (state["bin_seconds"][0, 0], state["bin_events"][0, 0]) == (seconds, 0.5 * seconds)
    assert state["read_at"][0].tolist() == [1000.0 if math.isnan(told) else time, time]


def test_each_counter_closes_its_minute_seven_seconds_after_the_one_before() -> None:
    cusum, state, cohorts = make_cusum()
    for what, at in ((0, 60.0), (1, 67.0)):
        state["bin_seconds"][what] = 30.0
        cusum.close(state, what, cohorts, 0.0 + 7.0 * what)
        assert state["bin_seconds"][what, 0] == 0.0, "the first"
        state["bin_seconds"][what] = 60.0
        cusum.close(state, what, cohorts, at - 0.1)
        assert state["bin_seconds"][what, 0] == 60.0
        cusum.close(state, what, cohorts, at)
        assert state["bin_seconds"][what, 0] == 0.0


def test_events_are_drawn_by_the_hour_and_hours_without_a_reading_are_none() -> None:
    pair = make_cusum()
    assert pair[0].series(pair[1], 0, 0) == ()
    for hour, events in ((1, 2.0), (2, 3.0), (25, 5.0), (27, 7.0)):
        minute(pair, 3600.0 * hour, events)
        minute(pair, 3600.0 * hour + 3540.0, 1.0)
    assert pair[1]["bin_events"][0, 0] == 0.0, "each counts once"
    (line,) = pair[0].series(pair[1], 0, 0)
    assert (line.name, line.unit) == ("a", "1/h")
    assert (line.x, line.y) == ((25 * 3600.0, 27 * 3600.0), (6.0, 8.0)), "24 hours: neither the first nor the second"
    for hour in range(28, 58):
        minute(pair, 3600.0 * hour, float(hour))
    (line,) = pair[0].series(pair[1], 0, 0)
    assert line.y == tuple(range(34, 58))


def test_a_trend_is_told_in_events_an_hour() -> None:
    cusum, state, cohorts = make_cusum(3)
    state["events"][0], state["watched"][0] = [2.0, 5.0, 1.0], [7200.0, 3600.0, 7200.0]
    assert cusum.trend(state, 0, 0, cohorts) == RateTrend(0.0, pytest.approx(1.0), pytest.approx(2.0))
    for hour, events in ((1, 9.0), (2, 4.0), (3, 1.0)):
        minute((cusum, state, cohorts), 3600.0 * hour, events)
    told = cusum.trend(state, 0, 0, cohorts)
    assert told.now == 4.0, "the busier one of the last two"
    assert RateTrend(4.0, 1.0, 2.0).describe_trend("replays") == (
        "replays come more often: 4 in the last hour, 1 in a usual one, 2 among its peers"
    )
    assert RateTrend(4.0, 1.0, 2.0).numbers("x") == {"x_in_hour": 4.0, "x_usual": 1.0, "x_of_peers": 2.0}
    alone = learned(events=1.0)
    lone = alone[0].trend(alone[1], 0, 0, alone[2])
    assert math.isnan(lone.peers)
    assert lone.describe_trend("replays").endswith("1 in a usual one")
