"""What failures cost: against values that were worked out by hand, and against a recomputation second by second."""

from __future__ import annotations

import math
import random

import pytest

from mainstay.service.reports import reliability
from mainstay.service.reports.reliability import Failure, JobSpan, NodeSpan, Period, Stop

DAY = 86_400.0
PERIOD = Period(since=1000.0, until=2000.0)


def job(**changes: object) -> JobSpan:
    values = {"id": "j", "name": "j", "ranks": 4, "started_at": 0.0, "ended_at": 3000.0, "steps": 100}
    return JobSpan(**values | changes)  # type: ignore[arg-type]


def stop(start: float, end: float, **changes: object) -> Stop:
    values = {"job": "j", "detect_seconds": 0.0, "steps_lost": 0, "cause": "faulty_gpu", "succeeded": True}
    return Stop(started_at=start, ended_at=end, **values | changes)  # type: ignore[arg-type]


def test_a_stop_costs_its_time_and_the_steps_that_are_made_again() -> None:
    cost = reliability.cost_of(job(), [stop(1500.0, 1600.0, detect_seconds=20.0, steps_lost=2)], PERIOD)
    assert cost.wall_seconds == 1000.0
    assert cost.stopped_seconds == 100.0
    assert cost.detect_seconds == 20.0
    assert cost.repeated_seconds == pytest.approx(2 * 2900.0 / 100)
    assert cost.ettr == pytest.approx(1 - (100.0 + 58.0) / 1000.0)
    assert cost.lost_gpu_hours == pytest.approx(158.0 * 4 / 3600)
    assert (cost.recoveries, cost.failed_recoveries, cost.steps_lost) == (1, 0, 2)


def test_only_what_lies_in_the_period_counts() -> None:
    cost = reliability.cost_of(job(), [stop(900.0, 1100.0, steps_lost=5), stop(1990.0, 2100.0)], PERIOD)
    assert cost.stopped_seconds == 110.0
    assert (cost.steps_lost, cost.recoveries) == (0, 1), "the first one began before"
    assert reliability.cost_of(job(started_at=2500.0), [], PERIOD).ettr is None


def test_overlapping_recoveries_count_once_for_the_earlier_cause() -> None:
    found = reliability.cost_of(job(), [stop(1100.0, 1300.0), stop(1200.0, 1400.0, cause="network")], PERIOD)
    assert found.stopped_seconds == 300.0
    assert dict(found.by_cause) == {"faulty_gpu": 200.0, "network": 100.0}


def test_a_job_loses_no_more_than_all() -> None:
    cost = reliability.cost_of(job(), [stop(1000.0, 2000.0, steps_lost=100)], PERIOD)
    assert cost.ettr == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_stopped_time_equals_a_count_second_by_second(seed: int) -> None:
    rng = random.Random(seed)
    stops = []
    for _ in range(rng.randrange(12)):
        start = rng.randrange(0, 3000)
        stops.append(stop(float(start), float(start + rng.randrange(0, 400))))
    span = job(ended_at=float(rng.randrange(500, 3500)))
    stands = {second for one in stops for second in range(int(one.started_at), int(one.ended_at))}
    assert reliability.cost_of(span, stops, PERIOD).stopped_seconds == len(stands & set(range(1000, 2000)))


@pytest.mark.parametrize("seed", range(20))
def test_time_without_ranks_equals_a_count_second_by_second(seed: int) -> None:
    """The recovery that ended last says how many ranks were absent; while the job stood still, none trained."""
    rng, stops = random.Random(seed), []
    for number in range(rng.randrange(12)):
        start = rng.randrange(0, 3000)
        end = start + rng.randrange(0, 400) + number / 100  # no two end at once
        stops.append(stop(float(start), end, absent_ranks=rng.randrange(3)))
    span, missing = job(ended_at=float(rng.randrange(2000, 3500))), 0
    for tenths in range(10_000, 20_000):
        moment = tenths / 10 + 0.05
        ended = [one for one in stops if one.ended_at <= moment]
        stands = any(one.started_at <= moment < one.ended_at for one in stops)
        if ended and not stands and moment < span.ended_at:
            missing += max(ended, key=lambda one: one.ended_at).absent_ranks
    found = reliability.cost_of(span, stops, PERIOD).absent_rank_seconds
    assert found == pytest.approx(missing / 10, abs=0.2 * len(stops))
    assert reliability.cost_of(span, [], PERIOD).absent_rank_seconds == 0.0


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        (1, 0.02532, 5.57164),
        (2, 0.24221, 7.22469),
        (5, 1.62349, 11.66833),
        (20, 12.21652, 30.88838),
        (21, 12.99933, 32.10073),
        (200, 173.24088, 229.72198),
    ],
)
def test_limits_are_the_exact_ones(count: int, low: float, high: float) -> None:
    """Quantiles of chi-squared distributions (Garwood 1936)."""
    found = reliability.poisson_limits(count)
    assert found[0] == pytest.approx(low, rel=0.01)
    assert found[1] == pytest.approx(high, rel=0.01)


def test_without_a_failure_only_a_lower_limit_is_known() -> None:
    found = reliability.between(1000.0, 0)
    assert (found.hours, found.high) == (None, None)
    assert found.low == pytest.approx(1000.0 / (3.68888), rel=0.02)
    found = reliability.between(1000.0, 4)
    assert found.hours == 250.0
    assert found.high is not None
    assert found.low < 250.0 < found.high


def test_nodes_out_of_service_do_not_count_between_failures() -> None:
    node = NodeSpan(name="n", cohort="", gpus=8, first_seen_at=1500.0, out=((1600.0, 1700.0), (1900.0, 5000.0)))
    assert reliability.out_seconds(node, PERIOD) == 200.0
    assert reliability.in_service_seconds(node, PERIOD) == pytest.approx(300.0)


def test_repairs_and_savings() -> None:
    ends = [Failure(opened_at=0.0, recovered_at=at, cause="x", node=None) for at in (10.0, 30.0, None)]
    assert reliability.mean_repair_seconds(ends) == 20.0
    assert reliability.mean_repair_seconds(ends[2:]) is None
    costs = [reliability.cost_of(job(ranks=8), [stop(1500.0, 1510.0)], PERIOD)]
    saved = reliability.saved_gpu_hours(costs, restart_seconds=600.0, checkpoint_seconds=3600.0)
    assert saved == pytest.approx((600.0 + 1800.0 - 10.0) * 8 / 3600)


def test_the_period_before() -> None:
    assert Period(since=10 * DAY, until=17 * DAY).before == Period(since=3 * DAY, until=10 * DAY)
    assert math.isclose(PERIOD.clip(0.0, 1500.0), 500.0)
