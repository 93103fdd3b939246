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
    assert words in finding.evidence.summary
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


def test_a_healthy_fleet_is_quiet() -> None:
    fleet, detector = HealthyFleet(160, 1), PcieDetector()
    found = detector.update(fleet.next(100))
    for node in range(5):
        fleet.reboot(node)
    found += detector.update(fleet.next(900))
    found += [f for part in healthy_chunks(800, 3600, 2) for f in detector.update(part)]
    assert found == []
