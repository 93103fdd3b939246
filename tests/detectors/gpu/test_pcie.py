"""A link below its best under load is found in two seconds; at rest, or built so, it is no fault."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Finding, FindingKind
from mainstay.detectors.gpu.pcie import PcieDetector
from mainstay.probes.core_types import Severity
from tests.detectors.healthy import HealthyFleet, healthy_chunks

WIDTH, GENERATION = "gpu_pcie_width", "gpu_pcie_generation"
LOAD = "gpu_utilization_ratio"


def busy(seed: int, gpus: int = 16, seconds: int = 120) -> Samples:
    fleet = HealthyFleet(gpus, seed)
    fleet.work[:], fleet.left[:], fleet.every[:], fleet.uptime[:] = 2, 1e9, 1e9, 1e6
    fleet.idle_for[:] = 0
    return fleet.next(seconds)


def put(data: Samples, name: str, where: object, value: float, *, start: int = 40, stop: int | None = None) -> Samples:
    data.x[start:stop, data.signals.index(name), where] = value
    return data


def findings_of(data: Samples) -> list[Finding]:
    return PcieDetector().update(data)


def example(seed: int) -> Samples:
    return put(put(busy(seed), WIDTH, 5, 8.0), GENERATION, 2, 3.0, start=50)


@pytest.mark.parametrize(
    ("name", "value", "words"), [(WIDTH, 8.0, "lanes 8 of 16"), (GENERATION, 3.0, "generation 3 of 5")]
)
def test_a_link_that_falls_back_under_load_is_found_at_the_second_sample(name: str, value: float, words: str) -> None:
    data = put(busy(0), name, 5, value)
    (finding,) = findings_of(data)
    assert (finding.kind, finding.severity) == (FindingKind.PCIE_DEGRADED, Severity.WARNING)
    assert (finding.entity, finding.time) == (data.entities[5], data.t[41])
    assert finding.evidence.summary == f"PCIe of n0000 GPU-0000-5: {words} under load."
    assert finding.evidence.series[0].threshold in {16.0, 5.0}


def test_a_link_that_was_always_narrow_among_wide_ones_is_found_too() -> None:
    (finding,) = findings_of(put(busy(0), WIDTH, 5, 8.0, start=0))
    assert finding.severity is Severity.WARNING


def test_power_saving_at_rest_is_nothing() -> None:
    data = put(put(busy(0), GENERATION, slice(None), 1.0), LOAD, slice(None), 0.0, start=38)
    assert findings_of(data) == []


def test_a_job_that_starts_finds_the_link_asleep_for_a_second() -> None:
    data = put(put(busy(0), GENERATION, slice(None), 1.0, start=20, stop=43), LOAD, slice(None), 0.0, start=18, stop=40)
    assert findings_of(data) == []


def test_work_in_short_bursts_is_not_judged_by_generation() -> None:
    data = busy(0)
    data.x[::3, data.signals.index(LOAD)] = 0.0
    assert findings_of(put(data, GENERATION, slice(None), 1.0, start=0)) == []


def test_how_all_peers_are_built_is_information() -> None:
    found = findings_of(put(busy(0), GENERATION, slice(None), 4.0, start=0))
    assert {f.severity for f in found} == {Severity.INFO}
    assert "as all its peers" in found[0].evidence.summary


def test_a_whole_cohort_that_falls_back_is_a_fault_of_each() -> None:
    found = findings_of(put(busy(0), GENERATION, slice(None), 3.0))
    assert {f.severity for f in found} == {Severity.WARNING}
    assert len(found) == 16


def test_a_slot_that_allows_less_is_information() -> None:
    data = put(put(busy(0), "gpu_pcie_width_max", 5, 8.0, start=0), WIDTH, 5, 8.0, start=0)
    (finding,) = findings_of(data)
    assert finding.severity is Severity.INFO
    assert "slot" in finding.evidence.summary


def test_it_ends_after_half_a_minute_of_work_at_full_speed() -> None:
    begins, ends = findings_of(put(busy(0), WIDTH, 5, 8.0, stop=60))
    assert not ends.active
    assert ends.time - begins.time == 60 - 41 + 29
    asleep = put(put(busy(0), WIDTH, 5, 8.0, stop=60), LOAD, 5, 0.0, start=60)
    assert [f.active for f in findings_of(asleep)] == [True], "a link at rest proves nothing"


def test_a_fatal_error_is_a_warning_and_an_uncorrected_one_information() -> None:
    data = put(put(busy(0), "gpu_pcie_fatal_errors_total", 2, 0.1), "gpu_pcie_nonfatal_errors_total", 3, 0.1)
    assert sorted((f.entity.device, f.severity) for f in findings_of(data)) == [
        ("GPU-0000-2", Severity.WARNING), ("GPU-0000-3", Severity.INFO)
    ]  # fmt: skip


def test_links_that_nobody_measures_are_not_judged() -> None:
    data = put(busy(0), "gpu_pcie_width_max", slice(None), np.nan, start=0)
    assert findings_of(put(data, WIDTH, slice(None), 4.0)) == []


@pytest.mark.slow
def test_a_healthy_fleet_is_quiet() -> None:
    fleet, detector = HealthyFleet(160, 1), PcieDetector()
    found = detector.update(fleet.next(100))
    for node in range(5):
        fleet.reboot(node)
    found += detector.update(fleet.next(900))
    found += [f for part in healthy_chunks(800, 3600, 2) for f in detector.update(part)]
    assert found == []


def test_lanes_are_judged_from_the_second_second_of_work_and_the_generation_from_the_fifth() -> None:
    for name, value, first in ((WIDTH, 8.0, 2), (GENERATION, 3.0, 5)):
        data = put(put(busy(0), LOAD, 5, 0.0, start=20, stop=40), name, 5, value)
        (finding,) = findings_of(data)
        assert finding.time == data.t[40 + first], "work begins at 40, and two seconds must be low"


@pytest.mark.parametrize(("low", "told"), [("101", True), ("1001", False), ("1", False), ("011", True)])
def test_two_of_three_seconds_of_work_must_be_low(low: str, told: bool) -> None:
    data = busy(0)
    for second, one in enumerate(low):
        put(data, WIDTH, 5, 8.0 if one == "1" else 16.0, start=40 + second, stop=41 + second)
    assert bool([f for f in findings_of(data) if f.active]) is told


@pytest.mark.parametrize(("traffic", "load", "told"), [(1e9, 0.3, True), (9.9e8, 0.3, False), (2e9, 0.0, False)])
def test_traffic_shows_that_a_link_is_awake(traffic: float, load: float, told: bool) -> None:
    data = put(put(busy(0), LOAD, 5, load, start=0), "gpu_pcie_transmit_bytes_total", 5, traffic, start=0)
    assert bool(findings_of(put(data, WIDTH, 5, 8.0))) is told


@pytest.mark.parametrize(("gpus", "severity"), [(8, Severity.INFO), (7, Severity.WARNING)])
def test_eight_peers_tell_how_machines_are_built(gpus: int, severity: Severity) -> None:
    data = put(busy(0, gpus), WIDTH, slice(None), 8.0, start=0)
    assert [f.severity for f in findings_of(data)] == [severity] * gpus
    half = put(busy(0, 16), WIDTH, slice(0, 8), 8.0, start=0)
    assert {f.severity for f in findings_of(half)} == {Severity.INFO}
    fewer = put(busy(0, 16), WIDTH, slice(0, 7), 8.0, start=0)
    assert {f.severity for f in findings_of(fewer)} == {Severity.WARNING}


@pytest.mark.parametrize(
    ("gpus", "most", "told"), [(8, 8.0, True), (7, 8.0, False), (16, 15.0, False), (16, 14.0, True)]
)
def test_a_slot_is_narrow_below_nine_tenths_of_the_mean_of_eight(gpus: int, most: float, told: bool) -> None:
    data = put(put(busy(0, gpus), "gpu_pcie_width_max", 5, most, start=0), WIDTH, 5, most, start=0)
    assert bool(findings_of(data)) is told


def test_an_error_is_held_for_an_hour() -> None:
    name, config = "gpu_pcie_nonfatal_errors_total", PcieDetector.Config(news_seconds=30.0)
    data = put(put(busy(0), name, slice(None), 0.0, start=0), name, 3, 0.1, stop=41)
    begins, ends = PcieDetector(config).update(data)
    assert (begins.time, ends.time, ends.active) == (data.t[40], data.t[70], False)
    assert begins.evidence.summary == "PCIe of n0000 GPU-0000-3: an uncorrected error."
    assert ends.evidence.summary == "The PCIe link of n0000 GPU-0000-3 runs as it should."
    assert PcieDetector.Config().news_seconds == 3600.0
