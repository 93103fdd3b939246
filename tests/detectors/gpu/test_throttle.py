"""Clocks held down by heat or by a brake: found after two samples, never for a power cap, an idle card or 1 ns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Finding, FindingKind
from mainstay.detectors.gpu.throttle import ThrottleDetector
from mainstay.probes.core_types import RecommendedAction, Severity
from tests.detectors.healthy import HealthyFleet, healthy_chunks

HARD = "gpu_throttle_hardware_thermal_nanoseconds_total"
BRAKE = "gpu_throttle_power_brake_nanoseconds_total"
SOFT = "gpu_throttle_software_thermal_nanoseconds_total"
CAP = "gpu_throttle_power_cap_nanoseconds_total"


def busy(seed: int, gpus: int = 32, seconds: int = 120) -> Samples:
    """GPUs at work, without other load."""
    fleet = HealthyFleet(gpus, seed)
    fleet.work[:], fleet.left[:], fleet.every[:], fleet.uptime[:] = 2, 1e9, 1e9, 1e6
    data = fleet.next(seconds)
    for name in (HARD, BRAKE, SOFT, "gpu_throttle_thermal_nanoseconds_total"):
        data.x[:, data.signals.index(name)] = 0.0
    return data


def put(data: Samples, name: str, where: object, value: float, *, start: int = 40, stop: int | None = None) -> Samples:
    data.x[start:stop, data.signals.index(name), where] = value
    return data


def findings_of(data: Samples) -> list[Finding]:
    return ThrottleDetector().update(data)


def example(seed: int) -> Samples:
    return put(put(busy(seed), BRAKE, 5, 1e9), HARD, 9, 4e8, start=50)


@pytest.mark.parametrize(("name", "kind"), [(HARD, FindingKind.THERMAL_THROTTLE), (BRAKE, FindingKind.POWER_BRAKE)])
def test_it_is_found_after_two_samples(name: str, kind: FindingKind) -> None:
    data = put(busy(0), name, 5, 9e8)
    (finding,) = findings_of(data)
    assert (finding.kind, finding.entity, finding.severity) == (kind, data.entities[5], Severity.WARNING)
    assert finding.time == data.t[41]
    assert not finding.recommended_action.evicts
    assert "90 %" in finding.evidence.summary


def test_a_power_cap_and_a_nanosecond_are_no_fault() -> None:
    assert findings_of(put(busy(0), CAP, slice(None), 1e9)) == []
    assert findings_of(put(put(busy(0), BRAKE, slice(None), 1.0), HARD, slice(None), 1.0)) == []
    assert findings_of(put(busy(0), HARD, slice(None), 5e6)) == []


def test_an_idle_card_is_not_judged() -> None:
    data = put(put(busy(0), HARD, 5, 1e9), "gpu_utilization_ratio", 5, 0.0, start=30)
    assert findings_of(data) == []


def test_one_second_of_it_is_noise() -> None:
    assert findings_of(put(busy(0), BRAKE, 5, 1e9, stop=41)) == []


def test_a_brake_that_lasts_is_said_once_and_takes_the_node_out_after_half_an_hour() -> None:
    data = put(busy(0, gpus=8, seconds=2400), BRAKE, 3, 1e9)
    first, second = findings_of(data)
    assert (first.severity, second.severity, second.recommended_action) == (
        Severity.WARNING,
        Severity.CRITICAL,
        RecommendedAction.INSPECT_NODE,
    )
    assert second.time - first.time == 1800
    assert first.key == second.key


def test_it_ends_after_a_minute_of_calm_under_load_and_later_at_rest() -> None:
    data = put(busy(0), BRAKE, 5, 1e9, stop=50)
    begins, ends = findings_of(data)
    assert not ends.active
    assert ends.time == data.t[50 + 59]
    rest = put(busy(0, gpus=8, seconds=800), BRAKE, 5, 1e9, stop=50)
    put(rest, "gpu_utilization_ratio", 5, 0.0, start=50)
    begins, ends = findings_of(rest)
    assert (begins.active, ends.active, ends.time) == (True, False, rest.t[50 + 599])


def test_software_slowdown_counts_where_the_peers_do_not_need_it() -> None:
    alone = findings_of(put(busy(0), SOFT, 5, 8e8))
    assert [f.severity for f in alone] == [Severity.WARNING]
    many = findings_of(put(busy(0), SOFT, slice(0, 12), 8e8))
    assert {f.severity for f in many} == {Severity.INFO}
    assert len(many) == 12
    assert findings_of(put(busy(0), SOFT, 5, 8e8, stop=50)) == [], "ten seconds of it are a job's start"


def test_a_hot_room_is_one_finding_and_not_a_hundred() -> None:
    data = put(busy(0, gpus=128), HARD, slice(0, 100), 8e8)
    put(data, HARD, 7, 9.5e8)
    (finding,) = findings_of(data)
    assert finding.entity == data.entities[7], "the one that is held back most speaks"
    assert finding.evidence.numbers["affected"] == 100
    assert "look at the room" in finding.evidence.summary


def test_after_boot_nothing_is_judged_and_after_the_grace_it_is() -> None:
    data = put(busy(0, seconds=60), HARD, 5, 1e9, start=0)
    data.x[:, data.signals.index("uptime_seconds")] = np.arange(260, 320)[:, None]
    (finding,) = findings_of(data)
    assert finding.time == data.t[41]


def test_without_utilization_power_tells_that_it_works() -> None:
    data = put(busy(0), HARD, 5, 1e9)
    data.x[:, data.signals.index("gpu_utilization_ratio")] = np.nan
    assert len(findings_of(data)) == 1


def test_a_healthy_fleet_is_quiet() -> None:
    detector = ThrottleDetector()
    found = [f for part in healthy_chunks(800, 3600, 1) for f in detector.update(part)]
    assert [f for f in found if f.severity is not Severity.INFO] == []


def test_peers_that_are_absent_do_not_matter() -> None:
    data = put(busy(0, gpus=8), HARD, 5, 9e8)
    alone = replace(data, groups=tuple(f"alone:{i}" for i in range(8)))
    assert [f.kind for f in findings_of(alone)] == [FindingKind.THERMAL_THROTTLE]


@pytest.mark.parametrize(
    ("load", "share", "ends"),
    [
        (0.0, 0.0, 50 + 4),  # five seconds at rest without it
        (0.049, 0.0, 50 + 4),
        (0.051, 0.0, None),
        (0.0, 9e8, None),  # at rest, and the counter still runs
        (0.3, 0.0, None),  # neither at work nor at rest
        (0.97, 0.0, 50 + 59),  # at work a minute is needed
        (0.0, np.nan, None),
    ],
)
def test_what_ends_it(load: float, share: float, ends: int | None) -> None:
    data = put(put(busy(0, 8), BRAKE, 5, 1e9), BRAKE, 5, share, start=50)
    put(data, "gpu_utilization_ratio", 5, load, start=50)
    begins, *over = ThrottleDetector(ThrottleDetector.Config(idle_samples=5)).update(data)
    assert begins.active
    assert [(f.active, f.time) for f in over] == ([] if ends is None else [(False, data.t[ends])])


def test_seconds_at_rest_need_not_follow_each_other_but_a_held_second_at_work_starts_them_anew() -> None:
    def ends(*between: tuple[int, str, float]) -> float:
        data = put(put(busy(0, 8), BRAKE, 5, 1e9), BRAKE, 5, 0.0, start=50)
        put(data, "gpu_utilization_ratio", 5, 0.0, start=50)
        for second, name, value in between:
            put(data, name, 5, value, start=second, stop=second + 1)
        found = ThrottleDetector(ThrottleDetector.Config(idle_samples=5)).update(data)
        return float(found[1].time - data.t[0])

    assert ends((52, "gpu_utilization_ratio", 0.97)) == 55
    assert ends((52, "gpu_utilization_ratio", 0.97), (52, BRAKE, 9e8)) == 57


@pytest.mark.parametrize(("share", "told"), [(2.01e8, True), (1.99e8, False)])
@pytest.mark.parametrize("name", [HARD, BRAKE, SOFT])
def test_a_fifth_of_a_second_counts(name: str, share: float, told: bool) -> None:
    assert bool(findings_of(put(busy(0), name, 5, share))) is told


@pytest.mark.parametrize(("held", "warned"), [("101", True), ("1001", False), ("0110", True)])
def test_two_of_three_seconds_must_be_held(held: str, warned: bool) -> None:
    data = busy(0)
    for second, one in enumerate(held):
        put(data, HARD, 5, 1e9 * (one == "1"), start=40 + second, stop=41 + second)
    assert bool([f for f in findings_of(data) if f.active]) is warned


@pytest.mark.parametrize(("slowed", "severity"), [(2, Severity.WARNING), (3, Severity.INFO)])
def test_software_slowdown_of_one_peer_in_twenty_is_no_matter_of_the_room(slowed: int, severity: Severity) -> None:
    """Of twenty peers one may be slowed too; the finding comes after twenty of thirty seconds."""
    data = put(busy(0, 21), SOFT, slice(0, slowed), 8e8)
    found = findings_of(data)
    assert [(f.severity, f.time) for f in found] == [(severity, data.t[59])] * slowed
    assert found[0].confidence == 0.9
    assert "held down by heat in software for 80 % of the last second." in found[0].evidence.summary
    few = put(busy(0, 7), SOFT, 0, 8e8)
    assert [f.severity for f in findings_of(few)] == [Severity.INFO], "six peers cannot tell"


@pytest.mark.parametrize(("held", "gpus", "told"), [(32, 64, 1), (31, 64, 31), (60, 63, 60)])
def test_a_room_is_half_of_at_least_sixty_four(held: int, gpus: int, told: int) -> None:
    found = findings_of(put(busy(0, gpus), HARD, slice(0, held), 8e8))
    assert len(found) == told
    assert ("look at the room" in found[0].evidence.summary) is (told == 1)
    assert told > 1 or found[0].evidence.numbers == pytest.approx({"share": 0.8, "affected": 32, "watched": 64})
