"""Every estimator of criteria, held to the conventions of scikit-learn and to what a limit owes its reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.validation.criterion_limits import LimitEstimator, NotAGateError, RobustLimits
from mainstay.detectors.validation.validator import BestLimits, OwnPast, Validator
from mainstay.probes.benchmarks.result import Better

LIMITS: list[type[LimitEstimator]] = [RobustLimits, Validator, BestLimits]
EVERY = pytest.mark.parametrize("kind", [*LIMITS, OwnPast])
EACH = pytest.mark.parametrize("kind", LIMITS)
BOTH = pytest.mark.parametrize("better", [Better.LOWER, Better.HIGHER])


def runs(n: int = 30, seed: int = 0, level: float = 100.0, noise: float = 0.005) -> list[np.ndarray]:
    """Healthy devices: they differ by half a per cent, their repetitions by as much."""
    random = np.random.default_rng(seed)
    return [level * np.exp(noise * (random.standard_normal() + random.standard_normal(12))) for _ in range(n)]


def fitted(
    kind: Callable[..., Any], n: int = 30, seed: int = 0, level: float = 100.0, better: Better = Better.LOWER
) -> Any:
    if kind is OwnPast:
        return kind().fit(runs(n, seed, level), runs(n, seed, level), better)
    return kind().fit(runs(n, seed, level), better)


def learned(estimator: Any) -> dict[str, Any]:
    """What ``fit`` stored, in the estimators inside as well."""
    found = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    return {name: learned(value) if hasattr(value, "fit") else value for name, value in found.items()}


def edge(estimator: LimitEstimator, better: Better) -> float:
    limit = estimator.limits_.high if better is Better.LOWER else estimator.limits_.low
    assert limit is not None
    return limit


@EVERY
def test_fit_returns_itself_and_leaves_its_input_alone(kind: Any) -> None:
    data = runs()
    copies = [run.copy() for run in data]
    estimator = kind()
    arguments = (data, data, Better.LOWER) if kind is OwnPast else (data, Better.LOWER)
    assert estimator.fit(*arguments) is estimator
    assert all(np.array_equal(run, copy) for run, copy in zip(data, copies, strict=True))


@EVERY
def test_a_second_fit_forgets_the_first(kind: Any) -> None:
    twice = fitted(kind, seed=1)
    again = (runs(), runs(), Better.LOWER) if kind is OwnPast else (runs(), Better.LOWER)
    assert repr(learned(twice.fit(*again))) == repr(learned(fitted(kind)))


@EACH
def test_a_fingerprint_leaves_nothing_of_a_distribution(kind: Any) -> None:
    estimator = fitted(kind).fit([np.array([7.0, 7.0])] * 6, Better.EQUAL)
    assert estimator.limits_.allowed == (7.0,)
    assert estimator.limits_.distribution is None


@EACH
@BOTH
def test_the_order_of_runs_does_not_matter(kind: Any, better: Better) -> None:
    data = runs()
    backwards = kind().fit(data[::-1], better)
    assert edge(backwards, better) == pytest.approx(edge(kind().fit(data, better), better), rel=1e-12)


@EACH
@BOTH
def test_units_do_not_matter(kind: Any, better: Better) -> None:
    small, large = (fitted(kind, level=level, better=better) for level in (1e-6, 1e12))
    assert edge(large, better) / edge(small, better) == pytest.approx(1e18)


@EACH
@BOTH
def test_a_limit_can_fire_and_its_center_passes(kind: Any, better: Better) -> None:
    limits = fitted(kind, better=better).limits_
    assert limits.center is not None
    bad, good = (2.1, 1.0) if better is Better.LOWER else (1 / 2.1, 1.0)
    sign = 1 if better is Better.LOWER else -1
    limit = limits.high if better is Better.LOWER else limits.low
    assert (
        sign * good * limits.center < sign * (limits.warn or 0.0) <= sign * (limit or 0.0) < sign * bad * limits.center
    )


@EACH
@BOTH
def test_a_smaller_budget_is_never_tighter(kind: Any, better: Better) -> None:
    wide, tight = (kind(false_alarms=budget).fit(runs(), better) for budget in (1e-5, 0.05))
    sign = 1 if better is Better.LOWER else -1
    assert sign * edge(wide, better) >= sign * edge(tight, better)


@EVERY
def test_too_few_runs_teach_nothing(kind: Any) -> None:
    with pytest.raises(NotAGateError, match="only 4"):
        fitted(kind, n=4)


@EACH
@pytest.mark.parametrize("bad", [[0.0, 1.0], [-1.0]])
def test_runs_that_measured_nothing_are_refused(kind: Any, bad: list[float]) -> None:
    with pytest.raises(NotAGateError, match="above zero"):
        kind().fit([*runs(6), np.array([bad[0]] * 3)], Better.LOWER)
