"""Figures come from the two views with equal weights, and alarms by a budget are the plain threshold's or fewer."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_events import Verdict, alarms
from bench.lib_machine_scores import Machine, Scores, mean_rank, online, rarest, relearned, surprise
from bench.lib_multivariate import status
from bench.machines import ASKED, CHOSEN, GAIN, Measured, Outcome, alarm_rows, live_rows, rank_row, within_budget
from mainstay.detectors.statistics.alarm_budget import LOWEST
from mainstay.detectors.statistics.spot import tail


def healthy_and(test: np.ndarray) -> Scores:
    return Scores(np.random.default_rng(0).exponential(1.0, 10_000), test)


def test_without_adaptation_alarms_are_those_of_the_tails_threshold() -> None:
    scores = healthy_and(1.5 * np.random.default_rng(1).exponential(1.0, 10_000))
    rate = 1 / 1440
    plain = alarms(scores.test, tail(status(scores.healthy)).threshold(rate))
    np.testing.assert_array_equal(within_budget(scores, rate, 0.0), plain)
    adapted = within_budget(scores, rate, GAIN)
    assert len(adapted) < len(plain) / 2
    assert len(adapted) <= rate * len(scores.test) + 1 - LOWEST / GAIN


def test_surprise_keeps_the_order_and_says_how_rare_a_score_is() -> None:
    scores = healthy_and(np.array([0.1, 1.0, 4.6, 8.0, 12.0]))
    made = surprise(scores).test
    assert (np.diff(made) > 0).all()
    np.testing.assert_allclose(made[:3], scores.test[:3], atol=0.4)  # exponential: minus the logarithm is the score


def test_the_rarest_view_decides_and_the_mean_rank_takes_all() -> None:
    calm, loud = healthy_and(np.zeros(40)), healthy_and(np.repeat([0.0, 9.0], 20))
    np.testing.assert_array_equal(rarest([calm, loud]).test, surprise(loud).test)
    assert mean_rank([calm, loud])[-1] == pytest.approx(mean_rank([loud])[-1] / 2)


def outcome(found: int, false: int) -> Outcome:
    verdict = Verdict(events=4, delays=(1,) * found, false=false)
    return Outcome(verdict=verdict, days=10.0, raised=found + false)


def measured(name: str, rank: float, *, found: int, false: int) -> Measured:
    alarms = {(CHOSEN, budget, gain): outcome(found, false) for budget in (0.1, 0.25, 0.5, ASKED) for gain in (0, GAIN)}
    return Measured(name=name, day=288, vus={"max |z|": 0.5, "six views": 0.9, CHOSEN: rank}, alarms=alarms)


@pytest.mark.parametrize(("rank", "found", "false", "holds"), [
    (0.6, 2, 5, (True, True, True)),
    (0.4, 2, 5, (False, True, True)),
    (0.6, 1, 5, (True, False, True)),
    (0.6, 2, 6, (True, True, False)),
])  # fmt: skip
def test_the_two_views_are_held_to_the_best_simple_score(
    rank: float, found: int, false: int, holds: tuple[bool, bool, bool]
) -> None:
    group = [measured(name, rank, found=found, false=false) for name in ("m1", "m2")]
    rows = [rank_row("set", group), *alarm_rows("set", group)]
    assert tuple(row.holds for row in rows[:3]) == holds
    assert rows[0].target == "> 0.500, the best simple score"
    assert rows[0].note == f"m1: {rank:.3f}; m2: {rank:.3f}"


def test_the_live_model_scores_machines_of_unlike_length_as_it_scores_one() -> None:
    rng = np.random.default_rng(2)
    parts = [(rng.normal(size=(n, 4)), rng.normal(size=(200, 4))) for n in (900, 700)]
    both = [
        Machine(name=f"m{k}", day=288, train=train, test=test, labels=np.zeros(200, np.bool_), culprits=[])
        for k, (train, test) in enumerate(parts)
    ]
    (alone,), together = online([both[0]], 1.0), online(both, 1.0)
    for view, scores in enumerate(alone.views):
        np.testing.assert_allclose(together[0].views[view].test, scores.test, rtol=1e-6, atol=1e-9)
        assert len(together[1].views[view].healthy) == 700 - 480


def test_findings_of_the_live_detector_begin_where_a_machine_is_unlike_its_past() -> None:
    rng = np.random.default_rng(4)
    train, test = rng.normal(size=(2, 900, 4))
    test[500:520] += 8.0
    machine = Machine(name="m", day=288, train=train, test=test, labels=np.zeros(900, np.bool_), culprits=[])
    (live,) = online([machine], 1.0)
    assert np.isin(live.raised, range(500, 520)).any()
    assert np.count_nonzero(live.raised < 500) <= 2


def test_a_score_that_learns_on_knows_its_past_alone() -> None:
    rng = np.random.default_rng(3)
    train, test = rng.normal(size=(2, 500, 1)) + 0.3 * rng.normal(size=(2, 500, 4))
    other = test.copy()
    other[250:] += 3.0
    made = [
        relearned(Machine(name="m", day=100, train=train, test=x, labels=np.zeros(500, np.bool_), culprits=[]))
        for x in (test, other)
    ]
    for name, scores in made[0].items():
        changed = made[1][name].test
        assert len(scores.healthy) == 300
        np.testing.assert_allclose(changed[:250], scores.test[:250])
        assert not np.allclose(changed[250:], scores.test[250:])
    level = made[1]["mean clipped z^2, learning on"].test
    assert level[250:300].mean() > 2 * level[450:].mean()  # learned


@pytest.mark.parametrize(("live", "found", "false", "holds"), [
    (0.6, 2, 5, (True, True)),
    (0.4, 1, 5, (False, False)),
    (0.6, 2, 6, (True, False)),
])  # fmt: skip
def test_the_live_model_is_held_to_scores_that_learn_as_it_does(
    live: float, found: int, false: int, holds: tuple[bool, bool]
) -> None:
    vus = {"max |z|": 0.9, "max |z|, learning on, smoothed": 0.5, "unrest, learning on": 0.8, "live": live}
    alarms = {("live", ASKED, GAIN): outcome(found, false), ("unrest, learning on", ASKED, GAIN): outcome(4, 0)}
    rows = live_rows("set", [Measured(name="m", day=288, vus=vus, alarms=alarms)])
    assert tuple(row.holds for row in rows) == holds
    assert rows[0].target == "> 0.500, the best simple score that learns on"
    assert rows[1].baseline == "unrest, learning on 1.00 at 0.00"
