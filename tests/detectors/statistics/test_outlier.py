"""Which device stands apart from its cohort, and that none does in a healthy one."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.statistics.outlier import BUSY_SIGNAL, RULES, OutlierDetector
from mainstay.probes.core_types import Severity
from tests.detectors.healthy import healthy_chunks

HOT = "gpu_temperature_celsius"
CLOCK = "gpu_sm_clock_hertz"
STEAL = "cpu_steal_ratio"
POWER = "gpu_power_watts"
UPTIME = "uptime_seconds"
SIGNALS = (HOT, CLOCK, STEAL, BUSY_SIGNAL, POWER, UPTIME)


def fleet(seed: int, *, devices: int = 16, cohorts: int = 2, ticks: int = 200) -> Samples:
    """Busy GPUs: temperatures around their cohort's level, quantised clocks, no replays."""
    rng = np.random.default_rng(seed)
    level = np.arange(devices) % cohorts
    x = np.empty((ticks, len(SIGNALS), devices), np.float32)
    x[:, 0] = 60 + 12 * level + rng.normal(0, 1.0, devices) + rng.normal(0, 0.7, (ticks, devices))
    x[:, 1] = (1.4e9 + 15e6 * rng.integers(-1, 2, (ticks, devices))) * (1 - 0.2 * level)
    x[:, 2] = 0.0
    x[:, 3] = 0.97
    x[:, 4] = 600 + 5 * rng.standard_normal((ticks, devices))
    x[:, 5] = 1e6
    return Samples(
        entities=tuple(Entity(node=f"n{d // 8}", device=f"GPU-{d}") for d in range(devices)),
        groups=tuple(f"model-{c}" for c in level),
        signals=SIGNALS,
        t=1.7e9 + np.arange(ticks, dtype=np.float64),
        x=x,
    )


def example(seed: int) -> Samples:
    data = fleet(seed)
    data.x[100:, 0, 5] += 30.0
    return data


def findings_of(data: Samples) -> list[Finding]:
    return OutlierDetector().update(data)


@pytest.mark.parametrize("seed", range(5))
def test_a_hot_device_is_named_within_seconds(seed: int) -> None:
    (finding,) = findings_of(example(seed))
    assert finding.kind is FindingKind.SIGNAL_OUTLIER
    assert finding.entity == Entity(node="n0", device="GPU-5")
    assert 102 <= finding.time - 1.7e9 <= 110, "three loud samples; a cohort of eight has an unsteady MAD"
    (line,) = finding.evidence.series
    assert (line.name, line.unit) == (HOT, "C")
    assert line.y[-1] > line.peers[-1] + 20
    assert "above its cohort's" in finding.evidence.summary


@pytest.mark.parametrize("seed", range(5))
def test_healthy_cohorts_are_quiet_however_they_differ_from_each_other(seed: int) -> None:
    assert findings_of(fleet(seed, devices=64, ticks=1000)) == []


def test_a_low_clock_under_load_is_named_and_an_idle_one_is_not() -> None:
    busy, idle = fleet(0), fleet(0)
    busy.x[100:, 1, 3] = 0.5e9
    idle.x[100:, 1, 3] = 0.2e9
    idle.x[100:, 3, 3] = 0.0
    assert [f.entity.device for f in findings_of(busy)] == ["GPU-3"]
    assert findings_of(idle) == []


def test_a_counter_that_never_moves_elsewhere_needs_no_spread_to_stand_out() -> None:
    data = fleet(0)
    data.x[100:, 2, 7] = 0.4
    (finding,) = findings_of(data)
    assert finding.kind is FindingKind.CPU_CONTENTION
    assert finding.evidence.numbers["value"] == pytest.approx(0.4)
    assert finding.evidence.numbers["peers_median"] == 0.0


def test_one_spike_is_noise() -> None:
    data = fleet(0)
    data.x[100, 0, 5] += 80.0
    data.x[103, 0, 5] += 80.0
    assert findings_of(data) == []


def test_the_good_side_is_no_fault() -> None:
    data = fleet(0)
    data.x[:, 0, 5] -= 30.0
    assert findings_of(data) == []


def test_a_cohort_too_small_to_have_a_middle_is_not_judged() -> None:
    data = fleet(0, devices=7, cohorts=1)
    data.x[:, 0, 5] += 60.0
    assert findings_of(data) == []
    missing = fleet(0, devices=16, cohorts=2)
    missing.x[:, 0, 6:] = np.nan  # of eight peers three report
    missing.x[:, 0, 4] += 60.0
    assert findings_of(missing) == []


def test_it_clears_after_half_a_minute_of_calm() -> None:
    data = example(0)
    data.x[140:, 0, 5] -= 30.0
    begins, ends = findings_of(data)
    assert (begins.active, ends.active) == (True, False)
    assert ends.time == 1.7e9 + 140 + 29


def test_flapping_is_one_finding() -> None:
    data = fleet(0, ticks=400)
    for start in range(100, 300, 20):
        data.x[start : start + 10, 0, 5] += 30.0
    assert [f.active for f in findings_of(data)] == [True, False]


def test_a_heat_wave_over_the_whole_cohort_blames_nobody() -> None:
    data = fleet(0)
    data.x[100:, 0, :] += 20.0
    assert findings_of(data) == []


