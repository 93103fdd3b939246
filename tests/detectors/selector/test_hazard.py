"""Times at risk and what is learned of them, by hand: hazards, covariates, classes and the moments of checks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.selector.backtest import _model, _own
from mainstay.detectors.selector.fleet_history import CleanCheck, FleetHistory, PastDefect
from mainstay.detectors.selector.hazard import CumulativeHazard, NotEnoughError, cumulative, spells
from mainstay.detectors.selector.history import HOUR, CovariateEncoder, Incident, NodeHistory, as_known
from mainstay.detectors.selector.learning import HeldOut, landmarks, learn
from mainstay.detectors.selector.per_node_plan import median_check_interval
from mainstay.detectors.selector.posterior import Posterior
from mainstay.detectors.selector.scores import concordance


def node(*spans: tuple[float, float | None], name: str = "n", until: float = 1000.0, **more: Any) -> NodeHistory:
    """Watched from hour 0; the numbers are hours."""
    incidents = tuple(Incident(at=a * HOUR, back_at=None if b is None else b * HOUR) for a, b in spans)
    return NodeHistory(node=name, since=0.0, until=until * HOUR, incidents=incidents, **more)


def hours(*numbers: float) -> tuple[float, ...]:
    return tuple(HOUR * number for number in numbers)


@pytest.mark.parametrize(("durations", "entry"), [([1.0], [-0.5]), ([1.0], [1.0]), ([0.0], None), ([1.0], [2.0])])
def test_a_row_without_time_at_risk_is_refused(durations: list[float], entry: list[float] | None) -> None:
    with pytest.raises(ValueError, match=r"row 0 is watched from .*, which is no time at risk"):
        spells(durations, [True], entry)


def test_exposure_is_what_lies_between_two_times() -> None:
    data = spells([10.0, 4.0, 8.0], [True, False, True], [0.0, 2.0, 7.0])
    assert data.events == 2
    assert data.exposure(3.0, 8.0, np.array([1.0, 10.0, 100.0])) == 5.0 + 10.0 + 100.0


@pytest.mark.parametrize(
    ("n", "tail"),
    [(1, 1 / 0.01), (10, 10 / 0.55), (11, 10 / 0.55), (12, 10 / 0.55), (200, 20 / 2.1)],
)
def test_the_hazard_goes_on_as_over_the_last_tenth_of_the_incidents(n: int, tail: float) -> None:
    """Row i ends with an incident at i hundredths of an hour. The last k share 0.01 + .. + 0.01 k hours at risk."""
    stop = 0.01 * np.arange(1, n + 1)
    told = cumulative(spells(stop, np.ones(n)), stop, np.full(n, 0.5), np.ones(n), 1)
    assert told.tail == pytest.approx(tail)
    assert told.at(stop) == pytest.approx(0.5 * np.arange(1, n + 1))


def test_incidents_at_one_time_have_the_hazard_of_all_that_was_watched() -> None:
    told = cumulative(spells(np.full(12, 2.0), np.ones(12)), np.full(12, 2.0), np.full(12, 0.1), np.ones(12), 5)
    assert told.tail == pytest.approx(12 / 24)
    assert (told.times.tolist(), told.values) == ([0.0, 2.0], pytest.approx([0.0, 1.2]))


@pytest.mark.parametrize(("piece", "knots"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_a_knot_stands_after_so_many_incidents_and_after_the_last(piece: int, knots: list[float]) -> None:
    times = np.arange(1.0, 6.0)
    told = cumulative(spells(times, np.ones(5)), times, np.ones(5), np.ones(5), piece)
    assert told.times.tolist() == told.values.tolist() == [0.0, *knots]


def test_a_hazard_is_zero_before_zero_and_grows_after_its_last_knot() -> None:
    told = CumulativeHazard(np.array([0.0, 2.0]), np.array([0.0, 1.0]), 0.25)
    assert told.at([-1.0, 0.0, 1.0, 2.0, 6.0]).tolist() == [0.0, 0.0, 0.5, 1.0, 2.0]


# covariates


def test_the_rate_of_a_fleet_is_incidents_an_hour_and_half_a_one_at_least() -> None:
    assert CovariateEncoder.learn([node(until=0.5)]).rate == 1.0
    assert CovariateEncoder.learn([node((10, 12), (20, 30)), node(until=1000)]).rate == 2 / 2000
    with pytest.raises(NotEnoughError, match="no node was watched for any time"):
        CovariateEncoder.learn([node(until=0.0)])


def test_cohorts_with_enough_incidents_are_told_apart_from_the_first() -> None:
    spans = [(2 * k + 1, 2 * k + 2) for k in range(20)]
    fleet = [node(*spans[:count], cohort=name) for name, count in (("c", 20), ("a", 20), ("b", 20), ("few", 19))]
    assert CovariateEncoder.learn(fleet).cohorts == ("b", "c")
    assert CovariateEncoder.learn(fleet, least=19).cohorts == ("b", "c", "few")


def test_covariates_by_hand() -> None:
    """At hour 1000: two incidents, one just 30 days ago; an error a day ago counts, one now does not."""
    past = node(
        (100, 110), (280, 300), remediations=hours(295), checks=hours(900),
        errors={"ecc": hours(800, 832, 976, 1000), "xid": ()},
    )  # fmt: skip
    encoder = CovariateEncoder((), ("ecc",), rate=0.001)
    told = dict(zip(encoder.names, encoder.row(past, 1000 * HOUR), strict=True))
    assert told == pytest.approx(
        {
            "node_rate": math.log((1 + 2) / (1 / 0.001 + 1000) / 0.001), "incidents": math.log(3),
            "incidents_30d": math.log(2), "remediations": math.log(2), "no_incident_yet": 0.0,
            "unchecked_hours": math.log(101), "ecc_1d": math.log(2), "ecc_7d": math.log(3),
        }
    )  # fmt: skip
    assert encoder.row(past, 50 * HOUR)[4] == 1.0


def test_covariates_are_read_again_at_doublings_and_at_errors_six_hours_apart() -> None:
    def stops(past: NodeHistory) -> list[float]:
        return [round(float(stop), 6) for stop in CovariateEncoder((), (), 0.01).failure_runs([past]).stop]

    assert stops(node(until=10_000)) == [24.0, 48.0, 96.0, 192.0, 384.0, 768.0, 1536.0, 3072.0, 10_000.0]
    noisy = CovariateEncoder((), ("xid",), 0.01).failure_runs([node(until=5, errors={"xid": hours(2)})])
    assert noisy.x[:, 6] == pytest.approx([0.0, math.log(2)]), "the error at a cut counts from there"
    assert stops(node(until=20, errors={"xid": hours(2, 4, 8, 13.9, 14)})) == [2.0, 8.0, 14.0, 20.0]


def test_what_came_at_the_moment_itself_is_known() -> None:
    past = node((5, 7), remediations=hours(5, 6), checks=hours(5, 6), errors={"xid": hours(5, 6)})
    known = as_known(past, 5 * HOUR)
    assert known.incidents == (Incident(at=5 * HOUR, back_at=None),)
    assert (known.remediations, known.checks, known.errors["xid"], known.until) == (*[hours(5)] * 3, 5 * HOUR)
    assert as_known(past, 7 * HOUR).incidents == past.incidents


# learning


def test_thirty_incidents_teach_a_risk_of_jobs_that_last() -> None:
    spans = [(20 * k + 1, 20 * k + 2) for k in range(30)]
    learned = learn([node(*spans)])
    assert learned.incidents == 30
    assert 0 < learned.risk([node(*spans)], 999 * HOUR, 0.5)[0] < 1
    with pytest.raises(NotEnoughError, match="29 incidents in the history, 30 are needed"):
        learn([node(*spans[:29])])
    for job in (0.0, -0.5):
        with pytest.raises(ValueError, match="has no risk to ask for"):
            learned.risk([node(*spans)], HOUR, job)


def test_classes_are_counted_for_the_fleet_and_for_a_node() -> None:
    kinds = ("link", "memory", "memory", "memory")
    told = Posterior.learn([("n", kind, 50 * HOUR) for kind in kinds], {}, ("memory", "link"))
    assert told.fleet == pytest.approx([3.5 / 5, 1.5 / 5])
    past = FleetHistory(
        benchmarks=(), nodes=(), defects=tuple(PastDefect(at=1.0, node="n", defect=kind, found=()) for kind in kinds)
    )
    assert _own(past, "n") == {"link": 1, "memory": 3}
    assert _own(past, "other") == {}
    nothing = Posterior.learn([], {}, ("memory", "link"))
    assert (nothing.belief, nothing.fleet.tolist()) == (256.0, [0.5, 0.5])


def test_errors_announce_within_a_day_and_since_the_node_came_back() -> None:
    """Two of three memory defects were announced: (1 + 2) / (2 + 3)."""
    past = node((30, 50), errors={"xid": hours(9, 49, 76, 100)})
    seen = [("n", "memory", at * HOUR) for at in (10, 60, 100)]
    told = Posterior.learn(seen, {"n": past}, ("memory", "link"))
    assert told.kinds == ("xid",)
    assert told.announced == pytest.approx(np.array([[3 / 5, 1 / 2]]))
    assert told.shares(past, {}, 100 * HOUR) == pytest.approx(
        np.array([3.5, 0.5]) / 4 * [0.6, 0.5] / (3.5 / 4 * 0.6 + 0.5 / 4 * 0.5)
    )


@pytest.mark.parametrize(
    ("checks", "looks", "interval"),
    [
        ((0, 1, 4), (), 2.0),  # gaps of 1 h and 3 h
        ((0, 0.9, 4), (), 3.1),  # looks less than 1 h apart are one
        ((0, 1, 4), (10, 20), 10.0),
        ((7,), (), None),
    ],
)
def test_the_usual_time_between_looks_is_the_median(
    checks: tuple[float, ...], looks: tuple[float, ...], interval: float | None
) -> None:
    past = FleetHistory(
        benchmarks=(),
        nodes=(node(checks=hours(*checks)),),
        looks=tuple(CleanCheck(at=at, node="n", ran=("a",)) for at in hours(*looks)),
    )
    assert median_check_interval(past) == (None if interval is None else pytest.approx(interval))


def test_incidents_count_after_watching_began_and_at_a_moment_itself() -> None:
    spans = [(20 * k, 20 * k + 1) for k in range(30)]
    for late in (spans, [*spans[1:], (1001, 1002)]):
        with pytest.raises(NotEnoughError, match="29 incidents"):
            learn([node(*late)])
    marks = landmarks([node((5, 7), until=9)], CovariateEncoder((), (), 0.01), hours(0, 2, 5, 6, 8, 9))
    assert marks.residual == pytest.approx([3.0, 1e-6, 1.0]), "at hours 2, 5 and 8; at 6 it is down"
    assert marks.observed.tolist() == [True, True, False]
    assert marks.survived.tolist() == [2.0, 5.0, 1.0]


def test_a_model_says_what_it_was_worth() -> None:
    learned = learn([node(*[(20 * k + 1, 20 * k + 2) for k in range(30)])])
    assert _model(replace(learned, name="cox", held_out={})) == "cox of 30 incidents"
    held_out = {"cox": HeldOut(concordance=0.712, brier=0.1234)}
    said = "cox of 30 incidents (held out: concordance 0.71, Brier score 0.123)"
    assert _model(replace(learned, name="cox", held_out=held_out)) == said


@pytest.mark.parametrize(("score", "time"), [([math.nan, 1.0], [1.0, 2.0]), ([0.5, 1.0], [math.inf, 2.0])])
def test_scores_are_of_finite_numbers(score: list[float], time: list[float]) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        concordance(score, time, [True, True])
