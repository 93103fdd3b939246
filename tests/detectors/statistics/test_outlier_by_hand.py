"""Parts of the outlier test by hand: widths of small cohorts, words, severities and who is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding
from mainstay.detectors.statistics.outlier import OutlierDetector, _spoken, _tail
from mainstay.detectors.statistics.outlier_rules import BUSY_SIGNAL, RULES
from mainstay.probes.core_types import Severity

HOT, POWER, UPTIME, STEAL = "gpu_temperature_celsius", "gpu_power_watts", "uptime_seconds", "cpu_steal_ratio"


def test_a_small_cohort_is_given_a_wider_scale() -> None:
    """By simulation: at 64, 32, 24, 16, 12, 10 and 8 peers; between them by 1 / n, beyond them as at the ends."""
    sizes = np.array([10**9, 64, 32, 24, 16, 12, 10, 8, 5, 1, 0])
    assert _tail(sizes) == pytest.approx([1.0, 1.18, 1.41, 1.57, 2.0, 2.5, 3.1, 4.2, 4.2, 4.2, 4.2], abs=1e-6)
    assert _tail(np.array([128]))[0] == pytest.approx(1.09), "half way from none to 1 / 64"


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [(1.3245e9, "Hz", "1.32 GHz"), (88.04, "C", "88 C"), (0.3, "1", "0.3"), (12.0, "1/s", "12 a second")],
)
def test_a_value_as_people_say_it(value: float, unit: str, said: str) -> None:
    assert _spoken(value, unit) == said


def fleet(ticks: int = 160, devices: int = 16) -> Samples:
    """Two nodes of one cohort at work; temperatures one degree apart that move by a tenth."""
    rng = np.random.default_rng(1)
    names = (HOT, BUSY_SIGNAL, POWER, UPTIME, STEAL)
    x = np.zeros((ticks, len(names), devices), np.float32)
    x[:, 0] = 60 + np.linspace(-1, 1, devices) + 0.1 * rng.standard_normal((ticks, devices))
    x[:, 1], x[:, 2], x[:, 3] = 0.9, 600 + rng.standard_normal((ticks, devices)), 1e6
    return Samples(
        entities=tuple(Entity(node=f"n{d // 8}", device=f"g{d}") for d in range(devices)),
        groups=("c",) * devices,
        signals=names,
        t=np.arange(ticks, dtype=np.float64),
        x=x,
    )


def hot(data: Samples, start: int = 100, stop: int | None = None, degrees: float = 40.0) -> Samples:
    data.x[start:stop, 0, 3] += degrees
    return data


def times(data: Samples, **config: Any) -> list[float]:
    return [one.time for one in OutlierDetector(OutlierDetector.Config(**config)).update(data)]


def test_three_of_five_loud_samples_begin_and_thirty_calm_ones_end() -> None:
    """Without a past; with one each sample adds 4 - 1 to a sum that has to reach 12."""
    assert times(hot(fleet()), learned=4000) == [102.0]
    assert times(hot(fleet())) == [103.0]
    assert times(hot(fleet()), alarm=12.5) == [104.0]
    assert times(hot(hot(fleet(), 100, 101), 103, 105), learned=4000) == [104.0, 134.0], "1 0 0 1 1"
    assert times(hot(hot(fleet(), 100, 102), 105, 106), learned=4000) == [], "1 1 0 0 0 1"
    assert times(hot(fleet(), 100, 110), learned=4000) == [102.0, 139.0]
    assert times(hot(hot(fleet(200), 100, 110), 120, 121), learned=4000) == [102.0, 150.0], "the count begins again"
    assert times(hot(fleet()), learned=4000, needed=2) == [101.0]
    assert times(hot(fleet(), 100, 110), learned=4000, calm_samples=10) == [102.0, 119.0]


@pytest.mark.parametrize(("uptime", "told"), [(300.0, True), (299.0, False)])
def test_a_host_that_has_just_booted_is_not_compared(uptime: float, *, told: bool) -> None:
    data = hot(fleet())
    data.x[:, 3, 3] = uptime
    assert bool(times(data)) is told


@pytest.mark.parametrize(("load", "told"), [(0.5, True), (0.49, False), (np.nan, True)])
def test_heat_is_compared_at_work(load: float, *, told: bool) -> None:
    data = hot(fleet())
    data.x[:, 1, 3] = load
    assert bool(times(data)) is told


@pytest.mark.parametrize(("others", "told"), [(3, True), (2, False)])
def test_where_siblings_at_work_are_too_few_it_is_information(others: int, *, told: bool) -> None:
    data = hot(fleet(devices=32))
    for device in range(8):
        if device != 3 and others <= 0:
            data.x[:, 1, device] = 0.0
        others -= device != 3
    found = OutlierDetector().update(data)
    assert [one.severity for one in found] == [Severity.WARNING if told else Severity.INFO]


def first(data: Samples) -> Finding:
    return OutlierDetector().update(data)[0]


def test_the_evidence_of_a_hot_card() -> None:
    found = first(hot(fleet()))
    (line,) = found.evidence.series
    assert (line.name, line.unit, len(line.x), line.x[0], line.x[-1]) == (HOT, "C", 32, 72.0, 103.0)
    value, middle = line.y[-1], line.peers[-1]
    assert found.evidence.numbers["value"] == value
    assert found.evidence.numbers["peers_median"] == middle
    assert found.evidence.summary == (
        f"The {RULES[HOT].words} of n0 g3 is {value:.3g} C, above its cohort's {middle:.3g} C, in 3 of 5 samples."
    )
    assert found.confidence == 0.9
    over = OutlierDetector().update(hot(fleet(), 100, 110))[1]
    assert over.evidence.summary == f"The {RULES[HOT].words} of n0 g3 is back among its peers."


def test_what_it_says_of_itself() -> None:
    detector = OutlierDetector()
    detector.update(fleet(3))
    assert {name: detector.status().numbers[name] for name in ("entities", "judged", "stuck_sensors")} == {
        "entities": 16.0, "judged": 16.0, "stuck_sensors": 0.0,
    }  # fmt: skip
    detector.update(fleet(3, devices=7))
    assert detector.status().reason == "No cohort is large enough to have a middle."
    assert detector.status().numbers["judged"] == 0.0