def test_heat_is_a_warning_where_it_harms_and_information_below() -> None:
    assert [f.severity for f in findings_of(example(0))] == [Severity.WARNING]
    cool = fleet(0)
    cool.x[:, 0] -= 30
    cool.x[100:, 0, 5] += 28.0
    assert [f.severity for f in findings_of(cool)] == [Severity.INFO]
    cool.x[150:, 0, 5] += 20.0
    assert [f.severity for f in findings_of(cool)] == [Severity.INFO, Severity.WARNING]
    again = fleet(0)
    again.x[:, 0] -= 30
    again.x[50:70, 0, 5] += 48.0
    again.x[150:, 0, 5] += 28.0
    told = [(f.active, f.severity) for f in findings_of(again)]
    assert [severity for active, severity in told if active] == [Severity.WARNING, Severity.INFO], (
        "weighed from the start"
    )


def test_a_signal_that_was_absent_for_a_while_is_a_gap_in_the_evidence() -> None:
    data, detector = example(0), OutlierDetector()
    found = []
    for start, stop in ((0, 90), (90, 95), (95, 200)):
        part = slice(1 if start == 90 else 0, None)
        found += detector.update(
            Samples(
                entities=data.entities, groups=data.groups, signals=data.signals[part], t=data.t[start:stop],
                x=data.x[start:stop, part],
            )
        )  # fmt: skip
    (line,) = found[0].evidence.series
    assert [t - data.t[0] for t in line.x if 80 <= t - data.t[0] <= 100] == [*range(80, 90), *range(95, 101)]


def test_a_low_clock_is_a_warning_unless_its_power_is_like_its_siblings() -> None:
    data = fleet(0)
    data.x[100:, 1, 3] = 0.5e9
    assert [f.severity for f in findings_of(data)] == [Severity.INFO], "at its power limit"
    data.x[100:, 4, 3] = 300.0
    assert Severity.WARNING in {f.severity for f in findings_of(data)}


def test_a_node_with_other_work_is_no_outlier() -> None:
    """One node in eight runs a light job at half the power and another one runs hot: siblings agree."""
    data = fleet(0, devices=64, cohorts=1)
    data.x[:, 4, :8] -= 300.0
    data.x[:, 0, 8:16] += 25.0
    assert findings_of(data) == []


def test_idle_neighbors_do_not_make_a_busy_card_hot() -> None:
    data = fleet(0, devices=64, cohorts=1)
    data.x[:, 0, 8:] -= 30.0
    data.x[:, 3, 8:] = 0.0
    assert findings_of(data) == []


def test_after_boot_nothing_is_compared() -> None:
    data = example(0)
    data.x[:, 5, 5] = np.arange(200)
    assert findings_of(data) == []


@pytest.mark.slow
def test_a_healthy_fleet_is_quiet() -> None:
    detector = OutlierDetector()
    found = [f for part in healthy_chunks(800, 3600, 1) for f in detector.update(part)]
    assert [f for f in found if f.severity is not Severity.INFO] == []


def test_every_rule_names_a_declared_signal() -> None:
    from mainstay.probes.signals import SIGNALS as DECLARED

    assert {*RULES, BUSY_SIGNAL} <= DECLARED.keys()


def test_a_stuck_sensor_is_unknown_and_its_finding_stays() -> None:
    data = fleet(0, ticks=400)
    data.x[100:, 0, 5] = 95.0  # it rose, and then says the same for ever
    assert [f.active for f in findings_of(data)] == [True], "named while it was new, and not taken back"
    detector = OutlierDetector()
    data.x[:, 0, 5] = 60.0
    assert detector.update(data) == []
    assert detector.status().numbers["stuck_sensors"] == 1.0


def test_a_slow_drift_does_not_become_the_custom() -> None:
    data = fleet(0, devices=32, cohorts=1, ticks=2000)
    data.x[200:, 0, 5] += np.linspace(0, 40, 1800)
    assert {(f.entity.device, f.active) for f in findings_of(data)} == {("GPU-5", True)}


def test_what_always_stood_apart_is_said_and_a_cohort_that_becomes_alike_makes_nobody_odd() -> None:
    always = fleet(0, devices=32, cohorts=1)
    always.x[:, 0, 5] += 30.0
    assert [f.entity.device for f in findings_of(always)] == ["GPU-5"]
    calm = fleet(0, devices=32, cohorts=1, ticks=400)
    rng = np.random.default_rng(3)
    calm.x[:200, 0] += 12 * rng.standard_normal((200, 32))
    calm.x[:, 0, 5] += 14.0  # within its peers' spread, until the others are all alike; it has not changed
    assert findings_of(calm) == []


@pytest.mark.slow
def test_heavy_tails_raise_what_is_asked_for() -> None:
    """Bursts of three samples, a few an hour each, on every card: the fleet itself says that they are common."""
    rng = np.random.default_rng(5)
    data = fleet(0, devices=128, cohorts=1, ticks=3000)
    for device in range(128):
        for start in rng.integers(100, 2990, 6):
            data.x[start : start + 3, 0, device] += 3 * rng.exponential(5.0)
    loose = OutlierDetector(OutlierDetector.Config(false_alarms_a_day=1e9))
    assert len({f.entity for f in findings_of(data)}) < len({f.entity for f in loose.update(data)}) / 2


def test_it_says_when_nobody_can_be_compared() -> None:
    detector = OutlierDetector()
    assert detector.status().state == "idle"
    detector.update(fleet(0, devices=7, cohorts=1, ticks=3))
    assert detector.status().state == "abstaining"
    detector.update(fleet(0, ticks=3))
    assert detector.status().state == "active"
