"""Before and after: what a device's own past proves, what it cannot, and who is never blamed."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.validation.node_comparison import (
    DevicePair,
    Measured,
    MetricChange,
    MetricKey,
    compare,
    verdict,
)
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict

KEY = MetricKey("gemm", "fp32_n64", "cuda:0")
METRIC = (KEY.benchmark, KEY.metric)


def run(level: float, seed: int, noise: float = 0.003) -> np.ndarray:
    return level * np.exp(np.random.default_rng(seed).normal(0.0, noise, 20))


def measured(level: float, seed: int, better: Better = Better.HIGHER) -> dict[MetricKey, Measured]:
    return {KEY: Measured(unit="FLOP/s", better=better, values=run(level, seed))}


def cohort(n: int = 40) -> dict[tuple[str, str], list[DevicePair]]:
    levels = np.random.default_rng(0).normal(100.0, 3.0, n)  # devices differ more among each other than over time
    pairs = [DevicePair(node=f"n{i}", before=run(x, i), after=run(x, 1000 + i)) for i, x in enumerate(levels)]
    return {METRIC: pairs}


def only(changes: tuple[MetricChange, ...]) -> MetricChange:
    (change,) = changes
    return change


@pytest.mark.parametrize(("level", "said"), [(100.0, Verdict.PASS), (97.0, Verdict.FAIL), (105.0, Verdict.PASS)])
def test_a_change_that_the_spread_of_the_fleet_would_hide_is_seen(level: float, said: Verdict) -> None:
    change = only(compare(measured(100.0, 5), measured(level, 6), cohort()))
    assert change.verdict is said, change.reason
    assert change.worse == pytest.approx(100.0 / level - 1.0, abs=0.01)


def test_where_five_percent_could_hide_no_change_is_no_pass() -> None:
    pairs = [DevicePair(node=f"n{i}", before=run(100.0, i, 0.2), after=run(100.0, 1000 + i, 0.2)) for i in range(12)]
    change = only(compare(measured(100.0, 5), measured(100.0, 6), {METRIC: pairs}))
    assert change.verdict is Verdict.UNKNOWN
    assert "5% could hide" in change.reason
    assert only(compare(measured(100.0, 5), measured(30.0, 6), {METRIC: pairs})).verdict is Verdict.FAIL


def test_slower_is_worse_for_a_time_too() -> None:
    change = only(compare(measured(100.0, 5, Better.LOWER), measured(110.0, 6, Better.LOWER), cohort()))
    assert (change.verdict, round(change.worse or 0, 1)) == (Verdict.FAIL, 0.1)


def test_without_a_cohort_a_change_is_shown_and_unknown() -> None:
    change = only(compare(measured(100.0, 5), measured(50.0, 6), {}))
    assert change.verdict is Verdict.UNKNOWN
    assert change.worse == pytest.approx(1.0, abs=0.02)
    assert "5 are needed" in change.reason


def test_what_is_missing_on_a_side_is_unknown() -> None:
    gone = only(compare(measured(100.0, 5), {}, cohort()))
    new = only(compare({}, measured(100.0, 5), cohort()))
    assert (gone.verdict, gone.reason) == (Verdict.UNKNOWN, "not measured after")
    assert (new.verdict, new.reason) == (Verdict.UNKNOWN, "not measured before")


@pytest.mark.parametrize(
    ("after", "said"), [([7.0, 7.0], Verdict.PASS), ([8.0, 8.0], Verdict.FAIL), ([7.0, 8.0], Verdict.FAIL)]
)
def test_a_fingerprint_stays_what_it_was(after: list[float], said: Verdict) -> None:
    sides = [{KEY: Measured(unit="", better=Better.EQUAL, values=np.array(one))} for one in ([7.0], after)]
    assert only(compare(sides[0], sides[1], {})).verdict is said


def test_the_worst_change_decides() -> None:
    other = MetricKey("copy", "h2d", "cuda:0")
    after = measured(97.0, 6) | {other: Measured(unit="B/s", better=Better.HIGHER, values=run(1.0, 1))}
    changes = compare(measured(100.0, 5), after, cohort())
    assert [change.key.benchmark for change in changes] == ["copy", "gemm"]
    assert verdict(changes) is Verdict.FAIL
    assert verdict(()) is Verdict.UNKNOWN
